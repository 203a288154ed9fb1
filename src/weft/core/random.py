"""Keyed randomness: every draw is a function of (seed, step, place, row), never of ambient generator state.

A *key* is a 64-bit integer tensor. `fold` derives a new key from a key and a place (an integer, a
name, or a tensor of row numbers); a draw hashes its key once per element. So a draw does not care
in which order, in which chunk, on which rank or in which replica it is made:

    u[row, j] = hash(seed, step, place, row, j)

The hash is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014), written in wrapping int64 tensor arithmetic, so that it works on every
device and inside `vmap(grad(...))`.

Inside `keyed(key, rows)` the functions `uniform`, `normal`, `categorical` draw one stream per row.
PyTorch's own random functions inside a user's module (`nn.Dropout`, `torch.randn_like`, ...) are
served from the same key by `weft.engine.ambient`.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "bernoulli",
    "bits",
    "categorical",
    "fold",
    "gauss",
    "integer",
    "key_of",
    "keyed",
    "normal",
    "permutation",
    "place",
    "uniform",
    "unit",
]

_GOLDEN = -0x61C8864680B583EB  # 2**64 / golden ratio, as a signed 64-bit integer
_FIRST, _SECOND = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finalizer; `>>` on int64 is arithmetic, hence the masks."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _FIRST
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _SECOND
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@cache
def _name(place: str) -> int:
    return int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest(), "little", signed=True)


def key_of(seed: int | Tensor, device: torch.device | str | None = None) -> Tensor:
    """The root key of a seed (a tensor of seeds gives a tensor of keys)."""
    return _mix(torch.as_tensor(seed, dtype=torch.int64, device=device) + _GOLDEN)


def fold(key: Tensor, *places: int | str | Tensor) -> Tensor:
    """A new key for each place; a tensor of row numbers gives a tensor of keys.

    >>> root = key_of(0)
    >>> bool(fold(root, "a") == fold(root, "b")), bool(fold(root, "a", 1) == fold(fold(root, "a"), 1))
    (False, True)
    """
    for p in places:
        number = _name(p) if isinstance(p, str) else p
        if isinstance(number, int):  # wrap to signed 64 bits in Python, where integers do not overflow
            offset: int | Tensor = (number * _GOLDEN + 1 + 2**63) % 2**64 - 2**63
        else:
            offset = number * _GOLDEN + 1
        key = _mix(key + offset)
    return key


def integer(key: Tensor) -> int:
    """A non-negative 63-bit Python integer from a scalar key, to seed what is not ours (gymnasium, NumPy)."""
    return int(key) & (2**63 - 1)


def bits(key: Tensor, shape: Sequence[int]) -> Tensor:
    """Independent 64-bit words of shape `key.shape + shape`."""
    count = math.prod(shape)
    index = torch.arange(1, count + 1, dtype=torch.int64, device=key.device) * _GOLDEN
    words = _mix(key.unsqueeze(-1) + index)
    return words.reshape(*key.shape, *shape)


def unit(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform in [0, 1), shape `key.shape + shape`, with every bit that the dtype's mantissa holds."""
    digits = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}[dtype]
    words = (bits(key, shape) >> (64 - digits)) & (2**digits - 1)
    return words.to(dtype) * 2.0**-digits


