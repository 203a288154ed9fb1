"""The E-step of normals as two matrix products: log-densities and moments are linear in products of a row's entries.

With f(x) = (1, x_j, x_i x_j), a log-density is a sum of such products with coefficients, and the sums that an M-step
needs are those of f(x) by responsibility: for K components of R replicas that share n rows, (R K, f) times (f, n), and
back. What is lost is precision where a component is far narrower than the data are wide: `precise` says where.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weft.objectives.densities.normals import Moments, factor_of

__all__ = ["Quadratics"]

_NUMBERS = 2**20  # joint densities that are held at once
_NARROW = 1e8  # squared distances in units of a component's variance that leave 1e-8 of a log-density


class Quadratics:
    """Products of the entries of n rows, about their middle.

    Args:
        x: `(n, d)`, in double precision.
        observed: of its shape; of full covariances all of it.
        full: with products of different columns, or of each with itself alone.
    """

    def __init__(self, x: Tensor, observed: Tensor, full: bool) -> None:
        self.full, self.d = full, x.shape[1]
        seen = observed.to(x.dtype)
        self.middle = (x * seen).sum(0) / seen.sum(0).clamp_min(1)
        away = ((x - self.middle) * seen).T
        self.reach = (away * away).amax(1)
        self.eye = torch.eye(self.d, dtype=x.dtype, device=x.device)
        self._kept = (x, x)
        if full:
            self.row, self.column = torch.triu_indices(self.d, self.d, device=x.device)
            self.twice = torch.where(self.row == self.column, -0.5, -1.0).to(x.dtype)
            self.products = torch.cat([torch.ones_like(away[:1]), away, away[self.row] * away[self.column]])
        else:
            self.products = torch.cat([torch.ones_like(away[:1]), seen.T, away, away * away])

    def precise(self, scale: Tensor) -> Tensor:
        """For each replica, whether no component is too narrow for it."""
        if self.full:
            inverse = self._inverse(scale)
            precision = (inverse * inverse).sum(-2)
        else:
            precision = torch.exp(-2 * scale)
        return (precision * self.reach).amax((-2, -1)) < _NARROW

    def _inverse(self, scale: Tensor) -> Tensor:
        """Of the factors; asked for twice in a step."""
        if self._kept[0] is not scale:
            self._kept = (scale, torch.linalg.solve_triangular(factor_of(scale), self.eye, upper=False))
        return self._kept[1]

    def _coefficients(self, log_share: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        """Of log p(x, k) in the products, `(R, K, f)`."""
        away, half = mean - self.middle, 0.5 * math.log(2 * math.pi)
        if not self.full:
            precision = torch.exp(-2 * scale).expand(away.shape)
            each = -0.5 * precision * away**2 - scale - half
            return torch.cat([log_share.unsqueeze(-1), each, precision * away, -0.5 * precision], -1)
        inverse = self._inverse(scale)
        precision = inverse.mT @ inverse
        pull = (precision @ away.unsqueeze(-1)).squeeze(-1)
        logs = torch.diagonal(scale, dim1=-2, dim2=-1).sum(-1)
        constant = log_share - logs - 0.5 * (pull * away).sum(-1) - self.d * half
        squares = (precision[..., self.row, self.column] * self.twice).expand(*pull.shape[:-1], -1)
        return torch.cat([constant.unsqueeze(-1), pull, squares], -1)

    def expect(self, log_share: Tensor, mean: Tensor, scale: Tensor, weight: Tensor) -> Moments:
        """The E-step: parameters of R replicas, `(R, K, ...)`, and how much each row counts, `(n,)`."""
        coefficients = self._coefficients(log_share, mean, scale)
        r, k, f = coefficients.shape
        sums, evidence = torch.zeros_like(coefficients), weight.new_empty(r, len(weight))
        rows = max(1, _NUMBERS // (r * k))
        for a in range(0, len(weight), rows):
            products = self.products[:, a : a + rows]
            joint = (coefficients.reshape(r * k, f) @ products).reshape(r, k, -1)
            top = joint.amax(1, keepdim=True)
            part = joint.sub_(top).exp_()
            total = part.sum(1, keepdim=True)
            evidence[:, a : a + rows] = (top + total.log()).squeeze(1)
            part.mul_(weight[a : a + rows] / total)
            sums += (part.reshape(r * k, -1) @ products.T).reshape(r, k, f)
        return self._moments(sums, evidence)

    def sums(self, part: Tensor) -> Moments:
        """The moments by given responsibilities `(R, n, K)`."""
        return self._moments(part.mT @ self.products.T, part.new_zeros(part.shape[:2]))

    def _moments(self, sums: Tensor, evidence: Tensor) -> Moments:
        about = self.middle.expand(*sums.shape[:2], -1)
        if not self.full:
            count, first, second = sums[..., 1:].unflatten(-1, (3, self.d)).unbind(-2)
            return Moments(sums[..., 0], count, about, first, second, evidence)
        second = sums.new_empty(*sums.shape[:2], self.d, self.d)
        second[..., self.row, self.column] = second[..., self.column, self.row] = sums[..., 1 + self.d :]
        count = sums[..., :1].expand(about.shape)
        return Moments(sums[..., 0], count, about, sums[..., 1 : 1 + self.d], second, evidence)
