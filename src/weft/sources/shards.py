"""Shards: tar files whose members of one name make up a row, larger than memory."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core.legal import Legal, Such, check
from weft.core.random import fold, key_of
from weft.core.source import Batch
from weft.sources.chunked import Chunked, files_of, named_fields
from weft.sources.drawn import seeded, seeds_of

__all__ = ["Shards"]

Transform = Callable[[Tensor], Tensor]
_IMAGES = ("png", "jpg", "jpeg", "bmp", "ppm", "pgm", "webp")
_NUMBERS = ("cls", "cls2", "index", "id", "inx")
_PICKLES = ("pkl", "pickle", "pyd", "pth", "pt", "ten", "tb", "joblib")
_CHUNK = 1024  # rows of a shard that are read at once


class Shards(Chunked):
    """Reads rows from tar files in WebDataset's form: `0001.npy` and `0001.cls` are the parts of one row.

    What a name ends with, from the first dot of its last part on, says what is in it:

    - `npy`: an array (one that holds Python objects is refused);
    - `cls`: a whole number, as text;
    - `json`: a number or lists of them; `json:age` one value of an object, `json:patient.age` one further in;
    - `png`, `jpg`, ...: an image, as (channels, height, width) from 0 to 1, where Pillow is installed.

    Pickles (`pkl`, `pth`, ...) can run code when they are read, and are refused. Other members are not looked at.
    The shards' headers are read once, so that the length of a pass is known; then a window of at least `buffer` rows at
    a time, parts of shards in an order of their own in every pass, and shuffled within. It resumes `exact`; that the
    shards are those that the run was begun with is told by their names, and by their members' names, sizes and dates.

    Args:
        paths: a tar file (not compressed), a pattern such as `"data/shard-*.tar"` (in the order of their names), or
            several of them.
        fields: which member makes up each field, by what its name ends with.
        transform: functions by field, of a row's tensor: images of many sizes are brought to one there. What they draw
            depends on the run's seed, the pass and the row alone.
        batch_size: rows in a batch.
        buffer: rows among which those of a batch are drawn, at least.
        shuffle: whether at all; else all passes are in the shards' own order.
        classes: how many classes `y` numbers; or such numbers by field.

    References:
        Aizman, Maltby and Breuel, "High performance I/O for large scale deep learning", arXiv 2001.01858.

    Example:
        >>> import tempfile
        >>> def add(shard, name, data):
        ...     member = tarfile.TarInfo(name)
        ...     member.size = len(data)
        ...     shard.addfile(member, io.BytesIO(data))
        >>> folder = tempfile.TemporaryDirectory()
        >>> with tarfile.open(f"{folder.name}/shard-0.tar", "w") as shard:
        ...     for i in range(40):
        ...         array = io.BytesIO()
        ...         np.save(array, np.full(3, i / 40, dtype=np.float32))
        ...         add(shard, f"{i:04}.npy", array.getvalue())
        ...         add(shard, f"{i:04}.cls", str(i % 2).encode())
        >>> source = Shards(f"{folder.name}/*.tar", {"x": "npy", "y": "cls"}, batch_size=8, classes=2)
        >>> source.size, source.epoch, source.spec["x"].shape
        (40, 5, (3,))
        >>> from weft import Learner
        >>> from weft.objectives import Classification
        >>> Learner(Classification(hidden=(4,)), epochs=2, random_state=0).fit(source).n_steps_
        10
        >>> folder.cleanup()
    """

    legal: ClassVar[dict[str, Legal]] = {
        "fields": Such(
            "endings by field such as {'x': 'npy', 'y': 'cls'}",
            lambda given: isinstance(given, Mapping),
            lambda given: named_fields(given, lambda ending: isinstance(ending, str)),
        ),
        "transform": Such(
            "functions by field such as {'x': Resize((32, 32))}",
            lambda given: isinstance(given, Mapping),
            lambda given: named_fields(given, callable),
        )
        | None,
    }

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        fields: Mapping[str, str],
        *,
        transform: Mapping[str, Transform] | None = None,
        batch_size: int = 64,
        buffer: int = 10_000,
        shuffle: bool = True,
        classes: int | Mapping[str, int] | None = None,
    ) -> None:
        check(Shards, locals())
        self.fields = dict(fields)
        self.transform = dict(transform or {})
        if unknown := sorted(self.transform.keys() - self.fields.keys()):
            raise ValueError(f"expected transforms of fields among {sorted(fields)}, got one of {unknown[0]!r}")
        self._endings: dict[str, tuple[str, list[str]]] = {}
        for name, told in self.fields.items():
            ending, _, inner = told.removeprefix(".").lower().partition(":")
            _refuse_ending(ending, inner, name)
            self._endings[name] = ending, told.partition(":")[2].split(".") if inner else []
        self.files = files_of(paths)
        self._members = [_indexed(path, [ending for ending, _ in self._endings.values()]) for path in self.files]
        self._chunks: list[tuple[int, int, int]] = []
        size = min(_CHUNK, buffer)
        for i, members in enumerate(self._members):
            count = len(members.places)
            self._chunks += [(i, first, min(first + size, count)) for first in range(0, count, size)]
        sizes = [last - first for _, first, last in self._chunks]
        self._starting = np.cumsum(sizes) - sizes
        self._lay(sizes, self._read(0, key_of(0)), batch_size, buffer, shuffle, classes)

    def contents(self) -> dict[str, Any]:
        """The names of its shards and of their members, with sizes, and what the order depends on."""
        files = "; ".join(f"{path.name} {m.digest}" for path, m in zip(self.files, self._members, strict=True))
        made = {name: getattr(f, "__name__", type(f).__name__) for name, f in self.transform.items()}
        return {"shards": files, "members": f"{self.fields} {made}", "order": self._order()}

    def _where(self, chunk: int) -> str:
        shard, first, last = self._chunks[chunk]
        return f"rows {first}..{last - 1} of {self.files[shard]}"

    def _read(self, chunk: int, key: Tensor) -> Batch:
        shard, first, last = self._chunks[chunk]
        rows = torch.arange(int(self._starting[chunk]), int(self._starting[chunk]) + last - first)
        batch = {}
        for name, transform in {**dict.fromkeys(self.fields), **self.transform}.items():
            values = self._values(name, shard, range(first, last))
            if transform is None:
                batch[name] = self._stacked(list(values), name, shard, first)
                continue
            made = seeded(transform, values, seeds_of(fold(key.cpu(), "transform", name, rows)))
            if odd := [each for each in made if not isinstance(each, Tensor)]:
                raise TypeError(f"expected the transform of {name!r} to make a tensor, got {type(odd[0]).__name__}")
            batch[name] = self._stacked(made, name, shard, first)
        return batch

    def _values(self, name: str, shard: int, rows: range) -> Iterator[Tensor]:
        """One field's values, as they are asked for."""
        ending, inner = self._endings[name]
        places = self._members[shard].places[:, list(self._endings).index(name)]
        with open(self.files[shard], "rb") as file:
            for row in rows:
                place, size = places[row].tolist()
                file.seek(place)
                data = file.read(size)
                try:
                    yield _decoded(data, ending, inner)
                except (ValueError, KeyError, TypeError, OSError, EOFError, SyntaxError, RecursionError) as error:
                    raise ValueError(
                        f"expected {_words(ending)} in the {ending!r} of row {row} of {self.files[shard]}, got "
                        f"{len(data)} bytes of something else: {error}"
                    ) from error

    def _stacked(self, values: list[Tensor], name: str, shard: int, first: int) -> Tensor:
        """Rows as one tensor."""
        for i, value in enumerate(values):
            if value.shape != values[0].shape or value.dtype != values[0].dtype:
                one, other = (f"{tuple(t.shape)} of {t.dtype}" for t in (values[0], value))
                raise ValueError(
                    f"expected rows of one shape and dtype in {name!r}, got {one} in row {first} and {other} in row "
                    f"{first + i} of {self.files[shard]}; bring them to one: transform={{{name!r}: function}}"
                )
        return torch.stack(values)


