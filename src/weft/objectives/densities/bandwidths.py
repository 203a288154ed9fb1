"""How wide kernels are: rules that know how many rows there are and in how many dimensions, for rows of unit scale."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weft.objectives.densities.kernels import Kernel, log_sums

__all__ = ["RULES", "adapted", "cross_validated", "reference_width"]

RULES = ("scott", "silverman", "cv")
_RANGE, _COARSE, _FINE = (0.02, 20.0), 14, 16


def reference_width(rule: str, n: float, d: int) -> float:
    """The width of normal kernels, in deviations, that n rows of a normal law in d dimensions ask for.

    Silverman's is the minimizer of the asymptotic mean integrated squared error, Scott's the same without a factor that
    is between .92 and 1.06.
    """
    n = n * (d + 2) / 4 if rule == "silverman" else n
    return float(n) ** (-1 / (d + 4))


def _left_out(kernel: Kernel, z: Tensor, weight: Tensor, width: float) -> float:
    """The mean log-density of each row under the kernels of all others, of a width."""
    logs = log_sums(kernel, z / width, z / width, weight.log(), torch.zeros_like(weight), others=True)
    each = logs - torch.log(weight.sum() - weight) - kernel.log_norm(z.shape[1]) - z.shape[1] * math.log(width)
    return float((weight * each).sum() / weight.sum())


def cross_validated(kernel: Kernel, z: Tensor, weight: Tensor, start: float) -> float:
    """The width under which rows are likeliest, each under the kernels of the others.

    Rows must differ: equal ones, one left out at a time, would have the width fall to 0.

    Args:
        kernel: the kernel.
        z: distinct rows of unit scale.
        weight: how much each counts.
        start: a width of the right order, such as a rule's.
    """
    low, high = (math.log(start * end) for end in _RANGE)
    grid = torch.linspace(low, high, _COARSE, dtype=torch.float64).tolist()
    scores = [_left_out(kernel, z, weight, math.exp(at)) for at in grid]
    best = max(range(_COARSE), key=scores.__getitem__)
    if best in (0, _COARSE - 1) or not math.isfinite(scores[best]):
        far = best > 0 or not math.isfinite(scores[best])
        raise ValueError(
            f"expected rows for which some bandwidth is the likeliest, each left out in turn, got a likelihood that is "
            f"largest at the {'widest' if far else 'narrowest'} of those tried ({_RANGE[0]:g} to {_RANGE[1]:g} of the "
            "rule of thumb); "
            + ("look for rows far from all others" if far else "look for numbers that are rounded, or rows that repeat")
            + ", or choose bandwidth='silverman'"
        )
    left, right = grid[best - 1], grid[best + 1]
    golden = (math.sqrt(5) - 1) / 2
    a, b = right - golden * (right - left), left + golden * (right - left)
    at_a, at_b = (_left_out(kernel, z, weight, math.exp(at)) for at in (a, b))
    for _ in range(_FINE):
        if at_a > at_b:
            right, b, at_b = b, a, at_a
            a = right - golden * (right - left)
            at_a = _left_out(kernel, z, weight, math.exp(a))
        else:
            left, a, at_a = a, b, at_b
            b = left + golden * (right - left)
            at_b = _left_out(kernel, z, weight, math.exp(b))
    return math.exp((left + right) / 2)


def adapted(how: str | None, kernel: Kernel, z: Tensor, weight: Tensor) -> Tensor:
    """log of each row's own width relative to all others', whose weighted mean is 0.

    Args:
        how: `abramson`: inverse to the root of a first estimate with equal widths; `neighbours`: as the distance to the
            neighbour that has the root of all weight within; None: equal widths.
        kernel: the kernel.
        z: distinct rows in bandwidths.
        weight: how much each counts.
    """
    if how is None:
        return torch.zeros_like(weight)
    if how == "abramson":
        log_width = -0.5 * log_sums(kernel, z, z, weight.log(), torch.zeros_like(weight))
    else:
        log_width = torch.cat([_reach(z, part, weight) for part in z.split(256)]).log()
    return log_width - (weight * log_width).sum() / weight.sum()


def _reach(z: Tensor, part: Tensor, weight: Tensor) -> Tensor:
    """How far from each row the nearest others are that weigh the root of all."""
    apart, order = torch.cdist(part, z, compute_mode="donot_use_mm_for_euclid_dist").sort(1)
    inside = weight[order].cumsum(1) - weight[order[:, :1]]  # not the row itself, which is the nearest
    enough = (inside >= weight.sum().sqrt()) & (apart > 0)
    place = torch.where(enough.any(1), enough.double().argmax(1), apart.shape[1] - 1)
    return apart.gather(1, place[:, None])[:, 0]
