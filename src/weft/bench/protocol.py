"""The protocol: one split that is recorded, methods with their search spaces, and trainings that see no test row."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.bench.study import BUNDLED, Study
from weft.core.configured import Range
from weft.core.spelling import parse
from weft.tables.files import Columns, read_columns, some
from weft.tables.recipe import Recipe, split

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = ["Data", "Method", "Part", "fit_batch", "refit", "suitable"]

Array = np.ndarray[Any, Any]
RATE = Range(1e-4, 3e-2, log=True)


# --- the data -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Some rows: features, target, and what each row belongs to (environment, task or group), if anything."""

    X: Array
    y: Array
    labels: Array | None

    def __len__(self) -> int:
        return len(self.X)

    def where(self, rows: Array) -> Part:
        """The rows for which it says True."""
        return Part(self.X[rows], self.y[rows], None if self.labels is None else self.labels[rows])

    def plus(self, other: Part) -> Part:
        """These rows and others."""
        labels = None if self.labels is None else np.concatenate([self.labels, other.labels])  # type: ignore[list-item]
        return Part(np.concatenate([self.X, other.X]), np.concatenate([self.y, other.y]), labels)


@dataclass(frozen=True)
class Data:
    """A study's data, split once.

    Attributes:
        train, validation, test: the parts. Encodings are learned from `train` alone.
        by: what the split goes by: `rows`, `environment`, `group` or `task`.
        classes: the labels, or None where values are predicted.
        hold: in an oracle's study, rows of the test environments that selection may look at.
        names: the training environments by name, or the tasks in the order of their first rows.
        about: what the report says of the data.
        notes: what the reader should know.
    """

    train: Part
    validation: Part
    test: Part
    by: str
    classes: list[Any] | None
    hold: Part | None
    names: list[str]
    about: dict[str, Any]
    notes: tuple[str, ...]

    @classmethod
    def read(cls, study: Study, table: Any = None) -> Data:
        """Reads and splits a study's table; `table` is a DataFrame or dictionary in place of the file."""
        columns = _columns(study, table)
        by = next((name for name in ("environment", "task", "group") if getattr(study, name)), "rows")
        first = Recipe.learn(
            columns,
            target=study.target,
            environment=study.environment or study.group or None,
            task=study.task or None,
            drop=study.drop,
            kind=study.kind or None,
        )
        y, environment, task, _ = first._roles(columns)
        labels = task if by == "task" else environment
        assert first.target is not None  # noqa: S101 (a study has one)
        classes = first.target.kind == "classes"
        where, notes = _parts(study, by, labels, y if classes else None, columns.rows)
        recipe = Recipe.learn(
            columns,
            target=study.target,
            environment=study.environment or study.group or None,
            task=study.task or None,
            drop=study.drop,
            kind=first.target.kind,
            training=where["train"],
        )
        encoded = recipe.apply(columns, quiet=True)
        whole = Part(encoded.X.astype(np.float32), encoded.y, labels)  # type: ignore[arg-type]
        parts = {name: whole.where(rows) for name, rows in where.items()}
        about = {
            "path": study.data if table is None else str(columns.path),
            "sha256": columns.sha256,
            "rows": columns.rows,
            "features": len(encoded.names),
            "target": study.target,
            **{name: getattr(study, name) or None for name in ("environment", "task", "group")},
        }
        found = np.unique(y).tolist() if classes else None
        if found is not None:
            missing = sorted(set(map(str, found)) - set(map(str, np.unique(parts["train"].y).tolist())))
            if missing:
                raise ValueError(
                    f"expected every class among the training rows, got none of {some(missing)}; leave those rows out, "
                    "or hold other environments or groups out"
                )
        else:
            notes += ("values are standardized by the training rows, so a squared error of 1 is that of the mean",)
        names: list[str] = []
        if by in ("environment", "task") and labels is not None:
            kept, begin = np.unique(labels[where["train"]], return_index=True)
            names = [str(name) for name in (kept if by == "environment" else kept[np.argsort(begin)]).tolist()]
        three = (parts["train"], parts["validation"], parts["test"])
        return cls(*three, by, found, parts.get("hold"), names, about, tuple(notes))


def _columns(study: Study, table: Any) -> Columns:
    if table is not None:
        return Columns.of(table, "a table in memory")
    if study.data == BUNDLED:
        from weft.data.sites import digits_sites

        return Columns.of(digits_sites(), BUNDLED)
    return read_columns(study.data, encoding=study.encoding)


