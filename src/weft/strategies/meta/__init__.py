"""Strategies that learn to learn: from episodes with a support and a query part."""
