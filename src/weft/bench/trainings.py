"""Trainings of a study's methods, none of which sees a test row: settings tried, and the chosen one made anew."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from weft.bench.data import Column, Data, Part
from weft.bench.methods import Method
from weft.bench.search import Outcome, Setting
from weft.bench.study import Study
from weft.core.objective import inexact
from weft.core.values import jsonable

if TYPE_CHECKING:
    from weft.core.values import Json
    from weft.learner.estimator import Learner

__all__ = ["Base", "Final", "base_rate", "fit_batch", "refit"]

Scores = NDArray[np.float64]
Matrix = list[list[float | None]]


@dataclass(frozen=True)
class Final:
    """What came of a method's chosen setting, trained with fresh seeds.

    Attributes:
        table: the score of each seed that has not diverged on each test row.
        seeds: those seeds.
        diverged: how many others there were.
        matrix: where there are tasks, after each one the score on each, mean over seeds.
        training: where there are environments, the scores on those that were trained on.
        curves: the learning curves of all seeds.
        objective, strategy: as they were built.
        seconds: what it took.
        kind: of the answers that were scored: `estimate`, a bound, or "" where they are exact.
    """

    table: Scores
    seeds: list[int]
    diverged: int
    matrix: Matrix | None
    training: Json | None
    curves: Json | None
    objective: str
    strategy: str
    seconds: float
    kind: str = ""


class Base(TypedDict):
    """What an answer that is always the same scores: the most frequent class, or the mean, of what was learned from."""

    answer: str
    validation: float
    test: float


@contextmanager
def _quietly() -> Iterator[None]:
    """One thread, as in every other job of the study, so that results do not depend on who runs beside; no warnings."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_num_threads(before)


def _train(learner: Learner, data: Data, part: Part) -> None:
    if data.by == "task":
        for name in data.names:
            rows = part.of(name)
            learner.partial_fit(part.X[rows], part.y[rows], classes=data.classes, task=name)
        return
    use = {}
    asked = learner.settings()
    read = asked.strategy.sight.grouped or "environment" in asked.objective.fields
    if data.by == "environment" and read:
        use = {"environment": part.labels}
    learner.fit(part.X, part.y, **use)


def _scores(data: Data, y: Column, answers: Column) -> Scores:
    """A score for each row: 1 where the class is right, or the squared error."""
    if data.classes is not None:
        return (answers == y).astype(np.float64)
    return (answers.astype(np.float64) - y) ** 2


def _answers(learner: Learner, count: int, X: NDArray[np.float32]) -> list[Column | None]:
    """Every replica's answers; None where it has diverged."""
    from sklearn.exceptions import NotFittedError

    answers: list[Column | None] = []
    for k in range(count):
        try:
            answer = learner.replica(k).predict(X)
        except NotFittedError:
            answer = None
        answers.append(None if answer is None or not _finite(answer) else answer)
    return answers


def _finite(answer: Column) -> bool:
    return answer.dtype.kind != "f" or bool(np.isfinite(answer).all())


def _judged(data: Data, part: Part, answers: Column) -> float:
    """The score on validation: the mean over environments or tasks, each counting alike, or over rows."""
    each = _scores(data, part.y, answers)
    if data.by in ("environment", "task") and part.labels is not None:
        return float(np.mean([each[part.labels == name].mean() for name in np.unique(part.labels)]))
    return float(each.mean())


def fit_batch(study: Study, data: Data, method: Method, settings: list[Setting]) -> list[Outcome]:
    """Trains a method with each of some settings, at once where that can be, and scores them on validation."""
    started = time.perf_counter()
    try:
        with _quietly():
            values = [_trial(data, method, study, settings, fold) for fold in _folds(study, data)]
    except (ArithmeticError, RuntimeError, ValueError, TypeError, MemoryError) as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if len(settings) > 1:  # one bad setting shall not spoil the others
            return [outcome for setting in settings for outcome in fit_batch(study, data, method, [setting])]
        state = "diverged" if isinstance(error, FloatingPointError) else "failed"
        return [{"value": None, "state": state, "why": why, "seconds": time.perf_counter() - started}]
    seconds = (time.perf_counter() - started) / len(settings)
    outcomes: list[Outcome] = []
    for by_fold in zip(*values, strict=True):
        known = [value for value in by_fold if value is not None]
        if len(known) < len(by_fold):
            outcomes.append({"value": None, "state": "diverged", "why": "the loss is not finite", "seconds": seconds})
        else:
            outcomes.append({"value": float(np.mean(known)), "state": "complete", "why": "", "seconds": seconds})
    return outcomes


def _constant(data: Data, y: Column) -> Column:
    """The one answer that fits these targets best."""
    if data.classes is None:
        return np.asarray(y.astype(np.float64).mean())
    values, counts = np.unique(y, return_counts=True)
    return np.asarray(values[counts.argmax()])


