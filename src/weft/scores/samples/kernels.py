"""MMD and energy distance with their permutation tests: one pass over the kernel matrix for all permutations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real

import torch
from torch import Tensor

from weft.core.legal import Choice, Flag, Number, Whole
from weft.core.random import bits, fold, key_of, row_hash
from weft.scores.samples import reading
from weft.scores.samples.reading import Samples, TwoSample, between, blocks, pair, seeded

__all__ = ["energy_distance", "median_distance", "mmd"]

_KERNELS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "gaussian": lambda squared, h: torch.exp(squared / (-2.0 * h * h)),
    "laplace": lambda squared, h: torch.exp(squared.sqrt() / -h),
}
_MEDIAN_ROWS = 2000


def mmd(
    X: Samples,
    Y: Samples,
    *,
    kernel: str = "gaussian",
    bandwidth: str | float | Sequence[float] = "median",
    scales: Sequence[float] = (1.0,),
    unbiased: bool = True,
    permutations: int = 0,
    random_state: int = 0,
    device: torch.device | str | None = None,
) -> TwoSample:
    """The squared maximum mean discrepancy: how far the mean embeddings of two laws P and Q lie apart,

        MMD^2 = E k(x, x') + E k(y, y') - 2 E k(x, y),    x, x' ~ P,  y, y' ~ Q,

    0 exactly where P = Q, for the kernels here. Unbiased, the means are over pairs of different rows, and an estimate
    may be negative; biased, over all pairs. With several bandwidths the kernel is the mean of theirs:

        gaussian:  k(x, y) = exp(-|x - y|^2 / 2h^2),        laplace:  k(x, y) = exp(-|x - y| / h).

    The p-value is (1 + b) / (1 + B), b the number of B permutations of the pooled rows whose statistic is at least as
    large: under one law P(p <= a) <= a at every number of rows, exactly, since bandwidths, too, are functions of the
    pooled rows alone. All permutations are answered by one pass over blocks of the kernel matrix, as c'Kc with a
    column c of 1/m and -1/n for each of them.

    Args:
        X, Y: the samples, (m, ...) and (n, ...).
        kernel: `gaussian` or `laplace`.
        bandwidth: h: a number, several, or `median`, the median distance of pairs of the pooled rows (of 2,000 of
            them, where there are more).
        scales: factors of the bandwidth, a kernel for each: `(0.25, 0.5, 1, 2)` looks at four scales at once.
        unbiased: which estimate.
        permutations: B; 0 gives no p-value.
        random_state: the seed of the permutations.
        device: where to compute; by default where X is.

    References:
        Gretton, Borgwardt, Rasch, Schölkopf and Smola, "A kernel two-sample test", JMLR 13, 2012; the p-value:
        Phipson and Smyth, "Permutation p-values should never be zero", arXiv 1603.05766.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X, Y = rng.normal(size=(200, 2)), rng.normal(size=(200, 2)) + [1.0, 0.0]
        >>> answer = mmd(X, Y, permutations=199)
        >>> round(answer.value, 3), answer.p_value
        (0.126, 0.005)
        >>> mmd(X[:100], X[100:], permutations=199).p_value > 0.05
        True
    """
    Choice(*_KERNELS).check(kernel, "kernel", "gaussian")
    Flag().check(unbiased, "unbiased", True)
    left, right = pair(X, Y, device=device)
    pooled = torch.cat([left, right])
    widths = [h * s for h in _bandwidths(bandwidth, pooled) for s in _positive(scales, "scales")]

    def gram(squared: Tensor) -> Tensor:
        every = iter(widths)
        total = _KERNELS[kernel](squared, next(every))
        for h in every:
            total += _KERNELS[kernel](squared, h)
        return total.div_(len(widths))

    value, p = _tested(pooled, len(left), gram, 1.0 if unbiased else None, permutations, random_state)
    shown = ", ".join(f"{h:.3g}" for h in widths[:6]) + (", ..." if len(widths) > 6 else "")
    how = f"{'unbiased' if unbiased else 'biased'}, {kernel} kernel, bandwidth {shown}"
    return TwoSample("MMD²", value, p, f"{how}{_by(permutations)}")


def energy_distance(
    X: Samples,
    Y: Samples,
    *,
    permutations: int = 0,
    random_state: int = 0,
    device: torch.device | str | None = None,
) -> TwoSample:
    """The energy distance of two laws with finite means,

        E = 2 E|x - y| - E|x - x'| - E|y - y'|,    x, x' ~ P,  y, y' ~ Q,

    0 exactly where P = Q: the squared MMD of the kernel -|x - y|, without a bandwidth. The estimate takes the means
    over all pairs, a row with itself included, so that it is never negative. (SciPy's, of one column, is its root.)
    Columns count as they are scaled. The p-value is that of `mmd`.

    Args:
        X, Y: the samples, (m, ...) and (n, ...).
        permutations: of the pooled rows; 0 gives no p-value.
        random_state: their seed.
        device: where to compute; by default where X is.

    References:
        Székely and Rizzo, "Energy statistics: a class of statistics based on distances", Journal of Statistical
        Planning and Inference 143, 2013.

    Example:
        >>> energy_distance([0.0, 0.0], [1.0, 1.0]).value
        2.0
    """
    left, right = pair(X, Y, device=device)
    pooled = torch.cat([left, right])
    gram: Callable[[Tensor], Tensor] = lambda squared: squared.sqrt().neg_()  # noqa: E731
    value, p = _tested(pooled, len(left), gram, None, permutations, random_state)
    return TwoSample("energy distance", max(value, 0.0), p, f"means over all pairs{_by(permutations)}")


def median_distance(rows: Tensor) -> float:
    """The median distance of pairs of rows: of 2,000 of them where there are more, chosen by their values alone.

    So the order of the rows, and hence which sample each is from, has no say.
    """
    if len(rows) > _MEDIAN_ROWS:
        rows = rows[torch.argsort(row_hash(rows))[:_MEDIAN_ROWS]]
    rows = rows - rows.mean(0)
    i, j = torch.triu_indices(len(rows), len(rows), 1, device=rows.device)
    return float(between(rows, rows)[i, j].median().sqrt())


def _bandwidths(given: str | float | Sequence[float], pooled: Tensor) -> list[float]:
    if isinstance(given, str):
        Choice("median").check(given, "bandwidth", "median")
        found = median_distance(pooled)
        if not found > 0:
            raise ValueError(
                "expected rows whose median distance is > 0, got 0: at least half of the pairs are equal rows "
                "(constant columns, or duplicates); give bandwidth=, a number"
            )
        return [found]
    return _positive(given, "bandwidth")


def _positive(given: float | Sequence[float], what: str) -> list[float]:
    several = [given] if isinstance(given, Real) else list(given)  # type: ignore[arg-type]
    if not several:
        raise ValueError(f"expected at least one number in {what}, got none")
    for number in several:
        Number(0, ends="(]").check(number, what)
    return [float(number) for number in several]


def _by(permutations: int) -> str:
    return f"; {permutations:,} permutations" if permutations else ""


def _tested(
    pooled: Tensor,
    m: int,
    gram: Callable[[Tensor], Tensor],
    diagonal: float | None,
    permutations: int,
    random_state: int,
) -> tuple[float, float | None]:
    """The statistic of the first m rows beside the others, and its p-value.

    Args:
        pooled: all rows.
        m: how many are X's.
        gram: the kernel, of squared distances.
        diagonal: k(x, x), where pairs of a row with itself are left out; else None.
        permutations, random_state: see `mmd`.
    """
    Whole(0).check(permutations, "permutations", 0)
    key = fold(key_of(seeded(random_state), pooled.device), "permutations")
    pooled = pooled - pooled.mean(0)
    size = len(pooled)
    at_once = max(1, reading.MEMORY // (4 * 8 * size))
    found, noise = [], 0.0
    for start in range(0, permutations + 1, at_once):
        chosen = _assigned(key, start, min(start + at_once, permutations + 1), m, size)
        values, noise = _discrepancies(pooled, chosen, m, gram, diagonal)
        found.append(values)
    every = torch.cat(found)
    observed = float(every[0])
    if not permutations:
        return observed, None
    # What differs by rounding alone (equal rows that were swapped) counts as equal.
    larger = int((every[1:] >= every[0] - noise).sum())
    return observed, (1 + larger) / (1 + permutations)


def _assigned(key: Tensor, start: int, stop: int, m: int, size: int) -> Tensor:
    """Whose each row is, 1 for X: a column for each permutation, the number 0 being the samples as they came."""
    columns = torch.zeros(size, stop - start, dtype=torch.float64, device=key.device)
    numbers = torch.arange(start, stop, device=key.device)
    step = max(1, reading.MEMORY // (16 * 8 * size))
    for part in torch.arange(stop - start, device=key.device).split(step):
        words = bits(fold(key, numbers[part]), (size,))
        columns[:, part] = (words <= words.kthvalue(m, dim=1, keepdim=True).values).T.to(columns.dtype)
    if start == 0:
        columns[:, 0] = 0.0
        columns[:m, 0] = 1.0
    return columns


def _discrepancies(
    rows: Tensor, chosen: Tensor, m: int, gram: Callable[[Tensor], Tensor], diagonal: float | None
) -> tuple[Tensor, float]:
    """c'Kc for each column of 1/m and -1/n, without K's diagonal where it is named, and what rounding may have done.

    Only the blocks of K on and above its diagonal are made.
    """
    size = len(rows)
    n = size - m
    mine = chosen.to(rows.dtype)
    signs = mine * (1.0 / m + 1.0 / n) - 1.0 / n
    form = torch.zeros(chosen.shape[1], dtype=rows.dtype, device=rows.device)
    sums = torch.zeros(size, dtype=rows.dtype, device=rows.device)
    for start, stop in blocks(size, size):
        K = gram(between(rows[start:stop], rows[start:]))
        here = stop - start
        sums[start:stop] += K.sum(1)
        sums[stop:] += K[:, here:].sum(0)
        K[:, here:] *= 2.0  # each of these pairs stands for two
        form += (signs[start:stop] * (K @ signs[start:])).sum(0)
    total = sums.sum()
    noise = 64.0 * torch.finfo(rows.dtype).eps * float(sums.abs().mean()) / size * math.sqrt(size)
    if diagonal is None:
        return form, noise
    # From c'Kc and the rows' sums follow the sums within X and within Y, of which the unbiased means are made.
    of_mine = mine.T @ sums
    within_x = (form - total / n**2 + 2.0 * of_mine * (1.0 / n**2 + 1.0 / (m * n))) / (1.0 / m + 1.0 / n) ** 2
    within_y = total - 2.0 * of_mine + within_x
    more = (within_x / m**2 - diagonal) / (m - 1) + (within_y / n**2 - diagonal) / (n - 1)
    return form + more, noise
