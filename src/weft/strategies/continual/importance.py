"""What holds parameters by their importance to earlier tasks has in common: one anchor, importances summed."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Number
from weft.core.strategy import Penalty, StrategyState
from weft.core.trees import Params

__all__ = ["Importance"]


class Importance(Penalty):
    """Adds strength sum_i Omega_i (theta_i - theta*_i)^2 to the loss: theta* is what the latest task reached, Omega
    the importances of all tasks so far. The memory is that of one task."""

    neutral = {"strength": 0.0}
    sweeps = ("strength",)
    space = {"strength": Range(1e-3, 10.0, log=True)}
    legal = {"strength": Number(0)}

    def __init__(self, *, strength: float) -> None:
        self.strength = strength

    def init(self, params: Params) -> StrategyState:
        """`importance`: Omega; `anchor`: theta*; `seen`: the tasks in Omega."""
        importance = {name: torch.zeros_like(p) for name, p in params.items()}
        return {"importance": importance, "anchor": {name: p.clone() for name, p in params.items()}, "seen": {}}

    def penalty(self, params: Params, state: StrategyState) -> Tensor:
        parts = [(state["importance"][name] * (p - state["anchor"][name]).square()).sum() for name, p in params.items()]
        return self.strength * torch.stack(parts).sum()

    def pull(self, params: Params, state: StrategyState) -> Params:
        twice = 2 * self.strength
        return {name: twice * state["importance"][name] * (p - state["anchor"][name]) for name, p in params.items()}

    def held(self, importance: Params, params: Params, state: StrategyState, task: str) -> StrategyState:
        """The state after a task: the importances of all so far, and the parameters that it reached."""
        anchor = {name: p.clone() for name, p in params.items()}
        seen = {**state["seen"], task: torch.ones((), device=next(iter(anchor.values())).device)}
        return {**state, "importance": importance, "anchor": anchor, "seen": seen}

    def release(self, state: StrategyState, task: str) -> StrategyState:
        if task in state["seen"]:
            raise ValueError(
                f"expected a new task, got {task!r} again: {type(self).__name__} keeps the sum of the tasks' "
                "importances, in which its share can no longer be told; give it another name, or use EWC(), which "
                "replaces a task that is repeated"
            )
        return state
