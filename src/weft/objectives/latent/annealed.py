"""Annealed importance sampling of each row's evidence: chains of codes from an easy law to the joint density."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from weft.core.random import normal, turns, uniform

__all__ = ["annealed", "hamiltonian", "temperatures"]

_STEEP = 4.0  # temperatures lie closer at both ends, where the weights change most
_FIRST, _GAIN, _WANTED = 0.5, 0.2, 0.65  # the first step, how fast it follows, and what share of moves to accept
_PILOTS = 4  # chains of a row that find the steps
Logs = Callable[[Tensor], Tensor]


def temperatures(steps: int) -> list[float]:
    """0 = b_0 < ... < b_T = 1 along a logistic curve, s(t) = 1 / (1 + exp(-4 (2t/T - 1))) put between 0 and 1."""

    def s(t: float) -> float:
        return 1 / (1 + math.exp(-_STEEP * (2 * t / steps - 1)))

    return [(s(t) - s(0)) / (s(steps) - s(0)) for t in range(steps + 1)]


def hamiltonian(log_density: Logs, z: Tensor, step: Tensor, leaps: int) -> tuple[Tensor, Tensor]:
    """A move that leaves a density as it is: leapfrogs with a momentum, accepted by min(1, exp(-change of energy)).

    Args:
        log_density: up to a constant, of `(n, K, latent)`, as `(n, K)`.
        z: where to begin.
        step: of the leapfrogs, `(n, 1, 1)`.
        leaps: how many.

    Returns:
        Where the chains are, and how probable each acceptance was. What is not a number is not accepted.

    References:
        Neal, "MCMC using Hamiltonian dynamics", arXiv 1206.1901.
    """

    def total(codes: Tensor) -> tuple[Tensor, Tensor]:
        each = log_density(codes)
        return each.sum(), each

    slopes = torch.func.grad(total, has_aux=True)
    momentum = normal(z.shape, place="momentum", dtype=z.dtype)
    slope, before = slopes(z)
    energy, found, after = 0.5 * (momentum**2).sum(-1) - before, z, before
    for _ in range(leaps):
        momentum = momentum + 0.5 * step * slope
        found = found + step * momentum
        slope, after = slopes(found)
        momentum = momentum + 0.5 * step * slope
    change = energy - (0.5 * (momentum**2).sum(-1) - after)
    chance = torch.nan_to_num(change, nan=-math.inf).clamp_max(0).exp()
    taken = uniform(chance.shape, place="accepted", dtype=z.dtype) < chance
    return torch.where(taken.unsqueeze(-1), found, z), chance


def annealed(
    log_start: Logs, log_joint: Logs, draw: Callable[[int], Tensor], *, chains: int, steps: int, leaps: int
) -> Tensor:
    """log w of each chain, `(n, chains)`, with E w = p(x).

    Codes are drawn by p_0 and moved along p_t(z) = p_0(z)^(1 - b_t) p(x, z)^b_t, and a chain's weight is

        w = prod_t (p(x, z_t) / p_0(z_t))^(b_t - b_{t-1}),      z_{t+1} by a Hamiltonian move at b_t from z_t.

    How long the leapfrogs' steps are is found by pilots: a few further chains of each row, which are not weighed. Their
    step grows where more than .65 of their moves are accepted and shrinks where fewer, and the others take it. A step
    that followed the very chains that are weighed would depend on their past, and E w = p(x) would be lost.

    Args:
        log_start: log p_0, normalized, of `(n, K, latent)`, as `(n, K)`.
        log_joint: log p(x, z).
        draw: so many codes of p_0 for each row, `(n, K, latent)`.
        chains, steps, leaps: chains of each row, temperatures, leapfrogs of a move.
    """
    betas = temperatures(steps)

    def tempered(beta: float) -> Logs:
        return lambda codes: (1 - beta) * log_start(codes) + beta * log_joint(codes)

    z = draw(_PILOTS + chains)
    if not z.is_floating_point():
        raise TypeError(f"expected codes of real numbers, which a gradient moves, got {z.dtype}; sum over them instead")
    step = torch.full_like(z[:, :1, :1], _FIRST)
    weight = torch.zeros_like(z[:, _PILOTS:, 0])
    for t in turns("temperature", steps):
        own = z[:, _PILOTS:]
        weight = weight + (betas[t + 1] - betas[t]) * (log_joint(own) - log_start(own))
        if t + 1 < steps:
            z, chance = hamiltonian(tempered(betas[t + 1]), z, step, leaps)
            step = step * torch.exp(_GAIN * (chance[:, :_PILOTS].mean(-1)[:, None, None] - _WANTED))
    return weight
