"""The usual statistics of a data set, for predictive checks: moments and ends of columns, shares, correlations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
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
        of: the numbers, of the columns of a data set.
        columns: which.
        names: of the numbers.
    """

    def __init__(self, of: Callable[[Array], Array], columns: slice | NDArray[np.intp], names: Sequence[str]) -> None:
        self.of, self.columns, self.names = of, columns, names
        self.seen: list[Array] = []

    def learn(self, rows: Array) -> None:
        """One more data set of the model's."""
        self.seen.append(self.of(rows[:, self.columns]))

    @cached_property
    def usual(self) -> tuple[Array, Array]:
        """The mean and the deviation over the model's data sets."""
        each = np.stack(self.seen)
        middle = each.mean(0)
        # what never varies in the model is far from it wherever it differs
        return middle, np.maximum(each.std(0), 1e-9 * (1 + np.abs(middle)))

    def away(self, rows: Array) -> Array:
        middle, spread = self.usual
        return np.abs(self.of(rows[:, self.columns]) - middle) / spread

    def __call__(self, rows: Array) -> float:
        return float(self.away(rows).max())

    def where(self, rows: Array) -> str:
        return str(self.names[int(np.argmax(self.away(rows)))])


class Usual:
    """The usual statistics, and the rows as they read them: numbers, then for each category column its first's 0 or 1.

    Args:
        reference: data sets of the model's, one after another, by which columns are scaled and a category is chosen;
            apart from those that are compared, so that nothing is chosen by the data.
    """

    def __init__(self, reference: Iterable[Any]) -> None:
        each = iter(reference)
        first, self.shares = next(each), dict[str, str]()
        if hasattr(first, "iloc"):
            from pandas.api.types import is_numeric_dtype

            self.numbers = [str(name) for name in first.columns if is_numeric_dtype(first[name])]
            for name in first.columns:
                if str(name) not in self.numbers:
                    counts = first[name].astype(str)[first[name].notna()].value_counts()
                    self.shares[str(name)] = str(counts.index[0]) if len(counts) else ""
        else:
            self.numbers = [f"column {j + 1}" for j in range(int(np.prod(first.shape[1:])))]
        self._distances = self._furthest()
        for own in itertools.chain([first], each):
            rows = self.read(own)
            for distance in self._distances.values():
                distance.learn(rows)

    def read(self, rows: Any) -> Array:
        """A matrix of numbers, gaps as NaN."""
        if not hasattr(rows, "iloc"):
            return np.asarray(rows, dtype=np.float64).reshape(len(rows), -1)
        numbers = rows[self.numbers].to_numpy(np.float64, na_value=np.nan)
        return np.column_stack([numbers, *(_is(rows[name], first) for name, first in self.shares.items())])

    def statistics(self) -> list[Statistic]:
        """Of each column where there are few, of the furthest where there are many; and of pairs of columns."""
        tests = []
        if self._few:
            for j, name in enumerate(self.numbers):
                tests += [Statistic(f"{what} of {name}", _of_column(of, j)) for what, of in _MOMENTS.items()]
            tests += [Statistic(s, _of_column(_mean, len(self.numbers) + j)) for j, s in enumerate(self._shares)]
        return [*tests, *(Statistic(name, d, d.where, upper=True) for name, d in self._distances.items())]

    @property
    def _few(self) -> bool:
        return len(self.numbers) + len(self.shares) <= EACH

    @property
    def _shares(self) -> list[str]:
        return [f"share of {first} in {name}" for name, first in self.shares.items()]

    def _furthest(self) -> dict[str, _Furthest]:
        """The distances from the model, by name."""
        count, out = len(self.numbers), dict[str, _Furthest]()
        if count and not self._few:
            for what, of in _MOMENTS.items():
                out[f"{what} of the furthest column"] = _Furthest(of, slice(count), self.numbers)
        if self.shares and not self._few:
            out["share of the furthest column"] = _Furthest(_mean, slice(count, None), self._shares)
        names = [*self.numbers, *(f"{first} in {name}" for name, first in self.shares.items())]
        crossed = np.unique(np.linspace(0, len(names) - 1, min(len(names), CROSSED)).round().astype(np.intp))
        if len(crossed) > 1:
            pairs = zip(*np.triu_indices(len(crossed), 1), strict=True)
            told = [f"{names[crossed[i]]} and {names[crossed[j]]}" for i, j in pairs]
            few = f" of {len(crossed)} columns" if len(crossed) < len(names) else ""
            out[f"correlation of the furthest pair{few}"] = _Furthest(correlations, crossed, told)
        return out


def _is(column: Any, first: str) -> Array:
    """Whether each entry is a category, by its text; NaN where there is a gap."""
    codes, known = column.factorize()  # few texts to compare, where the rows are many
    return np.append(np.array([str(value) == first for value in known], dtype=np.float64), np.nan)[codes]


def _of_column(of: Callable[[Array], Array], j: int) -> Callable[[Array], float]:
    return lambda rows: float(of(rows[:, j : j + 1])[0])
