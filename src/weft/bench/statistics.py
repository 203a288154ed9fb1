"""What the evidence allows: intervals for scores and paired differences, over seeds and test points at once.

A study's evidence is, for each method, a table of scores d[s, n]: one row per seed, one column per test point. Two
things vary, the training and which points happened to be in the test set. With U the variance of the rows' means
over the number of seeds S, and W that of the columns' means over the number of points N, the interval is

    mean(d) +- sqrt(q(S)^2 U + q(N)^2 W),    q(n): Student's quantile of n - 1 degrees, tail a / 2 / (1 + 30/n).

U + W counts what varies with seed and point together twice, which is never too little. Each part has the quantile of
its own number of values (Cochran's way), so that few seeds widen the interval only as far as seeds matter. The tail is
smaller than a / 2 because of skew: of n values with skewness g Student's interval misses the mean with probability
a + O(g^2 / n), and 30/n makes good for skewness up to 2, which the trainings of one method do show. All methods share
seeds and points, so that differences are paired. `benchmarks/null_studies.py` tries all of this, with this very code,
where the truth is known; what it found is in `docs/statistics.md`. All functions here are vectorized over leading axes.

References:
    Cochran, "Approximate significance levels of the Behrens-Fisher test", Biometrics 20, 1964; Johnson, "Modified t
    tests and confidence intervals for asymmetrical populations", JASA 73, 1978 (the order of the skew's effect); Owen,
    "The pigeonhole bootstrap", Annals of Applied Statistics 1(2), 2007 (both axes); Holm, "A simple sequentially
    rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979; Agresti and Coull, "Approximate is
    better than 'exact' for interval estimation of binomial proportions", The American Statistician 52, 1998 (`eased`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.scores.correcting import holm

__all__ = [
    "FEWEST_POINTS",
    "FEWEST_SEEDS",
    "Comparison",
    "Differences",
    "Table",
    "compare",
    "differences",
    "eased",
    "half_width",
    "holm",
    "interval",
    "lacking",
    "p_value",
    "sentences",
    "summarized",
]

Table = NDArray[np.float64]
"""Scores of shape (seeds, points)."""
FEWEST_SEEDS, FEWEST_POINTS = 5, 20
"""With fewer nothing is judged."""
SKEW = 30.0
NOT_JUDGED = "not judged"
_MISSES = np.geomspace(1.0, 1e-12, 1000)


def lacking(seeds: int, points: int | None = None) -> str:
    """What is missing before anything is judged, or "".

    >>> lacking(3, 100)
    '3 seeds cannot tell how much trainings vary; at least 5 are needed'
    """
    if seeds < FEWEST_SEEDS:
        some = "one seed" if seeds == 1 else f"{seeds} seeds"
        return f"{some} cannot tell how much trainings vary; at least {FEWEST_SEEDS} are needed"
    if points is not None and points < FEWEST_POINTS:
        return (
            f"{points} test rows or groups of them cannot tell how much those vary; at least {FEWEST_POINTS} are needed"
        )
    return ""


def summarized(table: ArrayLike, groups: ArrayLike | None = None) -> tuple[Table, Table]:
    """The means of a table's rows and of its columns; of groups of columns where those belong together.

    Args:
        table: shape (..., seeds, points).
        groups: for each point the group it belongs to, or None. A group then counts as one value: its part in the mean.
    """
    x = np.asarray(table, dtype=float)
    if not np.isfinite(x).all():
        *_, seed, point = np.argwhere(~np.isfinite(x))[0].tolist()
        raise ValueError(
            f"expected finite scores, got {(~np.isfinite(x)).sum()} not so, first of seed {seed} at point {point}: "
            "what has no score can neither win nor lose; give a training that diverged the worst score, or leave it out"
        )
    rows, columns = x.mean(-1), x.mean(-2)
    if groups is None:
        return rows, columns
    codes = np.unique(np.asarray(groups), return_inverse=True)[1]
    belongs = np.eye(codes.max() + 1)[codes]
    whole = columns.mean(-1, keepdims=True)
    return rows, whole + (columns - whole) @ belongs * (belongs.shape[1] / len(codes))


def _reach(count: int, miss: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """How many standard errors the mean of so many values may be off, but for a probability of `miss`."""
    from scipy import stats

    return np.asarray(stats.t.isf(miss / 2 / (1 + SKEW / count), count - 1))


@cache
def _reaches(count: int) -> NDArray[np.float64]:
    return _reach(count, _MISSES)


def _error(values: Table) -> NDArray[np.float64]:
    """The variance of the mean of the last axis."""
    return np.asarray(values.var(-1, ddof=1) / values.shape[-1])


def half_width(rows: Table, columns: Table | None, miss: float) -> NDArray[np.float64]:
    """Half the width of the interval for a mean that misses it with probability `miss`.

    Args:
        rows: the means of each seed, shape (..., seeds).
        columns: the means of each point, shape (..., points); None where only seeds vary.
        miss: as 0.05.
    """
    squared = _reach(rows.shape[-1], miss) ** 2 * _error(rows)
    if columns is not None:
        squared = squared + _reach(columns.shape[-1], miss) ** 2 * _error(columns)
    return np.sqrt(squared)


def eased(columns: Table) -> Table:
    """Means by point, and two right and two wrong answers more: a test without an error is not certainty."""
    more = np.broadcast_to([0.0, 0.0, 1.0, 1.0], (*columns.shape[:-1], 4))
    return np.concatenate([columns, more], -1)


def interval(
    table: ArrayLike, level: float = 0.95, groups: ArrayLike | None = None, *, share: bool = False
) -> tuple[float, float] | None:
    """The interval for the mean of one table (seeds, points); None where there are too few of either.

    Args:
        table: shape (seeds, points).
        level: as 0.95.
        groups: for each point the group it belongs to, or None.
        share: whether scores are right or wrong, 1 or 0: then it ends there, and is never empty.

    >>> low, high = interval(np.tile([0.0, 1.0], (8, 50)))
    >>> bool(0.3 < low < 0.5 < high < 0.7)
    True
    """
    rows, columns = summarized(table, groups)
    if lacking(rows.size, columns.size):
        return None
    mean, half = float(rows.mean()), float(half_width(rows, eased(columns) if share else columns, 1 - level))
    return (max(mean - half, 0.0), min(mean + half, 1.0)) if share else (mean - half, mean + half)


def p_value(rows: Table, columns: Table) -> NDArray[np.float64]:
    """The largest `miss` at which the interval for the mean does not hold zero, two-sided."""
    mean, seeds, points = rows.mean(-1), _error(rows), _error(columns)
    by_seeds, by_points = _reaches(rows.shape[-1]) ** 2, _reaches(columns.shape[-1]) ** 2
    squared = mean**2
    low, high = np.zeros(mean.shape, dtype=int), np.full(mean.shape, len(_MISSES) - 1)
    while (high - low > 1).any():
        middle = (low + high) // 2
        beyond = squared > by_seeds[middle] * seeds + by_points[middle] * points
        low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
    ends = [by_seeds[at] * seeds + by_points[at] * points for at in (low, high)]
    width = ends[1] - ends[0]
    between = np.clip((squared - ends[0]) / np.where(width > 0, width, 1.0), 0.0, 1.0)
    p = np.exp((1 - between) * np.log(_MISSES[low]) + between * np.log(_MISSES[high]))
    return np.where(squared > ends[1], _MISSES[-1], np.where(squared > 0, p, 1.0))


class Differences(NamedTuple):
    """Of every pair of methods, in the order of `itertools.combinations`: shape (..., pairs)."""

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    p: NDArray[np.float64]
    p_corrected: NDArray[np.float64]

    def sure(self, level: float) -> NDArray[np.bool_]:
        """Which are claimed, all together at this level."""
        return self.p_corrected <= 1 - level


def differences(rows: Table, columns: Table, level: float = 0.95) -> Differences:
    """Every pair of methods: p-values corrected by Holm, intervals that hold all together (Bonferroni).

    Args:
        rows: the means of each method and seed, shape (..., methods, seeds).
        columns: the means of each method and point, shape (..., methods, points).
        level: what all intervals together keep.
    """
    first, second = (list(side) for side in zip(*combinations(range(rows.shape[-2]), 2), strict=True))
    r, c = rows[..., first, :] - rows[..., second, :], columns[..., first, :] - columns[..., second, :]
    value, half, p = r.mean(-1), half_width(r, c, (1 - level) / len(first)), p_value(r, c)
    return Differences(value, value - half, value + half, p, holm(p))


@dataclass(frozen=True)
class Comparison:
    """Method a less method b, on the same seeds and points.

    Attributes:
        difference: of the mean scores.
        interval: for the difference, at the level that all comparisons together keep (Bonferroni).
        p: two-sided; `p_corrected` by Holm's procedure. None, as the interval, where nothing is judged.
        verdict: `a is better`, `b is better`, `not distinguishable` or `not judged`.
    """

    a: str
    b: str
    difference: float
    interval: tuple[float, float] | None
    p: float | None
    p_corrected: float | None
    verdict: str


def compare(
    tables: dict[str, Table], *, rising: bool, level: float = 0.95, groups: ArrayLike | None = None
) -> list[Comparison]:
    """Every pair of methods, corrected for the number of pairs.

    Args:
        tables: by method, scores of shape (seeds, points).
        rising: whether more is better.
        level: what all intervals together keep.
        groups: for each point the group it belongs to, or None.
    """
    pairs = list(combinations(tables, 2))
    if not pairs:
        return []
    rows, columns = summarized(np.stack(list(tables.values())), groups)
    if lacking(rows.shape[-1], columns.shape[-1]):
        means = dict(zip(tables, rows.mean(-1).tolist(), strict=True))
        return [Comparison(a, b, means[a] - means[b], None, None, None, NOT_JUDGED) for a, b in pairs]
    found = differences(rows, columns, level)
    results = []
    for k, (a, b) in enumerate(pairs):
        ahead = a if (found.value[k] > 0) == rising else b
        verdict = f"{ahead} is better" if found.sure(level)[k] else "not distinguishable"
        span = (float(found.low[k]), float(found.high[k]))
        p = (float(found.p[k]), float(found.p_corrected[k]))
        results.append(Comparison(a, b, float(found.value[k]), span, *p, verdict))
    return results


def sentences(
    means: dict[str, float],
    comparisons: list[Comparison],
    *,
    rising: bool,
    measure: str,
    level: float,
    points: int,
    lacks: str = "",
    warnings: Sequence[str] = (),
) -> list[str]:
    """Plain sentences on what the evidence allows, the most important first.

    Args:
        means: the mean score by method.
        comparisons: of all pairs.
        rising, measure, level, points: of the study.
        lacks: what is missing before anything is judged, or "".
        warnings: what the reader must know to believe the first sentence; they stand in it.

    >>> one = Comparison("and-mask", "erm", 0.01, (-0.02, 0.04), 0.5, 0.5, "not distinguishable")
    >>> sentences({"and-mask": 0.9, "erm": 0.89}, [one], rising=True, measure="accuracy", level=0.95, points=100)[0]
    'and-mask and erm are not distinguishable here.'
    """
    order = sorted(means, key=lambda name: (not math.isfinite(means[name]), (-1 if rising else 1) * means[name]))
    but = f" But {'; '.join(warnings)}." if warnings else ""
    if len(order) == 1:
        alone = f"Only {order[0]} was tried: {_value(means[order[0]], measure)}; nothing to compare it with."
        return [alone + but, *([f"No interval is given: {lacks}."] if lacks else [])]
    beaten: dict[str, set[str]] = {name: set() for name in order}  # by whom each one is beaten
    for c in comparisons:
        if c.verdict == f"{c.a} is better":
            beaten[c.b].add(c.a)
        elif c.verdict == f"{c.b} is better":
            beaten[c.a].add(c.b)
    best = order[0]
    level_with = [name for name in order[1:] if best not in beaten[name]]
    worse = [name for name in order[1:] if best in beaten[name]]
    told = []
    if lacks:
        told.append(f"Nothing is judged here: {lacks}.")
    elif not level_with:
        margin = _margin(best, worse[0], comparisons, measure)
        told.append(f"{best} is better than {_listed(worse)} here{margin}.")
    elif not worse:
        told.append(f"{_listed([best, *level_with])} are not distinguishable here.")
    else:
        told.append(
            f"{_listed([best, *level_with])} are not distinguishable here; {best} is better than {_listed(worse)}."
        )
    told[0] += but
    shown = ", ".join(f"{name} {_value(means[name], measure)}" for name in order)
    told.append(f"Mean {_word(measure)} on the {points:,} test rows: {shown}.")
    if lacks:
        return told
    together = f" for all {len(comparisons)} comparisons together" if len(comparisons) > 1 else ""
    told.append(f"This is said at {level:.0%} confidence{together}, of this data and this budget.")
    return told


def _margin(a: str, b: str, comparisons: list[Comparison], measure: str) -> str:
    c = next(c for c in comparisons if {c.a, c.b} == {a, b})
    if c.interval is None or c.interval[0] <= 0 <= c.interval[1]:  # Holm's step down sees more than the interval
        return ""
    low, high = sorted(abs(bound) for bound in c.interval)
    unit, scale = (" percentage points", 100.0) if measure == "accuracy" else ("", 1.0)
    return f" (by {scale * low:.3g} to {scale * high:.3g}{unit} over {b})"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _word(measure: str) -> str:
    return {"mse": "squared error"}.get(measure, measure)


def _value(value: float, measure: str) -> str:
    if not math.isfinite(value):
        return "none"
    return f"{value:.1%}" if measure == "accuracy" else f"{value:.4g}"
