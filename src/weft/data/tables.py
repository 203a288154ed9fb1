"""Tables: CSV, Parquet and NPZ files as the arrays that a Learner takes, by a recipe that is kept.

A file is read into named columns; a `Recipe` learns from the training rows how each column becomes
numbers, and applies the same encoding to any later file. The recipe is plain JSON.

What comes out of a column:

    numbers      (x - mean) / std; where values are missing, the median, and one more column that says so
    true/false   1 or 0; missing values as above
    text         one column per category (a missing value is a category of its own)

Columns without any variation are left out. Dates, identifiers and free text are refused with the
column's name, since any silent encoding of them would be a guess; so are duplicate column names.
Nothing in a file is ever run: text such as `=1+1` stays text, and NPZ files with pickles are refused.
"""

from __future__ import annotations

import codecs
import difflib
import hashlib
import io
import math
import shlex
import warnings
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Columns", "Recipe", "Table", "plain_cell", "read_columns", "shown", "split"]

FORMAT = 1
FEW = 20  # whole numbers with at most so many different values are taken for classes
CATEGORIES = 50  # more categories than this, in more than half of the rows, are no categories
MOST_CATEGORIES = 1000
LONGEST = 1000  # characters of a category's name
_MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NAN", "null", "NULL", "None", "?")
_DATE = (
    r"^(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/]\d{1,2}[-/]\d{2,4}( .*)?|\d{1,2}\.\d{1,2}\.\d{4}( .*)?"
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?)$"
)
_BLOCK = 1 << 24


def shown(name: Any, limit: int = 60) -> str:
    """A name for a message: quoted, on one line, without control characters, not too long.

    >>> shown("a\\nb"), shown("x" * 100, limit=5)
    ("'a\\\\nb'", "'xxxxx...'")
    """
    text = str(name)
    return repr(text if len(text) <= limit else f"{text[:limit]}...")


def plain_cell(value: Any) -> Any:
    """A cell for a CSV file that spreadsheets take for text: what they would run gets a leading quote.

    >>> plain_cell("=1+1"), plain_cell("red"), plain_cell(-1.5)
    ("'=1+1", 'red', -1.5)
    """
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else value


def _some(names: Sequence[Any], most: int = 8) -> str:
    rest = f", ... ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(shown(name) for name in names[:most]) + rest


def _unknown(name: str, known: Sequence[str], what: str = "a column") -> ValueError:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {shown(near[0])}?" if near else ""
    return ValueError(f"expected {what} among {_some(known)}, got {shown(name)}{hint}")


# --- files ------------------------------------------------------------------------------------------


@dataclass
class Columns:
    """A file's columns, not yet encoded.

    Attributes:
        path: the file.
        size, sha256: its bytes' number and checksum, of exactly the bytes that were read.
        data: the columns by name, as pyarrow arrays.
        typed: whether the file says what kind each column is (Parquet, NPZ); a CSV file does not.
        rows: how many rows there are.
        notes: what was left out on reading.
    """

    path: Path
    size: int
    sha256: str
    data: dict[str, Any]
    typed: bool
    rows: int
    notes: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Any:
        if name not in self.data:
            raise _unknown(name, list(self.data))
        return self.data[name]


