"""The temporal AND-mask: agreement on a gradient's sign from step to step, and a mask on the step taken."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Choice, Number
from weft.core.strategy import Move, StrategyState, Summing, chosen, weighted_mean
from weft.core.trees import Params

__all__ = ["TemporalANDMask"]


class TemporalANDMask(Summing):
    """Takes a component of the optimizer's step only where gradients of recent steps agree on its sign.

    A moving average of signs, corrected for its start at zero as Adam's averages are, masks the step u_t
    that the optimizer proposes:

        a_t = decay a_(t-1) + (1 - decay) s_t
        theta <- theta + u_t    where |a_t| / (1 - decay^t) >= threshold,

    and theta stays elsewhere. s_t is the sign of the batch's gradient, or the mean of the environments'
    signs. The first needs no environments: rows may come from one after another, or from all of them at
    once, and what lasts over about 1 / (1 - decay) steps is taken to be agreed on. The optimizer goes on
    averaging the gradients of masked components, so Adam's step is ready when they come to agree;
    masking the gradient instead would be undone by Adam's normalization.

    Args:
        threshold: the share of agreement, in [0, 1]; 0 is ERM.
        decay: beta_3, in [0, 1); 0 looks at the present batch alone.
        each: whose signs are averaged: the `batch`'s, one at each step (rows are pooled, whatever their
            environments), or each `environment`'s.
        shrink: weight decay after the mask: at each step parameters are reduced by this share of
            themselves, masked or not (the optimizer's own decay is part of its step and is masked).

    References:
        Parascandolo, Neitz, Orvieto, Gresele and Schölkopf, "Learning explanations that are hard to
        vary", arXiv 2009.00329 (the experiment on CoinRun, algorithm 1). The correction for the start at zero
        and the choice of `each` are ours.

    Example:
        >>> import torch
        >>> mask = TemporalANDMask(threshold=0.5, decay=0.5)
        >>> state = mask.init({"w": torch.zeros(2)})
        >>> for g in ([1.0, 1.0], [1.0, -1.0]):
        ...     _, state = mask.combine({"w": torch.tensor([g])}, torch.zeros(1), torch.ones(1), state)
        >>> state["average"]["w"] / (1 - 0.5**2)
        tensor([ 1.0000, -0.3333])
    """

    sees = chosen("each", environment="groups", batch="rows")
    neutral = {"threshold": 0.0, "shrink": 0.0}
    sweeps = ("threshold", "decay")
    space = {"threshold": Range(0.0, 1.0), "decay": Range(0.5, 0.95)}
    legal = {
        "threshold": Number(0, 1),
        "decay": Number(0, 1, "[)"),
        "each": Choice("batch", "environment"),
        "shrink": Number(0, 1, "[)"),
    }

    def __init__(self, *, threshold: float = 0.4, decay: float = 0.8, each: str = "batch", shrink: float = 0.0) -> None:
        self.threshold = threshold
        self.decay = decay
        self.each = each
        self.shrink = shrink

    def init(self, params: Params) -> StrategyState:
        """`average`: a_t, by parameter; `step`: t."""
        average = {n: torch.zeros_like(p, dtype=_wide(p)) for n, p in params.items()}
        return {"average": average, "step": torch.zeros((), dtype=torch.int64)}

    def summarize(self, gradients: Params, weights: Tensor) -> StrategyState:
        """The weighted `mean`, and the sum of the environments' `signs` where those are averaged."""
        sums: StrategyState = {"mean": weighted_mean(gradients, weights)}
        if self.each == "environment":
            sums["signs"] = {n: torch.sum(g.sign(), 0, dtype=_wide(g)) for n, g in gradients.items()}
        return sums

    def conclude(
        self, sums: StrategyState, losses: Tensor, weights: Tensor, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        present = (weights > 0).sum().clamp_min(1)
        average = {}
        for name, a in state["average"].items():
            s = sums["signs"][name] / present if self.each == "environment" else sums["mean"][name].sign()
            average[name] = (self.decay * a + (1.0 - self.decay) * s).to(a.dtype)
        return sums["mean"], {"average": average, "step": state["step"] + 1}

    def update(self, move: Move, state: StrategyState) -> tuple[Params, StrategyState]:
        corrected = 1.0 - self.decay ** state["step"]
        # A full agreement reaches a threshold of 1 up to the average's rounding.
        least = (self.threshold - 1e-5) * corrected
        masked = {n: torch.where(state["average"][n].abs() >= least, s, 0.0) for n, s in move.step.items()}
        return {n: m - self.shrink * move.params[n] for n, m in masked.items()}, state


def _wide(t: Tensor) -> torch.dtype:
    """Averages of signs are kept in single precision or better."""
    return torch.promote_types(t.dtype, torch.float32)
