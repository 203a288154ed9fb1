"""The AND-mask: keep the gradient only where environments agree on its sign."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Choice, Flag, Number
from weft.core.strategy import StrategyState, Summing, chosen, weighted_mean
from weft.core.trees import Params

__all__ = ["ANDMask"]


class ANDMask(Summing):
    """Follows a gradient component only where enough environments agree on its sign.

    With the gradients g_e of d environments, a component of their mean is kept where

        |sum_e sign(g_e)| >= threshold * d,

    that is where at least d (threshold + 1) / 2 signs agree, and set to zero elsewhere. At threshold 0
    everything is kept (ERM); at 1 only what improves every environment. Signs are counted in
    whole numbers, so that fractional thresholds have no ties by rounding.

    Args:
        threshold: the share of agreement, in [0, 1].
        rescale: divide each tensor's masked gradient by its kept share, so that the step does not
            shrink with the mask (essential with Adam: what is masked away all the time would
            otherwise be undone by its normalization of small gradients).
        each: what counts as an environment: `environment`, or `example` for every example its own. With batch
            normalization (or other statistics over the batch) the gradient of an example is, as in the authors' code,
            that of its loss through the batch's statistics, and a step costs about as many backwards as the batch has
            rows. Layers before it need no bias: its gradient is zero up to rounding, on whose sign there is no vote.

    References:
        Parascandolo, Neitz, Orvieto, Gresele and Schölkopf, "Learning explanations that are hard to
        vary", arXiv 2009.00329.

    Example:
        >>> import torch
        >>> mask = ANDMask(threshold=1.0, rescale=False)
        >>> g = {"w": torch.tensor([[1.0, 1.0], [3.0, -1.0]])}
        >>> mask.combine(g, torch.zeros(2), torch.tensor([0.5, 0.5]), {})[0]
        {'w': tensor([2., 0.])}
    """

    sees = chosen("each", example="examples", environment="groups")
    neutral = {"threshold": 0.0}
    sweeps = ("threshold",)
    space = {"threshold": Range(0.0, 1.0)}
    legal = {"threshold": Number(0, 1), "rescale": Flag(), "each": Choice("environment", "example")}

    def __init__(self, *, threshold: float = 1.0, rescale: bool = True, each: str = "environment") -> None:
        self.threshold = threshold
        self.rescale = rescale
        self.each = each

    def summarize(self, gradients: Params, weights: Tensor) -> StrategyState:
        """The weighted `mean`, and the `balance` of signs: how many are positive less how many are negative.

        A group without rows in this batch has gradient zero, and votes for nothing.
        """
        # Whole numbers of signs are exact in 32 bits of floating point up to 16 million groups, and quicker there.
        balance = {
            name: torch.sum(g.sign(), 0, dtype=torch.promote_types(g.dtype, torch.float32))
            for name, g in gradients.items()
        }
        return {"mean": weighted_mean(gradients, weights), "balance": balance}

    def conclude(
        self, sums: StrategyState, losses: Tensor, weights: Tensor, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        # The smallest integer count that reaches threshold * d, up to the rounding of that product, where d counts
        # the groups that have rows in this batch.
        least = torch.ceil(self.threshold * (weights > 0).sum() - 1e-4)
        masked = {}
        for name, mean in sums["mean"].items():
            keep = (sums["balance"][name].abs() >= least).to(mean.dtype)
            masked[name] = mean * keep / (keep.mean() + 1e-10) if self.rescale else mean * keep
        return masked, state
