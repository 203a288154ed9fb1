"""Gradient surgery: environments whose gradients conflict are made not to undo each other's progress."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core import random
from weft.core.strategy import Strategy, StrategyState, weighted_mean
from weft.core.trees import Params

__all__ = ["PCGrad"]


class PCGrad(Strategy):
    """Projects each environment's gradient onto the normal plane of those it conflicts with.

    For each environment i, over the others j in a random order, starting at h_i = g_i:

        h_i <- h_i - (h_i . g_j) / |g_j|^2 g_j    where h_i . g_j < 0,

    and the gradient is the weighted mean of the h_i (the paper's is their sum). Inner products run over
    all parameters together. Without conflicts it is ERM. Each h_i stays in the span of the g_j, so that the
    projections need only the Gram matrix of the g_j: h_i = sum_j c_ij g_j, and h_i . g_k = sum_j c_ij g_j . g_k.

    References:
        Yu, Kumar, Gupta, Levine, Hausman and Finn, "Gradient surgery for multi-task learning",
        arXiv 2001.06782, algorithm 1.

    Example:
        >>> import torch
        >>> from weft.core.random import key_of, keyed
        >>> g = {"w": torch.tensor([[1.0, 0.0], [-1.0, 1.0]])}
        >>> with keyed(key_of(0)):
        ...     PCGrad().combine(g, torch.zeros(2), torch.tensor([0.5, 0.5]), {})[0]
        {'w': tensor([0.2500, 0.7500])}
    """

    sees = "groups"

    def combine(
        self, gradients: Params, losses: Tensor, weights: Tensor, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        wide = torch.promote_types(weights.dtype, torch.float32)
        flat = [g.reshape(len(g), -1).to(wide) for g in gradients.values()]
        gram = torch.stack([g @ g.T for g in flat]).sum(0)
        coefficients = _surgery(gram, random.uniform(gram.shape, place="order").argsort(-1))
        # An environment without rows in this batch has gradient zero: it conflicts with none, and counts nothing.
        return weighted_mean(gradients, weights.to(wide) @ coefficients), state


def _surgery(gram: Tensor, order: Tensor) -> Tensor:
    """The c_ij: row i of `order` says in which order environment i meets the others (and itself, without effect)."""
    count = len(gram)
    own = torch.eye(count, dtype=gram.dtype, device=gram.device)
    squares = gram.diagonal().clamp_min(torch.finfo(gram.dtype).tiny)
    coefficients = own
    for turn in range(count):
        met = own[order[:, turn]] * (1.0 - own)  # row i: one at the environment that i meets, if it is another
        conflict = (met * (coefficients @ gram)).clamp_max(0.0)
        coefficients = coefficients - conflict / squares
    return coefficients
