"""Questions with one spelling wherever a model can answer them: moments by `expectation`, a test by `bayes_factor`.

The other three are capabilities that an objective brings: evidence (`log_prob`), `ratio`, prediction (`predict`,
`forecast`). What is answered here carries its interval, what that assumes, and the kind of what it rests on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch.utils import _pytree as pytree

from weft.core.configured import closest

if TYPE_CHECKING:
    from weft.core.source import Field
    from weft.learner.answers import Answers

__all__ = [
    "BayesFactor",
    "Expectation",
    "compared",
    "expected",
    "mean_of",
    "refuse_level",
    "student",
    "values_of",
]

_DRAWS = 1000
_CHAIN = 100  # draws of a chain: ten batches of ten
Amount = float | NDArray[np.float64]
Span = tuple[Amount, Amount]


def student(level: float, freedom: float) -> float:
    """Student's t: within so many standard errors lies so much."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + level / 2.0))


def refuse_level(level: object) -> None:
    """Raises for what is no level of an interval."""
    if isinstance(level, bool) or not isinstance(level, float) or not 0.0 < level < 1.0:
        raise ValueError(f"expected a level in (0, 1), such as 0.95, got {level!r}")


def _written(value: Amount) -> str:
    return f"{value:.4g}" if isinstance(value, float) else np.array2string(np.asarray(value), precision=4)


@dataclass(frozen=True)
class Expectation:
    """E[f(X)] under a model, with its interval.

    >>> Expectation(0.5, (0.4, 0.6), 0.95, 0.05, 100, "direct", "independent draws")
    0.5 (95% interval 0.4 to 0.6; 100 draws; assumes independent draws)

    Attributes:
        mean: one number, or a vector where f gives one.
        interval: of the mean over other draws of the same model, for each number by itself; None where its width is
            not known.
        level: of the interval.
        error: the mean's standard error, or None.
        n: draws, or 0 where the objective computes the mean itself.
        kind: of the draws `direct`, `sequential` or `chain`; of a mean that the objective computes, as its mark says.
        assumes: what the interval rests on; "" where the mean is exact.
    """

    mean: Amount
    interval: Span | None
    level: float
    error: Amount | None
    n: int
    kind: str
    assumes: str

    @classmethod
    def around(cls, mean: Any, error: Any, kind: str, level: float) -> Expectation:
        """What an objective computes itself, with its standard error where it tells one."""
        refuse_level(level)
        mean = _amount(mean)
        if kind == "exact" and error is None:
            return cls(mean, (mean, mean), level, 0.0 * mean, 0, kind, "")
        if error is None:
            return cls(mean, None, level, None, 0, kind, "")
        error = _amount(error)
        wide = student(level, math.inf) * error
        return cls(mean, (mean - wide, mean + wide), level, error, 0, kind, "the objective's own standard error")

    def __float__(self) -> float:
        return float(self.mean)

    def __repr__(self) -> str:
        told = []
        if self.assumes and self.interval is not None:
            low, high = map(_written, self.interval)
            told.append(f"{100 * self.level:g}% interval {low} to {high}")
        told += [f"{self.n:,} draws"] if self.n else []
        told += [f"assumes {self.assumes}"] if self.assumes else [self.kind] if self.kind else []
        return f"{_written(self.mean)} ({'; '.join(told)})" if told else _written(self.mean)


def _amount(value: Any) -> Amount:
    array = np.asarray(value, dtype=np.float64)
    return float(array) if array.ndim == 0 else array


def values_of(f: Callable[[Any], Any], drawn: Any, n: int) -> NDArray[np.float64]:
    """f at each of n rows; raises where it does not give one number or one vector for each, by itself."""
    values = np.asarray(f(drawn))
    if values.dtype.kind not in "fiub":
        raise TypeError(f"expected numbers from the function, got {values.dtype}")
    if values.ndim not in (1, 2) or len(values) != n:
        raise ValueError(
            f"expected one number, or a vector, from the function for each of {n} rows, got shape {values.shape}; for "
            "example lambda x: x[:, 0] ** 2"
        )
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        bad = int((~np.isfinite(values).reshape(n, -1).all(1)).sum())
        raise ValueError(f"expected finite numbers from the function, got others for {bad} of {n} rows")
    few = np.asarray(f(pytree.tree_map(lambda rows: rows[:2], drawn, is_leaf=lambda part: isinstance(part, list))))
    if few.shape != values[:2].shape or not np.allclose(few, values[:2], rtol=1e-3, atol=1e-6):
        raise ValueError(
            "expected a function of each row by itself, got one whose values for two rows differ from those for the "
            "same rows among all: its mean would not be an expectation; leave out what it takes over the rows, and "
            "what it draws"
        )
    return values


