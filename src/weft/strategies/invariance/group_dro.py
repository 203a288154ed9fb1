"""Group distributionally robust optimization: minimize the worst environment's risk."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Number
from weft.core.strategy import Strategy, StrategyState, weighted_mean
from weft.core.trees import Params

__all__ = ["GroupDRO"]


class GroupDRO(Strategy):
    """Trains on a mixture of environments that an opponent moves towards those of high loss.

    Approaches min over theta of max over e of L_e(theta), by one step of exponentiated gradient ascent on
    the mixture q and one step of descent on theta at each batch:

        q_e <- q_e exp(rate * L_e) / sum_e' q_e' exp(rate * L_e')
        gradient = sum_e q_e g_e.

    The mixture starts at the environments' weights: uniform with `weighting="group"`, as in the paper, by
    their sizes with `weighting="example"`. An environment without rows in a batch keeps its place in the
    mixture, and the others share that batch among them.

    Args:
        rate: eta, the step size of the mixture; 0 keeps it where it starts, which is ERM.

    References:
        Sagawa, Koh, Hashimoto and Liang, "Distributionally robust neural networks for group shifts: on the
        importance of regularization for worst-case generalization", arXiv 1911.08731, algorithm 1.

    Example:
        >>> import torch
        >>> g = {"w": torch.tensor([[1.0], [0.0]])}
        >>> dro, half = GroupDRO(rate=1.0), torch.tensor([0.5, 0.5])
        >>> found, state = dro.combine(g, torch.tensor([3.0, 1.0]), half, dro.init(g))
        >>> found["w"], state["scores"]
        (tensor([0.8808]), tensor([ 0., -2.]))
    """

    sees = "groups"
    neutral = {"rate": 0.0}
    sweeps = ("rate",)
    space = {"rate": Range(1e-3, 1e-1, log=True)}
    legal = {"rate": Number(0)}

    def __init__(self, *, rate: float = 0.01) -> None:
        self.rate = rate

    def init(self, params: Params) -> StrategyState:
        """`scores`: log q_e less the logarithm of e's weight, up to a constant; it grows in the first step."""
        dtype = torch.promote_types(next(iter(params.values())).dtype, torch.float32)
        return {"scores": torch.zeros(0, dtype=dtype)}

    def combine(
        self, gradients: Params, losses: Tensor, weights: Tensor, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        count, scores = len(losses), state["scores"]
        scores = F.pad(scores, (0, max(0, count - len(scores))))  # an environment that is new has gained nothing yet
        # An environment that is absent has loss zero, so its score stays.
        gained = scores[:count] + self.rate * losses.to(scores.dtype)
        mixture = torch.softmax(gained + weights.to(scores.dtype).log(), 0)
        scores = torch.cat([gained, scores[count:]])
        return weighted_mean(gradients, mixture), {"scores": scores - scores.amax()}
