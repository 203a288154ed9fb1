"""A penalty whose weight is another one in the first steps: what IRM and V-REx share."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Flag, Number, Whole
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
    legal = {"strength": Number(0), "anneal": Whole(0), "before": Number(0), "rescale": Flag()}

    def __init__(self, *, strength: float, anneal: int, before: float, rescale: bool) -> None:
        self.strength = strength
        self.anneal = anneal
        self.before = before
        self.rescale = rescale

    def weight(self, state: StrategyState, like: Tensor) -> tuple[Tensor, Tensor | float]:
        """The penalty's weight now, and what loss and penalty are divided by."""
        weight = torch.zeros_like(like) + self.strength
        if self.anneal:
            weight = torch.where(state["step"] < self.anneal, self.before, weight)
        return weight, weight.clamp_min(1.0) if self.rescale else 1.0
