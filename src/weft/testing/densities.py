"""check_density: whether what a model calls a likelihood is one, and its samples are drawn by it."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.core.objective import DENSITY, DRAWN, Objective
from weft.learner.estimator import Learner
from weft.testing.checks import ContractError

__all__ = ["check_density", "every_row"]

Rows = NDArray[Any]
_POINTS = {1: 20_001, 2: 601}
_CONDITIONS = 4
_NARROW = 1e-4  # of a total probability by enumeration in float32; in double precision it is far smaller
_WIDE = 2e-3  # of one by quadrature
_NOISY = 0.02  # of one whose log_prob is of some draws


def every_row(choices: Sequence[int]) -> Rows:
    """Every row of whole numbers that has so many choices in each column.

    >>> every_row([2, 2]).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    return np.array(list(itertools.product(*map(range, choices))))


def check_density(
    objective: Objective,
    X: Any,
    *,
    support: Rows | None = None,
    box: Sequence[tuple[float, float]] | None = None,
    exact: Callable[[Rows], Rows] | None = None,
    fields: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    draws: int = 4000,
    level: float = 1e-4,
    missing: Sequence[tuple[int, ...]] | None = None,
) -> Learner:
    """Checks a model of p(x) on rows: fitted by a Learner, asked, and compared with what must be so.

    - `log_prob` says what it is (exact, a bound, an estimate), `sample` how it draws.
    - The total probability is 1: summed over `support`, or integrated over `box` (rows of one or two numbers); of a
      lower bound at most 1, of an upper bound at least 1; an estimate is not judged by it.
    - Samples have the frequencies that the probabilities say, by a test at `level`.
    - A conditional density, `log_prob(X, y=...)`, is so for each condition, of which the first few are tried; where y
      may be left out, all that is said here holds for the marginal.
    - Rows alone are as rows together.
    - Where the model takes gaps, the density of a row with gaps is that of what is observed: summed over what is
      missing. What is imputed keeps what was observed, and has the frequencies of the conditional.
    - A bound is one in the mean over the rows, where `exact` tells the log-density of the fitted model itself.

    Args:
        objective: the model.
        X: rows to fit it to.
        support: every possible row, of a model of whole numbers; rows may have a shape, as images have.
        box: the lowest and the highest number of each column between which practically all of the probability lies.
        exact: log p of rows under the true marginal likelihood, for models that bound or estimate it.
        fields: further fields of `fit`, such as y.
        settings: of the Learner: `{"steps": 200}`.
        draws: how many samples are drawn.
        level: the share of right models that may fail the tests of frequencies.
        missing: which columns are missing together where gaps are tried, for a model that refuses others; by default
            the first, then all others. Of rows with a shape, the numbers of their entries.

    Returns:
        The fitted learner, for tests of its own.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from weft.core import capability
        >>> from weft.core.random import bernoulli
        >>> from weft.objectives.densities import Density
        >>> class Coins(Density):
        ...     def build(self, spec):
        ...         self.logit = nn.Parameter(torch.zeros(spec["x"].shape))
        ...     @capability(merge="logmeanexp", kind="exact")
        ...     def log_prob(self, x):
        ...         return torch.distributions.Bernoulli(logits=self.logit).log_prob(x).sum(-1)
        ...     @capability(merge="share", kind="direct")
        ...     def sample(self, n):
        ...         return bernoulli(self.logit.sigmoid().expand(n, -1), place="x")
        >>> flips = np.random.default_rng(0).integers(0, 2, (50, 3)).astype(float)
        >>> learner = check_density(Coins(), flips, support=every_row([2, 2, 2]), settings={"steps": 5})
    """
    given = {"random_state": 0, "dtype": "float64", **(settings or {})}
    learner = Learner(objective, **given).fit(X, **(fields or {}))
    asked = {name: value for name, value in (fields or {}).items() if learner.log_prob.takes(name)}
    kind = learner.log_prob.kind
    _expect(kind in DENSITY, f"expected log_prob to say what it is, one of {', '.join(DENSITY)}, got {kind!r}")
    _alone(learner, X, asked)
    if hasattr(learner, "sample"):
        how = learner.sample.kind
        _expect(how in DRAWN, f"expected sample to say how it draws, one of {', '.join(DRAWN)}, got {how!r}")
    points, weight = _points(support, box)
    whole = support is not None
    for told in _conditions(asked):
        _law(learner, points, weight, told, whole, draws, level)
    if not _optional(learner, asked):
        return learner
    share = _law(learner, points, weight, {}, whole, draws, level)
    if exact is not None:
        _bounds(learner, np.asarray(X), exact, kind)
    if objective.gaps and kind == "exact":
        columns = math.prod(points.shape[1:])
        tried = {(0,), tuple(range(1, columns)) or (0,)} if missing is None else missing
        for gone in tried:
            _gaps(learner, points, share, whole, draws, level, gone)
    return learner