def base_rate(study: Study, data: Data) -> Base:
    """The scores of the best constant answer, where the methods' are taken."""
    folds = _folds(study, data)
    judged = [_judged(data, seen, np.full(len(seen), _constant(data, learned.y))) for learned, seen in folds]
    answer = _constant(data, data.train.plus(data.validation).y)
    test = _scores(data, data.test.y, np.full(len(data.test), answer))
    told = f"{float(answer):.4g}" if data.classes is None else str(answer)
    return {"answer": told, "validation": float(np.mean(judged)), "test": float(test.mean())}


def _folds(study: Study, data: Data) -> list[tuple[Part, Part]]:
    """What is trained on and what is looked at, by the study's rule of selection."""
    if study.selection == "oracle" and data.hold is not None:
        return [(data.train, data.hold)]
    if study.selection == "leave-one-out" and data.train.labels is not None:
        pairs = []
        whole = data.train.plus(data.validation)
        for name in np.unique(data.train.labels):
            pairs.append((data.train.where(~data.train.of(name)), whole.where(whole.of(name))))
        return pairs
    return [(data.train, data.validation)]


def _trial(
    data: Data, method: Method, study: Study, settings: list[Setting], fold: tuple[Part, Part]
) -> list[float | None]:
    lists: dict[str, Sequence[float]] = {name: [setting[name] for setting in settings] for name in settings[0]}
    lists["random_state"] = [study.seed] * len(settings)
    present = set() if fold[0].labels is None else set(map(str, np.unique(fold[0].labels)))
    narrow = dataclasses.replace(data, train=fold[0], names=[name for name in data.names if name in present])
    learner = method.learner(study, narrow, replicas=lists)
    _train(learner, data, fold[0])
    answers = _answers(learner, len(settings), fold[1].X)
    return [None if answer is None else _judged(data, fold[1], answer) for answer in answers]


def refit(study: Study, data: Data, method: Method, setting: Setting, seeds: list[int]) -> Final:
    """Trains the chosen setting with fresh seeds on all rows but the test's, and looks at the test once."""
    started = time.perf_counter()
    with _quietly():
        learner = method.learner(study, data, replicas={"random_state": seeds})
        if setting:
            learner.set_params(**setting)
        part = data.train.plus(data.validation)
        if data.by == "task":
            matrix, tables = _in_sequence(learner, data, part, len(seeds))
        else:
            matrix = None
            _train(learner, data, part)
            tables = [_scored(data, answer) for answer in _answers(learner, len(seeds), data.test.X)]
        seen = _on_training(learner, data, part, len(seeds)) if data.by == "environment" else None
    kept = [k for k, table in enumerate(tables) if table is not None]
    good = [table for table in tables if table is not None]
    return Final(
        table=np.stack(good) if good else np.zeros((0, len(data.test))),
        seeds=[seeds[k] for k in kept],
        diverged=len(seeds) - len(kept),
        matrix=matrix,
        training=seen,
        curves=_curves(learner),
        objective=repr(learner.objective),
        strategy=repr(learner.settings().strategy),
        seconds=time.perf_counter() - started,
        kind=inexact(learner.objective_).get("predict", ""),
    )


def _scored(data: Data, answer: Column | None) -> Scores | None:
    return None if answer is None else _scores(data, data.test.y, answer)


def _in_sequence(learner: Learner, data: Data, part: Part, count: int) -> tuple[Matrix, list[Scores | None]]:
    """Learns task after task; after each one every task's score on the test rows, as a matrix (mean over seeds)."""
    matrix: Matrix = []
    tables: list[Scores | None] = []
    for name in data.names:
        rows = part.of(name)
        learner.partial_fit(part.X[rows], part.y[rows], classes=data.classes, task=name)
        tables = [_scored(data, answer) for answer in _answers(learner, count, data.test.X)]
        good = [table for table in tables if table is not None]
        line = [np.mean([t[data.test.of(task)].mean() for t in good]) if good else np.nan for task in data.names]
        matrix.append(jsonable(line))
    return matrix, tables


def _on_training(learner: Learner, data: Data, part: Part, count: int) -> Json:
    """By training environment, the score of each seed there."""
    places: Json = {}
    answers = [answer for answer in _answers(learner, count, part.X) if answer is not None]
    for name in data.names:
        rows = part.of(name)
        values = [float(_scores(data, part.y[rows], answer[rows]).mean()) for answer in answers]
        places[name] = {"rows": int(np.sum(rows)), "part": "train", "scores": values}
    return places


def _curves(learner: Learner) -> Json | None:
    """The learning curves of all seeds; None of what is solved, in no step."""
    history = learner.history_
    if not history or learner.objective_.solved:
        return None
    measures = {}
    for name in ("loss", "accuracy"):
        if all(name in record for record in history):
            values = np.atleast_2d(np.asarray(history[name], dtype=float).T)
            measures[name] = jsonable(values)
    return {"step": [int(record["step"]) for record in history], "measures": measures}