def _parts(
    study: Study, by: str, labels: Array | None, classes: Array | None, rows: int
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Which rows are for training, validation and the test (and for an oracle's look)."""
    share, seed = study.holdout, study.seed
    if by == "environment":
        assert labels is not None  # noqa: S101
        names = [str(name) for name in np.unique(labels).tolist()]
        test = study.test or (names[-1],)
        unknown = [name for name in test if name not in names]
        if unknown:
            raise ValueError(f"expected test environments among {some(names)}, got {some(unknown)}")
        left = [name for name in names if name not in test]
        if len(left) < 2:
            raise ValueError(
                f"expected at least two environments to learn from, got {some(left) or 'none'} beside the test's "
                f"{some(list(test))}; with one site only, leave --environment out"
            )
        outside = np.isin(labels.astype(str), test)
        held = split([labels, classes], rows, share, seed)
        parts = {"train": ~outside & ~held, "validation": ~outside & held, "test": outside}
        notes: tuple[str, ...] = (f"the test environment{'s' if len(test) > 1 else ''}: {', '.join(test)}",)
        if study.selection == "oracle":
            parts["hold"], parts["test"] = outside & held, outside & ~held
            notes += (
                "selection by oracle looks at labelled rows of the test environments: an upper bound, no estimate",
            )
        return parts, notes
    if by == "group":
        assert labels is not None  # noqa: S101
        names_of, codes = np.unique(labels, return_inverse=True)
        if len(names_of) < 5:
            raise ValueError(f"expected at least 5 groups to split by, got {len(names_of)}; leave --group out")
        outer = split([], len(names_of), share, seed)
        inner = split([], len(names_of), share, seed + 1) & ~outer
        if not inner.any():
            raise ValueError(f"expected groups enough for a validation part, got {len(names_of)} in all")
        parts = {"train": ~(outer | inner)[codes], "validation": inner[codes], "test": outer[codes]}
        return parts, ("rows of one group are in one part only",)
    strata = [labels, classes]
    outer = split(strata, rows, share, seed)
    rest = np.flatnonzero(~outer)
    held = np.zeros(rows, dtype=bool)
    held[rest] = split([None if s is None else s[rest] for s in strata], len(rest), share, seed + 1)
    return {"train": ~(outer | held), "validation": held, "test": outer}, ()


# --- the methods --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """An objective with a strategy, as it was written, and what is tuned of it.

    Attributes:
        name: as it was written.
        objective, strategy: as text that `weft.core.spelling.parse` reads; "" for what the target asks for, or ERM.
        space: the range of each setting that is tuned, by its name in a Learner.
    """

    name: str
    objective: str
    strategy: str
    space: dict[str, Range]

    @classmethod
    def parse(cls, text: str, classes: bool) -> Method:
        """A method from text such as `and-mask`, `least-squares`, `mlp(dropout=0.5)/and-mask`."""
        from weft.core.catalogue import named, spelled

        left, slash, right = _halves(text)
        bare = spelled(left.partition("(")[0].strip())
        first = slash or bare in named("objectives") or bare in named("nets")
        objective, strategy = (left, right) if first else ("", left)
        if bare in named("nets"):  # the usual objective, with that net
            objective = repr(_default(classes).having(net=left))
        made = parse(objective, "objectives") if objective else _default(classes)
        way = parse(strategy, "strategies") if strategy else parse("erm", "strategies")
        way.validate()
        if isinstance(getattr(made, "net", None), str):
            _try_net(made.net, text)
        if made.fields not in (("x", "y"), ("x", "y", "environment")):
            raise ValueError(
                f"expected methods that predict a target from rows, got {text!r}, which learns from "
                f"{', '.join(made.fields)}"
            )
        if (made.targets == "classes") != classes:
            kind = "classes" if classes else "values"
            raise ValueError(f"expected methods for {kind}, as the target has, got {text!r}; leave it out")
        if way.episodic:
            raise ValueError(f"expected methods that learn from rows, got {text!r}, which learns from episodes")
        if reason := way.refuses(made):
            raise ValueError(f"expected methods that go together, got {text!r}: {reason}")
        space = {} if hasattr(made, "solve") else {"optimizer__lr": RATE}
        for outer, part, written in (("objective", made, objective), ("strategy", way, strategy)):
            for inner, limits in part.space.items():
                if inner.rpartition("__")[2] + "=" not in written.replace(" ", ""):
                    space[f"{outer}__{inner}"] = limits
        return cls(text, objective, strategy, space)

    def learner(self, study: Study, data: Data, **settings: Any) -> Learner:
        """An untrained Learner of it."""
        from weft.core.optimizer import Optimizer
        from weft.learner.estimator import Learner

        objective = parse(self.objective, "objectives") if self.objective else _default(data.classes is not None)
        strategy = parse(self.strategy, "strategies") if self.strategy else None
        grouped = strategy is not None and (strategy.needs == "group" or strategy.per_group)
        # As many rows per update for everybody: one that works on environments takes so many of each.
        rows = study.rows * (len(data.names) if data.by == "environment" and not grouped else 1)
        return Learner(
            objective,
            strategy=strategy,
            optimizer=Optimizer("adam"),
            steps=study.steps,
            batch_size=rows,
            device="cpu",
            **settings,
        )


def _halves(text: str) -> tuple[str, str, str]:
    """Parts at the slash outside brackets, if there is one."""
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "/" and depth == 0:
            return text[:i], "/", text[i + 1 :]
    return text, "", ""


def _default(classes: bool) -> Any:
    from weft.objectives import Classification, Regression

    return Classification(hidden=(64, 64)) if classes else Regression(hidden=(64, 64))


def _try_net(net: str, text: str) -> None:
    """Raises where the net of a method cannot be made, before anything is trained."""
    import torch

    from weft.core.source import Field
    from weft.nets import make_net

    try:
        with torch.random.fork_rng(devices=[]):
            make_net(net, Field((2,), torch.float32), 2)
    except (ValueError, TypeError) as error:
        raise ValueError(f"expected a net for {text!r}, got {net!r}: {error}") from error


def suitable(study: Study, classes: bool) -> list[str]:
    """The methods of the catalogue that make use of what the study's data tells."""
    from weft.core.catalogue import entries

    chosen = ["erm"]
    for entry in sorted(entries("strategies"), key=lambda entry: entry.name):
        way: Any = entry.cls()
        if way.episodic or entry.name == "erm":
            continue
        grouped, sequential = way.needs == "group" or way.per_group, way.does("consolidate")
        if (grouped and study.environment) or (sequential and study.task):
            chosen.append(entry.name)
    if study.environment or study.task:
        return chosen
    if not classes:
        chosen.append("least-squares")
    return [*chosen, "adversarial-training(attack=pgd())"]


# --- training -----------------------------------------------------------------------------------------


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
            rows = part.labels == name
            learner.partial_fit(part.X[rows], part.y[rows], classes=data.classes, task=name)
        return
    use = {}
    strategy = learner._strategy()
    read = strategy.needs == "group" or strategy.per_group or "environment" in learner._objective().fields
    if data.by == "environment" and read:
        use = {"environment": part.labels}
    learner.fit(part.X, part.y, **use)


def scores(data: Data, y: Array, answers: Array) -> Array:
    """A score for each row: 1 where the class is right, or the squared error."""
    if data.classes is not None:
        return (answers == y).astype(np.float64)
    return (answers.astype(np.float64) - y) ** 2


def _answers(learner: Learner, count: int, X: Array) -> list[Array | None]:
    """Every replica's answers; None where it has diverged."""
    from sklearn.exceptions import NotFittedError

    found: list[Array | None] = []
    for k in range(count):
        try:
            answer = learner.replica(k).predict(X)
        except NotFittedError:
            answer = None
        found.append(None if answer is None or not _finite(answer) else answer)
    return found


def _finite(answer: Array) -> bool:
    return answer.dtype.kind != "f" or bool(np.isfinite(answer).all())


def _judged(data: Data, part: Part, answers: Array) -> float:
    """The score on validation: the mean over environments or tasks, each counting alike, or over rows."""
    each = scores(data, part.y, answers)
    if data.by in ("environment", "task") and part.labels is not None:
        return float(np.mean([each[part.labels == name].mean() for name in np.unique(part.labels)]))
    return float(each.mean())


def fit_batch(study: Study, data: Data, method: Method, settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trains a method with each of some settings, at once where that can be, and scores them on validation."""
    started = time.perf_counter()
    try:
        with _quietly():
            found = [_trial(data, method, study, settings, fold) for fold in _folds(study, data)]
    except (ArithmeticError, RuntimeError, ValueError, TypeError, MemoryError) as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if len(settings) > 1:  # one bad setting shall not spoil the others
            return [result for setting in settings for result in fit_batch(study, data, method, [setting])]
        state = "diverged" if isinstance(error, FloatingPointError) else "failed"
        return [{"value": None, "state": state, "why": why, "seconds": time.perf_counter() - started}]
    seconds = (time.perf_counter() - started) / len(settings)
    results = []
    for values in zip(*found, strict=True):
        if any(value is None for value in values):
            results.append({"value": None, "state": "diverged", "why": "the loss is not finite", "seconds": seconds})
        else:
            results.append({"value": float(np.mean(values)), "state": "complete", "why": "", "seconds": seconds})
    return results


def _folds(study: Study, data: Data) -> list[tuple[Part, Part]]:
    """What is trained on and what is looked at, by the study's rule of selection."""
    if study.selection == "oracle" and data.hold is not None:
        return [(data.train, data.hold)]
    if study.selection == "leave-one-out" and data.train.labels is not None:
        pairs = []
        whole = data.train.plus(data.validation)
        for name in np.unique(data.train.labels):
            pairs.append((data.train.where(data.train.labels != name), whole.where(whole.labels == name)))  # type: ignore[arg-type]
        return pairs
    return [(data.train, data.validation)]


def _trial(
    data: Data, method: Method, study: Study, settings: list[dict[str, Any]], fold: tuple[Part, Part]
) -> list[float | None]:
    lists: dict[str, list[Any]] = {name: [setting[name] for setting in settings] for name in settings[0]}
    lists["random_state"] = [study.seed] * len(settings)
    present = set() if fold[0].labels is None else set(map(str, np.unique(fold[0].labels)))
    narrow = dataclasses.replace(data, train=fold[0], names=[name for name in data.names if name in present])
    learner = method.learner(study, narrow, replicas=lists)
    _train(learner, data, fold[0])
    answers = _answers(learner, len(settings), fold[1].X)
    return [None if answer is None else _judged(data, fold[1], answer) for answer in answers]


def refit(study: Study, data: Data, method: Method, setting: dict[str, Any], seeds: list[int]) -> dict[str, Any]:
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
    return {
        "table": np.stack(good) if good else np.zeros((0, len(data.test))),
        "seeds": [seeds[k] for k in kept],
        "diverged": len(seeds) - len(kept),
        "matrix": matrix,
        "training": seen,
        "curves": _curves(learner),
        "objective": repr(learner.objective),
        "strategy": repr(learner._strategy()),
        "seconds": time.perf_counter() - started,
    }


def _scored(data: Data, answer: Array | None) -> Array | None:
    return None if answer is None else scores(data, data.test.y, answer)


def _in_sequence(learner: Learner, data: Data, part: Part, count: int) -> tuple[Any, list[Array | None]]:
    """Learns task after task; after each one every task's score on the test rows, as a matrix (mean over seeds)."""
    assert part.labels is not None  # noqa: S101
    assert data.test.labels is not None  # noqa: S101
    matrix, tables = [], []
    for name in data.names:
        rows = part.labels == name
        learner.partial_fit(part.X[rows], part.y[rows], classes=data.classes, task=name)
        tables = [_scored(data, answer) for answer in _answers(learner, count, data.test.X)]
        good = [table for table in tables if table is not None]
        line = [np.mean([t[data.test.labels == task].mean() for t in good]) if good else np.nan for task in data.names]
        matrix.append([None if np.isnan(value) else float(value) for value in line])
    return matrix, tables


def _on_training(learner: Learner, data: Data, part: Part, count: int) -> dict[str, Any]:
    """By training environment, the score of each seed there."""
    found: dict[str, Any] = {}
    answers = [answer for answer in _answers(learner, count, part.X) if answer is not None]
    for name in data.names:
        rows = part.labels == name
        values = [float(scores(data, part.y[rows], answer[rows]).mean()) for answer in answers]  # type: ignore[index]
        found[name] = {"rows": int(np.sum(rows)), "part": "train", "scores": values}
    return found


def _curves(learner: Learner) -> dict[str, Any] | None:
    """The learning curves of all seeds."""
    history = learner.history_
    if not history:
        return None
    measures = {}
    for name in ("loss", "accuracy"):
        if all(name in record for record in history):
            values = np.atleast_2d(np.asarray(history[name], dtype=float).T)
            measures[name] = [[None if not np.isfinite(v) else float(v) for v in line] for line in values]
    return {"step": [int(record["step"]) for record in history], "measures": measures}
