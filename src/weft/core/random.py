"""Keyed randomness: every draw is a function of (seed, step, place, row), never of ambient generator state.

A *key* is a 64-bit integer tensor. `fold` derives a new key from a key and a place (an integer, a
name, or a tensor of row numbers); a draw hashes its key once per element. So a draw does not care
in which order, in which chunk, on which rank or in which replica it is made:

    u[row, j] = hash(seed, step, place, row, j)

The leading axis of a draw is the rows, K draws of a row being `(n, K, ...)`, or the draw is declared
`shared` by all of them: nothing is guessed from a shape. A place draws once; loops draw apart by `turns`.

The hash is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014), written in wrapping int64 tensor arithmetic, so that it works on every
device and inside `vmap(grad(...))`. A word of 64 bits holds two uniforms in single precision, one in
double precision; two uniforms make two normals.

Inside `keyed(key, rows)` the functions `uniform`, `normal`, `categorical` draw one stream per row.
PyTorch's own random functions inside a user's module (`nn.Dropout`, `torch.randn_like`, ...) are
served from the same key by `weft.engine.ambient`.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "Asked",
    "Drawn",
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
    "row_hash",
    "turns",
    "uniform",
    "unit",
]

_GOLDEN = -0x61C8864680B583EB  # 2**64 / golden ratio, as a signed 64-bit integer
_FIRST, _SECOND = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def _mix(x: Tensor) -> Tensor:
    """SplitMix64's finalizer, in place, of a tensor that nobody else holds; `>>` is arithmetic, hence the masks."""
    x ^= (x >> 30).bitwise_and_(0x3FFFFFFFF)
    x *= _FIRST
    x ^= (x >> 27).bitwise_and_(0x1FFFFFFFFF)
    x *= _SECOND
    x ^= (x >> 31).bitwise_and_(0x1FFFFFFFF)
    return x


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


def row_hash(*fields: Tensor) -> Tensor:
    """A 64-bit number for each row, of its values alone: equal rows have equal ones, wherever they stand.

    >>> x = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    >>> a, b, c = row_hash(x).tolist()
    >>> a == c, a == b
    (True, False)
    """
    whole = torch.zeros(len(fields[0]), dtype=torch.int64, device=fields[0].device)
    for values in fields:
        flat = values.detach().reshape(len(values), -1)
        if flat.is_floating_point():
            whole_number = {8: torch.int64, 4: torch.int32, 2: torch.int16}[flat.element_size()]
            flat = (flat + 0.0).view(whole_number)  # -0.0 is 0.0
        index = torch.arange(1, flat.shape[1] + 1, device=flat.device) * _GOLDEN
        each = _mix(_mix(flat.to(torch.int64) + _GOLDEN) + index)
        whole = _mix(fold(whole, flat.shape[1]) + each.sum(1))
    return whole


def integer(key: Tensor) -> int:
    """A non-negative 63-bit Python integer from a scalar key, to seed what is not ours (gymnasium, NumPy)."""
    return int(key) & (2**63 - 1)


def bits(key: Tensor, shape: Sequence[int]) -> Tensor:
    """Independent 64-bit words of shape `key.shape + shape`."""
    count = math.prod(shape)
    index = torch.arange(1, count + 1, dtype=torch.int64, device=key.device) * _GOLDEN
    words = _mix(key.unsqueeze(-1) + index)
    return words.reshape((*key.shape, *shape))


