"""Tasks in sequence: a learner's score on each task after each."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.metrics import r2_score

from weft.learner.estimator import Learner
from weft.learner.reading import as_array, take, unpack
from weft.learner.settings import as_seed
from weft.measures.risk import environment_risk
from weft.scores.tasks import Score, average_accuracy, backward_transfer, forgetting, forward_transfer

__all__ = ["TaskMatrix", "accuracy_matrix", "scored", "task_scores", "untrained"]

Array = NDArray[np.float64]


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
    def average(self) -> Score:
        """See `average_accuracy`."""
        return average_accuracy(self.values)

    @property
    def backward(self) -> Score:
        """See `backward_transfer`."""
        return backward_transfer(self.values, more=self.more)

    @property
    def forward(self) -> Score:
        """See `forward_transfer`."""
        return forward_transfer(self.values, self.before, more=self.more)

    def forgetting(self, kind: str = "max") -> Score:
        """See `forgetting`."""
        return forgetting(self.values, kind=kind, more=self.more)


def accuracy_matrix(
    learner: Learner,
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
    X, y = unpack(X, y)
    labels = _labels(task, len(X), "X")
    names = [labels[i] for i in np.sort(np.unique(labels, return_index=True)[1]).tolist()]
    objective = learner.settings().objective
    supervised = objective.targets == "classes" and y is not None
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
        classes = np.unique(np.concatenate([as_array(y), as_array(y_test)]))
    own = {name: np.unique(as_array(y)[labels == name]) for name in names} if told and supervised else None
    if told and own is None:
        raise ValueError(f"expected labels to choose among where the task is told, got {objective!r}")
    asked: dict[str, Any] = {"task": seen, "names": names, "measure": measure, "own": own}

    def part(name: Any) -> dict[str, Any]:
        rows = np.flatnonzero(labels == name)
        given = {"X": take(X, rows), "y": take(y, rows), "environment": take(environment, rows)}
        return {**given, "classes": classes} if supervised else given

    first = learner if hasattr(learner, "training_") else untrained(learner, **part(names[0]))
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
    labels = as_array(task) if task is not None else np.array(None)
    if labels.shape != (rows,):
        raise ValueError(f"expected a task for each of the {rows} rows of {what}, got shape {labels.shape}")
    return labels


def untrained(learner: Learner, X: Any, y: Any, **more: Any) -> Learner | None:
    """The net before its first step, as a learner of its own; None where it is solved and not trained."""
    if learner.settings().objective.solved:
        return None
    bare: Learner = clone(learner)
    if isinstance(learner.replicas, dict):
        count = len(next(iter(learner.replicas.values())))
        swept = {n: v for n, v in learner.replicas.items() if n == "random_state" or n.startswith("objective__")}
        # No step is taken: the rates only tell replicas apart that differ in their strategies.
        bare.replicas = {"random_state": [as_seed(learner.random_state)] * count, **swept}
        bare.replicas["optimizer__lr"] = [1.0 / (1 + k) for k in range(count)]
    still = {
        "strategy": None,
        "optimizer": "adam",
        "epochs": None,
        "steps": 0,
        "folder": None,
        "keep": None,
        "verbose": False,
        "callbacks": (),
        "metrics": (),
        "monitor": None,
    }
    bare.set_params(**still, validation=None, patience=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the training itself will say it
        return bare.partial_fit(X, y, **more, task="before")


def scored(learner: Learner, measure: str | None = None) -> tuple[str, bool]:
    """The measure's name, and whether more of it is better."""
    objective = learner.settings().objective
    name, direction = objective.progress
    if measure is None:
        values = "R2" if "predict" in objective.capabilities() else name
        measure = "accuracy" if objective.targets in ("classes", "multilabel") else values
    return measure, direction == "max" if measure == name else measure in ("accuracy", "R2")


def task_scores(
    learner: Learner,
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
    labels = _labels(task, len(X), "X")
    wanted = np.unique(labels).tolist() if names is None else list(names)
    measure, _ = scored(learner, measure)
    if own is None and measure not in ("accuracy", "R2"):
        risk = environment_risk(learner, X, y, environment=labels, measure=measure)
        at = {name: i for i, name in enumerate(risk.names)}
        absent = np.full(risk.values.shape[:-1], np.nan)
        return np.stack([risk.values[..., at[n]] if n in at else absent for n in map(_bare, wanted)], axis=-1)
    if y is None:
        raise ValueError(f"expected y to measure {measure}, got None")
    truth = as_array(y)
    runs = [learner] if learner.replicas is None else [learner.replica(k) for k in range(len(learner.seeds_))]
    lines = np.full((len(runs), len(wanted)), np.nan)
    for k, run in enumerate(runs):
        if learner.training_.diverged[k]:
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
                lines[k, j] = (run.predict(x) == right).reshape(len(rows), -1).all(1).mean()
            elif np.ptp(right, axis=0).any():
                lines[k, j] = r2_score(right, run.predict(x))
    return lines[0] if learner.replicas is None else lines