class _Members(NamedTuple):
    """Where a shard's rows are: for each row and field the first byte and the number of bytes."""

    places: NDArray[np.int64]
    digest: str


def _indexed(path: Path, endings: list[str]) -> _Members:
    """Reads a shard's headers."""
    rows: dict[str, dict[str, tuple[int, int]]] = {}
    digest = hashlib.sha256()
    try:
        with tarfile.open(path, "r:") as shard:
            for member in shard:
                if not member.isreg() or member.issparse():
                    continue
                digest.update(f"{member.name}\0{member.size}\0{member.mtime}\0".encode())
                folder, _, last = member.name.rpartition("/")
                stem, _, ending = last.partition(".")
                if ending.lower() not in endings:
                    continue
                parts = rows.setdefault(f"{folder}/{stem}", {})
                if ending.lower() in parts:
                    raise ValueError(f"expected one {ending!r} for each row, got two of {member.name} in {path}")
                parts[ending.lower()] = (member.offset_data, member.size)
            end = shard.offset
        with open(path, "rb") as file:  # where a header is damaged, or the rest is lost, tarfile ends without a word
            file.seek(end)
            if file.read(512) != bytes(512):
                raise EOFError(f"no end of the archive at byte {end}, where its last whole member ends")
    except (tarfile.TarError, EOFError, OSError) as error:
        packed = "; it is compressed: unpack it first" if path.suffix in (".gz", ".bz2", ".xz", ".tgz", ".zst") else ""
        raise ValueError(
            f"expected a tar file, got {path}, which is damaged or another kind: {error}{packed}"
        ) from error
    if not rows:
        raise ValueError(f"expected members that end in {endings} in {path}, got none; leave the file out")
    for stem, parts in rows.items():
        if lacking := [ending for ending in endings if ending not in parts]:
            raise ValueError(
                f"expected a {lacking[0]!r} for every row, got none for {stem.removeprefix('/')!r} in {path}, which "
                f"has {sorted(parts)}; drop that row, or name members that all rows have"
            )
    places = np.array([[parts[ending] for ending in endings] for parts in rows.values()], dtype=np.int64)
    return _Members(places, digest.hexdigest())


