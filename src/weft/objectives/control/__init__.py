"""Policies that are learned by acting."""
