"""Gradients: of the mean, per group, per example, their squares and curvature; chunked under a memory bound."""