def _refuse_ending(ending: str, inner: str, name: str) -> None:
    """Raises where a field asks for what is not read."""
    if ending.rpartition(".")[2] in _PICKLES:
        raise ValueError(
            f"expected {name!r} from members that hold values only, got {ending!r}: a pickle can run code when it is "
            "read; write the shards anew with npy, by numpy.save(file, array, allow_pickle=False)"
        )
    last = ending.rpartition(".")[2]
    if last not in ("npy", "json", *_NUMBERS, *_IMAGES) or (inner and last != "json"):
        known = ", ".join(("npy", "cls", "json", "json:key", *_IMAGES[:3]))
        got = f"{ending}:{inner}" if inner else ending
        raise ValueError(f"expected {name!r} from one of {known}, got {got!r}; write the shards anew with npy")


def _words(ending: str) -> str:
    last = ending.rpartition(".")[2]
    return {"npy": "an array of numbers", "json": "numbers in JSON"}.get(
        last, "an image" if last in _IMAGES else "a number"
    )


def _decoded(data: bytes, ending: str, inner: list[str]) -> Tensor:
    """A member's value."""
    last = ending.rpartition(".")[2]
    if last == "npy":
        return _of_array(np.load(io.BytesIO(data), allow_pickle=False))
    if last in _NUMBERS:
        return torch.tensor(int(data.decode("ascii")))
    if last == "json":
        value = json.loads(data)
        for key in inner:
            value = value[key]
        if isinstance(value, dict):
            raise ValueError(
                f"an object with {sorted(value)[:5]}; name one of them: 'json:{min(value, default='key')}'"
            )
        return _of_array(np.array(value))
    return _image(data)


def _of_array(array: NDArray[Any]) -> Tensor:
    if array.dtype.kind not in "fiub":
        raise ValueError(f"values of {array.dtype}, which are no numbers")
    if array.dtype.kind in "iu" and array.dtype != np.uint8:
        if array.size and array.max() > np.iinfo(np.int64).max:
            raise ValueError("whole numbers beyond 64 bits")
        array = array.astype(np.int64)
    return torch.from_numpy(np.array(array.astype(array.dtype.newbyteorder("="))))


def _image(data: bytes) -> Tensor:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("expected Pillow, which reads images, got none; pip install pillow, or keep npy") from error
    with Image.open(io.BytesIO(data)) as image:
        if image.mode not in ("L", "RGB", "RGBA"):
            raise ValueError(f"an image of mode {image.mode}, not L, RGB or RGBA; convert it when the shard is written")
        pixels = np.array(image, dtype=np.float32) / 255
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1).copy())