def expected(
    draw: Callable[[int], Any], kind: str, f: Callable[[Any], Any], n: int | None, level: float
) -> Expectation:
    """E[f(X)] by draws: the mean with Student's interval, of a chain over the means of successive batches.

    Args:
        draw: gives so many draws.
        kind: what they say of themselves.
        f: of rows, one number or vector for each.
        n: how many draws; None for 1,000.
        level: of the interval.
    """
    n = _DRAWS if n is None else n
    least = _CHAIN if kind == "chain" else 2
    if not isinstance(n, int | np.integer) or isinstance(n, bool) or n < least:
        why = " of a chain, whose neighbours are alike" if kind == "chain" else ""
        raise ValueError(f"expected n >= {least} draws{why}, got {n!r}")
    refuse_level(level)
    values = values_of(f, draw(int(n)), int(n))
    parts = values
    assumes = "independent draws"
    if kind == "chain":
        count = math.isqrt(int(n))
        parts = np.stack([batch.mean(0) for batch in np.array_split(values, count)])
        assumes = f"a chain that has forgotten its beginning, and {count} batches of draws nearly independent"
    elif not kind:
        assumes += ", of which the objective's sample says nothing"
    return mean_of(values, kind, assumes, level, parts)


def mean_of(
    values: NDArray[np.float64], kind: str, assumes: str, level: float, parts: NDArray[np.float64] | None = None
) -> Expectation:
    """The mean of draws with Student's interval, from how they differ, or some parts of them that are independent."""
    refuse_level(level)
    parts = values if parts is None else parts
    mean, error = values.mean(0), parts.std(0, ddof=1) / math.sqrt(len(parts))
    wide = student(level, len(parts) - 1) * error
    span = (_amount(mean - wide), _amount(mean + wide))
    return Expectation(_amount(mean), span, level, _amount(error), len(values), kind, assumes)


# --- a test -------------------------------------------------------------------------------------------

_BOUNDS = {
    ("exact", "lower bound"): "upper bound",
    ("exact", "upper bound"): "lower bound",
    ("lower bound", "exact"): "lower bound",
    ("lower bound", "upper bound"): "lower bound",
    ("upper bound", "exact"): "upper bound",
    ("upper bound", "lower bound"): "upper bound",
    ("exact", "exact"): "exact",
}


@dataclass(frozen=True)
class BayesFactor:
    """log p_a(X) - log p_b(X) of two models as they stand after training, and its interval over rows.

    Of these very rows the sum is what it is; the interval says how far it may be from what other as many rows of the
    same origin have on the average (Vuong, "Likelihood ratio tests for model selection and non-nested hypotheses",
    Econometrica 57, 1989): n mean(d) -+ t sqrt(n) sd(d), for independent rows with the differences d. On rows that the
    models were trained on it favours the one that remembers more; give others.

    Attributes:
        log: the sum over the rows, in nats; above 0 the rows are more probable under the first.
        interval: of it; None for one row.
        level: of the interval.
        error: its standard error; None for one row.
        n: rows.
        kinds: what the two `log_prob` say of themselves.
        differences: one for each row.
    """

    log: float
    interval: tuple[float, float] | None
    level: float
    error: float | None
    n: int
    kinds: tuple[str, str]
    differences: NDArray[np.float64]

    @property
    def kind(self) -> str:
        """What the difference is: `exact`, a `lower bound`, an `upper bound`, an `estimate`, or `no bound`."""
        if "" in self.kinds:
            return "no bound"
        if "estimate" in self.kinds:
            return "estimate"
        return _BOUNDS.get(self.kinds, "no bound")  # of two lower bounds

    @property
    def favours(self) -> str:
        """`first`, `second` or `neither`: what the interval settles, as far as the kinds allow."""
        if self.interval is None:
            return "neither"
        low, high = self.interval
        if low > 0.0 and self.kind in ("exact", "lower bound", "estimate"):
            return "first"
        return "second" if high < 0.0 and self.kind in ("exact", "upper bound", "estimate") else "neither"

    def __repr__(self) -> str:
        one, other = (kind or "of a kind that is not said" for kind in self.kinds)
        span = ""
        if self.interval is not None:
            span = f"{100 * self.level:g}% interval {self.interval[0]:.4g} to {self.interval[1]:.4g}; "
        told = {
            "exact": "",
            "estimate": f"; an estimate, {one} minus {other}",
            "lower bound": f"; a lower bound, {one} minus {other}",
            "upper bound": f"; an upper bound, {one} minus {other}",
            "no bound": f"; {one} minus {other}, which bounds nothing",
        }[self.kind]
        favoured = {"neither": "favours neither"}.get(self.favours, f"favours the {self.favours}")
        return f"{self.log:.4g} ({span}{self.n:,} rows; {favoured}{told})"


