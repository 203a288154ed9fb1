"""Rows in chunks, more of them than memory holds: row groups of files, parts of shards."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core.legal import Flag, Legal, Such, Whole
from weft.core.random import bits, fold, key_of
from weft.core.source import Batch, Field, Source
from weft.core.state import State
from weft.sources.arrays import CLASSES, numbered_by

__all__ = ["Chunked", "files_of", "named_fields"]


def _path(given: object) -> bool:
    return isinstance(given, str | Path)


def _paths(given: object) -> bool:
    return _path(given) or (isinstance(given, list | tuple) and all(map(_path, given)))


_FILES = Such(
    "a file, a pattern such as 'data/*.parquet', or several of them",
    _paths,
    lambda given: _path(given) or len(given) > 0,  # type: ignore[arg-type]
)


def files_of(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files that paths and patterns name, those of a pattern in the order of their names."""
    found: list[Path] = []
    for given in [paths] if isinstance(paths, str | Path) else paths:
        path = Path(given).expanduser()
        some = [path] if path.exists() else [Path(name) for name in sorted(glob.glob(str(path)))]
        if not some:
            raise FileNotFoundError(f"expected files at {given}, got none; is the path right?")
        found += some
    for path in found:
        if not path.is_file():
            raise ValueError(f"expected a file, got the folder {path}; name its files, such as '{path}/*'")
    if twice := sorted({str(path) for path in found if found.count(path) > 1}):
        raise ValueError(f"expected every file once, got {twice[0]} more often; its rows would count so many times")
    return found


