"""A study's data: read once, split once, the split recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.bench.study import BUNDLED, Study
from weft.tables.files import Columns, read_columns, some
from weft.tables.recipe import Recipe
from weft.tables.split import split

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["Column", "Data", "Part"]

Column = NDArray[Any]
"""Of classes, values or labels, one for each row."""
Which = NDArray[np.bool_]
Split = tuple[dict[str, Which], tuple[str, ...]]
"""The rows of each part, and notes on them."""
Known = TypeVar("Known")


@dataclass(frozen=True)
class Part:
    """Some rows: features, target, and what each row belongs to (environment, task or group), if anything."""

    X: NDArray[np.float32]
    y: Column
    labels: Column | None

    def __len__(self) -> int:
        return len(self.X)

    def where(self, rows: Which) -> Part:
        """The rows for which it says True."""
        return Part(self.X[rows], self.y[rows], None if self.labels is None else self.labels[rows])

    @property
    def belonging(self) -> Column:
        """The label of each row; raises where rows have none."""
        if self.labels is None:
            raise ValueError("expected rows that belong to environments, tasks or groups, got rows that do not")
        return self.labels

    def of(self, label: str) -> Which:
        """Which rows belong to one environment, task or group."""
        return self.belonging == label

    def plus(self, other: Part) -> Part:
        """These rows and others."""
        labels = None if self.labels is None else np.concatenate([self.labels, other.belonging])
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
    classes: list[object] | None
    hold: Part | None
    names: list[str]
    about: Json
    notes: tuple[str, ...]

    @property
    def rising(self) -> bool:
        """Whether more is better: accuracy where there are classes, else the squared error."""
        return self.classes is not None

    @property
    def measure(self) -> str:
        """What a row's score is."""
        return "accuracy" if self.rising else "mse"

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
        kind = _targeted(first.target).kind
        where, notes = _parts(study, by, labels, y if kind == "classes" else None, columns.rows)
        recipe = Recipe.learn(
            columns,
            target=study.target,
            environment=study.environment or study.group or None,
            task=study.task or None,
            drop=study.drop,
            kind=kind,
            training=where["train"],
        )
        encoded = recipe.apply(columns, quiet=True)
        whole = Part(encoded.X.astype(np.float32), _targeted(encoded.y), labels)
        parts = {name: whole.where(rows) for name, rows in where.items()}
        about = {
            "path": study.data if table is None else str(columns.path),
            "sha256": columns.sha256,
            "rows": columns.rows,
            "features": len(encoded.names),
            "target": study.target,
            **{name: getattr(study, name) or None for name in ("environment", "task", "group")},
        }
        classes = np.unique(whole.y).tolist() if kind == "classes" else None
        if classes is not None:
            missing = sorted(set(map(str, classes)) - set(map(str, np.unique(parts["train"].y).tolist())))
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
        return cls(*three, by, classes, parts.get("hold"), names, about, tuple(notes))


def _columns(study: Study, table: Any) -> Columns:
    if table is not None:
        return Columns.of(table, "a table in memory")
    if study.data == BUNDLED:
        from weft.data.sites import digits_sites

        return Columns.of(digits_sites(), BUNDLED)
    return read_columns(study.data, encoding=study.encoding)


def _targeted(value: Known | None) -> Known:
    """What the recipe knows of the target."""
    if value is None:
        raise ValueError("expected the column to be predicted, got none; name it with --target COLUMN")
    return value


def _parts(study: Study, by: str, labels: Column | None, classes: Column | None, rows: int) -> Split:
    """Which rows are for training, validation and the test (and for an oracle's look), and what to know of that."""
    if by not in ("environment", "group"):
        return _by_rows(study, [labels, classes], rows)
    if labels is None:
        raise ValueError(f"expected a column that says the {by} of each row, got none; name it with --{by} COLUMN")
    return _by_environment(study, labels, classes) if by == "environment" else _by_group(study, labels)


def _by_environment(study: Study, labels: Column, classes: Column | None) -> Split:
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
    held = split([labels, classes], len(labels), study.holdout, study.seed)
    parts = {"train": ~outside & ~held, "validation": ~outside & held, "test": outside}
    notes: tuple[str, ...] = (f"the test environment{'s' if len(test) > 1 else ''}: {', '.join(test)}",)
    if study.selection == "oracle":
        parts["hold"], parts["test"] = outside & held, outside & ~held
        notes += ("selection by oracle looks at labelled rows of the test environments: an upper bound, no estimate",)
    return parts, notes


def _by_group(study: Study, labels: Column) -> Split:
    names, codes = np.unique(labels, return_inverse=True)
    if len(names) < 5:
        raise ValueError(f"expected at least 5 groups to split by, got {len(names)}; leave --group out")
    outer = split([], len(names), study.holdout, study.seed)
    inner = split([], len(names), study.holdout, study.seed + 1) & ~outer
    if not inner.any():
        raise ValueError(f"expected groups enough for a validation part, got {len(names)} in all")
    parts = {"train": ~(outer | inner)[codes], "validation": inner[codes], "test": outer[codes]}
    return parts, ("rows of one group are in one part only",)


def _by_rows(study: Study, strata: list[Column | None], rows: int) -> Split:
    """At random, each stratum (task, class) in the same shares."""
    outer = split(strata, rows, study.holdout, study.seed)
    rest = np.flatnonzero(~outer)
    held = np.zeros(rows, dtype=bool)
    inner = [None if stratum is None else stratum[rest] for stratum in strata]
    held[rest] = split(inner, len(rest), study.holdout, study.seed + 1)
    return {"train": ~(outer | held), "validation": held, "test": outer}, ()