def compared(one: Answers, other: object, X: Any, level: float, named: dict[str, Any]) -> BayesFactor:
    """The log of the ratio of what two fitted learners give rows; arguments by name go to those that take them."""
    from sklearn.utils.validation import check_is_fitted

    refuse_level(level)
    if not hasattr(other, "log_prob") or not hasattr(other, "training_"):
        raise TypeError(f"expected another fitted learner with log_prob, got {type(other).__name__}")
    pair: Any = (one, other)
    check_is_fitted(one)
    _refuse_unlike(pair)
    taken = [{name: value for name, value in named.items() if each.log_prob.takes(name)} for each in pair]
    for name in named:
        if not any(name in own for own in taken):
            raise closest(name, {n for each in pair for n in each.log_prob.arguments}, "an argument of 'log_prob'")
    densities = [_log_prob(each, X, own) for each, own in zip(pair, taken, strict=True)]
    for which, values in zip(("first", "second"), densities, strict=True):
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise ValueError(
                f"expected finite log-densities to compare, got {values[row]} of the {which} learner in row {row}; "
                "such a row settles the comparison by itself, or is an error: look at it"
            )
    d = densities[0] - densities[1]
    n, total = len(d), float(d.sum())
    kinds = (one.log_prob.kind, pair[1].log_prob.kind)
    if n < 2:
        return BayesFactor(total, None, level, None, n, kinds, d)
    error = float(d.std(ddof=1)) * math.sqrt(n)
    wide = student(level, n - 1) * error
    return BayesFactor(total, (total - wide, total + wide), level, error, n, kinds, d)


def _log_prob(learner: Any, X: Any, named: dict[str, Any]) -> NDArray[np.float64]:
    values = np.asarray(learner.log_prob(X, **named), dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"expected one log-density for each row of {learner!r}, got shape {values.shape}")
    return values


def _refuse_unlike(pair: tuple[Any, Any]) -> None:
    """Raises where the two are not densities of the same thing."""
    asked = [
        {name for name in each.log_prob.arguments if name in (*each.objective_.fields, *each.training_.spec)}
        for each in pair
    ]
    if asked[0] != asked[1]:
        told = [" and ".join(["the rows", *sorted(names)]) for names in asked]
        raise ValueError(
            f"expected densities of the same thing, got log_prob of {told[0]} from the first and of {told[1]} from the "
            "second, whose difference says nothing"
        )
    first = [each.training_.spec.get(each.objective_.fields[0]) for each in pair]
    for name, (a, b) in {"rows": first, **{n: [e.training_.spec.get(n) for e in pair] for n in asked[0]}}.items():
        if a is not None and b is not None and _measure(a) != _measure(b):
            raise ValueError(
                f"expected two learners trained on {name} of one shape and kind, got {_measure(a)} and {_measure(b)}: "
                "a density of other columns, or a mass in place of a density, is in other units"
            )
    names = [getattr(each, "feature_names_in_", None) for each in pair]
    if names[0] is not None and names[1] is not None and names[0].tolist() != names[1].tolist():
        raise ValueError(
            f"expected two learners of the same columns, got {names[0].tolist()} and {names[1].tolist()}; train both "
            "on the same table"
        )


def _measure(field: Field) -> tuple[tuple[int, ...], str]:
    return tuple(field.shape), "values" if field.dtype.is_floating_point else "whole numbers"
