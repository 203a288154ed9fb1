"""Stochastic weight averaging: the mean of the parameters along the path answers."""

from __future__ import annotations

import torch

from weft.core.legal import Whole
from weft.core.strategy import Known, Move, Strategy, StrategyState
from weft.core.trees import Params

__all__ = ["SWA"]


class SWA(Strategy):
    """Trains as it would without, and answers with the plain mean of the parameters at steps from a start on.

    With the set S = {start, start + every, start + 2 every, ...} of steps made so far, what answers, and is validated,
    is

        1 / |S| sum_{t in S} theta_t,

    and before the start theta itself. A learning rate that is held or goes round in cycles there (`schedule`) makes
    the theta_t differ, which is the point. Where the net has batch normalization, its running statistics are taken
    anew under the mean, by one pass over the data at each validation and at the end, as in the paper.

    Args:
        start: steps after which the mean begins, at least 1.
        every: steps between parameters that enter the mean; the paper takes those at the end of each epoch or cycle.

    References:
        Izmailov, Podoprikhin, Garipov, Vetrov and Wilson, "Averaging weights leads to wider optima and better
        generalization", arXiv 1803.05407, algorithm 1.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft import Classifier
        >>> X, y = load_iris(return_X_y=True)
        >>> bool(Classifier(strategy=SWA(start=40), epochs=30, random_state=0).fit(X, y).score(X, y) > 0.9)
        True
    """

    legal = {"start": Whole(1), "every": Whole(1)}
    neutral = {"start": 2**31 - 1}

    def __init__(self, *, start: int = 100, every: int = 1) -> None:
        self.start = start
        self.every = every

    def warns(self, known: Known) -> str | None:
        if known.steps < self.start and not known.open:
            return (
                f"expected at least {self.start} steps for {self!r}, whose mean begins there, got {known.steps}: the "
                "last parameters answer; train longer, or start sooner"
            )
        return super().warns(known)

    def init(self, params: Params) -> StrategyState:
        """`mean`: of the `count` parameters that have entered before the last step; `step`: the steps made."""
        zeros = {name: torch.zeros_like(p) for name, p in params.items()}
        count = torch.zeros((), dtype=torch.int64)
        return {"mean": zeros, "count": count, "step": count.clone()}

    def _with(self, params: Params, state: StrategyState) -> tuple[Params, torch.Tensor]:
        """The mean and the count with parameters that the last step led to, where they enter."""
        since = state["step"] - self.start
        enters = ((since >= 0) & (since % self.every == 0)).to(torch.int64)
        count = state["count"] + enters
        share = enters.double() / count.clamp_min(1)
        return {n: m + share.to(m.dtype) * (params[n] - m) for n, m in state["mean"].items()}, count

    def update(self, move: Move, state: StrategyState) -> tuple[Params, StrategyState]:
        mean, count = self._with(move.params, state)
        return move.step, {"mean": mean, "count": count, "step": state["step"] + 1}

    def answer(self, params: Params, state: StrategyState) -> list[Params]:
        mean, count = self._with(params, state)
        return [{name: torch.where(count > 0, m, params[name]) for name, m in mean.items()}]
