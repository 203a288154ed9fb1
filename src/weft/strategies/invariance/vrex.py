"""Risk extrapolation: equal risks in all environments, by a penalty on their variance."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.strategy import StrategyState, weighted_mean
from weft.core.trees import Params
from weft.strategies.invariance.annealing import Annealed

__all__ = ["VREx"]


class VREx(Annealed):
    """Minimizes the environments' mean risk and the variance between them.

    With the losses L_e of the environments, weighted by w_e (which sum to 1), and their mean L, minimizes

        L + strength * V,    V = sum_e w_e (L_e - L)^2.

    Its gradient is a reweighting of the environments' gradients g_e, in which an environment counts more
    the further its loss is above the mean, and with a negative sign when it is far enough below:

        sum_e w_e (1 + 2 strength (L_e - L)) g_e.

    Args:
        strength: beta, the weight of the variance.
        anneal: steps before the variance takes that weight.
        before: the variance's weight in those steps.
        rescale: divide loss and variance by the variance's weight where that is above 1, so that the
            gradient keeps its size when the weight jumps.

    References:
        Krueger et al., "Out-of-distribution generalization via risk extrapolation (REx)",
        arXiv 2003.00688, section 3.2.

    Example:
        >>> import torch
        >>> g = {"w": torch.tensor([[1.0, 0.0], [0.0, 1.0]])}
        >>> rex, half = VREx(strength=0.5, rescale=False), torch.tensor([0.5, 0.5])
        >>> rex.combine(g, torch.tensor([3.0, 1.0]), half, rex.init({}))[0]
        {'w': tensor([1., 0.])}
    """

    sees = "groups"

    def __init__(self, *, strength: float = 10.0, anneal: int = 0, before: float = 1.0, rescale: bool = True) -> None:
        super().__init__(strength=strength, anneal=anneal, before=before, rescale=rescale)

    def init(self, params: Params) -> StrategyState:
        """`step`: the steps made."""
        return {"step": torch.zeros((), dtype=torch.int64)}

    def combine(
        self, gradients: Params, losses: Tensor, weights: Tensor, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        weights = weights.to(losses.dtype)  # zero for an environment without rows in this batch
        strength, size = self.weight(state, losses[0])
        shares = weights * (1.0 + 2.0 * strength * (losses - (weights * losses).sum())) / size
        return weighted_mean(gradients, shares), {"step": state["step"] + 1}
