"""How one column becomes numbers, and back.

For features a category has an entry each, and one more says what is missing. What models a table itself reads each
column as a single entry: a number standardized, true and false as 1 and 0, a category's code, a count as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.core.configured import shown
from weft.core.source import Part
from weft.tables.kinds import demanded, is_whole, texts

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["Column"]


@dataclass(frozen=True)
class Column:
    """How one column becomes numbers.

    Attributes:
        name: the column's name in the file.
        kind: `number`, `boolean`, `category` or, as a single entry, `count`.
        median: what stands for a missing number.
        mean, std: of the numbers in the training rows; std 0 where they do not vary.
        missing: whether a column tells which numbers are missing.
        categories: the texts that have a column each, or a code, None among them where some are missing.
        single: whether it is one entry of a row, which can be put back.
        gaps: whether what is missing stays so, as NaN, in place of a median, a category or a column of its own.
        dtype: what it was in a DataFrame.
    """

    name: str
    kind: str
    median: float = 0.0
    mean: float = 0.0
    std: float = 1.0
    missing: bool = False
    categories: tuple[str | None, ...] = ()
    single: bool = False
    gaps: bool = False
    dtype: str = ""

    @classmethod
    def learn(
        cls,
        name: str,
        column: pa.Array,
        kind: str,
        rows: NDArray[np.bool_],
        *,
        single: bool = False,
        gaps: bool = False,
        dtype: str = "",
    ) -> Column:
        """The encoding of a column, from the rows where `rows` is true; see the attributes.

        The codes of a single entry's categories are known before training, as those of a target's classes are: they
        are those of all rows, and of a categorical column all that it declares, in their order.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        made = partial(cls, name, single=single, gaps=gaps, dtype=dtype)
        if kind == "category":
            values = pc.unique(texts(column if single else column.filter(rows))).to_pylist()
            names = sorted(text for text in values if text is not None)
            if single and pa.types.is_dictionary(column.type):
                names = column.dictionary.cast(pa.string()).to_pylist()
            if not names:
                raise ValueError(f"expected some category in column {shown(name)}, got none; leave it out")
            return made(kind, categories=(*names, None) if None in values and not gaps else tuple(names))
        values = demanded(name, column, kind)[rows]
        absent = np.isnan(values)
        present = values[~absent]
        if single:
            if not len(present):
                raise ValueError(f"expected some value in column {shown(name)}, got none; leave it out")
            if kind == "number" and is_whole(column) and not (demanded(name, column, kind) < 0).any():
                return made("count")
        if not len(present):
            return cls(name, kind, std=0.0, gaps=gaps)
        missing, median = bool(absent.any()) and not (gaps or single), float(np.median(present))
        with np.errstate(over="ignore"):
            mean, std = float(present.mean()), float(present.std())
        if not (math.isfinite(mean) and math.isfinite(std)):
            raise ValueError(f"expected numbers of a usual size in column {shown(name)}, got up to {present.max()}")
        # What rounding leaves of a constant is no variation.
        if std <= 1e-14 * max(abs(mean), 1e-300):
            std = 0.0
        if kind == "boolean":
            mean, std = 0.0, float(std > 0 or single)
        if single and std == 0.0:
            raise ValueError(
                f"expected numbers that vary in column {shown(name)}, which is to be modelled, got {present[0]:g} "
                "throughout the training rows; leave it out"
            )
        return made(kind, median, mean, std, missing)

    @property
    def features(self) -> list[str]:
        """The names of the columns that come out; none where the column does not vary."""
        if self.single:
            return [self.name]
        if self.kind == "category":
            named = [f"{self.name}={'(missing)' if c is None else c}" for c in self.categories]
            return named if len(named) > 1 else []
        return [self.name] * (self.std > 0) + [f"{self.name} is missing"] * self.missing

    @property
    def parts(self) -> list[Part]:
        """Which entries of a row are this column's."""
        if self.kind == "category":
            count = len(self.categories)
            return [Part(self.name, "category", 1 if self.single else count, count)] if self.features else []
        own = [Part(self.name, self.kind)] * (self.std > 0)
        return own + [Part(f"{self.name} is missing", "missing")] * self.missing

    def encode(self, column: pa.Array) -> tuple[NDArray[np.float64], int]:
        """The numbers of each row, (n, features), and how many rows had a category never seen before."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.kind == "category":
            text = texts(column)
            known = pc.index_in(text, value_set=pa.array(self.categories, pa.string()))
            codes = pc.fill_null(known, -1).to_numpy(zero_copy_only=False)
            seen = np.flatnonzero(codes >= 0)
            absent = text.is_null().to_numpy(zero_copy_only=False) & (codes < 0)
            strange = (codes < 0) & ~absent
            if self.single:
                if strange.any():
                    first = int(np.flatnonzero(strange)[0])
                    raise ValueError(
                        f"expected categories of column {shown(self.name)} that training has seen, got "
                        f"{shown(text[first].as_py())} in row {first + 1}, which no probability is known of; declare "
                        "all that may come, by pandas' Categorical"
                    )
                self._refuse_gaps(absent)
                return np.where(absent, np.nan, codes)[:, None], 0
            out = np.zeros((len(column), len(self.categories)))
            out[seen, codes[seen]] = 1.0
            if self.gaps:
                out[absent] = np.nan
                return out, int(strange.sum())
            return out, len(column) - len(seen)
        values = demanded(self.name, column, "number" if self.kind == "count" else self.kind)
        gaps = np.isnan(values)
        if self.single:
            self._refuse_gaps(gaps)
        if self.kind == "count":
            wrong = ~gaps & ((values < 0) | (values != np.floor(values)))
            if wrong.any():
                first = int(np.flatnonzero(wrong)[0])
                raise ValueError(
                    f"expected counts 0, 1, 2, ... in column {shown(self.name)}, as training began with, got "
                    f"{values[first]:g} in row {first + 1}; for numbers fit with this column as float"
                )
        parts = []
        if self.std > 0:
            filled = values if self.gaps else np.where(gaps, self.median, values)
            parts.append((filled - self.mean) / self.std)
        if self.missing:
            parts.append(gaps.astype(np.float64))
        return np.stack(parts, 1) if parts else np.zeros((len(column), 0)), 0

    def _refuse_gaps(self, absent: NDArray[np.bool_]) -> None:
        """What models a column reads a gap as nothing but a gap, if it can."""
        if not self.gaps and absent.any():
            raise ValueError(
                f"expected a value of column {shown(self.name)} in every row, got none in row "
                f"{int(np.flatnonzero(absent)[0]) + 1}; fill it in, drop such rows, or take an objective that says "
                "gaps = True"
            )

    def decode(self, values: NDArray[np.generic]) -> pd.Series:
        """The column of a DataFrame from a single entry of each row, in its own units and categories."""
        import pandas as pd

        numbers = np.asarray(values, dtype=np.float64)
        absent = np.isnan(numbers)
        if self.kind == "number":
            dtype = self.dtype if self.dtype.lower().startswith("float") else "float64"
            return pd.Series(self.mean + self.std * numbers, name=self.name).astype(dtype)
        most = {"boolean": 1.0, "category": len(self.categories) - 1.0}.get(self.kind, np.inf)
        wrong = ~absent & ((numbers != np.floor(numbers)) | (numbers < 0) | (numbers > most))
        if wrong.any():
            wanted = "counts 0, 1, 2, ..." if self.kind == "count" else f"codes 0..{most:g}"
            raise ValueError(
                f"expected {wanted} as the answer for column {shown(self.name)}, a {self.kind}, got "
                f"{numbers[wrong][0]:g}; the objective must give whole numbers for such columns"
            )
        if self.kind == "category":
            return self._categories(np.where(absent, -1, numbers).astype(np.int64))
        if not absent.any():
            return pd.Series(numbers, name=self.name).astype(self.dtype or ("bool" if most == 1.0 else "int64"))
        nullable = "boolean" if self.kind == "boolean" else "Int64"
        filled = pd.Series(np.where(absent, 0.0, numbers), name=self.name).astype(nullable)
        return filled.mask(absent)

    def _categories(self, codes: NDArray[np.int64]) -> pd.Series:
        """Categories by code, -1 for a gap, as the DataFrame had them."""
        import pandas as pd

        names = [name for name in self.categories if name is not None]
        codes = np.where(codes == len(names), -1, codes)  # what is missing was a category of its own
        kind, _, inner = self.dtype.partition("[")
        if self.dtype and kind != "category":
            text = np.array([*names, None], dtype=object)[codes]
            return pd.Series(text, name=self.name, dtype=self.dtype)
        inner, ordered = inner.rstrip("]").removesuffix(" ordered"), "ordered" in inner
        known = pd.Index(names)
        if inner.startswith(("int", "uint", "float")):
            known = known.astype(inner)
        return pd.Series(pd.Categorical.from_codes(codes, known, ordered=ordered), name=self.name)
