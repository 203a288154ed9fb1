"""What gymnasium's environments observe, as rows of numbers: a reader for each kind of space."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

__all__ = ["Reader", "reader_of"]

Values = Any
"""Observations: a sequence of them or, together, what gymnasium makes of many in a space."""
Rows = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
WHOLE = "observation"
"""What the messages call an observation that has no parts."""


class Reader(Protocol):
    """Makes rows of what is observed.

    Attributes:
        shape: of a row.
        names: of its entries, such as `position[0]`, where it was flattened from parts; else none.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...]

    def __call__(self, values: Values, together: bool) -> Rows:
        """Rows `(n, *shape)` in float32, which share no memory with what was observed."""


def reader_of(space: spaces.Space[Any], pixels: bool | None = None) -> Reader:
    """The reader of a space.

    Args:
        space: of one observation.
        pixels: whether whole numbers from 0 to 255 in two or more dimensions are pictures; None asks their shape.

    Example:
        >>> read = reader_of(spaces.Dict({"x": spaces.Box(-1.0, 1.0, (2,)), "goal": spaces.Discrete(2)}))
        >>> read.names, read([{"x": [0.5, -0.5], "goal": 1}], together=False).tolist()
        (('goal=0', 'goal=1', 'x[0]', 'x[1]'), [[0.0, 1.0, 0.5, -0.5]])
    """
    reader = _reader(space, WHOLE, pixels)
    if pixels and not any(isinstance(leaf, _Pixels) for leaf in _leaves(reader)):
        raise ValueError(
            f"expected pictures, of numpy.uint8 and two to four dimensions, beside pixels=True, got {space}"
        )
    if isinstance(reader, _Numbers | _Pixels):
        reader.names = ()
    return reader


def _reader(space: spaces.Space[Any], name: str, pixels: bool | None) -> Reader:
    if isinstance(space, spaces.Dict):
        keyed = space.spaces.items()
        return _Parts({k: _reader(part, k if name == WHOLE else f"{name}.{k}", pixels) for k, part in keyed}, name)
    if isinstance(space, spaces.Tuple):
        return _Parts({i: _reader(part, f"{name}.{i}", pixels) for i, part in enumerate(space.spaces)}, name)
    if isinstance(space, spaces.Box):
        return _Pixels(space, name) if pixels is not False and _pictures(space, pixels) else _Numbers(space.shape, name)
    if isinstance(space, spaces.MultiBinary):
        return _Numbers(space.shape, name)
    if isinstance(space, spaces.Discrete):
        return _Choices((), np.array([space.n]), np.array([space.start]), name)
    if isinstance(space, spaces.MultiDiscrete):
        return _Choices(space.shape, space.nvec.flatten(), space.start.flatten(), name)
    what = "strings" if isinstance(space, spaces.Text) else "what has no fixed size"
    raise ValueError(
        f"expected observations of numbers and choices, got {what} in {name!r}: {space}; drop it or make numbers of it "
        "by a wrapper such as gymnasium.wrappers.FilterObservation or TransformObservation"
    )


def _leaves(reader: Reader) -> Iterator[Reader]:
    if not isinstance(reader, _Parts):
        yield reader
    else:
        for part in reader.parts.values():
            yield from _leaves(part)


def _entries(name: str, shape: tuple[int, ...]) -> Iterator[str]:
    for at in product(*map(range, shape)):
        yield f"{name}[{','.join(map(str, at))}]" if shape else name


def _array(values: Values, shape: tuple[int, ...], name: str, dtype: type[np.generic]) -> np.ndarray[Any, Any]:
    """A new array of what was observed, which has the shape that the space says."""
    try:
        given = np.asarray(values)
        if given.dtype.kind not in ("iub" if dtype is np.int64 else "fiub"):
            raise TypeError(f"got {given.dtype}")
        found = given.astype(dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"expected {name!r} to be numbers of shape {shape}, as the space says, got {values}"
        ) from error
    if found.shape[1:] != shape:
        raise ValueError(
            f"expected {name!r} in shape {shape}, as the space says, got {found.shape[1:]}; mend the space"
        )
    return found


