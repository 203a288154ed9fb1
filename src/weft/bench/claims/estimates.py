"""Figures with their intervals, over the replicas of a claim."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Estimate", "mean_of", "mean_over", "median_of", "share_of"]


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
    """The mean, with Student's interval over the replicas.

    >>> mean_of([1.0, 2.0, 3.0])
    Estimate(value=2.0, interval=(-0.484..., 4.484...), replicas=3)
    """
    from scipy import stats

    x = _replicas(values)
    if len(x) < 2 or not np.isfinite(x).all():
        return Estimate(float(x.mean()), None, len(x))
    half = float(stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x)))
    return Estimate(float(x.mean()), (float(x.mean()) - half, float(x.mean()) + half), len(x))


@scored
def median_of(values: ArrayLike) -> Estimate:
    """The median, between two order statistics: right for any distribution, and for outliers.

    The k-th smallest and k-th largest of n values hold the median with probability 1 - 2 P(B < k), B binomial
    (n, 1/2); k is the largest for which that is .95 or more. Below six values it is their whole range.

    References:
        David and Nagaraja, "Order Statistics", 2003, section 7.1.

    >>> median_of(range(10))
    Estimate(value=4.5, interval=(1.0, 8.0), replicas=10)
    """
    from scipy import stats

    x = np.sort(_replicas(values))
    if len(x) < 2:
        return Estimate(float(x[0]), None, len(x))
    k = max(int(stats.binom.ppf(0.025, len(x), 0.5)), 1)
    return Estimate(float(np.median(x)), (float(x[k - 1]), float(x[-k])), len(x))


@scored
def share_of(hits: ArrayLike) -> Estimate:
    """The share of replicas for which something is true, in %, with Wilson's interval.

    >>> share_of([True, True, True, False])
    Estimate(value=75.0, interval=(30.06..., 95.44...), replicas=4)
    """
    from scipy import stats

    x = _replicas(hits)
    share = stats.binomtest(int((x != 0).sum()), len(x))
    low, high = share.proportion_ci(method="wilson")
    return Estimate(100.0 * share.statistic, (100.0 * float(low), 100.0 * float(high)), len(x))


def mean_over(table: ArrayLike, beside: ArrayLike | None = None) -> Estimate:
    """The mean of a table of seeds by test points, with an interval that draws both anew.

    Args:
        table: shape (seeds, points).
        beside: another such table, of the same seeds and points; then the ratio of the two means.

    >>> mean_over([[1.0, 3.0], [1.0, 3.0]], beside=[[2.0, 6.0], [2.0, 6.0]])
    Estimate(value=0.5, interval=(0.5, 0.5), replicas=2)
    """
    from weft.bench.statistics import Resampling

    x = np.asarray(table, dtype=float)
    y = np.ones_like(x) if beside is None else np.asarray(beside, dtype=float)
    if x.ndim != 2 or x.shape != y.shape or not x.size:
        raise ValueError(f"expected tables of one shape (seeds, points), got {x.shape} and {y.shape}")
    resampling = Resampling(*x.shape)
    low, high = np.quantile(resampling.means(x) / resampling.means(y), [0.025, 0.975])
    found = Estimate(float(x.mean() / y.mean()), (float(low), float(high)), len(x))
    found.scores = tuple((x.mean(1) / y.mean(1)).tolist())
    return found


def _replicas(values: ArrayLike) -> NDArray[np.float64]:
    """One value for each replica."""
    x = np.asarray(values, dtype=float).reshape(-1)
    if not len(x):
        raise ValueError("expected the values of at least one replica, got none")
    return x
