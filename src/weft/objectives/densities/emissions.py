"""What the states of a chain show: tokens, numbers that are independent given the state, or correlated ones.

Each is described by `size` unconstrained numbers a state. N steps are scored, and estimated from, at once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weft.core.random import normal
from weft.objectives.densities.laws import Categorical, Laws

__all__ = ["Correlated", "Emissions", "Independent", "Tokens", "factor", "log_shares"]


class Emissions:
    """The law of a step given the state.

    Attributes:
        size: how many numbers describe it.
        free: how many of them are free.
    """

    size: int
    free: int

    def score(self, theta: Tensor, x: Tensor, observed: Tensor | None) -> Tensor:
        """log p of every step in every state, `(..., K, N)`, for `(..., K, size)` and steps `(..., N, d)`."""
        raise NotImplementedError

    def estimate(self, x: Tensor, weight: Tensor, observed: Tensor | None, floor: float, prior: float) -> Tensor:
        """The parameters of largest likelihood, `(..., K, size)`, where step n counts `(..., K, N)` for state k.

        Args:
            x, weight, observed: see above.
            floor: the least variance.
            prior: how many imagined draws of each outcome are added.
        """
        raise NotImplementedError

    def draw(self, theta: Tensor, place: str) -> Tensor:
        """A step for each of `(n, ..., size)` parameters, `(n, ..., d)`."""
        raise NotImplementedError

    def moments(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of each number in each state, `(..., K, d)`."""
        raise NotImplementedError


class Tokens(Emissions):
    """One of k tokens; x has no last axis."""

    def __init__(self, classes: int) -> None:
        self.law, self.size, self.free = Categorical(classes), classes, classes - 1

    def score(self, theta: Tensor, x: Tensor, observed: Tensor | None) -> Tensor:
        table = theta.log_softmax(-1)
        return table.gather(-1, x.long().unsqueeze(-2).expand(*table.shape[:-1], x.shape[-1]))

    def estimate(self, x: Tensor, weight: Tensor, observed: Tensor | None, floor: float, prior: float) -> Tensor:
        counts = weight.new_full((*weight.shape[:-1], self.size), prior)
        counts = counts.scatter_add(-1, x.long().unsqueeze(-2).expand(weight.shape), weight)
        return log_shares(counts)

    def draw(self, theta: Tensor, place: str) -> Tensor:
        return self.law.draw(theta, place).long()


class Independent(Emissions):
    """Numbers that are independent given the state, each by its own law."""

    def __init__(self, laws: Laws) -> None:
        self.laws, self.size, self.free = laws, laws.size, laws.free

    def score(self, theta: Tensor, x: Tensor, observed: Tensor | None) -> Tensor:
        x = x.mT.contiguous().mT  # steps side by side, so that the sum over entries is one of whole rows of numbers
        each = self.laws.log_prob(theta.unsqueeze(-2), x.unsqueeze(-3))
        return (each if observed is None else each * observed.unsqueeze(-3)).sum(-1)

    def estimate(self, x: Tensor, weight: Tensor, observed: Tensor | None, floor: float, prior: float) -> Tensor:
        least = floor if self.laws.continuous else max(prior, 1e-10)
        return self.laws.estimate(x, weight.mT, observed, least)

    def draw(self, theta: Tensor, place: str) -> Tensor:
        return self.laws.draw(theta, place)

    def moments(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        return self.laws.mean(theta), self.laws.variance(theta)


class Correlated(Emissions):
    """A normal with full covariance L L^T; the numbers are its mean and L, the diagonal by its log."""

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self.size = self.free = entries + entries * (entries + 1) // 2

    def _parts(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        i, j = torch.tril_indices(self.entries, self.entries, device=theta.device)
        flat = theta.new_zeros(*theta.shape[:-1], self.entries**2)
        place = (i * self.entries + j).expand(*theta.shape[:-1], -1)
        lower = flat.scatter(-1, place, theta[..., self.entries :]).unflatten(-1, (self.entries, self.entries))
        return theta[..., : self.entries], factor(lower)

    def score(self, theta: Tensor, x: Tensor, observed: Tensor | None) -> Tensor:
        mean, lower = self._parts(theta)
        away = (x.unsqueeze(-3) - mean.unsqueeze(-2)).mT
        z = torch.linalg.solve_triangular(lower, away, upper=False)
        volume = lower.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True)
        return -0.5 * z.square().sum(-2) - volume - 0.5 * self.entries * math.log(2 * math.pi)

    def estimate(self, x: Tensor, weight: Tensor, observed: Tensor | None, floor: float, prior: float) -> Tensor:
        mass = weight.sum(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
        mean = weight @ x / mass
        away = x.unsqueeze(-3) - mean.unsqueeze(-2)
        spread = (weight.unsqueeze(-1) * away).mT @ away / mass.unsqueeze(-1)
        eye = torch.eye(self.entries, dtype=x.dtype, device=x.device)
        lower = torch.linalg.cholesky(0.5 * (spread + spread.mT) + floor * eye)
        i, j = torch.tril_indices(self.entries, self.entries, device=x.device)
        return torch.cat([mean, factor(lower, inverse=True)[..., i, j]], -1)

    def draw(self, theta: Tensor, place: str) -> Tensor:
        mean, lower = self._parts(theta)
        return mean + (lower @ normal((*mean.shape, 1), place=place, dtype=mean.dtype)).squeeze(-1)

    def moments(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        mean, lower = self._parts(theta)
        return mean, lower.square().sum(-1)


def factor(lower: Tensor, *, inverse: bool = False) -> Tensor:
    """A lower triangle with positive diagonal from an unconstrained square, whose diagonal is its log; or back."""
    diagonal = lower.diagonal(dim1=-2, dim2=-1)
    return lower.tril(-1) + torch.diag_embed(diagonal.log() if inverse else diagonal.exp())


def log_shares(counts: Tensor) -> Tensor:
    """Logs of shares of counts along the last axis; what never happened is next to nothing, and finite."""
    counts = counts.clamp_min(1e-30)
    return counts.log() - counts.sum(-1, keepdim=True).log()