def _expect(condition: object, message: str) -> None:
    if not bool(condition):
        raise ContractError(message)


def _conditions(fields: Mapping[str, Any]) -> list[dict[str, Rows]]:
    """The first few distinct conditions, each of one row."""
    held = {name: np.asarray(value) for name, value in fields.items()}
    rows = range(len(next(iter(held.values())))) if held else range(0)
    first = {repr([value[i].tolist() for value in held.values()]): i for i in reversed(rows)}
    return [{n: v[i : i + 1] for n, v in held.items()} for i in sorted(first.values())[:_CONDITIONS]]


def _optional(learner: Learner, fields: Mapping[str, Any]) -> bool:
    """Whether log_prob may be asked without these."""
    named = inspect.signature(getattr(learner.objective_, learner.log_prob.name)).parameters
    return all(named[name].default is not inspect.Parameter.empty for name in fields)


def _law(
    learner: Learner, points: Rows, weight: Rows, told: Mapping[str, Rows], whole: bool, draws: int, level: float
) -> Rows:
    """The probability of each place under a condition: all of it together is 1, and samples have these frequencies."""
    kind, where = learner.log_prob.kind, "".join(f" given {name} = {value[0]}" for name, value in told.items())
    asked = {name: np.repeat(value, len(points), 0) for name, value in told.items()}
    logs = np.asarray(learner.log_prob(points, **asked), dtype=np.float64)
    slack = _NARROW if whole else _WIDE
    if kind != "exact" and _by_draws(learner):
        slack = _NOISY  # a mean of weights is p(x) in expectation, so above it about half of the time
    _total(kind, logs + np.log(weight), ("enumeration" if whole else "quadrature") + where, slack)
    share = np.exp(logs) * weight
    if kind == "exact" and hasattr(learner, "sample") and all(learner.sample.takes(name) for name in told):
        drawn = learner.sample(draws, random_state=1, **{n: np.repeat(v, draws, 0) for n, v in told.items()})
        _frequencies(np.asarray(drawn), points, share, level, f"samples{where}")
    return share


def _points(support: Rows | None, box: Sequence[tuple[float, float]] | None) -> tuple[Rows, Rows]:
    """Where the density is asked, and how much each place counts."""
    if (support is None) == (box is None):
        raise TypeError("expected support (whole numbers) or box (one or two real ones), got both or neither")
    if support is not None:
        return support, np.ones(len(support))
    if box is None or len(box) not in _POINTS:
        raise ValueError(f"expected a box for one or two columns, got {box!r}")
    axes = [np.linspace(low, high, _POINTS[len(box)]) for low, high in box]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(box))
    sides = []
    for axis in axes:
        side = np.full(len(axis), axis[1] - axis[0])
        side[[0, -1]] /= 2
        sides.append(side)
    weight = sides[0] if len(sides) == 1 else np.multiply.outer(*sides).reshape(-1)
    return grid, weight


def _by_draws(learner: Learner) -> bool:
    """Whether log_prob is of so many draws."""
    return "draws" in inspect.signature(getattr(learner.objective_, learner.log_prob.name)).parameters


def _total(kind: str, logs: Rows, how: str, slack: float) -> None:
    total = float(np.exp(logs).sum())
    wrong = {
        "exact": abs(total - 1) > slack,
        "lower bound": total > 1 + slack,
        "upper bound": total < 1 - slack,
        "estimate": False,
    }[kind]
    bound = {"lower bound": "at most 1", "upper bound": "at least 1"}.get(kind, "1")
    _expect(not wrong, f"expected a total probability of {bound} by {how}, as {kind} says, got {total:.6f}")


def _alone(learner: Learner, X: Any, fields: Mapping[str, Any]) -> None:
    """A row's density is not a matter of the others."""
    whole = np.asarray(learner.log_prob(X, **fields))
    for i in (0, len(whole) - 1):
        rows = X.iloc[i : i + 1] if hasattr(X, "iloc") else X[i : i + 1]
        own = np.asarray(learner.log_prob(rows, **{n: np.asarray(v)[i : i + 1] for n, v in fields.items()}))
        _expect(
            np.allclose(own, whole[i : i + 1], rtol=1e-6, atol=1e-8),
            f"expected the density of row {i} alone to be that among the others, {whole[i]!r}, got {own[0]!r}",
        )


def _cells(points: Rows, share: Rows, least: float) -> Rows:
    """A cell for each place, so that every cell is expected to hold enough draws: neighbours in order are pooled."""
    cell, held, cells = 0, 0.0, np.empty(len(points), dtype=np.int64)
    for i, p in enumerate(share):
        cells[i] = cell
        held += p
        if held >= least:
            cell, held = cell + 1, 0.0
    if held > 0 and cell:
        cells[cells == cell] = cell - 1
    return cells


