"""Models that explain rows by something unseen."""
