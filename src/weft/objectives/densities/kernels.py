"""Kernels around rows, and sums of them in blocks, so that memory stays bounded whatever there is of either.

A kernel K of d numbers has the norm 1 and is round: a function of |u|^2. Of each it is known

    log_norm    log of the integral of its shape k(|u|^2), so that K(u) = k(|u|^2) / norm
    variance    that of one coordinate
    roughness   the integral of K(u)^2

The last two make a bandwidth that was derived for normal kernels right for any (Marron and Nolan's canonical kernels).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.core.random import normal

__all__ = ["KERNELS", "Ball", "Kernel", "Normal", "log_kernels", "log_sums"]

_QUERIES, _ROWS = 512, 2048  # at a time: eight megabytes in double precision


@dataclass(frozen=True)
class Kernel:
    """A round density around 0, of finite reach or not."""

    def log_norm(self, d: int) -> float:
        """log of the integral of the shape over d dimensions."""
        raise NotImplementedError

    def variance(self, d: int) -> float:
        """Of one coordinate."""
        raise NotImplementedError

    def log_roughness(self, d: int) -> float:
        """log of the integral of the squared density."""
        raise NotImplementedError

    def log_shape(self, squares: Tensor) -> Tensor:
        """log k(|u|^2), -infinity out of reach."""
        raise NotImplementedError

    def draw(self, n: int, d: int, dtype: torch.dtype) -> Tensor:
        """A draw for each of n rows, under the key in force."""
        raise NotImplementedError

    def canonical(self, d: int) -> float:
        """How much wider than a normal kernel it must be, to have the same least mean integrated squared error."""
        own = self.log_roughness(d) - 2 * math.log(self.variance(d))
        return math.exp((own - Normal().log_roughness(d)) / (d + 4))


class Normal(Kernel):
    """exp(-|u|^2 / 2)."""

    def log_norm(self, d: int) -> float:
        return d / 2 * math.log(2 * math.pi)

    def variance(self, d: int) -> float:
        return 1.0

    def log_roughness(self, d: int) -> float:
        return -d / 2 * math.log(4 * math.pi)

    def log_shape(self, squares: Tensor) -> Tensor:
        return -0.5 * squares

    def draw(self, n: int, d: int, dtype: torch.dtype) -> Tensor:
        return normal((n, d), place="kernel", dtype=dtype)


@dataclass(frozen=True)
class Ball(Kernel):
    """(1 - |u|^2)^power within the unit ball, 0 outside: power 0 is flat, 1 is Epanechnikov's.

    These are the laws of the first d coordinates of a point that is uniform on the unit sphere in d + 2 + 2 power
    dimensions, by which they are drawn.

    Attributes:
        power: 0 or 1.
    """

    power: int = 1

    def log_norm(self, d: int) -> float:
        return self._log_integral(d, self.power)

    def variance(self, d: int) -> float:
        return 1.0 / (d + 2 + 2 * self.power)

    def log_roughness(self, d: int) -> float:
        return self._log_integral(d, 2 * self.power) - 2 * self.log_norm(d)

    def log_shape(self, squares: Tensor) -> Tensor:
        inside = torch.log1p(-squares.clamp(0.0, 1.0)) * self.power if self.power else torch.zeros_like(squares)
        return torch.where(squares < 1.0, inside, -torch.inf)

    def draw(self, n: int, d: int, dtype: torch.dtype) -> Tensor:
        z = normal((n, d + 2 + 2 * self.power), place="kernel", dtype=dtype)
        return (z / z.norm(dim=-1, keepdim=True))[:, :d]

    @staticmethod
    def _log_integral(d: int, power: int) -> float:
        """log of the integral of (1 - |u|^2)^power over the ball: a Beta function."""
        return d / 2 * math.log(math.pi) + math.lgamma(power + 1) - math.lgamma(power + 1 + d / 2)


KERNELS: dict[str, Kernel] = {"gaussian": Normal(), "epanechnikov": Ball(1), "tophat": Ball(0)}
"""The kernels by name."""


def _pieces(x: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
    for start in range(0, len(x), size):
        yield start, x[start : start + size]


def log_kernels(kernel: Kernel, z: Tensor, rows: Tensor, log_mass: Tensor, log_width: Tensor) -> Tensor:
    """log of mass_j / width_j^d k(|z_i - row_j|^2 / width_j^2), `(queries, rows)`: one product of matrices.

    The squares are a product, as |a - b|^2 = |a|^2 - 2 a b + |b|^2, of which a normal kernel is a multiple.
    """
    d = z.shape[-1]
    precise = torch.exp(-2 * log_width)
    constant = log_mass - d * log_width
    left = torch.cat([z, (z * z).sum(-1, keepdim=True), torch.ones_like(z[:, :1])], 1)
    squares = (rows * rows).sum(-1)
    if isinstance(kernel, Normal):
        right = [rows * precise[:, None], -0.5 * precise[:, None], (constant - 0.5 * squares * precise)[:, None]]
        return left @ torch.cat(right, 1).T
    right = [-2 * rows * precise[:, None], precise[:, None], (squares * precise)[:, None]]
    return kernel.log_shape(left @ torch.cat(right, 1).T) + constant


def log_sums(
    kernel: Kernel, z: Tensor, rows: Tensor, log_mass: Tensor, log_width: Tensor, *, others: bool = False
) -> Tensor:
    """log of the sum of all rows' kernels at each query, in double precision and in blocks.

    Args:
        kernel: the kernel.
        z: queries, `(m, d)`.
        rows: `(n, d)`.
        log_mass: log of how much each row counts, `(n,)`.
        log_width: log of each row's own width, `(n,)`.
        others: whether the queries are the rows, each without itself.
    """
    z, rows, log_mass, log_width = z.double(), rows.double(), log_mass.double(), log_width.double()
    found = []
    for first, part in _pieces(z, _QUERIES):
        sums = []
        for start, block in _pieces(rows, _ROWS):
            own = slice(start, start + len(block))
            logs = log_kernels(kernel, part, block, log_mass[own], log_width[own])
            if others and start < first + len(part) and first < start + len(block):
                same = torch.arange(first, first + len(part), device=z.device)[:, None] == torch.arange(
                    start, start + len(block), device=z.device
                )
                logs = logs.masked_fill(same, -torch.inf)
            top = logs.amax(1, keepdim=True).clamp_min(torch.finfo(logs.dtype).min)  # where all are out of reach
            sums.append(logs.sub_(top).exp_().sum(1).log_().add_(top[:, 0]))
        found.append(torch.logsumexp(torch.stack(sums), 0))
    return torch.cat(found) if found else z.new_zeros(0)
