"""Models that somebody else might write: against the public API only, 15 to 45 lines each."""
