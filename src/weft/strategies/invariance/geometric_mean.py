"""The geometric mean of gradients: a step is as large as environments agree that it should be."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Flag, Number
from weft.core.strategy import StrategyState, Summing, weighted_mean
from weft.core.trees import Params

__all__ = ["GeometricMean"]


class GeometricMean(Summing):
    """Averages the environments' gradients geometrically, where they agree on the sign.

    With the gradients g_e of d environments, weighted by w_e (1 / d where they are alike), a component is

        s prod_e |g_e|^w_e = s exp(sum_e w_e log |g_e|)    where |sum_e sign(g_e)| >= threshold * n,

    and zero elsewhere; s is the sign of the majority and n the number of gradients that are not zero
    there. One environment in which nothing is to be gained makes the product zero, and so keeps the
    component from moving. The right-hand side is what is computed: a product of many small gradients
    underflows. An optimizer that normalizes each component (Adam) undoes the mean's magnitude and
    leaves its zeros; SGD keeps both.

    Args:
        threshold: the share of agreement, in [0, 1]; 1 asks all signs to be the same, as the paper does.
        fallback: where the product is zero only because some g_e is exactly zero, and the others agree,
            take the arithmetic mean: a dead unit in one environment then does not freeze it in all.

    References:
        Parascandolo, Neitz, Orvieto, Gresele and Schölkopf, "Learning explanations that are hard to
        vary", arXiv 2009.00329, section 3.

    Example:
        >>> import torch
        >>> g = {"w": torch.tensor([[1.0, 1.0, 0.0], [4.0, -1.0, 2.0]])}
        >>> half = torch.tensor([0.5, 0.5])
        >>> GeometricMean().combine(g, torch.zeros(2), half, {})[0]
        {'w': tensor([2., 0., 0.])}
        >>> GeometricMean(fallback=True).combine(g, torch.zeros(2), half, {})[0]
        {'w': tensor([2., 0., 1.])}
    """

    sees = "groups"
    sweeps = ("threshold",)
    space = {"threshold": Range(0.0, 1.0)}
    legal = {"threshold": Number(0, 1), "fallback": Flag()}

    def __init__(self, *, threshold: float = 1.0, fallback: bool = False) -> None:
        self.threshold = threshold
        self.fallback = fallback

    def summarize(self, gradients: Params, weights: Tensor) -> StrategyState:
        """The weighted sum of `log` |g_e|, the `balance` of signs, the number of `zeros`, and the arithmetic `mean`.

        A group without rows in this batch has weight and gradient zero, and is in none of them.
        """
        sums: StrategyState = {"log": {}, "balance": {}, "zeros": {}, "mean": weighted_mean(gradients, weights)}
        for name, g in gradients.items():
            wide = torch.promote_types(g.dtype, torch.float32)
            here = (weights > 0).reshape(-1, *(1,) * (g.dim() - 1))
            logs = torch.where(here, g.abs().to(wide).log(), 0.0)
            share = torch.where(here, weights.to(wide).reshape(here.shape), 1.0)  # 0 times -inf is no number
            sums["log"][name] = (share * logs).sum(0)
            sums["balance"][name] = torch.sum(g.sign(), 0, dtype=wide)
            sums["zeros"][name] = torch.sum((g == 0) & here, 0, dtype=wide)
        return sums

    def conclude(
        self, sums: StrategyState, losses: Tensor, weights: Tensor, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        gradient = {}
        for name, mean in sums["mean"].items():
            log, balance, zeros = (sums[part][name] for part in ("log", "balance", "zeros"))
            # Whole numbers of signs are compared, so that fractional thresholds have no ties by rounding.
            agree = balance.abs() >= torch.ceil(self.threshold * ((weights > 0).sum() - zeros) - 1e-4)
            product = (balance.sign() * log.exp()).to(mean.dtype)
            if self.fallback:
                product = torch.where(zeros > 0, mean, product)
            gradient[name] = torch.where(agree, product, 0.0)
        return gradient, state
