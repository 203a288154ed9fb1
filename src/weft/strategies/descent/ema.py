"""Exponential moving average: the parameters of late steps, averaged, answer."""

from __future__ import annotations

import torch

from weft.core.configured import Range
from weft.core.legal import Number
from weft.core.strategy import Move, Strategy, StrategyState
from weft.core.trees import Params

__all__ = ["EMA"]


class EMA(Strategy):
    """Trains as it would without, and answers with a moving average of the parameters.

    After the steps that led to theta_1, ..., theta_t what answers, and is validated, is

        sum_i decay^(t-i) theta_i / sum_i decay^(t-i),

    corrected for its start as Adam's averages are. Where the net has batch normalization, its running statistics are
    taken anew under the averaged parameters, by one pass over the data at each validation and at the end.

    Args:
        decay: in [0, 1); an average over about 1 / (1 - decay) steps, at 0 the last parameters themselves.

    References:
        Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", SIAM Journal on Control and
        Optimization 30, 1992; Morales-Brotons, Vogels and Hendrikx, "Exponential moving average of weights in deep
        learning: dynamics and benefits", arXiv 2411.18704.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft import Classifier
        >>> X, y = load_iris(return_X_y=True)
        >>> bool(Classifier(strategy=EMA(decay=0.9), epochs=30, random_state=0).fit(X, y).score(X, y) > 0.9)
        True
    """

    legal = {"decay": Number(0, 1, "[)")}
    neutral = {"decay": 0.0}
    sweeps = ("decay",)
    space = {"decay": Range(0.9, 0.9999)}

    def __init__(self, *, decay: float = 0.99) -> None:
        self.decay = decay

    def init(self, params: Params) -> StrategyState:
        """`sum`: the weighted sum of the parameters before the last step, but for the first; `mass`: of the weights."""
        like = next(iter(params.values()))
        zeros = {name: torch.zeros_like(p) for name, p in params.items()}
        return {"sum": zeros, "mass": like.new_zeros(()), "begun": torch.zeros((), dtype=torch.bool)}

    def update(self, move: Move, state: StrategyState) -> tuple[Params, StrategyState]:
        # The parameters before a step are those that the last one led to, whatever strategies behind made of it.
        share = state["begun"].to(state["mass"].dtype)
        total = {name: self.decay * s + share * move.params[name] for name, s in state["sum"].items()}
        mass = self.decay * state["mass"] + share
        return move.step, {"sum": total, "mass": mass, "begun": torch.ones_like(state["begun"])}

    def answer(self, params: Params, state: StrategyState) -> list[Params]:
        mass = self.decay * state["mass"] + 1.0
        return [{name: (self.decay * state["sum"][name] + p) / mass for name, p in params.items()}]
