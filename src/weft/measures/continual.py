"""Measures of tasks in sequence: what is kept, lost and passed on, and which parameters tasks share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.metrics import r2_score

from weft.core.random import fold, key_of
from weft.core.source import Batch, rows_of
from weft.core.trees import Params
from weft.measures.fitted import Fitted
from weft.measures.risk import environment_risk

__all__ = [
    "TaskMatrix",
    "accuracy_matrix",
    "average_accuracy",
    "backward_transfer",
    "fisher",
    "fisher_overlap",
    "forgetting",
    "forward_transfer",
    "task_scores",
]

Array = np.ndarray[Any, Any]
_ROWS = 1024
_KINDS = ("max", "learned")


# --- numbers from a matrix ----------------------------------------------------------------------------


def average_accuracy(matrix: Any) -> Any:
    """The mean over all k tasks at the end,

        A = 1/k sum_j R[k, j],

    R[i, j] the accuracy on task j after task i.

    Args:
        matrix: R, of shape (..., k, k); leading axes, such as replicas, are kept.

    References:
        Lopez-Paz and Ranzato, "Gradient episodic memory for continual learning", arXiv 1706.08840, section 2.

    Example:
        >>> average_accuracy([[0.9, 0.1], [0.7, 0.8]])
        0.75
    """
    return _plain(_square(matrix)[..., -1, :].mean(-1))


def backward_transfer(matrix: Any, *, more: bool = True) -> Any:
    """What later tasks did to earlier ones, less than 0 where these are forgotten:

        BWT = 1/(k-1) sum_{j<k} (R[k, j] - R[j, j]).

    Args:
        matrix: R[i, j], the score on task j after task i, of shape (..., k, k).
        more: whether more of the score is better; for a loss (False) the sign is turned, so that a gain stays > 0.

    Returns:
        One number, or one for each of the leading axes; NaN for a single task.

    References:
        Lopez-Paz and Ranzato, "Gradient episodic memory for continual learning", arXiv 1706.08840, section 2.

    Example:
        >>> round(backward_transfer([[0.9, 0.1], [0.7, 0.8]]), 6)
        -0.2
    """
    R = _square(matrix)
    gain = R[..., -1, :-1] - np.diagonal(R, axis1=-2, axis2=-1)[..., :-1]
    return _mean(gain if more else -gain)


def forward_transfer(matrix: Any, before: Any, *, more: bool = True) -> Any:
    """What earlier tasks did for a later one before it was learned, beside a net that has learned nothing:

        FWT = 1/(k-1) sum_{j>1} (R[j-1, j] - b[j]).

    Args:
        matrix: R[i, j], the score on task j after task i, of shape (..., k, k).
        before: b, of shape (..., k): the untrained net's scores.
        more: whether more of the score is better; for a loss (False) the sign is turned.

    Returns:
        One number, or one for each of the leading axes; NaN for a single task.

    References:
        Lopez-Paz and Ranzato, "Gradient episodic memory for continual learning", arXiv 1706.08840, section 2.

    Example:
        >>> round(forward_transfer([[0.9, 0.3], [0.7, 0.8]], [0.1, 0.1]), 6)
        0.2
    """
    R, b = _square(matrix), np.asarray(before, dtype=float)
    if b.shape != R.shape[:-1]:
        raise ValueError(f"expected before to have shape {R.shape[:-1]}, a score for each task, got {b.shape}")
    gain = np.diagonal(R, offset=1, axis1=-2, axis2=-1) - b[..., 1:]
    return _mean(gain if more else -gain)


def forgetting(matrix: Any, *, kind: str = "max", more: bool = True) -> Any:
    """What earlier tasks have lost at the end, in one of the two customary definitions:

        max:      F = 1/(k-1) sum_{j<k} (max_{i<k} R[i, j] - R[k, j]),
        learned:  F = 1/(k-1) sum_{j<k} (R[j, j] - R[k, j]) = -BWT.

    `max` compares with the best that was ever reached, also by tasks before or after j, so it is never less than
    `learned`; only `learned` tells where tasks get better afterwards on average.

    Args:
        matrix: R[i, j], the score on task j after task i, of shape (..., k, k).
        kind: `max` or `learned`.
        more: whether more of the score is better; for a loss (False) its least value takes the maximum's place.

    Returns:
        One number, or one for each of the leading axes; NaN for a single task.

    References:
        Chaudhry, Dokania, Ajanthan and Torr, "Riemannian walk for incremental learning", arXiv 1801.10112, section 3
        (`max`). `learned` is what Avalanche calls forgetting.

    Example:
        >>> R = [[0.8, 0.1, 0.1], [0.9, 0.8, 0.1], [0.7, 0.6, 0.8]]
        >>> round(forgetting(R), 6), round(forgetting(R, kind="learned"), 6)
        (0.2, 0.15)
    """
    if kind not in _KINDS:
        raise ValueError(f"expected kind to be 'max' or 'learned', got {kind!r}")
    R = _square(matrix) if more else -_square(matrix)
    if kind == "learned":
        return -backward_transfer(R)
    if R.shape[-1] < 2:
        return _mean(R[..., -1, :-1])
    return _mean(R[..., :-1, :-1].max(-2) - R[..., -1, :-1])


def _square(matrix: Any) -> Array:
    R = np.asarray(matrix, dtype=float)
    if R.ndim < 2 or R.shape[-1] != R.shape[-2] or not R.shape[-1]:
        raise ValueError(
            f"expected a matrix of scores with a row and a column for each task, shape (..., k, k), got {R.shape}"
        )
    return R


def _mean(values: Array) -> Any:
    if not values.shape[-1]:
        return _plain(np.full(values.shape[:-1], np.nan))
    return _plain(values.mean(-1))


def _plain(values: Any) -> Any:
    return float(values) if np.ndim(values) == 0 else values


# --- the matrix of a learner --------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskMatrix:
    """The score on each task (columns) after each task (rows).

    Attributes:
        measure: what the scores are: `accuracy`, `R2`, or one that the objective reports.
        more: whether more of it is better.
        names: the tasks, in the order in which they were learned.
        rows: how many rows each task was measured on.
        values: R, of shape (k, k), or (replicas, k, k).
        before: the scores before the first task, (k,) or (replicas, k); NaN where there is no untrained net.
    """

    measure: str
    more: bool
    names: list[Any]
    rows: list[int]
    values: Array
    before: Array

    @property
    def average(self) -> Any:
        """See `average_accuracy`."""
        return average_accuracy(self.values)

    @property
    def backward(self) -> Any:
        """See `backward_transfer`."""
        return backward_transfer(self.values, more=self.more)

    @property
    def forward(self) -> Any:
        """See `forward_transfer`."""
        return forward_transfer(self.values, self.before, more=self.more)

    def forgetting(self, kind: str = "max") -> Any:
        """See `forgetting`."""
        return forgetting(self.values, kind=kind, more=self.more)


def accuracy_matrix(
    learner: Any,
    X: Any,
    y: Any = None,
    *,
    task: Any,
    test: tuple[Any, Any, Any] | None = None,
    classes: Any = None,
    environment: Any = None,
    measure: str | None = None,
    told: bool = False,
) -> TaskMatrix:
    """Trains a learner on task after task, in the order of their first rows, and measures all of them after each.

    Args:
        learner: trained in place by `partial_fit`. What it scores before is that of an untrained net of the same seed;
            of itself, where it is fitted already.
        X, y: rows, as for `fit`; with y None where the objective learns no target.
        task: of each row.
        test: X, y and task of the rows to measure; None measures the training rows.
        classes: all labels that will come; by default those of all rows.
        environment: of each row, for strategies that compare environments.
        measure: `accuracy`, `R2`, or one that the objective reports, such as `loss`. By default accuracy for classes,
            R2 for values, else the objective's progress measure.
        told: at the test the task is told, so the answer is the likeliest of that task's own classes (the
            task-incremental scenario); else nobody tells.

    Returns:
        `TaskMatrix`, with an axis for replicas where the learner has them (each measured by itself).

    References:
        Lopez-Paz and Ranzato, "Gradient episodic memory for continual learning", arXiv 1706.08840, section 2.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from weft import Classifier
        >>> X, y = load_digits(return_X_y=True)
        >>> found = accuracy_matrix(Classifier(epochs=8, random_state=0), X / 16, y, task=y // 5)
        >>> found.names, found.values.shape
        ([0, 1], (2, 2))
        >>> found.values[0].round(1).tolist(), bool(found.forgetting() > 0.5)
        ([1.0, 0.0], True)
    """
    from weft.learner.reading import plain, take, unpack

    X, y = unpack(X, y)
    labels = _labels(task, len(X), "X")
    names = [labels[i] for i in np.sort(np.unique(labels, return_index=True)[1]).tolist()]
    supervised = learner._objective().targets == "classes" and y is not None
    if test is not None and (not isinstance(test, tuple | list) or len(test) != 3):
        raise ValueError("expected test to be X, y and the task of each row, got others")
    X_test, y_test, seen = (
        (X, y, labels) if test is None else (test[0], test[1], _labels(test[2], len(test[0]), "test"))
    )
    if set(np.unique(seen).tolist()) != set(np.unique(labels).tolist()):
        raise ValueError(
            f"expected rows of every task to measure and of no other, got {np.unique(seen).tolist()} where "
            f"{np.unique(labels).tolist()} are learned"
        )
    if supervised and classes is None:
        classes = np.unique(np.concatenate([plain(y), plain(y_test)]))
    own = {name: np.unique(plain(y)[labels == name]) for name in names} if told and supervised else None
    if told and own is None:
        raise ValueError(f"expected labels to choose among where the task is told, got {learner._objective()!r}")
    asked: dict[str, Any] = {"task": seen, "names": names, "measure": measure, "own": own}

    def part(name: Any) -> dict[str, Any]:
        rows = np.flatnonzero(labels == name)
        given = {"X": take(X, rows), "y": take(y, rows), "environment": take(environment, rows)}
        return {**given, "classes": classes} if supervised else given

    first = learner if hasattr(learner, "_runs") else untrained(learner, **part(names[0]))
    before = None if first is None else task_scores(first, X_test, y_test, **asked)
    lines = []
    for name in names:
        learner.partial_fit(**part(name), task=name)
        lines.append(task_scores(learner, X_test, y_test, **asked))
    kind = scored(learner, measure)
    values = np.stack(lines, axis=-2)
    counts = [int((seen == name).sum()) for name in names]
    return TaskMatrix(*kind, [_bare(name) for name in names], counts, values, _or_nan(before, lines[0]))


def _or_nan(before: Array | None, like: Array) -> Array:
    return np.full(like.shape, np.nan) if before is None else before


def _bare(name: Any) -> Any:
    return name.item() if isinstance(name, np.generic) else name


def _labels(task: Any, rows: int, what: str) -> Array:
    from weft.learner.reading import plain

    labels = plain(task) if task is not None else np.array(None)
    if labels.shape != (rows,):
        raise ValueError(f"expected a task for each of the {rows} rows of {what}, got shape {labels.shape}")
    return labels


def untrained(learner: Any, X: Any, y: Any, **more: Any) -> Any | None:
    """The net before its first step, as a learner of its own; None where it is solved and not trained."""
    if hasattr(learner._objective(), "solve"):
        return None
    plain = clone(learner)
    if isinstance(learner.replicas, dict):
        count = len(next(iter(learner.replicas.values())))
        swept = {n: v for n, v in learner.replicas.items() if n == "random_state" or n.startswith("objective__")}
        plain.replicas = swept or {"random_state": [learner._seed()] * count}
    still = {"strategy": None, "epochs": None, "steps": 0, "folder": None, "verbose": False, "callbacks": ()}
    plain.set_params(**still, validation=None, patience=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the training itself will say it
        return plain.partial_fit(X, y, **more, task="before")


def scored(learner: Any, measure: str | None = None) -> tuple[str, bool]:
    """The measure's name, and whether more of it is better."""
    objective = learner._objective()
    name, direction = objective.progress
    if measure is None:
        values = "R2" if "predict" in objective.capabilities() else name
        measure = "accuracy" if objective.targets == "classes" else values
    return measure, direction == "max" if measure == name else measure in ("accuracy", "R2")


def task_scores(
    learner: Any,
    X: Any,
    y: Any = None,
    *,
    task: Any,
    names: Any = None,
    measure: str | None = None,
    own: Mapping[Any, Any] | None = None,
) -> Array:
    """A fitted learner's score on each task: one line of the matrix.

    Args:
        learner: fitted. Each replica is measured by itself.
        X, y: rows, as for `fit`.
        task: of each row.
        names: the tasks in the order wanted; by default sorted.
        measure: as in `accuracy_matrix`.
        own: where the task is told: the labels of each task, among which the answer is chosen.

    Returns:
        Of shape (tasks,), or (replicas, tasks); NaN for a task without rows, or for R2 where its values do not vary.

    Example:
        >>> from weft import Classifier
        >>> X = np.array([[-2.0], [-1.0], [1.0], [2.0]])
        >>> sign = Classifier(epochs=30, random_state=0).fit(X, [0, 0, 1, 1])
        >>> task_scores(sign, X, [0, 0, 1, 0], task=["May", "May", "June", "June"], names=["May", "June"]).tolist()
        [1.0, 0.5]
    """
    from weft.learner.reading import plain, take

    labels = _labels(task, len(X), "X")
    wanted = np.unique(labels).tolist() if names is None else list(names)
    measure, _ = scored(learner, measure)
    if own is None and measure not in ("accuracy", "R2"):
        found = environment_risk(learner, X, y, environment=labels, measure=measure)
        at = {name: i for i, name in enumerate(found.names)}
        absent = np.full(found.values.shape[:-1], np.nan)
        return np.stack([found.values[..., at[n]] if n in at else absent for n in map(_bare, wanted)], axis=-1)
    if y is None:
        raise ValueError(f"expected y to measure {measure}, got None")
    truth = plain(y)
    runs = [learner] if learner.replicas is None else [learner.replica(k) for k in range(len(learner.seeds_))]
    lines = np.full((len(runs), len(wanted)), np.nan)
    for k, run in enumerate(runs):
        if any(state.diverged for _, state in run._runs):
            continue
        for j, name in enumerate(wanted):
            rows = np.flatnonzero(labels == name)
            if not len(rows):
                continue
            x, right = take(X, rows), truth[rows]
            if own is not None:
                columns = np.flatnonzero(np.isin(run.classes_, np.asarray(own[name])))
                likeliest = columns[run.predict_proba(x)[:, columns].argmax(1)]
                lines[k, j] = (run.classes_[likeliest] == right).mean()
            elif measure == "accuracy":
                lines[k, j] = (run.predict(x) == right).mean()
            elif np.ptp(right, axis=0).any():
                lines[k, j] = r2_score(right, run.predict(x))
    return lines[0] if learner.replicas is None else lines


# --- Fisher information -------------------------------------------------------------------------------


def fisher(learner: Any, X: Any, y: Any = None, *, kind: str = "true") -> Params:
    """The diagonal of a fitted learner's Fisher information, a mean over rows,

        F_i = 1/n sum_x E_{y ~ p(y|x)} [(d log p(y|x) / d theta_i)^2],

    in evaluation mode and double precision, exactly, by parameter name.

    Args:
        learner: fitted; one replica.
        X, y: rows, as for `fit`.
        kind: `true` (the expectation over the model's own labels, as above), `sampled` (one draw of them for each
            row) or `empirical` (y itself).

    Example:
        >>> from weft import Regressor
        >>> X, y = torch.tensor([[1.0], [3.0]]), torch.zeros(2)
        >>> line = Regressor("linear", steps=1, random_state=0).fit(X, y)
        >>> {name: f.flatten().tolist() for name, f in fisher(line, X, y).items()}
        {'net.1.weight': [5.0], 'net.1.bias': [1.0]}
    """
    from weft.engine.gradients.squares import Passes, squares
    from weft.strategies.continual.laplace import Laplace

    way = Laplace(fisher=kind)
    way.validate()
    fitted = Fitted.of(learner, X, y)
    engine, state = fitted.learner._runs[0]
    if reason := way.refuses(engine.objective):
        raise ValueError(f"{type(engine.objective).__name__} has no Fisher information of kind {kind!r}: {reason}")

    def wide(tensors: Mapping[str, Any]) -> Params:
        kept = {name: t.detach() for name, t in tensors.items() if name not in fitted.params}
        return {name: t.to(fitted.shares.dtype) if t.is_floating_point() else t for name, t in kept.items()}

    def batches() -> Iterator[Batch]:
        for first in range(0, rows_of(fitted.batch), _ROWS):
            yield {name: values[first : first + _ROWS] for name, values in fitted.batch.items()}

    key = fold(key_of(state.seeds), "measure")
    passes = Passes(engine.objective, fitted.params, wide(state.params), wide(state.buffers), batches, key)
    total, examples = squares(passes, way._readout(engine.objective))
    return {name: f / examples for name, f in total.items()}


def fisher_overlap(first: Params, second: Params, *, by: str = "layer") -> dict[str, float]:
    """How far two tasks depend on the same parameters: 1 minus the squared Frechet distance of their Fisher matrices.

    With F and G the diagonals, each divided by its sum,

        overlap = 1 - d^2,    d^2 = 1/2 |sqrt(F) - sqrt(G)|^2,

    which is sum_i sqrt(F_i G_i): 1 where they are proportional, 0 where no parameter matters to both.

    Args:
        first, second: not negative, by parameter name, as `fisher` gives them for two tasks (or `EWC` keeps them as
            `precision`).
        by: normalized and compared by `layer` (weights and bias together), by `parameter` tensor, or as a `whole`.

    Returns:
        The overlap by name; NaN where one of them is zero.

    References:
        Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", arXiv 1612.00796, figure 3C and
        appendix 4.3.

    Example:
        >>> F = {"0.weight": torch.tensor([1.0, 1.0]), "1.weight": torch.tensor([1.0, 0.0])}
        >>> G = {"0.weight": torch.tensor([3.0, 3.0]), "1.weight": torch.tensor([0.0, 2.0])}
        >>> fisher_overlap(F, G)
        {'0': 1.0, '1': 0.0}
    """
    if by not in ("layer", "parameter", "whole"):
        raise ValueError(f"expected by to be 'layer', 'parameter' or 'whole', got {by!r}")
    if {n: f.shape for n, f in first.items()} != {n: f.shape for n, f in second.items()} or not first:
        raise ValueError(
            f"expected Fisher diagonals of the same parameters, got {[(n, tuple(f.shape)) for n, f in first.items()]} "
            f"and {[(n, tuple(f.shape)) for n, f in second.items()]}"
        )
    parts: dict[str, list[str]] = {}
    for name in first:
        where = name.rpartition(".")[0] if by == "layer" else name if by == "parameter" else "all"
        parts.setdefault(where, []).append(name)
    found = {}
    for where, names in parts.items():
        F, G = (torch.cat([given[n].detach().double().flatten() for n in names]) for given in (first, second))
        if bool((F < 0).any()) or bool((G < 0).any()):
            raise ValueError(f"expected Fisher diagonals >= 0, got some less in {where!r}")
        distance = (F / F.sum()).sqrt() - (G / G.sum()).sqrt()
        found[where] = 1.0 - 0.5 * float(distance.square().sum())
    return found