def read_columns(path: str | Path, *, encoding: str = "utf-8") -> Columns:
    """Reads a table's columns from a `.csv`, `.tsv`, `.parquet` or `.npz` file.

    Args:
        path: the file. In an NPZ file every array of one axis is a column, and one of two axes is as
            many columns, named `X[0]`, `X[1]`, ...
        encoding: of a CSV file.
    """
    path = Path(path)
    readers = {".csv": _csv, ".tsv": _csv, ".txt": _csv, ".parquet": _parquet, ".pq": _parquet, ".npz": _npz}
    if path.is_dir():
        raise ValueError(f"expected a file with a table, got the folder {shown(path)}; name the file in it")
    if not path.exists():
        near = difflib.get_close_matches(path.name, [p.name for p in _siblings(path)], n=1)
        hint = f"; did you mean {shown(path.with_name(near[0]))}?" if near else ""
        raise FileNotFoundError(f"expected a file with a table, got {shown(path)}, which is not there{hint}")
    if path.suffix.lower() not in readers:
        raise ValueError(
            f"expected a table in a file that ends in {', '.join(readers)}, got {shown(path.name)}; convert it or rename it"
        )
    data = path.read_bytes()
    names, arrays, typed = readers[path.suffix.lower()](path, data, encoding)
    notes = []
    unnamed = [i for i, name in enumerate(names) if not name.strip() or name.startswith("__index_level_")]
    if unnamed:  # pandas writes a data frame's row numbers so
        notes.append(f"left out {len(unnamed)} column(s) without a name, such as pandas' row numbers")
    kept = [(name, array) for i, (name, array) in enumerate(zip(names, arrays, strict=True)) if i not in set(unnamed)]
    names = [name for name, _ in kept]
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise ValueError(f"expected columns of different names in {path}, got {_some(twice)} more than once; rename them")
    rows = len(kept[0][1]) if kept else 0
    if not rows:
        raise ValueError(f"expected rows of data in {path}, got {'a header only' if names else 'no named columns'}")
    return Columns(path, len(data), hashlib.sha256(data).hexdigest(), dict(kept), typed, rows, notes)


def _siblings(path: Path) -> Iterable[Path]:
    try:
        return list(path.parent.iterdir())
    except OSError:
        return []


def _decoded(path: Path, data: bytes, encoding: str) -> bytes:
    """A CSV file's text as UTF-8 without a byte-order mark."""
    try:
        codec = codecs.lookup(encoding)
    except LookupError as error:
        raise ValueError(f"expected an encoding such as utf-8, latin-1 or utf-16, got {encoding!r}") from error
    if not getattr(codec, "_is_text_encoding", True):
        raise ValueError(f"expected an encoding of text such as utf-8 or latin-1, got {encoding!r}")
    if codec.name == "utf-8" and data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise ValueError(f"expected {path} in UTF-8, got UTF-16; read it with --encoding utf-16, or convert it")
    decoder, parts = codec.incrementaldecoder("strict"), []
    for first in range(0, len(data), _BLOCK):  # in blocks: a whole file as str may take four times its size
        try:
            text = decoder.decode(data[first : first + _BLOCK], final=first + _BLOCK >= len(data))
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, first + error.start) + 1
            raise ValueError(
                f"expected {path} in {encoding.upper()}, got the byte 0x{error.object[error.start]:02x} in line {line}; "
                "name the file's encoding, often --encoding latin-1 or cp1252, or convert it: "
                "iconv -f latin1 -t utf-8"
            ) from error
        if codec.name != "utf-8":
            parts.append(text.encode("utf-8", "replace"))
    plain = data if codec.name == "utf-8" else b"".join(parts)
    return plain.removeprefix(codecs.BOM_UTF8)


def _delimiter(path: Path, header: bytes) -> str:
    """What the header is separated by, quoted names aside."""
    bare = b"".join(header.split(b'"')[::2])
    if path.suffix.lower() == ".tsv" or b"," not in bare:
        return max("\t;,", key=lambda mark: bare.count(mark.encode()))
    return ","


