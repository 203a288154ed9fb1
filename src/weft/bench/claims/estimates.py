"""Figures with their intervals, over the replicas of a claim."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.bench.statistics import FEWEST_POINTS, FEWEST_SEEDS, SKEW, half_width, lacking

__all__ = ["Estimate", "Margins", "exponents", "interquartile_of", "mean_of", "mean_over", "median_of", "over", "rank"]
__all__ += ["resampled", "share_of"]

FEWEST_HALVES, DRAWS = 8, 10_000  # of an interquartile mean's interval: replicas, and how often they are drawn anew


class Margins(TypedDict):
    """What an interval over seeds and test points is made of: the means of a table's rows and of its columns.

    Attributes:
        seeds: the mean of each row; then, where there is one, of the table beside it.
        points: likewise of each column; those that are alike are here once.
        counts: how often each is there.
    """

    seeds: list[list[float]]
    points: list[list[float]]
    counts: list[int]


class _Measured(NamedTuple):
    value: float
    interval: tuple[float, float] | None
    replicas: int


class Estimate(_Measured):
    """A measured value, its 95 % interval (None where one replica tells nothing of it) and the replicas.

    Beside these stand every replica's score and how the estimate was made of them, where that is known: from them it
    can be made anew.
    """

    scores: tuple[float, ...] = ()
    by: str = ""
    margins: Margins | None = None  # where test points vary too

    @property
    def lacks(self) -> str:
        """What an interval needs, where there is none for want of replicas or test points; else ""."""
        if self.interval is not None or not np.isfinite(self.value):
            return ""
        if self.margins is not None and self.replicas >= FEWEST_SEEDS:
            return f"an interval needs at least {FEWEST_POINTS} test points"
        return (
            f"an interval needs at least {FEWEST_SEEDS} replicas (a median's 6, an interquartile mean's "
            f"{FEWEST_HALVES}), got {self.replicas}"
        )


def scored(estimate: Callable[[ArrayLike], Estimate]) -> Callable[[ArrayLike], Estimate]:
    """The same estimate, with the scores that it was made of beside it."""

    @wraps(estimate)
    def found(values: ArrayLike) -> Estimate:
        one = estimate(values)
        one.scores, one.by = tuple(_replicas(values).tolist()), estimate.__name__
        return one

    return found


@scored
def mean_of(values: ArrayLike) -> Estimate:
    """The mean, with the interval of `weft.bench.statistics` over the replicas; none of fewer than 5.

    >>> mean_of([1.0, 2.0, 3.0, 4.0, 5.0])
    Estimate(value=3.0, interval=(-0.583..., 6.583...), replicas=5)
    >>> mean_of([1.0, 2.0, 3.0]).lacks
    "an interval needs at least 5 replicas (a median's 6, an interquartile mean's 8), got 3"
    """
    x = _replicas(values)
    mean = float(x.mean())
    if lacking(len(x)) or not np.isfinite(x).all():
        return Estimate(mean, None, len(x))
    half = float(half_width(x, None, 0.05))
    return Estimate(mean, (mean - half, mean + half), len(x))


@scored
def median_of(values: ArrayLike) -> Estimate:
    """The median, between two order statistics: right for any distribution, and for outliers.

    The k-th smallest and k-th largest of n values hold the median with probability 1 - 2 P(B < k), B binomial
    (n, 1/2); k is the largest for which that is .95 or more. Below six values there is none.

    References:
        David and Nagaraja, "Order Statistics", 2003, section 7.1.

    >>> median_of(range(10))
    Estimate(value=4.5, interval=(1.0, 8.0), replicas=10)
    """
    x = np.sort(_replicas(values))
    k = rank(len(x))
    return Estimate(float(np.median(x)), (float(x[k - 1]), float(x[-k])) if k else None, len(x))


@scored
def interquartile_of(values: ArrayLike) -> Estimate:
    """The interquartile mean, a quarter of the replicas left out at either end; none of fewer than 8 has an interval.

    The interval has the wider end of two on each side: of a trimmed mean's, by the winsorized deviation, with Student's
    quantile for skewed scores (as in `mean_of`), which is too narrow where some replicas fail altogether; and of the
    replicas drawn anew, which is too narrow where they are few.

    References:
        Agarwal, Schwarzer, Castro, Courville and Bellemare, "Deep reinforcement learning at the edge of the statistical
        precipice", arXiv 2108.13264; Tukey and McLaughlin, "Less vulnerable confidence and significance procedures for
        location based on a single sample", Sankhya A 25, 1963.

    >>> interquartile_of([0.0, *range(10, 18), 100.0])
    Estimate(value=13.5, interval=(9.1..., 29.3...), replicas=10)
    """
    from scipy import stats

    x = np.sort(_replicas(values))
    n, cut = len(x), len(x) // 4
    middle = float(x[cut : n - cut].mean()) if np.isfinite(x).all() else float("nan")
    if n < FEWEST_HALVES or not np.isfinite(middle):
        return Estimate(middle, None, n)
    kept, near = n - 2 * cut, np.clip(x, x[cut], x[n - cut - 1])
    half = float(stats.t.isf(0.025 / (1 + SKEW / n), kept - 1) * near.std(ddof=1) * n**0.5 / kept)
    drawn = np.sort(np.random.default_rng(0).choice(x, (DRAWS, n)), 1)[:, cut : n - cut].mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(middle, (min(middle - half, float(low)), max(middle + half, float(high))), n)


def rank(count: int) -> int:
    """The order statistic, from below and from above, between which the median of so many values is; 0 for none."""
    from scipy import stats

    return int(stats.binom.ppf(0.025, count, 0.5))


@scored
def share_of(hits: ArrayLike) -> Estimate:
    """The share of replicas for which something is true, in %, with Clopper and Pearson's interval.

    >>> share_of([True, True, True, False])
    Estimate(value=75.0, interval=(19.41..., 99.36...), replicas=4)
    """
    from scipy import stats

    x = _replicas(hits)
    share = stats.binomtest(int((x != 0).sum()), len(x))
    low, high = share.proportion_ci(method="exact")
    return Estimate(100.0 * share.statistic, (100.0 * float(low), 100.0 * float(high)), len(x))


def mean_over(table: ArrayLike, beside: ArrayLike | None = None) -> Estimate:
    """The mean of a table of seeds by test points, with the interval of `weft.bench.statistics` over both.

    Args:
        table: shape (seeds, points).
        beside: another such table, of the same seeds and points; then the ratio of the two means (its interval by the
            ratio's linear part, the delta method).

    >>> mean_over(np.full((5, 20), 2.0), beside=np.full((5, 20), 4.0))
    Estimate(value=0.5, interval=(0.5, 0.5), replicas=5)
    """
    x = np.asarray(table, dtype=float)
    y = x if beside is None else np.asarray(beside, dtype=float)
    if x.ndim != 2 or x.shape != y.shape or not x.size:
        raise ValueError(f"expected tables of one shape (seeds, points), got {x.shape} and {y.shape}")
    tables = np.stack([x] if beside is None else [x, y])
    if not np.isfinite(tables).all():  # a replica that has diverged: no mean, and nothing to make it anew of
        found = Estimate(float(np.nan), None, len(x))
        found.scores = tuple((x.mean(1) if beside is None else x.mean(1) / y.mean(1)).tolist())
        return found
    points, counts = np.unique(tables.mean(1), axis=1, return_counts=True)
    return over({"seeds": tables.mean(2).tolist(), "points": points.tolist(), "counts": counts.tolist()})


def over(margins: Margins) -> Estimate:
    """What `mean_over` says of a table, or of two, by their margins alone."""
    rows, columns = np.array(margins["seeds"]), np.repeat(margins["points"], margins["counts"], axis=1)
    mean, scores = float(rows[0].mean()), rows[0]
    if len(rows) == 1:
        rows, columns = rows[0], columns[0]
    else:
        below = rows[1].mean()
        mean, scores = float(mean / below), rows[0] / rows[1]
        rows, columns = (mean + (part[0] - mean * part[1]) / below for part in (rows, columns))
    half = None if lacking(rows.size, columns.size) else float(half_width(rows, columns, 0.05))
    found = Estimate(mean, None if half is None else (mean - half, mean + half), rows.size)
    found.scores, found.by, found.margins = tuple(scores.tolist()), mean_over.__name__, margins
    return found


def resampled(values: ArrayLike, replicas: int) -> Estimate:
    """The first of some values, within 95 % of the others: those of replicas drawn anew, with replacement.

    References:
        Efron, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7, 1979.

    Args:
        values: of the replicas as they are, then of each draw of them.
        replicas: how many there are.

    >>> resampled([5.0, *range(41)], replicas=12)
    Estimate(value=5.0, interval=(1.0, 39.0), replicas=12)
    """
    x = _replicas(values)
    low, high = np.quantile(x[1:], [0.025, 0.975])
    return Estimate(float(x[0]), (float(low), float(high)), replicas)


def exponents(at: ArrayLike, values: ArrayLike) -> NDArray[np.float64]:
    """The power of `at` that each row of values falls or rises with, by least squares on logarithms.

    >>> exponents([1.0, 2.0, 4.0], [[1.0, 0.5, 0.25], [2.0, 8.0, 32.0]]).round(6).tolist()
    [-1.0, 2.0]
    """
    along = np.log(np.asarray(at, dtype=float))
    along = along - along.mean()
    return np.asarray(np.log(np.asarray(values, dtype=float)) @ along / (along @ along))


def _replicas(values: ArrayLike) -> NDArray[np.float64]:
    """One value for each replica."""
    x = np.asarray(values, dtype=float).reshape(-1)
    if not len(x):
        raise ValueError("expected the values of at least one replica, got none")
    return x
