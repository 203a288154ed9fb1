"""The SAND-mask: the AND-mask made smooth, by how much environments agree in sign and in size."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Flag, Number
from weft.core.strategy import StrategyState, Summing, weighted_mean
from weft.core.trees import Params

__all__ = ["SANDMask"]


class SANDMask(Summing):
    """Weighs each gradient component by the environments' agreement on its sign and its size.

    With the gradients g_e of d environments, a component of their mean is multiplied by

        m = max(0, tanh(steepness / v * (|sum_e sign(g_e)| / d - threshold))),

    where v is the sample variance of the g_e: signs must agree beyond the threshold, and where the sizes
    differ the component moves less. Where v is zero the mask is the AND-mask's, but for a sum of signs
    exactly at the threshold, which gives zero. v is not relative to the gradient's size: as gradients
    become small m goes to 1 where signs agree, and the mask becomes a hard one.

    Args:
        threshold: tau, the share of agreement above which a component moves, in [0, 1].
        steepness: k, how fast the mask opens above the threshold.
        rescale: divide each tensor's masked gradient by the mask's mean, so that the step does not shrink.

    References:
        Shahtalebi, Gagnon-Audet, Laleh, Faramarzi, Ahuja and Rish, "SAND-mask: an enhanced gradient masking
        strategy for the discovery of invariances in domain generalization", arXiv 2106.02266; with the
        variance and the rescaling as in DomainBed.

    Example:
        >>> import torch
        >>> g = {"w": torch.tensor([[1.0, 1.0, 1.0], [1.0, 2.0, -1.0]])}
        >>> mask = SANDMask(threshold=0.5, steepness=1.0, rescale=False)
        >>> mask.combine(g, torch.zeros(2), torch.tensor([0.5, 0.5]), {})[0]
        {'w': tensor([1.0000, 1.1424, 0.0000])}
    """

    sees = "groups"
    sweeps = ("threshold", "steepness")
    space = {"threshold": Range(0.0, 1.0), "steepness": Range(1e-3, 1e5, log=True)}
    legal = {"threshold": Number(0, 1), "steepness": Number(0, ends="()"), "rescale": Flag()}

    def __init__(self, *, threshold: float = 0.5, steepness: float = 1.0, rescale: bool = True) -> None:
        self.threshold = threshold
        self.steepness = steepness
        self.rescale = rescale

    def summarize(self, gradients: Params, weights: Tensor) -> StrategyState:
        """The weighted `mean`; the `balance` of signs; the plain `sum` and the sum of the `squares`.

        An environment without rows in this batch has gradient zero, and adds to none of them. The last two are
        in double precision, since a variance is a small difference of them.
        """
        sums: StrategyState = {"mean": weighted_mean(gradients, weights), "balance": {}, "sum": {}, "squares": {}}
        for name, g in gradients.items():
            sums["balance"][name] = torch.sum(g.sign(), 0, dtype=torch.promote_types(g.dtype, torch.float32))
            sums["sum"][name] = torch.sum(g, 0, dtype=torch.float64)
            sums["squares"][name] = torch.sum(g.double().square(), 0)
        return sums

    def conclude(
        self, sums: StrategyState, losses: Tensor, weights: Tensor, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        d = (weights > 0).sum()
        masked = {}
        for name, mean in sums["mean"].items():
            total, squares = sums["sum"][name], sums["squares"][name]
            spread = (squares - total.square() / d).clamp_min(0.0) / (d - 1).clamp_min(1)
            # A batch in which only one environment is present has no variance: it agrees with itself.
            excess = sums["balance"][name].abs().double() / d - self.threshold
            excess = torch.where(excess.abs() < 1e-6, 0.0, excess)  # at the threshold, up to rounding
            mask = torch.tanh(self.steepness * excess / spread.clamp_min(1e-300)).clamp_min(0.0)
            kept = mean * mask / (mask.mean() + 1e-10) if self.rescale else mean * mask
            masked[name] = kept.to(mean.dtype)
        return masked, state