def _csv(path: Path, data: bytes, encoding: str) -> tuple[list[str], list[Any], bool]:
    """Every column as text: what kind it is, the recipe decides."""
    import pyarrow as pa
    from pyarrow import csv

    text = _decoded(path, data, encoding)
    if not text.strip():
        raise ValueError(f"expected a table in {path}, got an empty file")
    if b"\0" in text:
        line = text.count(b"\n", 0, text.index(b"\0")) + 1
        raise ValueError(f"expected text in {path}, got a NUL byte in line {line}; is it CSV, and in UTF-8?")
    if b"\n" not in text:
        text = text.replace(b"\r", b"\n")  # lines as old Macs end them
    head = _head(text)
    body, mark = text[len(head) :], _delimiter(path, head)
    options = csv.ReadOptions(use_threads=False, block_size=max(_BLOCK, len(head) + 1))
    parse = csv.ParseOptions(delimiter=mark, newlines_in_values=True)
    try:
        with csv.open_csv(pa.BufferReader(head + b"\n"), read_options=options, parse_options=parse) as reader:
            names = [name.strip() for name in reader.schema.names]
        if not body.strip():
            return names, [pa.array([], pa.string())] * len(names), False
        options.column_names = [str(i) for i in range(len(names))]
        kinds = csv.ConvertOptions(column_types=dict.fromkeys(options.column_names, pa.string()))
        while True:
            try:
                table = csv.read_csv(pa.BufferReader(body), options, parse, kinds)
                break
            except pa.ArrowInvalid as error:
                if "straddl" not in str(error) or options.block_size > len(body):
                    raise
                options.block_size = min(4 * options.block_size, 2**31 - 1)  # a field is longer than a block
    except pa.ArrowInvalid as error:
        said = " ".join(str(error).removeprefix("CSV parse error: ").split())
        raise ValueError(
            f"expected in {path} as many fields in every row as in the header (separated by {mark!r}), got: "
            f"{shown(said, 160)[1:-1]}; mend or remove that row"
        ) from error
    return names, [column.combine_chunks() for column in table.columns], False


def _head(text: bytes) -> bytes:
    """The header's line alone; a quoted name may hold line breaks."""
    end, quotes = len(text) - len(text.lstrip(b"\r\n")), 0
    while True:
        stop = text.find(b"\n", end)
        if stop < 0:
            return text
        quotes += text.count(b'"', end, stop)
        end = stop + 1
        if quotes % 2 == 0:
            return text[:end]


def _parquet(path: Path, data: bytes, encoding: str) -> tuple[list[str], list[Any], bool]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(pa.BufferReader(data)).read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"expected a Parquet file in {path}, got: {' '.join(str(error).split())}") from error
    return table.column_names, [column.combine_chunks() for column in table.columns], True