def _frequencies(drawn: Rows, points: Rows, share: Rows, level: float, what: str) -> None:
    """A chi-squared test of draws over cells of about the same probability."""
    from scipy import stats

    _expect(np.isfinite(drawn).all(), f"expected finite {what}, got others")
    drawn, points = drawn.reshape(len(drawn), -1), points.reshape(len(points), -1)
    share = share / share.sum()
    order = np.lexsort(points.T[::-1])
    points, share = points[order], share[order]
    cells = _cells(points, share, max(0.02, 10 / len(drawn)))
    if np.issubdtype(points.dtype, np.integer):
        place = {tuple(row): i for i, row in enumerate(points.tolist())}
        found = [place.get(tuple(int(v) for v in row), -1) for row in drawn.round().tolist()]
        _expect(min(found) >= 0, f"expected {what} in the support, got {drawn[int(np.argmin(found))].tolist()}")
        seen = cells[np.array(found)]
    else:
        seen = cells[_nearest(drawn, points)]
    wanted = np.bincount(cells, weights=share, minlength=cells.max() + 1) * len(drawn)
    counts = np.bincount(seen, minlength=len(wanted))
    full = wanted > 0
    _expect(not counts[~full].any(), f"expected no {what} where the probability is 0, got {counts[~full].sum()}")
    if full.sum() < 2:
        return
    p = float(stats.chisquare(counts[full], wanted[full] * counts[full].sum() / wanted[full].sum()).pvalue)
    _expect(
        p >= level, f"expected {what} with the frequencies that log_prob says, got p = {p:.1e} over {full.sum()} cells"
    )


def _nearest(drawn: Rows, points: Rows) -> Rows:
    """The place of the grid that is nearest to each draw; those far outside count for the edge."""
    axes = [np.unique(column) for column in points.T]
    index = np.zeros(len(drawn), dtype=np.int64)
    for axis, column in zip(axes, drawn.T, strict=True):
        step = axis[1] - axis[0]
        index = index * len(axis) + np.clip(np.rint((column - axis[0]) / step), 0, len(axis) - 1).astype(np.int64)
    return index


def _bounds(learner: Learner, rows: Rows, exact: Callable[[Rows], Rows], kind: str) -> None:
    difference = np.asarray(learner.log_prob(rows), dtype=np.float64) - np.asarray(exact(rows))
    mean, error = float(difference.mean()), float(difference.std(ddof=1) / math.sqrt(len(difference)))
    slack = 4 * error + 1e-6
    wrong = {
        "exact": float(np.abs(difference).max()) > 1e-5 * max(1.0, float(np.abs(exact(rows)).max())),
        "lower bound": mean > slack,
        "upper bound": mean < -slack,
        "estimate": abs(mean) > slack,
    }[kind]
    _expect(not wrong, f"expected log_prob as {kind} says, got {mean:.5f} (standard error {error:.5f}) above the exact")


def _gaps(
    learner: Learner, points: Rows, share: Rows, whole: bool, draws: int, level: float, missing: tuple[int, ...]
) -> None:
    """With these columns missing."""
    shape, points = points.shape[1:], points.reshape(len(points), -1)
    columns = points.shape[1]
    seen = [j for j in range(columns) if j not in missing]
    chosen = points[int(np.argmax(share))].astype(np.float64)
    asked = np.where(np.isin(np.arange(columns), missing), np.nan, chosen).reshape(1, *shape)
    alike = (points[:, seen] == chosen[seen]).all(1)
    weight = share[alike]
    if not whole and seen:  # a line of the grid: its points count by their distance along it
        line = points[alike][:, missing[0]]
        density = np.exp(np.asarray(learner.log_prob(points[alike].reshape(-1, *shape)), dtype=np.float64))
        weight = density * (line[1] - line[0])
    told, wanted = float(np.asarray(learner.log_prob(asked))[0]), float(np.log(weight.sum()))
    _expect(
        abs(told - wanted) < (1e-5 if whole else 5e-3) * max(1.0, abs(wanted)),
        f"expected the density of what is observed of a row with gaps, {wanted:.6f}, got {told:.6f} with columns "
        f"{list(missing)} missing",
    )
    if hasattr(learner, "impute"):
        filled = np.asarray(learner.impute(np.repeat(asked, draws, 0), random_state=2), dtype=np.float64)
        filled = filled.reshape(draws, -1)
        _expect((filled[:, seen] == chosen[seen]).all(), "expected impute to keep what was observed, got other values")
        places = points[alike][:, missing]
        _frequencies(filled[:, missing], places, weight, level, "imputed values")
