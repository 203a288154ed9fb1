"""gymnasium's environments as stages: their spaces, environments one by one, and those that move together."""
