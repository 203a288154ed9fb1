"""Penalties on the parameters themselves."""
