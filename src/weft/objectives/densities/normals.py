"""The mathematics of normals with gaps, for rows `(..., n, d)` and components `(..., K, d)` alike.

A covariance is kept as numbers without constraint, `scale`: of a full one the Cholesky factor, its diagonal as logs
(`packed`, `factor_of`), of a diagonal one the logs of the deviations. What is missing is marginalized exactly. With m a
row's mask of what is observed, C a covariance and C_m = m C m + diag(1 - m), the entries that are missing become
independent and standard, so that factors of C_m are those of what is observed, and

    log p(x_o) = -1/2 (x - mean)' m C_m^-1 m (x - mean) - 1/2 log det C_m - |o| / 2 log 2 pi
    E[x - mean | x_o] = C m C_m^-1 m (x - mean),    Cov[x | x_o] = C - C m C_m^-1 m C

hold for all rows in one shape, whatever is missing in each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Moments",
    "Patterns",
    "collapsed",
    "covariance_of",
    "factor_of",
    "filled",
    "gathered",
    "log_normal",
    "packed",
    "whole",
]

_LOG = math.log(2 * math.pi)
_NUMBERS = 2**22  # numbers that are held at once


def factor_of(scale: Tensor) -> Tensor:
    """The Cholesky factor of a full covariance, of `(..., d, d)` numbers; those above the diagonal count nothing."""
    return torch.tril(scale, -1) + torch.diag_embed(torch.diagonal(scale, dim1=-2, dim2=-1).exp())


def packed(factor: Tensor) -> Tensor:
    """The numbers without constraint of a Cholesky factor."""
    scale = factor.tril()
    scale.diagonal(dim1=-2, dim2=-1).log_()
    return scale


def covariance_of(scale: Tensor, full: bool) -> Tensor:
    """The covariance `(..., d, d)`, of a full scale or of log deviations."""
    if not full:
        return torch.diag_embed((2 * scale).exp())
    factor = factor_of(scale)
    return factor @ factor.mT


def whole(observed: Tensor | None) -> bool:
    """Whether nothing is missing, in any replica: read through whatever maps around it; False where it cannot be."""
    if observed is None:
        return True
    if observed.is_cuda and torch.cuda.is_current_stream_capturing():
        return False  # what is recorded is replayed on other rows
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(observed):
        observed = functorch.get_unwrapped(observed)
    return bool(observed.all())


def log_normal(x: Tensor, observed: Tensor | None, mean: Tensor, scale: Tensor, full: bool) -> Tensor:
    """log p of each row's observed entries under each component, `(..., n, K)`.

    Args:
        x: `(..., n, d)`.
        observed: of its shape, or None.
        mean: `(..., K, d)`.
        scale: `(..., K, d, d)`, or of diagonal covariances `(..., K, d)`; one for all components where K is 1.
        full: which of the two.
    """
    complete = whole(observed)
    away = x.unsqueeze(-2) - mean.unsqueeze(-3)
    if not full:
        spread = scale.unsqueeze(-3).expand(away.shape)
        each = -0.5 * (away * torch.exp(-spread)) ** 2 - spread - 0.5 * _LOG
        return (each if complete or observed is None else each * observed.unsqueeze(-2)).sum(-1)
    if complete or observed is None:
        factor = factor_of(scale)
        eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        inverse = torch.linalg.solve_triangular(factor, eye.expand(factor.shape), upper=False)
        z = (inverse.unsqueeze(-4) @ away.unsqueeze(-1)).squeeze(-1)
        logs = torch.diagonal(scale, dim1=-2, dim2=-1).sum(-1).unsqueeze(-2)
        return -0.5 * (z * z).sum(-1) - logs - 0.5 * x.shape[-1] * _LOG
    m = observed.to(x.dtype).unsqueeze(-2)
    factor = torch.linalg.cholesky(_masked(covariance_of(scale, full).unsqueeze(-4), m))
    z = torch.linalg.solve_triangular(factor, (away * m).unsqueeze(-1), upper=False).squeeze(-1)
    logs = torch.diagonal(factor, dim1=-2, dim2=-1).log().sum(-1)
    return -0.5 * (z * z).sum(-1) - logs - 0.5 * m.sum(-1) * _LOG


def _masked(covariance: Tensor, m: Tensor) -> Tensor:
    """C_m, for masks `(..., d)`."""
    return covariance * m.unsqueeze(-1) * m.unsqueeze(-2) + torch.diag_embed(1 - m)


def filled(x: Tensor, observed: Tensor, drawn: Tensor, covariance: Tensor) -> Tensor:
    """Rows whose missing entries are drawn given the observed ones, from draws of whole rows (Matheron's rule).

    With x* ~ N(mean, C), x* + C m C_m^-1 m (x - x*) has the law of x given what is observed.
    """
    m = observed.to(x.dtype)
    factor = torch.linalg.cholesky(_masked(covariance, m))
    pull = torch.cholesky_solve((m * (x - drawn)).unsqueeze(-1), factor)
    moved = drawn + (covariance @ (m.unsqueeze(-1) * pull)).squeeze(-1)
    return torch.where(observed, x, moved)


class Patterns:
    """Rows sorted by what is missing in them, in parts that fit the memory.

    Args:
        x: `(n, d)`.
        observed: of its shape.
    """

    def __init__(self, x: Tensor, observed: Tensor) -> None:
        self.masks, place = torch.unique(observed, dim=0, return_inverse=True)
        self.order = torch.argsort(place)
        self.x, self.place = x[self.order], place[self.order]

    def parts(self, each: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Row numbers, rows, masks and which of the masks is each row's; `each` numbers are held for each row."""
        rows = max(1, _NUMBERS // each)
        for start in range(0, len(self.x), rows):
            place = self.place[start : start + rows]
            first, last = int(place[0]), int(place[-1])
            masks = self.masks[first : last + 1].to(self.x.dtype)
            yield self.order[start : start + rows], self.x[start : start + rows], masks, place - first


class Moments(NamedTuple):
    """What the M-step needs, for each component of R replicas: sums over the rows by responsibility.

    Attributes:
        mass: of 1, `(R, K)`.
        told: of 1 for each column, over the rows that tell of it, `(R, K, d)`; `(R, K, 1)` where all tell of all.
        about: from where distances are taken, `(R, K, d)` or `(d,)`.
        first: of the expected distances, `(R, K, d)`.
        second: of the expected squares of them, `(R, K, d, d)`, or of each column `(R, K, d)`.
        evidence: for each row log p of what is observed, `(R, n)`.
    """

    mass: Tensor
    told: Tensor
    about: Tensor
    first: Tensor
    second: Tensor
    evidence: Tensor


def gathered(rows: Patterns, weight: Tensor, log_share: Tensor, mean: Tensor, covariance: Tensor) -> Moments:
    """The E-step over rows with gaps, for R replicas that share them.

    Args:
        rows: n rows.
        weight: how much each counts, `(n,)`.
        log_share: log p of each component, `(R, K)`.
        mean: `(R, K, d)`.
        covariance: `(R, K, d, d)`.
    """
    mass, first = torch.zeros_like(log_share), torch.zeros_like(mean)
    second, evidence = torch.zeros_like(covariance), mean.new_empty(len(mean), len(rows.x))
    for numbers, x, masks, place in rows.parts(covariance.numel()):
        m = masks[:, None, None]
        factor = torch.linalg.cholesky(_masked(covariance, m))  # (patterns, R, K, d, d)
        inverse = torch.cholesky_inverse(factor) * m.unsqueeze(-1) * m.unsqueeze(-2)
        away = (x[:, None, None] - mean) * m[place]  # (rows, R, K, d)
        pull = (inverse[place] @ away.unsqueeze(-1)).squeeze(-1)
        constant = torch.diagonal(factor, dim1=-2, dim2=-1).log().sum(-1) + 0.5 * _LOG * m.sum(-1)
        joint = log_share - 0.5 * (away * pull).sum(-1) - constant[place]
        total = torch.logsumexp(joint, -1)
        part = (joint - total.unsqueeze(-1)).exp() * weight[numbers, None, None]
        evidence[:, numbers] = total.T
        expected = (covariance @ pull.unsqueeze(-1)).squeeze(-1)
        mass += part.sum(0)
        first += torch.einsum("nrk,nrkd->rkd", part, expected)
        second += torch.einsum("nrkd,nrke->rkde", part.unsqueeze(-1) * expected, expected)
        if not bool((masks == 1).all()):
            held = part.new_zeros(len(masks), *part.shape[1:]).index_add_(0, place, part)
            rest = covariance - covariance @ inverse @ covariance
            second += (held[..., None, None] * rest).sum(0)
    return Moments(mass, mass.unsqueeze(-1).expand_as(mean), mean, first, second, evidence)


def collapsed(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """The Cholesky factors, and for each the column that follows from those before it, or -1.

    A pivot that is but rounding of its variance counts as none: the factor would be of noise.
    """
    factor, failed = torch.linalg.cholesky_ex(covariance)
    pivot = torch.diagonal(factor, dim1=-2, dim2=-1) ** 2
    variance = torch.diagonal(covariance, dim1=-2, dim2=-1)
    lost = ~(pivot > 8 * covariance.shape[-1] * torch.finfo(covariance.dtype).eps * variance)
    first = torch.where(lost.any(-1), lost.to(torch.int8).argmax(-1), -1)
    return factor, torch.where(failed > 0, failed.to(first.dtype) - 1, first)
