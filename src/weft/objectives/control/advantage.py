"""Generalized advantages: how much better an action was than the critic expected."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["generalized_advantage", "standardized"]


def generalized_advantage(
    reward: Tensor,
    value: Tensor,
    after: Tensor,
    *,
    terminated: Tensor,
    over: Tensor,
    discount: float,
    trace: float,
) -> Tensor:
    """A_t = sum_k (discount trace)^k delta_(t+k) within an episode, delta_t = r_t + discount V(s_(t+1)) - V(s_t).

    Where an episode has terminated, V(s_(t+1)) is 0; where it was cut, or where what was played ends, it is what the
    critic says of the state that was reached. At `trace` 0 it is the error of one step, at 1 the return that followed
    (and what the critic says of the rest) minus the value.

    Args:
        reward, value, after: r, V(s) and V(s') at each step, `(rows, time)`.
        terminated: whether the episode has ended by itself in the step.
        over: whether it has ended, or was cut.
        discount, trace: gamma and lambda.

    References:
        Schulman, Moritz, Levine, Jordan and Abbeel, "High-dimensional continuous control using generalized advantage
        estimation", arXiv 1506.02438.

    Example:
        >>> one, no = torch.ones(1, 2), torch.zeros(1, 2, dtype=torch.bool)
        >>> steps = {"terminated": no, "over": no, "discount": 0.5, "trace": 1.0}
        >>> generalized_advantage(one, one, one, **steps)  # 1 + .5 (1 + .5 V) - V, 1 + .5 V - V
        tensor([[0.7500, 0.5000]])
    """
    error = reward + discount * torch.where(terminated, 0.0, after) - value
    kept = discount * trace * (~over).to(error.dtype)
    last, found = torch.zeros_like(error[:, 0]), []
    for t in reversed(range(error.shape[1])):
        last = error[:, t] + kept[:, t] * last
        found.append(last)
    return torch.stack(found[::-1], 1)


def standardized(advantage: Tensor, mask: Tensor | None = None, eps: float = 1e-8) -> Tensor:
    """With mean 0 and deviation 1 over all that was played together; steps of mask 0 do not count."""
    weight = torch.ones_like(advantage) if mask is None else mask.to(advantage.dtype)
    count = weight.sum()
    apart = advantage - (advantage * weight).sum() / count
    deviation = ((apart.square() * weight).sum() / (count - 1).clamp_min(1.0)).sqrt()
    return apart / (deviation + eps) * weight
