"""Several players, each with parameters and a loss of its own."""