class Chunked(Source):
    """A source whose rows are read a chunk at a time; whoever inherits from it says how many there are, and reads one.

    A pass goes through all chunks in an order of its own. Consecutive ones make up a window of at least `buffer` rows,
    which is read and shuffled within: the rows in memory are those of one window and of one batch. Step i of the S of
    a pass takes the rows from i n / S to (i + 1) n / S of that order. All of it depends on the seed and the step alone,
    so that nothing needs to be kept: a resumed run reads the window at hand again.
    """

    legal: ClassVar[dict[str, Legal]] = {
        "paths": _FILES,
        "batch_size": Whole(1),
        "buffer": Whole(1),
        "shuffle": Flag(),
        "classes": CLASSES,
    }

    def _lay(
        self, sizes: Sequence[int], first: Batch, batch_size: int, buffer: int, shuffle: bool, classes: Any
    ) -> None:
        """Says which chunks there are.

        Args:
            sizes: the rows of each.
            first: the rows of the first one, for the spec.
            batch_size, buffer, shuffle, classes: as its own arguments.
        """
        self._sizes: NDArray[np.int64] = np.asarray(sizes, dtype=np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self.size = int(self._sizes.sum())
        self.epoch = -(-self.size // min(batch_size, self.size))
        self.batch_size, self.buffer, self.shuffle = batch_size, buffer, shuffle
        numbered = numbered_by(classes, first)
        self.spec = {name: Field(tuple(t.shape[1:]), t.dtype, numbered.get(name)) for name, t in first.items()}
        self._refuse(first, 0)

    def _read(self, chunk: int, key: Tensor) -> Batch:
        """The rows of a chunk; what is drawn for them is drawn from the key."""
        raise NotImplementedError(f"{type(self).__name__} does not define _read(chunk, key)")

    def _where(self, chunk: int) -> str:
        """Where a chunk is, for a message."""
        raise NotImplementedError(f"{type(self).__name__} does not define _where(chunk)")

    def batches(self, state: State) -> Iterator[Batch]:
        """Batches without end, each pass in its own order."""
        steps, size = self.epoch or 1, self.size or 0
        going: _Pass | None = None
        while True:
            turn, i = divmod(state.step - state.origin, steps)
            key = fold(key_of(state.seeds), "chunks", state.own(state.origin), turn)
            if going is None or not torch.equal(going.key, key):
                going = None  # its rows are let go before others are read
                going = _Pass(self, key)
            batch = going.take(i * size // steps, (i + 1) * size // steps)
            yield {name: t.to(state.device) for name, t in batch.items()}

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        """All rows in their own order."""
        key = fold(key_of(state.seeds), "chunks once")
        for chunk in range(len(self._sizes)):
            held = self._checked(chunk, key)
            for first in range(0, int(self._sizes[chunk]), rows):
                yield {name: t[first : first + rows].to(state.device) for name, t in held.items()}

    def _checked(self, chunk: int, key: Tensor) -> Batch:
        """The rows of a chunk, as the spec says."""
        held = self._read(chunk, key)
        self._refuse(held, chunk)
        return held

    def _refuse(self, held: Batch, chunk: int) -> None:
        """Raises where the rows of a chunk are not as the spec says, or hold what is no number or class."""
        count = int(self._sizes[chunk])
        for name, field in self.spec.items():
            got = held[name]
            where = f"in {self._where(chunk)}"
            if got.shape != (count, *field.shape) or got.dtype != field.dtype:
                raise ValueError(
                    f"expected {count} rows of {name!r} of shape {field.shape} and {field.dtype}, as the first ones "
                    f"are, got {len(got)} of {tuple(got.shape[1:])} and {got.dtype} {where}; was the file changed?"
                )
            if got.is_floating_point() and not bool(torch.isfinite(got).all()):
                raise ValueError(
                    f"expected finite numbers, got NaN or infinity in {name!r} {where}; impute or drop such rows"
                )
            if field.classes is not None and not bool(((got >= 0) & (got < field.classes)).all()):
                low, high = got.aminmax()
                raise ValueError(
                    f"expected classes 0..{field.classes - 1} in {name!r}, got {low.item()}..{high.item()} {where}; "
                    "say how many there are: classes=..."
                )

    def _order(self) -> str:
        """What the order of the rows depends on, beside the data."""
        return f"{self.batch_size} {self.buffer} {self.shuffle}"


class _Pass:
    """One pass through the chunks, which holds one window of rows.

    Args:
        source: whose chunks.
        key: what the order and the draws depend on.
    """

    def __init__(self, source: Chunked, key: Tensor) -> None:
        self.source, self.key = source, key
        sizes = source._sizes
        words = bits(fold(key, "order"), (len(sizes),)).cpu()
        chunks = torch.argsort(words).tolist() if source.shuffle else list(range(len(sizes)))
        self.windows: list[list[int]] = [[]]
        rows = [0]
        for chunk in chunks:
            if rows[-1] >= source.buffer:
                self.windows.append([])
                rows.append(0)
            self.windows[-1].append(chunk)
            rows[-1] += int(sizes[chunk])
        self.ends = np.cumsum(rows)
        self.window, self.held, self.order = -1, dict[str, Tensor](), torch.zeros(0, dtype=torch.int64)

    def take(self, first: int, last: int) -> Batch:
        """The rows between two places of the pass."""
        parts: list[Batch] = []
        while first < last:
            window = int(np.searchsorted(self.ends, first, side="right"))
            if window != self.window:
                self._open(window)
            end = int(self.ends[window])
            start, stop = end - len(self.order), min(last, end)
            index = self.order[first - start : stop - start]
            parts.append({name: t.index_select(0, index) for name, t in self.held.items()})
            first = stop
        return {name: torch.cat([part[name] for part in parts]) for name in self.source.spec}

    def _open(self, window: int) -> None:
        """Reads a window, in place of the one at hand."""
        self.held = {}
        chunks, source = self.windows[window], self.source
        rows = int(source._sizes[chunks].sum())
        held = {n: torch.empty((rows, *field.shape), dtype=field.dtype) for n, field in source.spec.items()}
        first = 0
        for chunk in chunks:
            self._fill({name: t[first:] for name, t in held.items()}, chunk)
            first += int(source._sizes[chunk])
        words = bits(fold(self.key, "within", window), (rows,)).cpu()
        self.order = torch.argsort(words) if source.shuffle else torch.arange(rows)
        self.held, self.window = held, window

    def _fill(self, room: Batch, chunk: int) -> None:
        """Reads a chunk into the room that is left for it; afterwards nobody holds it any more."""
        for name, values in self.source._checked(chunk, self.key).items():
            room[name][: len(values)] = values


def named_fields(given: object, value: Any) -> bool:
    """Whether it is a mapping from names of fields to what `value` allows, and not empty."""
    return (
        isinstance(given, Mapping) and len(given) > 0 and all(isinstance(n, str) and value(v) for n, v in given.items())
    )
