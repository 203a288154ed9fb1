"""The column to be predicted: classes or values, how it is read, and how predictions are written."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.core.configured import shown
from weft.tables.files import Columns
from weft.tables.kinds import KINDS, demanded, is_text, is_whole, kind_of, texts

__all__ = ["Target"]

FEW = 20  # whole numbers with at most so many different values are taken for classes


@dataclass(frozen=True)
class Target:
    """How the column to be predicted is read, and how predictions are written.

    Values are standardized for training, so that a target in the thousands trains as well as one
    around 1, and predictions are put back: mean + std * prediction. Counts and amounts, which may not be moved, are
    values that are left as they are.

    Attributes:
        name: the column's name.
        kind: `classes` or `values`.
        whole: whether the classes are whole numbers, else they are text.
        mean, std: of the values in the training rows.
    """

    name: str
    kind: str
    whole: bool = False
    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def learn(cls, name: str, columns: Columns, kind: str | None, rows: NDArray[np.bool_]) -> Target:
        """What kind of target it is (unless said), and its scale in the training rows."""
        column, typed = columns[name], columns.typed
        seen = kind_of(column, typed)
        text = texts(column) if seen != "dates" else None
        if text is not None and text.null_count:
            first = int(np.flatnonzero(text.is_null().to_numpy(zero_copy_only=False))[0]) + 1
            raise ValueError(
                f"expected a value of {shown(name)}, the target, in every row, got none in {text.null_count} rows, "
                f"first in row {first}; remove those rows or fill them in"
            )
        if kind == "multilabel":
            raise ValueError(
                f"expected one value in each row of {shown(name)}, the target, got an objective of several labels a "
                "row; it is for Python: weft.Learner"
            )
        whole = seen == "number" and is_whole(column)
        if kind is None:
            kind = "values"
            if seen in ("boolean", "category"):
                kind = "classes"
            elif whole:
                different = len(np.unique(demanded(name, column, "number")))
                kind = "classes" if different <= min(FEW, columns.rows // 2) else "values"
            elif seen != "number":
                raise ValueError(f"expected numbers or classes in {shown(name)}, the target, got {seen}")
        if kind == "classes":
            if seen not in KINDS:
                raise ValueError(f"expected classes in {shown(name)}, the target, got {seen}")
            target = cls(name, kind, whole=whole)
            labels = np.unique(target.read(columns))
            if len(labels) < 2:
                raise ValueError(
                    f"expected at least two classes in {shown(name)}, the target, got one only: {shown(labels[0])}"
                )
            if len(labels) > max(2, columns.rows / 2):
                raise ValueError(
                    f"expected several rows of each class in {shown(name)}, the target, got {len(labels)} classes in "
                    f"{columns.rows} rows; to predict numbers use --objective regression"
                )
            return target
        values = demanded(name, column, "number")[rows]
        with np.errstate(over="ignore"):
            mean, std = float(values.mean()), float(values.std())
        if not (math.isfinite(std) and std > 1e-14 * max(abs(mean), 1e-300)):
            raise ValueError(
                f"expected values that vary in {shown(name)}, the target, got {shown(values[0])} throughout"
            )
        return cls(name, "values", mean=mean, std=std) if kind == "values" else cls(name, "values")

    def read(self, columns: Columns) -> NDArray[np.generic]:
        """The target of each row, as a Learner takes it: labels, or standardized values."""
        import pyarrow as pa

        column = columns[self.name]
        if self.kind == "values":
            return (demanded(self.name, column, "number") - self.mean) / self.std
        text = texts(column)
        if self.whole and is_whole(column):
            whole = text if is_text(column) else column
            return whole.cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False)
        return np.array(text.to_pylist(), dtype=str)

    def write(self, answers: NDArray[np.generic]) -> NDArray[np.generic]:
        """Predictions in the column's own units."""
        return self.mean + self.std * np.asarray(answers, np.float64) if self.kind == "values" else answers