def unit(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform in [0, 1), shape `key.shape + shape`, with every bit that the dtype's mantissa holds."""
    digits = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}[dtype]
    if dtype == torch.float64:
        return _number(bits(key, shape) >> (64 - digits), digits, dtype)
    count = math.prod(shape)
    if dtype == torch.float32 and _fused(key):
        return _by_kernel(key, shape, normal=False)
    words = bits(key, ((count + 1) // 2,))
    both = torch.cat([_number(words, digits, dtype), _number(words >> 32, digits, dtype)], -1)
    return both[..., :count].reshape((*key.shape, *shape))


def gauss(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal, shape `key.shape + shape`, by Box and Muller: a radius and an angle make two."""
    count = math.prod(shape)
    pairs = (count + 1) // 2
    if dtype == torch.float64:
        u, v = unit(key, (2, pairs), dtype).unbind(key.dim())
        radius, angle = torch.log1p(-u), v * (2.0 * math.pi)
    elif _fused(key):
        return _by_kernel(key, shape, normal=True).to(dtype)
    else:  # 31 bits and a half for the radius, so that it is never infinite and reaches 6.6
        words = bits(key, (pairs,))
        radius = (words >> 32).bitwise_and_(0x7FFFFFFF).float().add_(0.5).mul_(2.0**-31).log_()
        angle = words.int().float().mul_(math.pi * 2.0**-31)
    radius = radius.mul_(-2.0).sqrt_()
    both = torch.stack([torch.cos(angle), torch.sin(angle)], -2).mul_(radius.unsqueeze(-2)).flatten(-2)
    return both[..., :count].reshape((*key.shape, *shape)).to(dtype)


def _fused(key: Tensor) -> bool:
    return key.is_cuda and _triton()


@cache
def _triton() -> bool:
    return find_spec("triton") is not None


def _by_kernel(key: Tensor, shape: Sequence[int], normal: bool) -> Tensor:
    """The same draws by one kernel, where the twenty small ones of plain operations cost ten times as much."""
    from weft.core.fused import drawn

    return drawn(key, math.prod(shape), normal).reshape((*key.shape, *shape))


def _number(words: Tensor, digits: int, dtype: torch.dtype) -> Tensor:
    """In [0, 1), from the last so many bits."""
    return (words & (2**digits - 1)).to(dtype).mul_(2.0**-digits)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """In which a draw is compared: the 8 bits of bfloat16 would make .0037 of a probability of .001."""
    return torch.float64 if dtype == torch.float64 else torch.float32


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


Make = Callable[[Tensor, Sequence[int], torch.dtype], Tensor]
Asked = tuple[Make, tuple[int, ...], int | str, tuple[int | str, ...], bool, torch.dtype]
"""What a forward asked for: the law, the shape, its place and those around it, whether it is shared, the dtype."""
Drawn = dict[Asked, Tensor]


class keyed:
    """Puts a key in force: draws inside are keyed by it, by their place and by their row.

    Args:
        key: a scalar key (of seed and step).
        rows: the row numbers of the batch at hand, shape `(n,)`, or a function that gives them once something is
            drawn; without them every draw is shared.
        again: whether a place may draw again, and draws the same: where a forward is run twice on purpose.
        foreseen: draws that were made before, by what was asked for; see `weft.core.foresight`.

    >>> with keyed(key_of(0), torch.arange(4)):
    ...     whole = normal((4, 2), place="z")
    >>> with keyed(key_of(0), torch.arange(2, 4)):
    ...     part = normal((2, 2), place="z")
    >>> torch.equal(whole[2:], part)
    True
    """

    def __init__(
        self,
        key: Tensor,
        rows: Tensor | Callable[[], Tensor] | None = None,
        *,
        again: bool = False,
        foreseen: Drawn | None = None,
    ) -> None:
        self.key, self._rows = key, rows
        self.foreseen: Drawn = {} if foreseen is None else foreseen
        self.asked: list[Asked] = []
        self._drawn: set[tuple[int | str, ...]] | None = None if again or rows is None else set()

    def __enter__(self) -> keyed:
        if not hasattr(_frames, "stack"):
            _frames.stack, _frames.places = [], []
        _frames.stack.append(self)
        self._depth = len(_frames.places)
        return self

    def __exit__(self, *exc: Any) -> None:
        _frames.stack.pop()
        del _frames.places[self._depth :]  # those of a loop that was left by an error

    @property
    def rows(self) -> Tensor | None:
        """The row numbers in force."""
        if callable(self._rows):
            self._rows = self._rows()
        return self._rows

    def once(self, where: int | str) -> bool:
        """Raises where a place has drawn before and may not draw again; whether it may not."""
        if self._drawn is None:
            return False
        path = (where, *_frames.places)
        if path in self._drawn:
            raise ValueError(
                f"expected each place to draw once, got a second draw at {where!r}, which would be the same; "
                f"keep the first, name another place, or loop by `for t in turns({str(where)!r}, count)`"
            )
        self._drawn.add(path)
        return True

    def stream(
        self, shape: tuple[int, ...], where: int | str, rows: Tensor | None, shared: bool, among: Tensor | None = None
    ) -> Tensor:
        """The key of a draw, or its keys, one for each row; with `among`, those of so many turns before them."""
        within = _frames.places if among is None else [*_frames.places[:-1], among]
        key = fold(self.key, where, *within)
        rows = self.rows if rows is None else rows
        if shared or rows is None:
            return key
        if shape[: rows.dim()] != rows.shape:
            n = ", ".join(map(str, rows.shape))
            raise ValueError(
                f"expected a draw for each of the rows in force, of shape ({n}, ...), got {shape} at {where!r}; "
                f"K draws of a row are ({n}, K, ...), and one draw for all rows is declared by shared=True"
            )
        return fold(key.reshape(*key.shape, *[1] * rows.dim()), rows)


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
        if not hasattr(_frames, "stack"):
            _frames.stack, _frames.places = [], []
        self._depth = len(_frames.places)
        _frames.places.extend(self._names)
        return self

    def __exit__(self, *exc: Any) -> None:
        del _frames.places[self._depth :]


class _Turn(int):
    """The number of a turn whose loop draws ahead, with what is drawn, from which turn on."""

    count: int
    kept: dict[tuple[Any, ...], tuple[int, Tensor]]


def turns(name: str, count: int, *, ahead: bool = False) -> Iterator[int]:
    """0 to count - 1, each turn with a place of its own: what a loop draws is drawn anew in each.

    Args:
        name: the loop's.
        count: how many turns.
        ahead: whether what a turn draws is drawn for turns after it at once, from the same keys: the same numbers, bit
            for bit, for the price of a few large draws in place of many small ones. For loops whose turns draw alike,
            in one and the same transformation of PyTorch's, and which are run to the end.

    >>> with keyed(key_of(0), torch.arange(2)):
    ...     first, second = [normal((2,), place="z") for _ in turns("chain", 2)]
    >>> torch.equal(first, second)
    False
    """
    kept: dict[tuple[Any, ...], tuple[int, Tensor]] = {}
    for turn in range(count):
        number = turn
        if ahead:
            number = _Turn(turn)
            number.count, number.kept = count, kept
        with place(name, number):
            yield turn


_AHEAD = 2**20  # so many numbers are drawn ahead at once, at most


def _draw(
    make: Make,
    shape: Sequence[int],
    where: int | str,
    rows: Tensor | None,
    shared: bool,
    dtype: torch.dtype,
) -> Tensor:
    shape, frame = tuple(shape), _current()
    final = rows is not None or frame.once(where)
    if rows is None:
        asked: Asked = (make, shape, where, tuple(_frames.places), shared, dtype)
        if asked in frame.foreseen:
            return frame.foreseen[asked]
        frame.asked.append(asked)
    turn = _frames.places[-1] if _frames.places and rows is None else None
    if not isinstance(turn, _Turn):
        key = frame.stream(shape, where, rows, shared)
        return make(key, shape[key.dim() :], dtype)
    what = (frame, make, shape, where, shared, dtype)
    first, block = turn.kept.get(what, (0, None))
    if block is None or not first <= turn < first + len(block):
        end = min(turn.count, turn + max(1, _AHEAD // max(1, math.prod(shape))))
        key = frame.stream(shape, where, rows, shared, torch.arange(turn, end, device=frame.key.device))
        first, block = int(turn), make(key, shape[key.dim() - 1 :], dtype)
        turn.kept[what] = first, block
    # Where a place may draw again, it gets a copy: what is done in place to the first is not done to the second.
    return block[turn - first] if final else block[turn - first].clone()


def uniform(
    shape: Sequence[int],
    *,
    place: int | str,
    rows: Tensor | None = None,
    shared: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Uniform in [0, 1) under the key in force.

    Args:
        shape: its leading axis is the rows.
        place: a name of its own among the draws of a forward.
        rows: row numbers, in place of those in force.
        shared: one draw for all rows; its leading axis is then any.
        dtype: floating-point.
    """
    return _draw(unit, shape, place, rows, shared, dtype)


def normal(
    shape: Sequence[int],
    *,
    place: int | str,
    rows: Tensor | None = None,
    shared: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Standard normal under the key in force; arguments as for `uniform`."""
    return _draw(gauss, shape, place, rows, shared, dtype)


def bernoulli(probability: Tensor, *, place: int | str, shared: bool = False) -> Tensor:
    """Zeros and ones, in the dtype of `probability`."""
    u = uniform(probability.shape, place=place, shared=shared, dtype=_wide(probability.dtype))
    return (u < probability).to(probability.dtype)


def categorical(logits: Tensor, *, place: int | str, shared: bool = False) -> Tensor:
    """Class numbers drawn by the Gumbel-max trick; shape `logits.shape[:-1]`."""
    gumbel = _draw(_gumbel, logits.shape, place, None, shared, _wide(logits.dtype))
    return (logits + gumbel).argmax(-1)


def _gumbel(key: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Standard Gumbel."""
    u = unit(key, shape, dtype)
    return -torch.log(-torch.log(u.clamp_min(torch.finfo(u.dtype).tiny)))