class _Numbers:
    """Numbers as they are."""

    shape: tuple[int, ...]
    names: tuple[str, ...]

    def __init__(self, shape: tuple[int, ...], name: str) -> None:
        self.shape, self.name = shape, name
        self.names = tuple(_entries(name, shape))

    def __call__(self, values: Values, together: bool) -> Rows:
        return _array(values, self.shape, self.name, np.float32)


class _Pixels:
    """Pictures: from 0 to 1, channels first; frames that are stacked are further channels."""

    shape: tuple[int, ...]
    names: tuple[str, ...]

    def __init__(self, space: spaces.Box, name: str) -> None:
        self.given, self.name = space.shape, name
        last = len(space.shape) > 2 and _last(space.shape)
        self.swap = (-1, -3) if last else None
        height, width = space.shape[-3:-1] if last else space.shape[-2:]
        self.shape = (math.prod(space.shape) // (height * width), height, width)
        self.names = tuple(_entries(name, self.shape))

    def __call__(self, values: Values, together: bool) -> Rows:
        found = np.asarray(values)
        if found.dtype != np.uint8 or found.shape[1:] != self.given:
            raise ValueError(
                f"expected {self.name!r} as pictures of shape {self.given} in numpy.uint8, as the space says, got "
                f"{found.shape[1:]} in {found.dtype}"
            )
        first = found if self.swap is None else np.ascontiguousarray(np.moveaxis(found, *self.swap))
        return np.divide(first.reshape(len(found), *self.shape), 255, dtype=np.float32)


class _Choices:
    """A one for each number among finitely many."""

    shape: tuple[int, ...]
    names: tuple[str, ...]

    def __init__(
        self, given: tuple[int, ...], sizes: np.ndarray[Any, Any], start: np.ndarray[Any, Any], name: str
    ) -> None:
        self.given, self.sizes, self.start, self.name = given, sizes, start, name
        self.first = np.cumsum(sizes) - sizes
        self.shape = (int(sizes.sum()),)
        each = zip(_entries(name, given), start.tolist(), sizes.tolist(), strict=True)
        self.names = tuple(f"{entry}={first + k}" for entry, first, size in each for k in range(size))

    def __call__(self, values: Values, together: bool) -> Rows:
        found = _array(values, self.given, self.name, np.int64)
        number = found.reshape(len(found), -1) - self.start
        if not ((number >= 0) & (number < self.sizes)).all():
            raise ValueError(f"expected {self.name!r} in {self.sizes} choices from {self.start}, got {found.tolist()}")
        rows = np.zeros((len(found), *self.shape), np.float32)
        rows[np.arange(len(found))[:, None], self.first + number] = 1.0
        return rows


class _Parts:
    """Parts by name or by number, one after another in one row."""

    shape: tuple[int, ...]
    names: tuple[str, ...]

    def __init__(self, parts: dict[Any, Reader], name: str) -> None:
        if not parts:
            raise ValueError(f"expected something to be observed, got an empty space for {name!r}")
        self.parts, self.name = parts, name
        self.shape = (sum(math.prod(part.shape) for part in parts.values()),)
        self.names = tuple(entry for part in parts.values() for entry in part.names)

    def __call__(self, values: Values, together: bool) -> Rows:
        rows = []
        for key, part in self.parts.items():
            try:
                own = values[key] if together else [value[key] for value in values]
            except (KeyError, IndexError, TypeError) as error:
                raise ValueError(f"expected {key!r} in {self.name!r}, as the space says, got {values}") from error
            found = part(own, together)
            rows.append(found.reshape(len(found), -1))
        return np.concatenate(rows, 1)


def _last(shape: tuple[int, ...]) -> bool:
    """Whether the channels come last."""
    return shape[-1] in (1, 3, 4)


def _pictures(space: spaces.Box, told: bool | None) -> bool:
    """Whether a space holds pictures."""
    shape = space.shape
    if space.dtype != np.uint8 or not 2 <= len(shape) <= 4:
        return False
    if not told and not (bool((space.low == 0).all()) and bool((space.high == 255).all())):
        return False
    if len(shape) == 2 or _last(shape) or (len(shape) == 3 and shape[0] <= min(shape[1:])):
        return True
    raise ValueError(
        f"expected pictures as (height, width), with 1, 3 or 4 channels last, or as a stack of frames, got shape "
        f"{shape}; say arguments={{'pixels': False}} where they are none, or put the channels in their place by "
        "gymnasium.wrappers.TransformObservation"
    )
