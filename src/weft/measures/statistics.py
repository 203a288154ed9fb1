"""The usual statistics of a data set, for predictive checks: moments and ends of columns, shares, correlations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Statistic", "Usual", "correlations", "skewness"]

Array = NDArray[np.float64]
EACH = 4  # columns up to which each has statistics of its own
CROSSED = 64  # columns whose correlations are looked at; of more, so many of them, evenly


def _nowhere(rows: object) -> str:
    return ""


@dataclass(frozen=True)
class Statistic:
    """A number of a data set.

    Attributes:
        name: how it is called.
        function: of the rows, the number, or one for each row.
        where: of the rows, what else there is to say of it.
        upper: whether only large values tell of a misfit: it is a distance from the model, and none is too near.
    """

    name: str
    function: Callable[[Any], Any]
    where: Callable[[Any], str] = _nowhere
    upper: bool = False


def skewness(x: Array) -> Array:
    """The third moment of each column about its mean, in deviations; 0 where nothing varies.

    >>> skewness(np.array([[0.0, 5.0], [0.0, 5.0], [3.0, 5.0]])).round(3).tolist()
    [0.707, 0.0]
    """
    away = x - np.nanmean(x, 0)
    spread = np.sqrt(np.nanmean(away**2, 0))
    return np.asarray(np.nanmean(away**3, 0) / np.where(spread > 0, spread, 1.0) ** 3)


def correlations(x: Array) -> Array:
    """Of every pair of columns, one after another; 0 where one does not vary. A gap counts as its column's mean.

    >>> correlations(np.array([[0.0, 1.0, 7.0], [1.0, 0.0, 7.0], [2.0, -1.0, 7.0]])).round(3).tolist()
    [-1.0, 0.0, 0.0]
    """
    away = np.nan_to_num(x - np.nanmean(x, 0))
    spread = np.sqrt((away**2).mean(0))
    away = away / np.where(spread > 0, spread, 1.0)
    both = away.T @ away / len(x)
    return both[np.triu_indices(x.shape[1], 1)]


def _mean(x: Array) -> Array:
    return np.asarray(np.nanmean(x, 0))


_MOMENTS: dict[str, Callable[[Array], Array]] = {
    "mean": _mean,
    "deviation": lambda x: np.asarray(np.nanstd(x, 0)),
    "skewness": skewness,
    "least": lambda x: np.asarray(np.nanmin(x, 0)),
    "largest": lambda x: np.asarray(np.nanmax(x, 0)),
}


class _Furthest:
    """How far the furthest of several numbers of a data set is from what the model gives, in the model's deviations.

    Args:
        of: the numbers, of a data set.
        reference: data sets of the model's, apart from those that are compared.
        names: of the numbers.
    """

    def __init__(self, of: Callable[[Array], Array], reference: Sequence[Array], names: Sequence[str]) -> None:
        each = np.stack([of(rows) for rows in reference])
        self.of, self.names, self.middle = of, names, each.mean(0)
        # what never varies in the model is far from it wherever it differs
        self.spread = np.maximum(each.std(0), 1e-9 * (1 + np.abs(self.middle)))

    def away(self, rows: Array) -> Array:
        return np.abs(self.of(rows) - self.middle) / self.spread

    def __call__(self, rows: Array) -> float:
        return float(self.away(rows).max())

    def where(self, rows: Array) -> str:
        return str(self.names[int(np.argmax(self.away(rows)))])


class Usual:
    """The usual statistics, and the rows as they read them: numbers, then for each category column its first's 0 or 1.

    Args:
        reference: data sets of the model's, by which columns are scaled and a category is chosen; apart from those
            that are compared, so that nothing is chosen by the data.
    """

    def __init__(self, reference: Sequence[Any]) -> None:
        first, self.shares = reference[0], dict[str, object]()
        if hasattr(first, "iloc"):
            from pandas.api.types import is_numeric_dtype

            self.numbers = [str(name) for name in first.columns if is_numeric_dtype(first[name])]
            for name in first.columns:
                if str(name) not in self.numbers:
                    seen = [value for own in reference for value in own[name].dropna().tolist()]
                    known, counts = np.unique(np.array(seen, dtype=object).astype(str), return_counts=True)
                    self.shares[str(name)] = str(known[np.argmax(counts)]) if len(known) else ""
        else:
            self.numbers = [f"column {j + 1}" for j in range(int(np.prod(first.shape[1:])))]
        self.reference = [self.read(own) for own in reference]

    def read(self, rows: Any) -> Array:
        """A matrix of numbers, gaps as NaN."""
        if not hasattr(rows, "iloc"):
            return np.asarray(rows, dtype=np.float64).reshape(len(rows), -1)
        numbers = rows[self.numbers].to_numpy(np.float64, na_value=np.nan)
        shares = [np.where(rows[n].isna(), np.nan, rows[n].astype(str) == first) for n, first in self.shares.items()]
        return np.column_stack([numbers, *shares]).astype(np.float64)

    def statistics(self) -> list[Statistic]:
        """Of each column where there are few, of the furthest where there are many; and of pairs of columns."""
        count = len(self.numbers)
        shares = [f"share of {first} in {name}" for name, first in self.shares.items()]
        if count + len(shares) <= EACH:
            tests = [
                Statistic(f"{what} of {name}", _of_column(of, j))
                for j, name in enumerate(self.numbers)
                for what, of in _MOMENTS.items()
            ]
            tests += [Statistic(name, _of_column(_mean, count + j)) for j, name in enumerate(shares)]
        else:
            numbers = [own[:, :count] for own in self.reference]
            tests = [
                _furthest(f"{what} of the furthest column", of, slice(count), numbers, self.numbers)
                for what, of in _MOMENTS.items()
                if count
            ]
            if shares:
                rest = [own[:, count:] for own in self.reference]
                tests.append(_furthest("share of the furthest column", _mean, slice(count, None), rest, shares))
        crossed = self._crossed()
        if len(crossed) > 1:
            names = [*self.numbers, *(f"{first} in {name}" for name, first in self.shares.items())]
            pairs = zip(*np.triu_indices(len(crossed), 1), strict=True)
            told = [f"{names[crossed[i]]} and {names[crossed[j]]}" for i, j in pairs]
            few = f" of {len(crossed)} columns" if len(crossed) < len(names) else ""
            own = [rows[:, crossed] for rows in self.reference]
            tests.append(_furthest(f"correlation of the furthest pair{few}", correlations, crossed, own, told))
        return tests

    def _crossed(self) -> NDArray[np.intp]:
        every = len(self.numbers) + len(self.shares)
        return np.unique(np.linspace(0, every - 1, min(every, CROSSED)).round().astype(np.intp))


def _of_column(of: Callable[[Array], Array], j: int) -> Callable[[Array], float]:
    return lambda rows: float(of(rows[:, j : j + 1])[0])


def _furthest(
    name: str,
    of: Callable[[Array], Array],
    columns: slice | NDArray[np.intp],
    reference: Sequence[Array],
    names: Sequence[str],
) -> Statistic:
    found = _Furthest(of, reference, names)
    return Statistic(name, lambda rows: found(rows[:, columns]), lambda rows: found.where(rows[:, columns]), upper=True)
