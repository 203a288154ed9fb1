"""How one column becomes numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.core.configured import shown
from weft.tables.kinds import demanded, texts

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Column"]


@dataclass(frozen=True)
class Column:
    """How one column becomes numbers.

    Attributes:
        name: the column's name in the file.
        kind: `number`, `boolean` or `category`.
        median: what stands for a missing number.
        mean, std: of the numbers in the training rows; std 0 where they do not vary.
        missing: whether a column tells which numbers are missing.
        categories: the texts that have a column each, None among them where some are missing.
    """

    name: str
    kind: str
    median: float = 0.0
    mean: float = 0.0
    std: float = 1.0
    missing: bool = False
    categories: tuple[str | None, ...] = ()

    @classmethod
    def learn(cls, name: str, column: pa.Array, kind: str, rows: NDArray[np.bool_]) -> Column:
        """The encoding of a column, from the rows where `rows` is true."""
        import pyarrow.compute as pc

        if kind == "category":
            values = pc.unique(texts(column.filter(rows))).to_pylist()
            names = sorted(text for text in values if text is not None)
            return cls(name, kind, categories=(*names, None) if None in values else tuple(names))
        values = demanded(name, column, kind)[rows]
        gaps = np.isnan(values)
        present = values[~gaps]
        if not len(present):
            return cls(name, kind, std=0.0)
        missing, median = bool(gaps.any()), float(np.median(present))
        with np.errstate(over="ignore"):
            mean, std = float(present.mean()), float(present.std())
        if not (math.isfinite(mean) and math.isfinite(std)):
            raise ValueError(f"expected numbers of a usual size in column {shown(name)}, got up to {present.max()}")
        # What rounding leaves of a constant is no variation.
        if std <= 1e-14 * max(abs(mean), 1e-300):
            std = 0.0
        if kind == "boolean":
            mean, std = 0.0, float(std > 0)
        return cls(name, kind, median, mean, std, missing)

    @property
    def features(self) -> list[str]:
        """The names of the columns that come out; none where the column does not vary."""
        if self.kind == "category":
            named = [f"{self.name}={'(missing)' if c is None else c}" for c in self.categories]
            return named if len(named) > 1 else []
        return [self.name] * (self.std > 0) + [f"{self.name} is missing"] * self.missing

    def encode(self, column: pa.Array) -> tuple[NDArray[np.float64], int]:
        """The numbers of each row, (n, features), and how many rows had a category never seen before."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.kind == "category":
            text = texts(column)
            known = pc.index_in(text, value_set=pa.array(self.categories, pa.string()))
            codes = pc.fill_null(known, -1).to_numpy(zero_copy_only=False)
            out = np.zeros((len(column), len(self.categories)))
            seen = np.flatnonzero(codes >= 0)
            out[seen, codes[seen]] = 1.0
            return out, len(column) - len(seen)
        values = demanded(self.name, column, self.kind)
        gaps = np.isnan(values)
        parts = []
        if self.std > 0:
            parts.append((np.where(gaps, self.median, values) - self.mean) / self.std)
        if self.missing:
            parts.append(gaps.astype(np.float64))
        return np.stack(parts, 1) if parts else np.zeros((len(column), 0)), 0
