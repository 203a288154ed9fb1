"""Strategies that change how a loss is descended: steps of another kind, flat minima, averages of the path."""
