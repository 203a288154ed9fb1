"""Dirichlet laws: their densities, expected logarithms, and draws from keys."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.random import normal, turns, uniform
from weft.objectives.densities.laws import mapped

__all__ = ["expected_logs", "log_dirichlet", "log_gammas", "log_normalizer", "log_shares"]

_ROUNDS = 12  # a proposal is refused with a chance of at most .05: all of these with one of 2e-16


def log_normalizer(concentration: Tensor) -> Tensor:
    """log of the integral of prod theta_k^(c_k - 1) over the simplex."""
    return torch.lgamma(concentration).sum(-1) - torch.lgamma(concentration.sum(-1))


def expected_logs(concentration: Tensor) -> Tensor:
    """E log theta_k under Dirichlet(concentration)."""
    return torch.digamma(concentration) - torch.digamma(concentration.sum(-1, keepdim=True))


def log_dirichlet(concentration: Tensor, log_theta: Tensor) -> Tensor:
    """The log-density at theta."""
    return ((concentration - 1) * log_theta).sum(-1) - log_normalizer(concentration)


def log_gammas(shape: Tensor, place: str) -> Tensor:
    """log of Gamma(shape, 1) draws under the key in force, the rows on the leading axis; in double precision.

    By Marsaglia and Tsang's rejection, which is for shapes of at least 1; a lower one is raised by 1, and the draw
    multiplied by u^(1 / shape), in logarithms, since for small shapes it is smaller than any number.

    References:
        Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26, 2000.
    """
    shape = shape.double()
    small = shape < 1
    d = torch.where(small, shape + 1, shape) - 1 / 3
    c = 1 / (9 * d).sqrt()
    drawn, waiting = d.log(), torch.ones_like(shape, dtype=torch.bool)
    for _ in turns(place, _ROUNDS):
        if not mapped(waiting) and not bool(waiting.any()):
            break
        z = normal(shape.shape, place="proposal", dtype=torch.float64)
        u = uniform(shape.shape, place="accept", dtype=torch.float64)
        v = (1 + c * z) ** 3
        log_v = v.clamp_min(torch.finfo(v.dtype).tiny).log()
        taken = (v > 0) & (u.log() < 0.5 * z * z + d * (1 - v + log_v))
        drawn = torch.where(waiting & taken, d.log() + log_v, drawn)
        waiting = waiting & ~taken
    u = uniform(shape.shape, place=f"{place}, raised", dtype=torch.float64)
    return torch.where(small, drawn + torch.log1p(-u) / shape, drawn)


def log_shares(concentration: Tensor, place: str) -> Tensor:
    """log theta of a Dirichlet draw for each of `(n, ..., K)` concentrations, in double precision."""
    return log_gammas(concentration, place).log_softmax(-1)
