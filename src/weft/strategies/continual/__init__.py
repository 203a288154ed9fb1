"""Strategies for tasks in sequence: what was learned is kept while the next is learned."""
