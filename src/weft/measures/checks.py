"""Predictive checks: is what was observed like what the model draws? A statistic of the data beside the model's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from weft.core.legal import Flag, Whole
from weft.core.random import fold, key_of, permutation
from weft.learner.estimator import Learner
from weft.learner.reading import as_array
from weft.measures.statistics import Statistic, Usual
from weft.scores.correcting import holm
from weft.scores.samples.reading import seeded

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Checked", "PredictiveCheck", "predictive_check"]

Array = NDArray[np.float64]
NUMBERS = 2**22  # drawn at a time
APART = 50  # data sets of the model's by which the usual statistics know what it gives on the average
LEVEL = 0.05


@dataclass(frozen=True)
class Checked:
    """A line of the table.

    Attributes:
        statistic: its name.
        value: of the data.
        model: its median over the data sets that the model drew.
        low, high: the middle 95 % of those.
        p_value: the tail probability; None where there is none.
        holm: the same, corrected for the number of statistics by Holm's rule.
        about: where it is furthest, or why there is no tail probability.
    """

    statistic: str
    value: float
    model: float
    low: float
    high: float
    p_value: float | None
    holm: float | None
    about: str


@dataclass(frozen=True, repr=False)
class PredictiveCheck:
    """What `predictive_check` found; printed, it is the table.

    Attributes:
        table: a `Checked` for each statistic.
        rows: in the data, and in each data set that the model drew.
        draws: data sets that the model drew.
        trained: whether the model was fitted to these rows.
        kind: what the model's `sample` says of its draws.
        level: at which the corrected tail probabilities are judged.
    """

    table: tuple[Checked, ...]
    rows: int
    draws: int
    trained: bool
    kind: str
    level: float = LEVEL

    @property
    def misfits(self) -> tuple[str, ...]:
        """The statistics in which the data are unlike the model's, Holm's correction for their number included."""
        return tuple(line.statistic for line in self.table if line.holm is not None and line.holm <= self.level)

    @property
    def conclusion(self) -> str:
        """What the tail probabilities say, and what they rest on."""
        tested = sum(line.p_value is not None for line in self.table)
        if not tested:
            return "No statistic has a tail probability: nothing was checked."
        if self.misfits:
            found = ", ".join(self.misfits)
            said = f"The data are unlike what the model draws in {len(self.misfits)} of {tested} statistics: {found}."
        else:
            said = (
                f"In none of {tested} statistics are the data unlike what the model draws, at {self.level:.0%}: with "
                f"{self.rows:,} rows this is no proof that the model is right, and other statistics may differ."
            )
        return " ".join([said, *self.caveats])

    @property
    def caveats(self) -> tuple[str, ...]:
        """What the tail probabilities rest on, in sentences."""
        said = [
            "The model was fitted to these very rows, so that tail probabilities are conservative: a misfit may hide, "
            "and what is found weighs the more."
            if self.trained
            else "The rows are taken for ones that the model was not fitted to; the model is taken as it stands, so "
            "that with enough rows what is left of its estimation error is found as well."
        ]
        if self.kind == "chain":
            said.append("Its draws come of a Markov chain: where neighbours are alike, tail probabilities are rough.")
        return tuple(said)

    def to_frame(self) -> pd.DataFrame:
        """The table as a DataFrame, a row for each statistic."""
        import pandas as pd

        return pd.DataFrame([vars(line) for line in self.table]).set_index("statistic")

    def __str__(self) -> str:
        heads = ["statistic", "data", "model", "95 % of the model's", "p", "Holm's p"]
        lines = [
            [m.statistic, f"{m.value:.4g}", f"{m.model:.4g}", f"{m.low:.4g} to {m.high:.4g}"]
            + ["–" if p is None else f"{p:.3g}" for p in (m.p_value, m.holm)]
            for m in self.table
        ]
        widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
        shown = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in (heads, *lines)
        ]
        why = [f"{m.statistic}: {m.about}" for m in self.table if m.about]
        return "\n".join([*shown, *why, self.conclusion])

    __repr__ = __str__


def predictive_check(
    learner: Learner,
    X: Any,
    statistics: Mapping[str, Callable[[Any], Any]] | None = None,
    *,
    draws: int = 999,
    trained: bool = False,
    random_state: int = 0,
    **named: Any,
) -> PredictiveCheck:
    """A statistic T of the data X beside its distribution over data sets X_1, ..., X_M of as many rows from the model.

        p = min(1, 2 (1 + min(#{T(X_k) <= T(X)}, #{T(X_k) >= T(X)})) / (1 + M))

    If X are rows of the model's own law, T(X) has any place among the T(X_k) with equal probability, so that p is below
    a level no more often than the level says. Rows should be new to the model. For the rows it was fitted to, tail
    probabilities are conservative, as the fit has come towards them (`trained=True` says so in the conclusion).
    A model that was fitted to not many more rows than it is checked with differs by its estimation error from the law
    it estimates, and that is found too: the check is of the model as it stands.

    Args:
        learner: fitted, of an objective that draws rows: a density, a model with latent variables, a game.
        X: rows, as for `fit`: an array or a DataFrame. Where X has gaps the data sets drawn get the same ones.
        statistics: by name, functions of rows as `learner.sample` gives them (an array, or a DataFrame for a learner
            of tables), each giving one number, or one for each row, of which the mean is taken. By default mean,
            deviation, skewness, least and largest value of each column and the share of each column's first category,
            where there are up to four columns, and of more those of the column furthest from what the model gives; and
            the correlation that is furthest from the model's. These distances from the model have one tail.
        draws: M; the least p is 2 / (1 + M).
        trained: whether the model was fitted to these very rows.
        random_state: the seed of the draws.
        named: what else `sample` takes: fields with a value for each row of X, such as `y`, and options.

    References:
        Rubin, "Bayesianly justifiable and relevant frequency calculations", Annals of Statistics 12, 1984.
        Gelman, Meng and Stern, "Posterior predictive assessment of model fitness", Statistica Sinica 6, 1996.
        Blei, "Build, compute, critique, repeat", Annual Review of Statistics 1, 2014.

    Example:
        >>> from weft.objectives import Independent
        >>> rng = np.random.default_rng(0)
        >>> learner = Learner(Independent(), random_state=0).fit(rng.normal(size=(5000, 2)))
        >>> skewed = np.stack([rng.normal(size=200), rng.exponential(size=200) - 1], 1)
        >>> predictive_check(learner, skewed, {"median of the second": lambda x: np.median(x[:, 1])}).misfits
        ('median of the second',)
    """
    Whole(19).check(draws, "draws", 999)
    Flag().check(trained, "trained", False)
    _refuse(learner)
    data = _Data.of(learner, X, named, seeded(random_state))
    plain = Usual(data.drawn(APART, "apart")) if statistics is None else None
    tests = plain.statistics() if plain is not None else _given(statistics or {}, data)
    least = 2 * len(tests) / (1 + draws)
    if least > LEVEL and not all(test.upper for test in tests):
        warnings.warn(
            f"expected draws of at least {int(2 * len(tests) / LEVEL)} for {len(tests)} statistics, got {draws}: no "
            f"corrected two-sided tail probability can be below {least:.2g}, which {LEVEL:g} is",
            stacklevel=2,
        )

    def measured(rows: Any) -> list[float]:
        own = rows if plain is None else plain.read(rows)
        return [_number(test, own, data.count) for test in tests]

    held = data.rows if plain is None else plain.read(data.rows)
    values, drawn = measured(data.rows), np.array([measured(rows) for rows in data.drawn(draws)])
    lines = [_line(test, value, own, held) for test, value, own in zip(tests, values, drawn.T, strict=True)]
    for line in lines:
        if line.p_value is None and statistics is not None:
            warnings.warn(f"{line.statistic!r} is not checked: {line.about}", stacklevel=2)
    return PredictiveCheck(_corrected(lines), data.count, int(draws), bool(trained), learner.sample.kind)


def tail(value: float, drawn: Array, *, upper: bool = False) -> float:
    """How far out a value lies among drawn ones, two-sided or only above; it counts as one of them.

    >>> tail(0.5, np.arange(19.0)), tail(-1.0, np.arange(19.0)), tail(99.0, np.arange(19.0), upper=True)
    (0.2, 0.1, 0.05)
    """
    below, above = int((drawn <= value).sum()), int((drawn >= value).sum())
    if upper:
        return (1 + above) / (1 + len(drawn))
    return min(1.0, 2 * (1 + min(below, above)) / (1 + len(drawn)))


def _line(test: Statistic, value: float, drawn: Array, held: Any) -> Checked:
    good = drawn[np.isfinite(drawn)]
    middle = [float(v) for v in np.quantile(good, (0.5, 0.025, 0.975))] if len(good) else [np.nan] * 3
    p: float | None = None
    if not np.isfinite(value):
        about = f"it is {value} for the data, where a finite number is expected"
    elif len(good) < len(drawn):
        about = f"it is not finite for {len(drawn) - len(good)} of the {len(drawn)} data sets that the model drew"
    elif value == drawn[0] and bool((drawn == drawn[0]).all()):
        about = "it is the same in the data and in all that the model drew, and checks nothing"
    else:
        p, about = tail(value, drawn, upper=test.upper), test.where(held)
    return Checked(test.name, float(value), middle[0], middle[1], middle[2], p, None, about)


def _corrected(lines: Sequence[Checked]) -> tuple[Checked, ...]:
    corrected = iter(holm([line.p_value for line in lines if line.p_value is not None]).tolist())
    return tuple(line if line.p_value is None else replace(line, holm=next(corrected)) for line in lines)


def _refuse(learner: Learner) -> None:
    check_is_fitted(learner)
    objective = learner.objective_
    mark = objective.capabilities().get("sample")
    if mark is None or mark.asks != "number":
        why = "draws no rows" if mark is None else "draws only for given rows"
        raise TypeError(
            f"expected a learner that draws rows, with sample(n), got one of {type(objective).__name__}, which {why}; "
            "take an objective that models the rows, such as VAE(), Mixture() or Independent()"
        )


# --- statistics -------------------------------------------------------------------------------------------


def _given(statistics: Mapping[str, Callable[[Any], Any]], data: _Data) -> list[Statistic]:
    """The user's, tried on the data."""
    if not isinstance(statistics, Mapping) or not statistics:
        raise TypeError(
            f"expected statistics as a dictionary of names and functions of rows, got {type(statistics).__name__}"
            f"{' without any' if isinstance(statistics, Mapping) else ''}; for example "
            "{'largest': lambda x: x.max()}"
        )
    tests = []
    for name, function in statistics.items():
        if not callable(function):
            raise TypeError(f"expected a function of rows as the statistic {name!r}, got {type(function).__name__}")
        test = Statistic(str(name), function)
        first = np.shape(function(data.rows))
        _number(test, data.rows, data.count)
        if first and data.count > 1:
            fewer = np.shape(function(data.rows[: data.count - 1]))
            if fewer != (data.count - 1,):  # as many columns as rows: else the mean of the wrong axis would be taken
                raise ValueError(
                    f"expected one number from the statistic {name!r}, or one for each row, got shape {first} for "
                    f"{data.count} rows and {fewer} for one row fewer; give a statistic for each column"
                )
        tests.append(test)
    return tests


def _number(test: Statistic, rows: Any, count: int) -> float:
    """The statistic as one number: of one for each row, the mean."""
    found = np.asarray(test.function(rows))
    if found.dtype.kind not in "fiub":
        raise TypeError(f"expected numbers from the statistic {test.name!r}, got {found.dtype}")
    if found.shape not in ((), (count,)):
        raise ValueError(
            f"expected one number from the statistic {test.name!r}, or one for each of {count} rows, got shape "
            f"{found.shape}; give a statistic for each column, such as lambda x: x[:, 0].mean()"
        )
    return float(found) if found.ndim == 0 else float(found.astype(np.float64).mean())


# --- data sets --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Data:
    """The data as the model's draws come, and data sets like it from the model.

    Attributes:
        learner: what draws.
        rows: an array or a DataFrame.
        count: how many.
        gaps: where nothing is observed, or None.
        named: what else `sample` is told.
        seed: of the draws.
    """

    learner: Learner
    rows: Any
    count: int
    gaps: NDArray[np.bool_] | None
    named: dict[str, Any]
    seed: int

    @classmethod
    def of(cls, learner: Learner, X: Any, named: dict[str, Any], seed: int) -> _Data:
        """Reads X beside a data set of the model's, which says what rows are like."""
        learner._inputs(X)  # what cannot be rows of it is refused there
        count = len(X)
        replicas = len(learner._answering())
        by_row = [name for name, value in named.items() if _by_row(value)]
        if by_row and replicas > 1:
            raise ValueError(
                f"expected one replica to draw for given {', '.join(by_row)}, got {replicas}; check one of them: "
                "learner.replica(0)"
            )
        for name in by_row:
            if len(named[name]) != count:
                raise ValueError(f"expected {name!r} to have a value for each of {count} rows, got {len(named[name])}")
        one = {name: value[:1] if name in by_row else value for name, value in named.items()}
        like = learner.sample(1, random_state=0, **one)
        if hasattr(like, "iloc"):
            rows = X[list(like.columns)]
            gaps = rows.isna().to_numpy()
        elif isinstance(like, np.ndarray):
            rows = np.asarray(as_array(X), dtype=np.float64)
            gaps = np.isnan(rows)
            if rows.shape[1:] != like.shape[1:]:
                raise ValueError(
                    f"expected rows of shape {like.shape[1:]}, as the model draws them, got {rows.shape[1:]}"
                )
        else:
            raise TypeError(
                f"expected a model that draws rows of numbers, or tables, got draws as {type(like).__name__} from "
                f"{type(learner.objective_).__name__}; compare what they say: a statistic of each, in one array"
            )
        if count < 2:
            raise ValueError(f"expected at least 2 rows to check, got {count}")
        return cls(learner, rows, count, gaps if gaps.any() else None, named, seed)

    def drawn(self, sets: int, place: str = "sets") -> Iterator[Any]:
        """So many data sets, each of as many rows as the data, with its gaps."""
        wide = int(np.prod(np.shape(self.rows)[1:]))
        at_once = max(1, NUMBERS // (self.count * max(wide, 1)))
        replicas = len(self.learner._answering())
        for first in range(0, sets, at_once):
            some = min(at_once, sets - first)
            # of a key of its own, so that rows that the user drew by the same seed are not drawn again
            key = fold(key_of(self.seed), "predictive check", place, first)
            seed = int(key) & (2**31 - 1)
            named = {name: _repeated(v, some) if _by_row(v) else v for name, v in self.named.items()}
            rows = self.learner.sample(some * self.count, random_state=seed, **named)
            if replicas > 1:  # each has drawn its share in one piece: mixed, so that a data set is of all
                order = permutation(key, some * self.count).numpy()
                rows = rows.iloc[order] if hasattr(rows, "iloc") else rows[order]
            for k in range(some):
                own = slice(k * self.count, (k + 1) * self.count)
                yield self._with_gaps(rows.iloc[own] if hasattr(rows, "iloc") else rows[own].astype(np.float64))

    def _with_gaps(self, rows: Any) -> Any:
        if self.gaps is None:
            return rows
        return rows.mask(self.gaps) if hasattr(rows, "iloc") else np.where(self.gaps, np.nan, rows)


def _by_row(value: object) -> bool:
    return not isinstance(value, str | tuple | Mapping) and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def _repeated(value: Any, times: int) -> Any:
    if isinstance(value, list):
        return value * times
    array = as_array(value)
    return np.tile(array, (times,) + (1,) * (array.ndim - 1))
