"""Kinds of columns: numbers, true and false, categories, or what speaks against using one; and columns read so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.core.configured import shown

if TYPE_CHECKING:
    import pyarrow as pa

    from weft.tables.files import Columns

__all__ = ["KINDS", "booleans", "demanded", "floats", "is_text", "is_whole", "kind_of", "names_in", "texts"]

KINDS = ("number", "boolean", "category")
"""The kinds of columns that can be used."""
CATEGORIES = 50  # more categories than this, in more than half of the rows, are no categories
MOST_CATEGORIES = 1000
LONGEST = 1000  # characters of a category's name
_DATE = (
    r"^(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/]\d{1,2}[-/]\d{2,4}( .*)?|\d{1,2}\.\d{1,2}\.\d{4}( .*)?"
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?)$"
)


def texts(column: pa.Array) -> pa.StringArray:
    """A column as text, its missing values as nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def is_text(column: pa.Array) -> bool:
    """Whether a column holds text, plain or as a dictionary of categories."""
    import pyarrow as pa

    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_dictionary)
    return any(is_kind(column.type) for is_kind in kinds)


def floats(column: pa.Array) -> NDArray[np.float64] | None:
    """A column as float64 with NaN where values are missing, or None where some are not numbers."""
    import pyarrow as pa

    if is_text(column):
        column = texts(column)
    try:
        return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def booleans(column: pa.Array) -> NDArray[np.float64] | None:
    """A column of true and false (or 1 and 0) as float64 with NaN, or None."""
    import pyarrow.compute as pc

    if is_text(column):
        text = pc.utf8_lower(texts(column))
        column = pc.if_else(pc.equal(text, "true"), "1", pc.if_else(pc.equal(text, "false"), "0", text))
    values = floats(column)
    if values is None or not np.isin(values[~np.isnan(values)], (0.0, 1.0)).all():
        return None
    return values


def kind_of(column: pa.Array, typed: bool) -> str:
    """`number`, `boolean`, `category`, or what speaks against using it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_temporal(column.type):
        return "dates"
    if pa.types.is_boolean(column.type):
        return "boolean"
    if not is_text(column):
        return "nothing that weft can encode" if floats(column) is None else "number"
    text = texts(column)
    present = pc.drop_null(text)
    if not len(present):
        return "number"
    if not typed:
        if floats(column) is not None:
            return "number"
        if pc.all(pc.is_in(pc.utf8_lower(present), value_set=pa.array(["true", "false"]))).as_py():
            return "boolean"
    if pc.all(pc.match_substring_regex(present, _DATE)).as_py():
        return "dates"
    different = len(pc.unique(present))
    if (different > CATEGORIES and different > len(column) / 2) or different > MOST_CATEGORIES:
        numeric = pc.match_substring_regex(text, r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")
        if not typed and pc.sum(numeric).as_py() > len(present) / 2:
            first = pc.index(numeric, False).as_py()
            return f"numbers, but for {shown(text[first])} in row {first + 1}"
        return f"{different} different texts in {len(column)} rows, as identifiers or free text have"
    longest = pc.max(pc.utf8_length(present)).as_py()
    if longest > LONGEST:
        return f"text of up to {longest} characters, as free text has"
    return "category"


def _finite(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    odd = np.flatnonzero(np.isinf(values))
    if len(odd):
        raise ValueError(
            f"expected finite numbers in column {shown(name)}, got {values[odd[0]]} in row {odd[0] + 1}; clip such "
            "values or leave them empty"
        )
    return values


def demanded(name: str, column: pa.Array, kind: str) -> NDArray[np.float64]:
    """A column that must be numbers (or true and false), or an error that names the first that is not."""
    values = (booleans if kind == "boolean" else floats)(column)
    if values is None:
        wanted = "true or false" if kind == "boolean" else "numbers"
        where = ""
        if is_text(column):
            for i, text in enumerate(texts(column).to_pylist()):
                good = ("true", "false", "0", "1") if kind == "boolean" else ()
                if text is not None and text.lower() not in good and (kind == "boolean" or not _reads(text)):
                    where = f" {shown(text)} in row {i + 1}"
                    break
        raise ValueError(f"expected {wanted} in column {shown(name)}, got{where or f' {column.type}'}; mend the file")
    return _finite(name, values)


def _reads(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def is_whole(column: pa.Array) -> bool:
    """Whether a column holds whole numbers written as such (`3`, not `3.0`)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_text(column):
        return pa.types.is_integer(column.type)
    return bool(pc.all(pc.match_substring_regex(pc.drop_null(texts(column)), r"^[-+]?\d{1,18}$")).as_py())


def names_in(name: str, columns: Columns, what: str) -> NDArray[np.str_]:
    """A column of environments or tasks as text."""
    import pyarrow as pa

    column = columns[name]
    if pa.types.is_nested(column.type):
        raise ValueError(f"expected names or numbers in {shown(name)}, the {what}, got {column.type}")
    text = texts(column)
    if text.null_count:
        first = int(np.flatnonzero(text.is_null().to_numpy(zero_copy_only=False))[0]) + 1
        raise ValueError(
            f"expected {'an environment' if what == 'environment' else 'a task'} in every row of {shown(name)}, got "
            f"none in {text.null_count} rows, first in row {first}; name it or remove those rows"
        )
    labels = np.array(text.to_pylist(), dtype=str)
    different = len(np.unique(labels))
    if different > max(2, columns.rows / 2):
        raise ValueError(
            f"expected several rows of each {what} in {shown(name)}, got {different} of them in {columns.rows} rows"
        )
    return labels
