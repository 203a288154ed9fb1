"""What is learned from rows with labels or values."""
