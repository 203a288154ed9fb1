"""Wasserstein distances: what it costs to carry one sample to the other, exactly or along random lines."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.legal import Number, Whole
from weft.core.random import fold, gauss, key_of
from weft.scores.samples.reading import Samples, between, blocks, pair, seeded

__all__ = ["sliced_wasserstein", "wasserstein"]

_LARGEST = 10_000  # rows of each sample whose costs are held as a matrix


def wasserstein(X: Samples, Y: Samples, *, order: float = 2.0) -> float:
    """The Wasserstein distance of two samples, exactly, by linear programming:

        W_p = (min over plans T >= 0 of sum_ij T_ij |x_i - y_j|^p)^(1/p),    T's rows sum to 1/m, its columns to 1/n.

    Of two finite samples of one law it is not 0: in d dimensions it falls like n^(-1/d), so compare it with that
    between two samples of the data. POT solves the program in time of about n^3; it is an extra,
    `pip install weft[transport]`.

    Args:
        X, Y: the samples, (m, ...) and (n, ...), of at most 10,000 rows each.
        order: p >= 1.

    References:
        Peyré and Cuturi, "Computational optimal transport", arXiv 1803.00567; Flamary et al., "POT: Python optimal
        transport", JMLR 22, 2021.

    Example:
        >>> from importlib.util import find_spec
        >>> wasserstein([0.0, 1.0], [3.0, 4.0]) if find_spec("ot") else 3.0
        3.0
    """
    Number(1).check(order, "order", 2.0)
    left, right = (sample.cpu() for sample in pair(X, Y, least=1))
    if max(len(left), len(right)) > _LARGEST:
        raise ValueError(
            f"expected at most {_LARGEST:,} rows in each sample, whose exact transport takes time of about n^3, got "
            f"{len(left):,} and {len(right):,}; take fewer, or sliced_wasserstein"
        )
    try:
        import ot
    except ImportError as error:
        raise ImportError(
            "expected POT, which solves transport exactly, got none; pip install 'weft[transport]', "
            "or take sliced_wasserstein"
        ) from error
    middle = torch.cat([left, right]).mean(0)
    costs = between(left - middle, right - middle).pow_(order / 2.0).double()
    scale = float(costs.max()) or 1.0  # the program's tolerance is absolute
    cost, log = ot.emd2([], [], (costs / scale).numpy(), numItermax=100_000_000, log=True)
    if log["warning"] is not None:
        raise RuntimeError(f"expected POT to solve the program, got {log['warning']!r}; take sliced_wasserstein")
    return float((max(float(cost), 0.0) * scale) ** (1.0 / order))


def sliced_wasserstein(
    X: Samples,
    Y: Samples,
    *,
    order: float = 2.0,
    projections: int = 256,
    random_state: int = 0,
    device: torch.device | str | None = None,
) -> float:
    """The mean Wasserstein distance of two samples' projections on random lines,

        SW_p = (E W_p(X t, Y t)^p)^(1/p),    t uniform on the unit sphere,

    in one dimension W_p itself. A projection's distance is exact for any two sizes, by its quantiles:
    W_p^p = int |F^-1(u) - G^-1(u)|^p du; the mean is over so many keyed projections. Of laws that differ by a shift s
    of d columns it is |s| / sqrt(d) (p = 2).

    Args:
        X, Y: the samples, (m, ...) and (n, ...).
        order: p >= 1.
        projections: how many lines.
        random_state: their seed.
        device: where to compute; by default where X is.

    References:
        Rabin, Peyré, Delon and Bernot, "Wasserstein barycenter and its application to texture mixing", SSVM 2011;
        Bonneel, Rabin, Peyré and Pfister, "Sliced and Radon Wasserstein barycenters of measures", JMIV 51, 2015.

    Example:
        >>> sliced_wasserstein([0.0, 1.0, 2.0], [5.0, 6.0, 7.0])
        5.0
    """
    Number(1).check(order, "order", 2.0)
    Whole(1).check(projections, "projections", 256)
    left, right = pair(X, Y, least=1, device=device)
    key = fold(key_of(seeded(random_state), left.device), "projections")
    lines = gauss(fold(key, torch.arange(projections, device=left.device)), (left.shape[1],), torch.float64)
    lines = (lines / lines.norm(dim=1, keepdim=True)).to(left.dtype)
    if left.shape[1] == 1:
        lines = lines[:1]  # all lines are one
    weights, i, j = _levels(len(left), len(right), left.device)
    total = 0.0
    for start, stop in blocks(len(lines), len(left) + len(right) + len(weights)):
        a, b = ((sample @ lines[start:stop].T).sort(0).values for sample in (left, right))
        apart = (a[i] - b[j]).abs_().pow_(order)
        total += float((weights.to(apart.dtype)[:, None] * apart).sum())
    return float((total / len(lines)) ** (1.0 / order))


def _levels(m: int, n: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Where either quantile function jumps: the length of each piece, and which row of each sample stands there.

    In whole numbers, of mn pieces, so that no jump is missed or doubled by rounding.
    """
    ends = torch.cat([torch.arange(1, m + 1) * n, torch.arange(1, n + 1) * m]).unique()
    starts = torch.cat([torch.zeros(1, dtype=ends.dtype), ends[:-1]])
    weights = (ends - starts).double() / (m * n)
    if device.type == "mps":
        weights = weights.float()
    return weights.to(device), (starts // n).to(device), (starts // m).to(device)
