"""Kalman's filter and the smoother of a linear-Gaussian state space model, in square roots, of many sequences at once.

    z_1 ~ N(m, P),    z_t = A z_{t-1} + N(0, Q),    x_t = C z_t + c + N(0, diag s^2)

Covariances are kept as factors F with P = F F^T, so that none can lose its positive part to rounding. An observation
enters by the factor of I + F^T C^T S^-1 C F, which is never near singular and as small as the state, however many
numbers are seen. A number that is missing has precision 0, and a step after a sequence's end has no number at all.

References:
    Kalman, "A new approach to linear filtering and prediction problems", 1960; Rauch, Tung and Striebel, "Maximum
    likelihood estimates of linear dynamic systems", AIAA Journal 3, 1965; Bierman, "Factorization Methods for Discrete
    Sequential Estimation", 1977.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.objectives.densities.sequences import readable

__all__ = ["Filtered", "Linear", "Smoothed", "filtered", "smoothed"]


@dataclass(frozen=True)
class Linear:
    """The model's numbers; leading axes `...` are replicas.

    Attributes:
        moves: A, `(..., z, z)`.
        shock: a factor of Q, `(..., z, z)`.
        start, spread: m, `(..., z)`, and a factor of P, `(..., z, z)`.
        loading, offset, log_scale: C, `(..., d, z)`, c and log s, `(..., d)`.
    """

    moves: Tensor
    shock: Tensor
    start: Tensor
    spread: Tensor
    loading: Tensor
    offset: Tensor
    log_scale: Tensor

    def ahead(self, mean: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and factor of the covariance one step later, of `(..., n, z)` and `(..., n, z, z)`."""
        moves, shock = self.moves.unsqueeze(-3), self.shock.unsqueeze(-3)
        wide = torch.cat([moves @ root, shock.expand(*root.shape[:-2], *shock.shape[-2:])], -1)
        return (moves @ mean.unsqueeze(-1)).squeeze(-1), triangle(wide)

    def shown(self, mean: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of each number that such states show, `(..., n, d)`."""
        loading = self.loading.unsqueeze(-3)
        middle = (loading @ mean.unsqueeze(-1)).squeeze(-1) + self.offset.unsqueeze(-2)
        return middle, (loading @ root).square().sum(-1) + (2 * self.log_scale).exp().unsqueeze(-2)


def triangle(wide: Tensor) -> Tensor:
    """A lower triangle with the same covariance F F^T as a wide factor, without ever squaring it."""
    if torch.is_grad_enabled():
        return torch.linalg.qr(wide.mT).R.mT
    return torch.linalg.qr(wide.mT, mode="r").R.mT


@dataclass(frozen=True)
class Filtered:
    """States given what was seen up to each step; steps lead.

    Attributes:
        mean, root: of the state given what is seen up to t, `(L, ..., n, z)` and a factor `(L, ..., n, z, z)`.
        before, before_root: the same given what is seen before t.
        evidence: log p(x) of each sequence, `(..., n)`.
    """

    mean: Tensor
    root: Tensor
    before: Tensor
    before_root: Tensor
    evidence: Tensor


def filtered(model: Linear, x: Tensor, observed: Tensor) -> Filtered:
    """Kalman's filter.

    Args:
        model: the numbers.
        x: `(..., n, L, d)`.
        observed: which of them are seen, of the same shape.
    """
    n = x.shape[-3]
    precision = (observed * (-2 * model.log_scale).exp()[..., None, None, :]).movedim(-2, 0)  # (L, ..., n, d)
    away = torch.where(observed, x - model.offset[..., None, None, :], 0.0).movedim(-2, 0)
    loading = model.loading.unsqueeze(-3)
    same = n > 1 and readable(observed) and bool((observed == observed[..., :1, :, :]).all())
    alike = precision[..., :1, :] if same else precision  # covariances depend on what is seen, not on what it is
    told = (alike.unsqueeze(-2) * loading.mT) @ loading  # C^T S^-1 C of what is seen
    pull = (loading.mT @ (precision * away).unsqueeze(-1)).squeeze(-1)
    states = model.start.shape[-1]
    eye = torch.eye(states, dtype=x.dtype, device=x.device)
    mean = model.start.unsqueeze(-2).expand(*model.start.shape[:-1], n, states)
    root = model.spread.unsqueeze(-3).expand(*model.start.shape[:-1], 1 if same else n, states, states)
    kept: list[tuple[Tensor, ...]] = []
    for t in range(len(told)):
        if t:
            mean, root = model.ahead(mean, root)
        before, before_root = mean, root
        inner = torch.linalg.cholesky(eye + root.mT @ told[t] @ root)
        push = root.mT @ (pull[t].unsqueeze(-1) - told[t] @ mean.unsqueeze(-1))
        step = torch.cholesky_solve(push, inner.expand(*push.shape[:-1], states))
        mean = mean + (root @ step).squeeze(-1)
        root = torch.linalg.solve_triangular(inner, root.mT, upper=False).mT
        volume = inner.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        kept.append((mean, root, before, before_root, -volume - 0.5 * step.square().sum((-2, -1))))
    means, roots, befores, before_roots, told_of = (torch.stack(each) for each in zip(*kept, strict=True))
    left = away - torch.where(precision > 0, (loading @ means.unsqueeze(-1)).squeeze(-1), 0.0)
    each = -0.5 * precision * left.square() - (model.log_scale.unsqueeze(-2) + 0.5 * math.log(2 * math.pi)) * (
        precision > 0
    )
    every = (*means.shape, states)
    return Filtered(means, roots.expand(every), befores, before_roots.expand(every), (told_of + each.sum(-1)).sum(0))


@dataclass(frozen=True)
class Smoothed:
    """States given the whole sequence; steps lead.

    Attributes:
        mean, spread: of the state, `(L, ..., n, z)`, and its covariance, `(L, ..., n, z, z)`.
        lag: the covariance of a state with the one before it, `(L - 1, ..., n, z, z)`.
    """

    mean: Tensor
    spread: Tensor
    lag: Tensor


def back(model: Linear, run: Filtered, t: int) -> tuple[Tensor, Tensor]:
    """J with E[z_t | z_{t+1}] = mean_t + J (z_{t+1} - before_{t+1}), and a factor of what that leaves open."""
    moves, shock = model.moves.unsqueeze(-3), model.shock.unsqueeze(-3)
    root = run.root[t]
    later = run.before_root[t + 1]
    gain = torch.cholesky_solve(moves @ root @ root.mT, later).mT
    eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
    return gain, torch.cat([(eye - gain @ moves) @ root, gain @ shock], -1)


def smoothed(model: Linear, run: Filtered) -> Smoothed:
    """The smoother of Rauch, Tung and Striebel: every covariance is a sum of squares."""
    mean, spread = run.mean[-1], run.root[-1] @ run.root[-1].mT
    means, spreads, lags = [mean], [spread], []
    for t in range(len(run.mean) - 2, -1, -1):
        gain, open_ = back(model, run, t)
        lags.append(spread @ gain.mT)
        mean = run.mean[t] + (gain @ (mean - run.before[t + 1]).unsqueeze(-1)).squeeze(-1)
        spread = open_ @ open_.mT + gain @ spread @ gain.mT
        means.append(mean)
        spreads.append(spread)
    lag = torch.stack(lags[::-1]) if lags else run.root[:0]
    return Smoothed(torch.stack(means[::-1]), torch.stack(spreads[::-1]), lag)


def drawn(model: Linear, run: Filtered, noise: Tensor) -> Tensor:
    """States drawn given the whole sequence, `(L, n, z)`, backward from the end.

    Args:
        model, run: without leading axes.
        noise: standard normals, `(L, n, 2 z)`.
    """
    states = run.mean.shape[-1]
    state = run.mean[-1] + (run.root[-1] @ noise[-1, :, :states].unsqueeze(-1)).squeeze(-1)
    path = [state]
    for t in range(len(run.mean) - 2, -1, -1):
        gain, open_ = back(model, run, t)
        state = run.mean[t] + (
            gain @ (state - run.before[t + 1]).unsqueeze(-1) + open_ @ noise[t].unsqueeze(-1)
        ).squeeze(-1)
        path.append(state)
    return torch.stack(path[::-1])
