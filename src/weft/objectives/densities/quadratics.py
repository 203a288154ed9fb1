"""The E-step of normals as two matrix products: log-densities and moments are linear in products of a row's entries.

With z = (1, x - middle), the log-density of a normal is a quadratic form z' Q z, and what an M-step needs are the sums
of z z' by responsibility. So with f(x) the products of z's entries (of a diagonal covariance each entry's with itself
alone), K components of R replicas that share n rows take (R K, f) times (f, n), and back. What is lost is precision
where a component is far narrower than the data are wide: `precise` says where.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weft.objectives.densities.normals import Moments

__all__ = ["Quadratics"]

_NUMBERS = 2**20  # joint densities that are held at once
_NARROW = 1e8  # squared distances in units of a component's variance that leave 1e-8 of a log-density
_SMALL = 2**15  # multiplications, below which threads for a product of matrices are waited for longer than they work
_HALF = 0.5 * math.log(2 * math.pi)


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
        z = torch.cat([torch.ones_like(away[:1]), away])
        if full:
            row, column = torch.triu_indices(self.d + 1, self.d + 1, device=x.device)
            self.products = z[row] * z[column]
            self.upper = row * (self.d + 1) + column
            self.twice = torch.where(row == column, -0.5, -1.0).to(x.dtype)
            place = torch.empty(self.d + 1, self.d + 1, dtype=torch.int64, device=x.device)
            place[row, column] = place[column, row] = torch.arange(len(row), device=x.device)
            self.place = place.flatten()  # where the products of a whole matrix stand among those of its upper half
        else:
            self.products = torch.cat([z[:1], seen.T, away, away * away])

    def inverse(self, mean: Tensor, scale: Tensor) -> Tensor:
        """Of what `expect` and `precise` need: the second moments E[z z'] of each component, or diagonal covariances.

        As E[z z'] = L L' with L = ((1, 0), (mean - middle, the covariance's factor)), its inverse is the quadratic form
        of the log-density, but for a factor -1/2 and a constant.
        """
        if not self.full:
            return torch.exp(-2 * scale).expand(mean.shape)
        lower = torch.nn.functional.pad(scale.expand(*mean.shape, -1), (1, 0, 1, 0))
        lower.diagonal(dim1=-2, dim2=-1).exp_()
        lower[..., 1:, 0] = mean - self.middle
        return torch.cholesky_inverse(lower)  # which does not look above the diagonal

    def precise(self, inverse: Tensor) -> Tensor:
        """For each replica, whether no component is too narrow for it."""
        precision = inverse.diagonal(dim1=-2, dim2=-1).narrow(-1, 1, self.d) if self.full else inverse
        return (precision * self.reach).amax((-2, -1)) < _NARROW

    def _coefficients(self, log_share: Tensor, mean: Tensor, scale: Tensor, inverse: Tensor) -> Tensor:
        """Of log p(x, k) in the products, `(R, K, f)`."""
        if not self.full:
            away = mean - self.middle
            each = -0.5 * inverse * away**2 - scale - _HALF
            return torch.cat([log_share.unsqueeze(-1), each, inverse * away, -0.5 * inverse], -1)
        found = inverse.flatten(-2).index_select(-1, self.upper).mul_(self.twice)
        logs = scale.diagonal(dim1=-2, dim2=-1).sum(-1)
        found.select(-1, 0).add_(log_share - logs + (0.5 - self.d * _HALF))
        return found

    def expect(self, log_share: Tensor, mean: Tensor, scale: Tensor, inverse: Tensor, weight: Tensor) -> Moments:
        """The E-step: parameters of R replicas, `(R, K, ...)`, and how much each row counts, `(n,)`."""
        coefficients = self._coefficients(log_share, mean, scale, inverse)
        r, k, f = coefficients.shape
        rows, sums, evidence = max(1, _NUMBERS // (r * k)), [], []
        for a in range(0, len(weight), rows):
            whole = rows >= len(weight)  # as mostly; a slice costs as much as a sum of a few rows
            products, counts = self.products, weight
            if not whole:
                products, counts = products[:, a : a + rows], weight[a : a + rows]
            joint = _times(coefficients.reshape(r * k, f), products).reshape(r, k, -1)
            top = joint.amax(1, keepdim=True)
            part = joint.sub_(top).exp_()
            total = part.sum(1, keepdim=True)
            evidence.append((top + total.log()).squeeze(1))
            part.mul_(counts / total)
            sums.append(_times(part.reshape(r * k, -1), products.T).reshape(r, k, f))
        if len(sums) == 1:
            return self._moments(sums[0], evidence[0])
        return self._moments(torch.stack(sums).sum(0), torch.cat(evidence, 1))

    def sums(self, part: Tensor) -> Moments:
        """The moments by given responsibilities `(R, n, K)`."""
        return self._moments(part.mT @ self.products.T, part.new_zeros(part.shape[:2]))

    def _moments(self, sums: Tensor, evidence: Tensor) -> Moments:
        about = self.middle
        if not self.full:
            count, first, second = sums[..., 1:].unflatten(-1, (3, self.d)).unbind(-2)
            return Moments(sums[..., 0], count, about, first, second, evidence)
        square = sums.index_select(-1, self.place).unflatten(-1, (self.d + 1, self.d + 1))
        later = square.narrow(-1, 1, self.d)
        first, second = later.select(-2, 0), later.narrow(-2, 1, self.d)
        return Moments(sums.select(-1, 0), sums.narrow(-1, 0, 1), about, first, second, evidence)


def _times(left: Tensor, right: Tensor) -> Tensor:
    """A product of matrices; a small one without the threads that it would wake in every iteration."""
    if left.numel() * right.shape[1] > _SMALL:
        return left @ right
    return (left.unsqueeze(1) * right.T).sum(-1)
