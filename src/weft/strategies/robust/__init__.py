"""Strategies against an adversary who perturbs the inputs."""
