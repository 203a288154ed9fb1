"""Strategies that compare environments: what holds in all of them is learned, what differs is left."""
