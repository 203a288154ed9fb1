"""A penalty whose weight is another one in the first steps: what IRM and V-REx share."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.strategy import Strategy, StrategyState

__all__ = ["Annealed"]


class Annealed(Strategy):
    """A strategy with a penalty of some `strength`, after `anneal` steps in which its weight is `before`.

    With `rescale`, whatever is penalized is divided by the weight where that is above 1, so that the gradient
    keeps its size when the weight jumps. The state has the steps made as `step`.
    """

    neutral = {"strength": 0.0, "anneal": 0}
    sweeps = ("strength",)
    space = {"strength": Range(1e-1, 1e5, log=True)}

    def __init__(self, *, strength: float, anneal: int, before: float, rescale: bool) -> None:
        self.strength = strength
        self.anneal = anneal
        self.before = before
        self.rescale = rescale

    def validate(self) -> None:
        name = type(self).__name__
        for setting in ("strength", "before"):
            if not float(getattr(self, setting)) >= 0.0:
                raise ValueError(f"expected {name}'s {setting} >= 0, got {getattr(self, setting)!r}")
        if not isinstance(self.anneal, int) or self.anneal < 0:
            raise ValueError(f"expected {name}'s anneal to be a number of steps >= 0, got {self.anneal!r}")

    def weight(self, state: StrategyState, like: Tensor) -> tuple[Tensor, Tensor | float]:
        """The penalty's weight now, and what loss and penalty are divided by."""
        weight = torch.zeros_like(like) + self.strength
        if self.anneal:
            weight = torch.where(state["step"] < self.anneal, self.before, weight)
        return weight, weight.clamp_min(1.0) if self.rescale else 1.0
