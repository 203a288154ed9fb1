"""Perturbations of inputs, for `AdversarialTraining` and on their own."""

from weft.attacks.pgd import PGD

__all__ = ["PGD"]