def gauss(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal, shape `key.shape + shape`, by Box-Muller; 1 - u is never 0."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    pair = unit(key, (2, *shape), wide)
    u, v = pair.unbind(key.dim())
    return (torch.sqrt(-2.0 * torch.log1p(-u)) * torch.cos(2.0 * math.pi * v)).to(dtype)


def permutation(key: Tensor, n: int) -> Tensor:
    """A random order of 0..n-1, shape `key.shape + (n,)`."""
    return torch.argsort(bits(key, (n,)), dim=-1)


# --- the key in force -------------------------------------------------------------------------------

_frames = threading.local()


def _current() -> keyed:
    stack = getattr(_frames, "stack", None)
    if not stack:
        raise RuntimeError(
            "no key is in force: expected a draw inside `with weft.core.random.keyed(key, rows)` "
            "(the engine enters it around every forward), got a draw outside of it"
        )
    return stack[-1]


class keyed:
    """Puts a key in force: draws inside are keyed by it, by their place and by their row.

    Args:
        key: a scalar key (of seed and step).
        rows: the row numbers of the batch at hand, shape `(n,)`; without them every draw is shared.

    >>> with keyed(key_of(0), torch.arange(4)):
    ...     whole = normal((4, 2), place="z")
    >>> with keyed(key_of(0), torch.arange(2, 4)):
    ...     part = normal((2, 2), place="z")
    >>> torch.equal(whole[2:], part)
    True
    """

    def __init__(self, key: Tensor, rows: Tensor | None = None) -> None:
        self.key = key
        self.rows = rows

    def __enter__(self) -> keyed:
        if not hasattr(_frames, "stack"):
            _frames.stack = []
        _frames.stack.append(self)
        return self

    def __exit__(self, *exc: Any) -> None:
        _frames.stack.pop()

    def stream(self, shape: Sequence[int], where: int | str, rows: Tensor | None) -> tuple[Tensor, tuple[int, ...]]:
        """The keys for a draw of `shape`, and what remains of the shape: one stream per row where
        the leading axis is the batch's rows (or a whole multiple: rows times positions), else one."""
        key = fold(self.key, where)
        rows = self.rows if rows is None else rows
        if rows is not None and len(shape) > 0:
            n, lead = rows.shape[0], shape[0]
            if lead == n:
                return fold(key, rows), tuple(shape[1:])
            if n > 0 and lead > n and lead % n == 0:
                inner = torch.arange(lead // n, device=key.device)
                return fold(fold(key, rows).unsqueeze(1), inner).reshape(lead), tuple(shape[1:])
        return key, tuple(shape)


class place:
    """Within it every key in force is folded with a name: inner loops and attacks draw apart.

    >>> with keyed(key_of(0), torch.arange(2)):
    ...     a = uniform((2,), place="u")
    ...     with place("inner"):
    ...         b = uniform((2,), place="u")
    >>> torch.equal(a, b)
    False
    """

    _names: list[int | str]

    def __init__(self, *names: int | str) -> None:
        self._names = list(names)

    def __enter__(self) -> place:
        if not hasattr(_frames, "places"):
            _frames.places = []
        self._depth = len(_frames.places)
        _frames.places.extend(self._names)
        return self

    def __exit__(self, *exc: Any) -> None:
        del _frames.places[self._depth :]


def _draw(
    make: Callable[..., Tensor], shape: Sequence[int], where: int | str, rows: Tensor | None, dtype: torch.dtype
) -> Tensor:
    key, rest = _current().stream(tuple(shape), where, rows)
    for name in getattr(_frames, "places", ()):
        key = fold(key, name)
    return make(key, rest, dtype)


def uniform(
    shape: Sequence[int], *, place: int | str, rows: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Uniform in [0, 1) under the key in force (and its rows, unless others are given)."""
    return _draw(unit, shape, place, rows, dtype)


def normal(
    shape: Sequence[int], *, place: int | str, rows: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Standard normal under the key in force (and its rows, unless others are given)."""
    return _draw(gauss, shape, place, rows, dtype)


def bernoulli(probability: Tensor, *, place: int | str) -> Tensor:
    """Zeros and ones, in the dtype of `probability`."""
    return (uniform(probability.shape, place=place, dtype=probability.dtype) < probability).to(probability.dtype)


def categorical(logits: Tensor, *, place: int | str) -> Tensor:
    """Class numbers drawn by the Gumbel-max trick; shape `logits.shape[:-1]`."""
    u = uniform(logits.shape, place=place, dtype=logits.dtype)
    gumbel = -torch.log(-torch.log(u.clamp_min(torch.finfo(u.dtype).tiny)))
    return (logits + gumbel).argmax(-1)
