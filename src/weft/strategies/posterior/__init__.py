"""Strategies that draw parameters from their posterior rather than seek the best."""
