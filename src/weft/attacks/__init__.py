"""Perturbations of inputs, for `AdversarialTraining` and on their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.attacks.pgd import PGD

__getattr__, __dir__, __all__ = flat(__name__, __file__)