def _npz(path: Path, data: bytes, encoding: str) -> tuple[list[str], list[Any], bool]:
    import pyarrow as pa

    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise ValueError(f"expected an NPZ file in {path}, as numpy.savez writes it, got another kind of file")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, KeyError, AttributeError) as error:
        if "pickle" in str(error).lower():
            raise ValueError(
                f"expected arrays of numbers or text in {path}, got arrays of Python objects, which are pickles and are "
                'not loaded; save them with a plain type, for example x.astype("U") or x.astype(float)'
            ) from error
        raise ValueError(f"expected an NPZ file of arrays in {path}, got: {' '.join(str(error).split())}") from error
    names: list[str] = []
    columns: list[Any] = []
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.ndim not in (1, 2) or array.dtype.kind not in "biufUM":
            kind = f"shape {array.shape}, {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
            raise ValueError(
                f"expected arrays of numbers or text with one or two axes in {path}, got {shown(name)} with {kind}; "
                "save it flattened to two axes, or without it"
            )
        parts = [array] if array.ndim == 1 else list(array.T)
        names += [name] if array.ndim == 1 else [f"{name}[{i}]" for i in range(len(parts))]
        columns += [pa.array(part.tolist() if part.dtype.kind == "U" else np.ascontiguousarray(part)) for part in parts]
    lengths = {name: len(column) for name, column in zip(names, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        first, other = names[0], next(name for name in names if lengths[name] != lengths[names[0]])
        raise ValueError(
            f"expected arrays with one number of rows in {path}, got {lengths[first]} in {shown(first)} and "
            f"{lengths[other]} in {shown(other)}"
        )
    return names, columns, True


# --- columns ----------------------------------------------------------------------------------------


def _texts(column: Any, typed: bool) -> Any:
    """A column as text, its missing values as nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_null(column.type):
        return column.cast(pa.string())
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
    text = pc.utf8_trim_whitespace(column.cast(pa.string()))
    return text if typed else pc.if_else(pc.is_in(text, value_set=pa.array(_MISSING)), None, text)


def _is_text(column: Any) -> bool:
    import pyarrow as pa

    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_dictionary)
    return any(is_kind(column.type) for is_kind in kinds)


def _numbers(column: Any, typed: bool) -> np.ndarray[Any, Any] | None:
    """A column as float64 with NaN where values are missing, or None where some are not numbers."""
    import pyarrow as pa

    if _is_text(column):
        column = _texts(column, typed)
    try:
        return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _booleans(column: Any, typed: bool) -> np.ndarray[Any, Any] | None:
    """A column of true and false (or 1 and 0) as float64 with NaN, or None."""
    import pyarrow.compute as pc

    if _is_text(column):
        text = pc.utf8_lower(_texts(column, typed))
        column = pc.if_else(pc.equal(text, "true"), "1", pc.if_else(pc.equal(text, "false"), "0", text))
    numbers = _numbers(column, typed)
    if numbers is None or not np.isin(numbers[~np.isnan(numbers)], (0.0, 1.0)).all():
        return None
    return numbers


def _kind(column: Any, typed: bool) -> str:
    """`number`, `boolean`, `category`, or what speaks against using it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_temporal(column.type):
        return "dates"
    if pa.types.is_boolean(column.type):
        return "boolean"
    if not _is_text(column):
        return "nothing that weft can encode" if _numbers(column, typed) is None else "number"
    text = _texts(column, typed)
    present = pc.drop_null(text)
    if not len(present):
        return "number"
    if not typed:
        if _numbers(column, typed) is not None:
            return "number"
        if pc.all(pc.is_in(pc.utf8_lower(present), value_set=pa.array(["true", "false"]))).as_py():
            return "boolean"
    if pc.all(pc.match_substring_regex(present, _DATE)).as_py():
        return "dates"
    different = len(pc.unique(present))
    if (different > CATEGORIES and different > len(column) / 2) or different > MOST_CATEGORIES:
        return f"{different} different texts in {len(column)} rows, as identifiers or free text have"
    longest = pc.max(pc.utf8_length(present)).as_py()
    if longest > LONGEST:
        return f"text of up to {longest} characters, as free text has"
    return "category"


def _finite(name: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    odd = np.flatnonzero(np.isinf(values))
    if len(odd):
        raise ValueError(
            f"expected finite numbers in column {shown(name)}, got {values[odd[0]]} in row {odd[0] + 1}; clip such values "
            "or leave them empty"
        )
    return values


def _demanded(name: str, column: Any, typed: bool, kind: str) -> np.ndarray[Any, Any]:
    """A column that must be numbers (or true and false), or an error that names the first that is not."""
    values = (_booleans if kind == "boolean" else _numbers)(column, typed)
    if values is None:
        wanted = "true or false" if kind == "boolean" else "numbers"
        where = ""
        if _is_text(column):
            for i, text in enumerate(_texts(column, typed).to_pylist()):
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
    def learn(cls, name: str, column: Any, typed: bool, kind: str, rows: np.ndarray[Any, Any]) -> Column:
        """The encoding of a column, from the rows where `rows` is true."""
        import pyarrow.compute as pc

        if kind == "category":
            found = pc.unique(_texts(column.filter(rows), typed)).to_pylist()
            names = sorted(text for text in found if text is not None)
            return cls(name, kind, categories=(*names, None) if None in found else tuple(names))
        values = _demanded(name, column, typed, kind)[rows]
        gaps = np.isnan(values)
        present = values[~gaps]
        if not len(present):
            return cls(name, kind, std=0.0)
        missing, median = bool(gaps.any()), float(np.median(present))
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

    def encode(self, column: Any, typed: bool) -> tuple[np.ndarray[Any, Any], int]:
        """The numbers of each row, (n, features), and how many rows had a category never seen before."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.kind == "category":
            text = _texts(column, typed)
            known = pc.index_in(text, value_set=pa.array(self.categories, pa.string()))
            codes = pc.fill_null(known, -1).to_numpy(zero_copy_only=False)
            out = np.zeros((len(column), len(self.categories)))
            seen = np.flatnonzero(codes >= 0)
            out[seen, codes[seen]] = 1.0
            return out, len(column) - len(seen)
        values = _demanded(self.name, column, typed, self.kind)
        gaps = np.isnan(values)
        parts = []
        if self.std > 0:
            parts.append((np.where(gaps, self.median, values) - self.mean) / self.std)
        if self.missing:
            parts.append(gaps.astype(np.float64))
        return np.stack(parts, 1) if parts else np.zeros((len(column), 0)), 0


# --- the target -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """How the column to be predicted is read, and how predictions are written.

    Values are standardized for training, so that a target in the thousands trains as well as one
    around 1, and predictions are put back: mean + std * prediction.

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
    def learn(cls, name: str, columns: Columns, kind: str | None, rows: np.ndarray[Any, Any]) -> Target:
        """What kind of target it is (unless said), and its scale in the training rows."""
        column, typed = columns[name], columns.typed
        found = _kind(column, typed)
        text = _texts(column, typed) if found != "dates" else None
        if text is not None and text.null_count:
            first = int(np.flatnonzero(text.is_null().to_numpy(zero_copy_only=False))[0]) + 1
            raise ValueError(
                f"expected a value of {shown(name)}, the target, in every row, got none in {text.null_count} rows, first "
                f"in row {first}; remove those rows or fill them in"
            )
        whole = found == "number" and _whole(column, typed)
        if kind is None:
            kind = "values"
            if found in ("boolean", "category"):
                kind = "classes"
            elif whole:
                different = len(np.unique(_numbers(column, typed)))  # type: ignore[arg-type]
                kind = "classes" if different <= min(FEW, columns.rows // 2) else "values"
            elif found != "number":
                raise ValueError(f"expected numbers or classes in {shown(name)}, the target, got {found}")
        if kind == "classes":
            if found not in ("number", "boolean", "category"):
                raise ValueError(f"expected classes in {shown(name)}, the target, got {found}")
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
        values = _demanded(name, column, typed, "number")[rows]
        mean, std = float(values.mean()), float(values.std())
        if not (math.isfinite(std) and std > 1e-14 * max(abs(mean), 1e-300)):
            raise ValueError(f"expected values that vary in {shown(name)}, the target, got {shown(values[0])} throughout")
        return cls(name, kind, mean=mean, std=std)

    def read(self, columns: Columns) -> np.ndarray[Any, Any]:
        """The target of each row, as a Learner takes it: labels, or standardized values."""
        import pyarrow as pa

        column = columns[self.name]
        if self.kind == "values":
            return (_demanded(self.name, column, columns.typed, "number") - self.mean) / self.std
        text = _texts(column, columns.typed)
        if self.whole and _whole(column, columns.typed):
            whole = text if _is_text(column) else column
            return whole.cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False)
        return np.array(text.to_pylist(), dtype=str)

    def write(self, answers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Predictions in the column's own units."""
        return self.mean + self.std * np.asarray(answers, np.float64) if self.kind == "values" else answers


def _whole(column: Any, typed: bool) -> bool:
    """Whether a column holds whole numbers written as such (`3`, not `3.0`)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not _is_text(column):
        return pa.types.is_integer(column.type)
    return bool(pc.all(pc.match_substring_regex(pc.drop_null(_texts(column, typed)), r"^[-+]?\d{1,18}$")).as_py())


def _names(name: str, columns: Columns, what: str) -> np.ndarray[Any, Any]:
    """A column of environments or tasks as text."""
    import pyarrow as pa

    column = columns[name]
    if pa.types.is_nested(column.type):
        raise ValueError(f"expected names or numbers in {shown(name)}, the {what}, got {column.type}")
    text = _texts(column, columns.typed)
    if text.null_count:
        first = int(np.flatnonzero(text.is_null().to_numpy(zero_copy_only=False))[0]) + 1
        raise ValueError(
            f"expected {'an environment' if what == 'environment' else 'a task'} in every row of {shown(name)}, got none "
            f"in {text.null_count} rows, first in row {first}; name it or remove those rows"
        )
    labels = np.array(text.to_pylist(), dtype=str)
    different = len(np.unique(labels))
    if different > max(2, columns.rows / 2):
        raise ValueError(
            f"expected several rows of each {what} in {shown(name)}, got {different} different ones in {columns.rows} rows"
        )
    return labels


# --- the whole table --------------------------------------------------------------------------------


@dataclass
class Table:
    """A table as a Learner takes it.

    Attributes:
        X: features, (n, d).
        names: the features' names.
        y: labels or standardized values; None where the table has no target.
        environment, task: of each row, or None.
        held: which rows the recipe holds out for validation, where the table is the one it was learned from.
        unseen: by column, how many rows had a category that the recipe does not know (all zeros in X).
    """

    X: np.ndarray[Any, Any]
    names: list[str]
    y: np.ndarray[Any, Any] | None = None
    environment: np.ndarray[Any, Any] | None = None
    task: np.ndarray[Any, Any] | None = None
    held: np.ndarray[Any, Any] | None = None
    unseen: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """How a table becomes arrays: learned once, applied to every later table, kept as JSON.

    Attributes:
        columns: the encoding of each column that is used.
        target: the column to be predicted, or None.
        environment, task: the columns that name them, or None.
        left_out: columns that are not used, and why.
        validation: the share of the rows held out; the encoding is learned from the others.
        seed: which rows are held out.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "trees.csv"
        >>> _ = path.write_text("height,leaf,kind\\n1.5,long,fir\\n,round,oak\\n2.5,round,oak\\n3,long,fir\\n")
        >>> recipe = Recipe.learn(read_columns(path), target="kind")
        >>> table = recipe.apply(read_columns(path))
        >>> table.names, table.X[1].tolist(), table.y.tolist()
        (['height', 'height is missing', 'leaf=long', 'leaf=round'], [..., 1.0, 0.0, 1.0], ['fir', 'oak', 'oak', 'fir'])
    """

    columns: tuple[Column, ...]
    target: Target | None = None
    environment: str | None = None
    task: str | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    validation: float = 0.0
    seed: int = 0

    @classmethod
    def learn(
        cls,
        columns: Columns,
        *,
        target: str | None = None,
        environment: str | None = None,
        task: str | None = None,
        drop: Sequence[str] = (),
        kind: str | None = None,
        validation: float = 0.0,
        seed: int = 0,
    ) -> Recipe:
        """Looks at the columns and learns how to encode them.

        Args:
            columns: the table.
            target: the column to be predicted, or None for objectives without one.
            environment, task: columns that name each row's environment and task.
            drop: columns to leave out.
            kind: `classes` or `values`, or None to see by the target: text, true/false and whole
                numbers of few different values are classes, other numbers are values.
            validation: a share of the rows to hold out; nothing is learned from them.
            seed: which rows are held out.
        """
        roles = {"target": target, "environment": environment, "task": task}
        for role, name in roles.items():
            if name is not None and name not in columns.data:
                raise _unknown(name, list(columns.data), f"the {role} to be a column")
        for name in drop:
            if name not in columns.data:
                raise _unknown(name, list(columns.data), "a column to drop")
        taken = [name for name in roles.values() if name is not None]
        for name in taken:
            if taken.count(name) > 1 or name in drop:
                raise ValueError(f"expected one use of column {shown(name)}, got it as target, environment, task or drop twice")
        goal = None if target is None else Target.learn(target, columns, kind, np.ones(columns.rows, dtype=bool))
        draft = cls((), goal, environment, task, validation=validation, seed=seed)
        rows = ~draft._roles(columns)[-1]
        if goal is not None and goal.kind == "values":
            goal = Target.learn(target or "", columns, "values", rows)
        used, refused = [], {}
        left_out = dict.fromkeys(drop, "asked for")
        for name, column in columns.data.items():
            if name in taken or name in left_out:
                continue
            found = _kind(column, columns.typed)
            if found not in ("number", "boolean", "category"):
                refused[name] = found
                continue
            encoding = Column.learn(name, column, columns.typed, found, rows)
            if encoding.features:
                used.append(encoding)
            else:
                left_out[name] = "does not vary"
        if refused:
            told = "; ".join(f"{shown(name)} has {why}" for name, why in list(refused.items())[:5])
            options = " ".join(f"--drop {shlex.quote(name)}" for name in list(refused)[:5])
            more = f" and {len(refused) - 5} more" if len(refused) > 5 else ""
            raise ValueError(
                f"expected columns of numbers, categories or true/false, got others: {told}{more}; leave them out with "
                f"{options}, or put what matters of them into columns of numbers"
            )
        if not used:
            raise ValueError(
                f"expected columns to learn from in {columns.path}, got none beside the target that varies; columns: "
                f"{_some(list(columns.data))}"
            )
        return cls(tuple(used), goal, environment, task, left_out, validation, seed)

    def _roles(self, columns: Columns) -> tuple[Any, Any, Any, np.ndarray[Any, Any]]:
        """Target, environment and task of each row, and which rows are held out."""
        y = None if self.target is None else self.target.read(columns)
        environment = None if self.environment is None else _names(self.environment, columns, "environment")
        task = None if self.task is None else _names(self.task, columns, "task")
        labels = y if self.target is not None and self.target.kind == "classes" else None
        return y, environment, task, split([task, environment, labels], columns.rows, self.validation, self.seed)

    def apply(self, columns: Columns, *, labelled: bool = True, quiet: bool = False) -> Table:
        """The table's arrays.

        Args:
            columns: a table with the columns that the recipe was learned from; others are ignored.
            labelled: whether target, environment and task are there and wanted.
            quiet: do not warn of categories never seen before.
        """
        absent = [c.name for c in self.columns if c.name not in columns.data]
        if absent:
            near = difflib.get_close_matches(absent[0], list(columns.data), n=1)
            hint = f"; is it the one that is called {shown(near[0])} there?" if near else ""
            raise ValueError(f"expected the columns of training in {columns.path}, got none called {_some(absent)}{hint}")
        parts, names, unseen = [], [], {}
        for column in self.columns:
            part, strange = column.encode(columns[column.name], columns.typed)
            parts.append(part)
            names += column.features
            if strange:
                unseen[column.name] = strange
        if unseen and not quiet:
            told = ", ".join(f"{shown(name)} in {count} rows" for name, count in list(unseen.items())[:8])
            warnings.warn(f"categories that training has not seen, encoded as none of them: {told}", stacklevel=2)
        table = Table(np.concatenate(parts, axis=1), names, unseen=unseen)
        if labelled:
            table.y, table.environment, table.task, table.held = self._roles(columns)
        return table

    def to_json(self) -> dict[str, Any]:
        """The recipe as plain values."""
        return {
            "format": FORMAT,
            "columns": [_without_defaults(c) for c in self.columns],
            "target": None if self.target is None else _without_defaults(self.target),
            "environment": self.environment,
            "task": self.task,
            "left_out": self.left_out,
            "validation": self.validation,
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, plain: Any) -> Recipe:
        """The recipe from `to_json`'s values, each checked: the file may come from anywhere."""
        if not isinstance(plain, dict) or "format" not in plain:
            raise ValueError("expected weft's recipe of a table, got something else; fit anew")
        if plain["format"] != FORMAT:
            raise ValueError(f"expected a recipe of format {FORMAT}, got {shown(plain['format'])}; use that version of weft")
        try:
            columns = tuple(_checked(Column, entry, ("number", "boolean", "category")) for entry in plain["columns"])
            target = None if plain["target"] is None else _checked(Target, plain["target"], ("classes", "values"))
            environment, task, left_out = plain["environment"], plain["task"], dict(plain["left_out"])
            validation, seed = float(plain["validation"]), int(plain["seed"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"expected weft's recipe of a table, got a damaged one: {error}; fit anew") from error
        if not columns or any(not isinstance(name, str | None) for name in (environment, task)):
            raise ValueError("expected weft's recipe of a table, got a damaged one: it names no columns; fit anew")
        return cls(columns, target, environment, task, left_out, validation, seed)


def _without_defaults(entry: Any) -> dict[str, Any]:
    fields = type(entry).__dataclass_fields__
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(entry).items()
        if value != fields[name].default
    }


def _checked(cls: type, entry: Any, kinds: tuple[str, ...]) -> Any:
    """A dataclass from a dictionary whose values are of the kinds they must be."""
    if not isinstance(entry, dict):
        raise TypeError(f"expected a dictionary, got {type(entry).__name__}")
    values = dict(entry)
    if isinstance(values.get("categories"), list):
        values["categories"] = tuple(values["categories"])
    built = cls(**values)
    for name, spec in cls.__dataclass_fields__.items():
        value = getattr(built, name)
        kind = type(spec.default) if spec.default.__class__.__name__ != "_MISSING_TYPE" else str
        fine = isinstance(value, int | float) and not isinstance(value, bool) if kind is float else isinstance(value, kind)
        if not fine or (kind is float and not math.isfinite(value)):
            raise ValueError(f"expected {name} to be {kind.__name__}, got {shown(value)}")
    if built.kind not in kinds:
        raise ValueError(f"expected kind to be one of {', '.join(kinds)}, got {shown(built.kind)}")
    if any(not isinstance(c, str | None) for c in getattr(built, "categories", ())):
        raise ValueError("expected categories to be text")
    return built


def split(strata: Sequence[np.ndarray[Any, Any] | None], rows: int, share: float, seed: int) -> np.ndarray[Any, Any]:
    """Which rows to hold out: a share of them, the same in every stratum as nearly as can be.

    Rows are put in order of their strata (environment, task, class), at random within each, and every
    so-many-th is held out. What has a single row in a stratum's own column stays in training.

    Args:
        strata: labels of each row, the most important first; None is passed over.
        rows: how many rows there are.
        share: of the rows, in [0, 1).
        seed: the choice is a function of it and of the row's number.

    Returns:
        True for the rows held out.

    Example:
        >>> y = np.array(["a"] * 8 + ["b"] * 4)
        >>> held = split([y], 12, 0.25, seed=0)
        >>> np.unique(y[held], return_counts=True)[1].tolist()
        [2, 1]
    """
    from weft.core.random import bits, fold, key_of

    if not 0.0 <= share < 1.0:
        raise ValueError(f"expected the share of held-out rows in [0, 1), got {share!r}")
    held = np.zeros(rows, dtype=bool)
    if share == 0.0:
        return held
    given = [np.unique(labels, return_inverse=True)[1].reshape(-1) for labels in strata if labels is not None]
    chance = bits(fold(key_of(seed), "table split"), (rows,)).numpy()
    order = np.lexsort([chance, *given[::-1]])
    marks = np.floor(np.arange(rows + 1) * share + 0.5)
    held[order[marks[1:] > marks[:-1]]] = True
    for codes in given:  # every class, environment and task is trained on
        held &= np.bincount(codes[~held], minlength=codes.max() + 1)[codes] > 0
    if not held.any():
        raise ValueError(f"expected rows to hold out, got none with a share of {share} of {rows} rows; take a larger share")
    return held
