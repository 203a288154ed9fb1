"""Table files: CSV, Parquet and NPZ as named columns, read so that nothing in them can be run.

Text such as `=1+1` stays text, NPZ files with pickles are refused, and so is what would be read by
guessing: rows of unequal length, two columns of one name, bytes that are not in the encoding.
"""

from __future__ import annotations

import codecs
import difflib
import hashlib
import io
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from weft.core.configured import shown

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from numpy.typing import ArrayLike

__all__ = ["MISSING", "Columns", "plain_cell", "read_columns", "some", "unknown"]

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NAN", "null", "NULL", "None", "?")
"""What a CSV file's missing values are written as."""
_BLOCK = 1 << 24
_Cell = TypeVar("_Cell")


def some(names: Sequence[str], most: int = 8) -> str:
    """A few names for a message."""
    rest = f", ... ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(shown(name) for name in names[:most]) + rest


def unknown(name: str, known: Sequence[str], what: str = "a column") -> ValueError:
    """The error for a column that is not there, with the closest one suggested."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {shown(near[0])}?" if near else ""
    return ValueError(f"expected {what} among {some(known)}, got {shown(name)}{hint}")


def plain_cell(value: _Cell) -> _Cell | str:
    """A cell for a CSV file that spreadsheets take for text: what they would run gets a leading quote.

    >>> plain_cell("=1+1"), plain_cell("red"), plain_cell(-1.5)
    ("'=1+1", 'red', -1.5)
    """
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else value


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
        dtypes: what the columns of a DataFrame are, by name; empty for a file.
    """

    path: Path
    size: int
    sha256: str
    data: dict[str, pa.Array]
    typed: bool
    rows: int
    notes: list[str] = field(default_factory=list)
    dtypes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, table: pd.DataFrame | dict[str, ArrayLike], name: str) -> Columns:
        """The columns of a pandas DataFrame or of a dictionary of arrays, under a name in place of a path."""
        import pyarrow as pa

        try:
            frame = pa.table(table) if isinstance(table, dict) else pa.Table.from_pandas(table, preserve_index=False)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            told = "; ".join(str(part) for part in reversed(error.args))
            raise ValueError(
                f"expected columns of one kind each in {shown(name)}, got a mixture: {told}; mend or leave out that one"
            ) from error
        if not frame.num_rows:
            raise ValueError(f"expected rows of data in {shown(name)}, got none")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, frame.schema) as writer:
            writer.write_table(frame.combine_chunks())
        data = sink.getvalue().to_pybytes()
        columns = {str(n): column.combine_chunks() for n, column in zip(frame.column_names, frame.columns, strict=True)}
        dtypes = {} if isinstance(table, dict) else {str(n): _dtype(kind) for n, kind in table.dtypes.items()}
        digest = hashlib.sha256(data).hexdigest()
        return cls(Path(name), len(data), digest, columns, True, frame.num_rows, dtypes=dtypes)

    def __getitem__(self, name: str) -> pa.Array:
        if name not in self.data:
            raise unknown(name, list(self.data))
        return self.data[name]


def _dtype(kind: object) -> str:
    """What a column of a DataFrame is, in words that bring it back."""
    categories = getattr(kind, "categories", None)
    if categories is None:
        return str(kind)
    return f"category[{categories.dtype}{' ordered' if getattr(kind, 'ordered', False) else ''}]"


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
        raise ValueError(f"expected a file with a table, got the folder {shown(path, 200)}; name the file in it")
    if not path.exists():
        near = difflib.get_close_matches(path.name, [p.name for p in _siblings(path)], n=1)
        hint = f"; did you mean {shown(path.with_name(near[0]), 200)}?" if near else ""
        raise FileNotFoundError(f"expected a file with a table, got {shown(path, 200)}, which is not there{hint}")
    if path.suffix.lower() not in readers:
        raise ValueError(
            f"expected a table in a file that ends in {', '.join(readers)}, got {shown(path.name)}; convert it"
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
        raise ValueError(
            f"expected columns of different names in {path}, got {some(twice)} more than once; rename them"
        )
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
        except UnicodeError as error:
            start = getattr(error, "start", 0)
            line = data.count(b"\n", 0, first + start) + 1
            raise ValueError(
                f"expected {path} in {encoding.upper()}, got the byte 0x{data[first + start]:02x} in line {line}; "
                "name the file's encoding, often --encoding latin-1 or cp1252, or convert it: iconv -f latin1 -t utf-8"
            ) from error
        if codec.name != "utf-8":
            parts.append(text.encode("utf-8", "replace"))
    plain = data if codec.name == "utf-8" else b"".join(parts)
    return plain.removeprefix(codecs.BOM_UTF8)


def _delimiter(path: Path, header: bytes) -> str:
    """What the header is separated by, quoted names aside."""
    bare = b"".join(header.split(b'"')[::2])
    if path.suffix.lower() == ".tsv":
        return "\t"
    return "," if b"," in bare else max(",;\t", key=lambda mark: bare.count(mark.encode()))


def _csv(path: Path, data: bytes, encoding: str) -> tuple[list[str], list[pa.Array], bool]:
    """Every column as text, missing values as nulls: what kind it is, the recipe decides."""
    import pyarrow as pa
    import pyarrow.compute as pc
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
    missing = pc.SetLookupOptions(pa.array(MISSING))
    columns = []
    for column in table.columns:
        plain = pc.utf8_trim_whitespace(column.combine_chunks())
        columns.append(pc.if_else(pc.is_in(plain, options=missing), None, plain))
    return names, columns, False


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


def _parquet(path: Path, data: bytes, encoding: str) -> tuple[list[str], list[pa.Array], bool]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(pa.BufferReader(data)).read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"expected a Parquet file in {path}, got: {' '.join(str(error).split())}") from error
    return table.column_names, [column.combine_chunks() for column in table.columns], True


def _npz(path: Path, data: bytes, encoding: str) -> tuple[list[str], list[pa.Array], bool]:
    import pyarrow as pa

    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise ValueError(f"expected an NPZ file in {path}, as numpy.savez writes it, got another kind of file")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, KeyError, AttributeError) as error:
        if "pickle" in str(error).lower():
            raise ValueError(
                f"expected arrays of numbers or text in {path}, got arrays of Python objects, which are pickles and "
                'not loaded; save them with a plain type, for example x.astype("U") or x.astype(float)'
            ) from error
        raise ValueError(f"expected an NPZ file of arrays in {path}, got: {' '.join(str(error).split())}") from error
    names: list[str] = []
    columns: list[pa.Array] = []
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
