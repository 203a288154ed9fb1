"""Parquet files, larger than memory: row groups are read as they are needed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core.configured import closest
from weft.core.legal import Legal, Such, check
from weft.core.random import key_of
from weft.core.source import Batch
from weft.sources.chunked import Chunked, files_of, named_fields

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Parquet"]


def _columns(given: object) -> bool:
    return isinstance(given, str) or (
        isinstance(given, list | tuple) and len(given) > 0 and all(isinstance(name, str) for name in given)
    )


class Parquet(Chunked):
    """Reads rows of Parquet files a few row groups at a time; what is in memory is a window of at least `buffer` rows.

    Every pass reads the row groups in an order of its own, a window of some of them at a time, and shuffles the rows
    within it, all by the run's seed: rows of one row group stay near each other, so that a file that is sorted by its
    labels wants a large `buffer`, or to be shuffled once when it is written. The length of a pass is known from the
    files' metadata. It resumes `exact`; that the files are those that the run was begun with is told by their names,
    sizes and footers (which hold the least and largest values of each row group), not by every value. Replicas hold a
    window each.

    Args:
        paths: a file, a pattern such as `"data/part-*.parquet"` (in the order of their names), or several of them; all
            have the same columns.
        fields: which columns make up each field. One column's name is a number for each row, or an array where the
            column holds lists of one length: whole numbers stay whole. Several columns become a vector of
            floating-point numbers.
        batch_size: rows in a batch.
        buffer: rows among which those of a batch are drawn, at least; a window ends with a row group.
        shuffle: whether at all; else all passes are in the files' own order.
        classes: how many classes `y` numbers; or such numbers by field.

    Example:
        >>> import tempfile
        >>> import pandas as pd
        >>> from weft import Learner
        >>> from weft.objectives import Regression
        >>> table = pd.DataFrame({"age": np.arange(90.0), "dose": np.ones(90), "effect": np.arange(90.0) / 90})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for i in range(3):
        ...         table[i * 30 : i * 30 + 30].to_parquet(f"{folder}/part-{i}.parquet", row_group_size=10)
        ...     source = Parquet(f"{folder}/*.parquet", {"x": ["age", "dose"], "y": "effect"}, batch_size=15)
        ...     learner = Learner(Regression(hidden=(4,)), epochs=2, random_state=0).fit(source)
        >>> source.size, source.epoch, learner.n_steps_
        (90, 6, 12)
    """

    legal: ClassVar[dict[str, Legal]] = {
        "fields": Such(
            "columns by field such as {'x': ['age', 'dose'], 'y': 'effect'}",
            lambda given: isinstance(given, Mapping),
            lambda given: named_fields(given, _columns),
        ),
    }

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        fields: Mapping[str, str | Sequence[str]],
        *,
        batch_size: int = 64,
        buffer: int = 100_000,
        shuffle: bool = True,
        classes: int | Mapping[str, int] | None = None,
    ) -> None:
        check(Parquet, locals())
        self.fields = {name: [c] if isinstance(c, str) else list(c) for name, c in fields.items()}
        self._alone = {name for name, columns in fields.items() if isinstance(columns, str)}
        self.files = files_of(paths)
        self._groups: list[tuple[Path, int]] = []
        sizes: list[int] = []
        kinds: dict[str, pa.DataType] = {}
        for path in self.files:
            file = _opened(path)
            kinds = self._same_columns(path, file.schema_arrow, kinds)
            rows = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
            if not sum(rows):
                raise ValueError(f"expected rows in every file, got none in {path}; leave it out")
            self._groups += [(path, i) for i, count in enumerate(rows) if count]
            sizes += [count for count in rows if count]
        self._lay(sizes, self._read(0, key_of(0)), batch_size, buffer, shuffle, classes)

    def contents(self) -> dict[str, Any]:
        """The names, sizes and footers of its files, which columns are read, and what the order depends on."""
        files = "; ".join(f"{path.name} {path.stat().st_size} {_footer(path)}" for path in self.files)
        return {"parquet": files, "columns": str(self.fields), "order": self._order()}

    def _wanted(self) -> list[str]:
        return list(dict.fromkeys(column for columns in self.fields.values() for column in columns))

    def _same_columns(self, path: Path, schema: pa.Schema, before: dict[str, pa.DataType]) -> dict[str, pa.DataType]:
        """The kinds of the columns that are read; raises where one is not there, or not as in the first file."""
        for name in self._wanted():
            if name not in schema.names:
                raise closest(name, schema.names, f"a column of {path}")
        found = {name: schema.field(name).type for name in self._wanted()}
        for name, kind in before.items():
            if kind != found[name]:
                raise ValueError(
                    f"expected the column {name!r} to be {kind} in every file, as in {self.files[0]}, got "
                    f"{found[name]} in {path}; write it anew with that kind"
                )
        return found

    def _where(self, chunk: int) -> str:
        path, group = self._groups[chunk]
        return f"row group {group} of {path}"

    def _read(self, chunk: int, key: Tensor) -> Batch:
        import pyarrow as pa

        path, group = self._groups[chunk]
        try:
            rows = _opened(path).read_row_group(group, columns=self._wanted())
        except (pa.ArrowException, OSError, IndexError) as error:
            raise ValueError(
                f"expected {self._where(chunk)} as its footer tells, got a damaged or changed file: {error}"
            ) from error
        return self._made(rows, self._where(chunk))

    def _made(self, rows: pa.Table | pa.RecordBatch, where: str) -> Batch:
        """Columns as fields."""
        batch = {}
        for name, columns in self.fields.items():
            values = [_numbers(rows.column(column), column, where) for column in columns]
            if name in self._alone:
                batch[name] = torch.from_numpy(values[0])
                continue
            odd = [column for column, each in zip(columns, values, strict=True) if each.ndim != 1]
            if odd:
                raise ValueError(
                    f"expected single numbers in columns that make up {name!r} together, got lists in {odd[0]!r} of "
                    f"{where}; give that column a field of its own: {{{name!r}: {odd[0]!r}}}"
                )
            small = all(each.dtype in (np.float16, np.float32) for each in values)
            batch[name] = torch.from_numpy(np.stack(values, 1).astype(np.float32 if small else np.float64))
        return batch


def _opened(path: Path) -> Any:
    """A file's metadata and rows."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"expected a Parquet file, got {path}, which is damaged or another kind: {error}") from error


