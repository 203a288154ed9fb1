"""Finite decision processes and bandits: solved from their tables, learned from steps, played with a memory."""
