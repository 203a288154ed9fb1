"""What the evidence allows: intervals for scores and paired differences, over seeds and test points at once.

A study's evidence is, for each method, a table of scores: one row per seed, one column per test point. Two
things vary: the training (seeds) and which points happened to be in the test set. The bootstrap here draws
both anew, seeds and points (whole groups of them where rows belong together), and the same draw serves
every method, so that differences are paired.

References:
    Efron and Tibshirani, "An Introduction to the Bootstrap", 1993; Owen, "The pigeonhole bootstrap", Annals of
    Applied Statistics 1(2), 2007 (drawing both axes; slightly wide, never too narrow); Holm, "A simple
    sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Comparison", "Resampling", "Table", "compare", "holm", "sentences"]

Table = NDArray[np.float64]
"""Scores of shape (seeds, points)."""


class Resampling:
    """Draws of seeds and test points, the same for whatever is put through them.

    Args:
        seeds: number of trainings.
        points: number of test points.
        groups: for each point the group it belongs to (those are drawn whole), or None.
        draws: how many times.
        random_state: seeds the draws.

    >>> table = np.tile([0.0, 1.0], (4, 50))
    >>> low, high = Resampling(4, 100, draws=500).interval(table, 0.95)
    >>> bool(0.3 < low < 0.5 < high < 0.7)
    True
    """

    def __init__(
        self, seeds: int, points: int, *, groups: ArrayLike | None = None, draws: int = 2000, random_state: int = 0
    ) -> None:
        random = np.random.default_rng(random_state)
        self.draws = draws
        self.rows = random.multinomial(seeds, np.full(seeds, 1 / seeds), size=draws) / seeds
        codes = np.arange(points) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
        self.codes = codes
        self.sizes = np.bincount(codes)
        count = len(self.sizes)
        self.columns = random.multinomial(count, np.full(count, 1 / count), size=draws).astype(np.float32)

    def means(self, table: Table) -> NDArray[np.float64]:
        """The mean score in each draw."""
        sums = np.stack([np.bincount(self.codes, weights=row, minlength=len(self.sizes)) for row in table])
        drawn = (self.rows @ sums * self.columns).sum(1)
        return drawn / (self.columns @ self.sizes)

    def interval(self, table: Table, level: float) -> tuple[float, float]:
        """A percentile interval for the mean score."""
        low, high = np.quantile(self.means(table), [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)


@dataclass(frozen=True)
class Comparison:
    """Method a less method b, on the same seeds and points.

    Attributes:
        difference: of the mean scores.
        interval: for the difference, at the level that all comparisons together keep (Bonferroni).
        p: two-sided, from the same draws; `p_corrected` by Holm's procedure.
        verdict: `a is better`, `b is better` or `not distinguishable`.
    """

    a: str
    b: str
    difference: float
    interval: tuple[float, float]
    p: float
    p_corrected: float
    verdict: str


def holm(p: Sequence[float]) -> list[float]:
    """P-values corrected for their number, step down.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p)), key=lambda i: p[i])
    corrected, highest = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, p[i] * (len(p) - rank)))
        corrected[i] = highest
    return corrected


def compare(tables: dict[str, Table], resampling: Resampling, *, rising: bool, level: float = 0.95) -> list[Comparison]:
    """Every pair of methods, corrected for the number of pairs.

    Args:
        tables: by method, scores of shape (seeds, points).
        resampling: the draws.
        rising: whether more is better.
        level: what all intervals together keep.
    """
    pairs = list(combinations(tables, 2))
    drawn: list[tuple[float, tuple[float, float], float]] = []
    for a, b in pairs:
        table = tables[a] - tables[b]
        means = resampling.means(table)
        tail = (1 - level) / (2 * len(pairs))
        low, high = np.quantile(means, [tail, 1 - tail])
        beyond = min(float((means <= 0).mean()), float((means >= 0).mean()))
        p = min(1.0, max(2 * beyond, 2 / (resampling.draws + 1)))
        drawn.append((float(table.mean()), (float(low), float(high)), p))
    corrected = holm([p for _, _, p in drawn])
    results = []
    for (a, b), (difference, interval, p), adjusted in zip(pairs, drawn, corrected, strict=True):
        sure = adjusted <= 1 - level and not interval[0] <= 0.0 <= interval[1]
        ahead = a if (difference > 0) == rising else b
        verdict = f"{ahead} is better" if sure else "not distinguishable"
        results.append(Comparison(a, b, difference, interval, p, adjusted, verdict))
    return results


def sentences(
    means: dict[str, float], comparisons: list[Comparison], *, rising: bool, measure: str, level: float, points: int
) -> list[str]:
    """Plain sentences on what the evidence allows, the most important first.

    >>> one = Comparison("and-mask", "erm", 0.01, (-0.02, 0.04), 0.5, 0.5, "not distinguishable")
    >>> sentences({"and-mask": 0.9, "erm": 0.89}, [one], rising=True, measure="accuracy", level=0.95, points=100)[0]
    'and-mask and erm are not distinguishable here.'
    """
    order = sorted(means, key=lambda name: (-1 if rising else 1) * means[name])
    if len(order) == 1:
        return [f"Only {order[0]} was tried: {_value(means[order[0]], measure)}; nothing to compare it with."]
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
    if not level_with:
        margin = _margin(best, worse[0], comparisons, measure)
        told.append(f"{best} is better than {_listed(worse)} here{margin}.")
    elif not worse:
        told.append(f"{_listed([best, *level_with])} are not distinguishable here.")
    else:
        told.append(
            f"{_listed([best, *level_with])} are not distinguishable here; {best} is better than {_listed(worse)}."
        )
    shown = ", ".join(f"{name} {_value(means[name], measure)}" for name in order)
    told.append(f"Mean {_word(measure)} on the {points:,} test rows: {shown}.")
    together = f" for all {len(comparisons)} comparisons together" if len(comparisons) > 1 else ""
    told.append(f"This is said at {level:.0%} confidence{together}, of this data and this budget.")
    return told


def _margin(a: str, b: str, comparisons: list[Comparison], measure: str) -> str:
    c = next(c for c in comparisons if {c.a, c.b} == {a, b})
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