def _footer(path: Path) -> str:
    """The digest of what a file tells of itself."""
    with open(path, "rb") as file:
        file.seek(-8, 2)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, 2)
        return hashlib.sha256(file.read(length)).hexdigest()


def _numbers(column: Any, name: str, where: str) -> NDArray[Any]:
    """A column as an array with its rows on the leading axis."""
    import pyarrow as pa
    from pyarrow import compute, types

    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    shape = [len(values)]
    while True:
        if values.null_count:
            raise ValueError(
                f"expected a value in every row, got {values.null_count} missing in the column {name!r} of {where}; "
                "fill them in or drop those rows when the file is written"
            )
        listed = types.is_list(values.type) or types.is_large_list(values.type)
        if not listed and not types.is_fixed_size_list(values.type):
            break
        lengths = compute.unique(compute.list_value_length(values)).to_pylist()
        if len(lengths) > 1:
            raise ValueError(
                f"expected lists of one length in the column {name!r}, got {sorted(lengths)[:5]} in {where}; pad them"
            )
        shape.append(lengths[0])
        values = values.flatten()
    kind = values.type
    if types.is_integer(kind) and not types.is_uint8(kind):
        values = values.cast(pa.int64())
    elif not (types.is_floating(kind) or types.is_boolean(kind) or types.is_uint8(kind)):
        raise TypeError(
            f"expected numbers in the column {name!r}, got {kind} in {where}; number or encode it when the file is "
            "written"
        )
    array: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return np.array(array.reshape(shape))  # a copy of its own: Arrow's cannot be written to
