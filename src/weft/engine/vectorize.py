"""One function over many slices: `vmap`, or a loop where a layer cannot be vectorized."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree  # vmap's own: dictionaries and tuples of tensors

from weft.core.trees import tree_map

__all__ = ["Mapper", "Repeated", "VectorizationWarning", "blame", "in_chunks", "vectorized", "vectorizing"]

Result = TypeVar("Result")
_depth = threading.local()
# What has no rule of its own is looped over inside torch.vmap; docs/vectorized.md tells, not a warning at each run.
_functorch: Any = torch._C._functorch
_functorch._set_vmap_fallback_warning_enabled(False)


def vectorizing() -> bool:
    """Whether a `vectorized` function is running."""
    return getattr(_depth, "count", 0) > 0


class VectorizationWarning(UserWarning):
    """A layer cannot be vectorized; a loop gives the same result more slowly."""


def blame(error: BaseException) -> str:
    """The innermost layer in whose forward an error arose, for the message."""
    layer, trace = "", error.__traceback__
    while trace is not None:
        holder = trace.tb_frame.f_locals.get("self")
        if isinstance(holder, nn.Module):
            layer = type(holder).__name__
        trace = trace.tb_next
    return layer or "the objective"


def vectorized(function: Callable[..., Result], dims: int | tuple[int | None, ...] = 0) -> Callable[..., Result]:
    """`torch.vmap`, with attention by the one kernel that has a rule for it."""
    mapped: Callable[..., Result] = torch.vmap(function, in_dims=dims)

    def run(*args: object) -> Result:
        with _deeper(), sdpa_kernel(SDPBackend.MATH):
            return mapped(*args)

    return run


class _deeper:
    """Within it something is vectorized."""

    def __enter__(self) -> None:
        _depth.count = getattr(_depth, "count", 0) + 1

    def __exit__(self, *exc: object) -> None:
        _depth.count -= 1


class Repeated:
    """`vectorized`, for calls that follow each other with their first arguments the same.

    `torch.vmap` takes all arguments apart and marks every tensor as stacked, at each call; for a small net that costs
    more than its forward. Here what stays the same is marked once. It is `torch.vmap` but for that, made of the parts
    that PyTorch makes it of.

    Args:
        size: how many slices.
        same: trees of tensors, stacked on their leading axes.

    >>> twice = Repeated(3, {"w": torch.arange(3.0)})
    >>> [twice(lambda same, x: same["w"] * x.sum(), torch.ones(3, n)).tolist() for n in (1, 2)]
    [[0.0, 1.0, 2.0], [0.0, 2.0, 4.0]]
    """

    def __init__(self, size: int, *same: object) -> None:
        self.size, self._same = size, same
        self._level, self._marked = 0, same  # levels are counted from 1

    def __call__(self, function: Callable[..., Result], *args: object) -> Result:
        """The function of what stays the same, and of further arguments stacked likewise."""
        level: int = _functorch._vmap_increment_nesting(self.size, "error")
        try:
            with _deeper():
                if level != self._level:  # how deep it is called within others
                    self._level, self._marked = level, self._mark(self._same, level)
                answer: Any = function(*self._marked, *self._mark(args, level))
            return pytree.tree_map(lambda t: _functorch._remove_batch_dim(t, level, self.size, 0), answer)
        finally:
            _functorch._vmap_decrement_nesting()

    @staticmethod
    def _mark(trees: tuple[object, ...], level: int) -> tuple[object, ...]:
        return tuple(tree_map(lambda t: _functorch._add_batch_dim(t, 0, level), tree) for tree in trees)


def in_chunks(function: Callable[..., Result], args: Sequence[object], size: int, chunk: int) -> Result:
    """A function of arguments with a leading axis of `size`, which it maps, called on so many of them at a time."""
    if chunk >= size:
        return function(*args)
    whole: Any = None
    for start in range(0, size, chunk):
        window = slice(start, start + chunk)
        part = function(*(tree_map(itemgetter(window), arg) for arg in args))
        if whole is None:
            whole = pytree.tree_map(lambda t: t.new_empty((size, *t.shape[1:])), part)
        # In place: parts and whole side by side would take twice the memory.
        pytree.tree_map_(lambda into, value: into[window].copy_(value), whole, part)  # noqa: B023 (called at once)
    return whole


class Mapper:
    """Maps a function over the leading axis of some of its arguments.

    The first call tries `torch.vmap`; where PyTorch has no rule for a layer it falls back to a loop,
    says so once (`VectorizationWarning`) and remembers.
    """

    def __init__(self) -> None:
        self.looped: str | None = None

    def __call__(
        self,
        function: Callable[..., Result],
        dims: Sequence[int | None],
        *args: object,
        alone: Callable[..., Result] | None = None,
    ) -> Result:
        """The function mapped; in a loop `alone`, where it is given: the same outside of `torch.func`."""
        if self.looped is None:
            try:
                return vectorized(function, tuple(dims))(*args)
            except (RuntimeError, NotImplementedError, AttributeError) as error:
                result = self._loop(alone or function, dims, args)  # if this fails too, its error is the clear one
                self.looped = blame(error)
                warnings.warn(
                    f"{self.looped} cannot be vectorized by torch.vmap ({str(error).splitlines()[0][:120]}); "
                    "a loop over the groups gives the same result more slowly",
                    VectorizationWarning,
                    stacklevel=2,
                )
                return result
        return self._loop(alone or function, dims, args)

    def _loop(self, function: Callable[..., Result], dims: Sequence[int | None], args: Sequence[object]) -> Result:
        sliced = [arg for arg, dim in zip(args, dims, strict=True) if dim is not None]
        size = pytree.tree_leaves(sliced)[0].shape[0]

        def one(i: int) -> Result:
            taken = (arg if d is None else tree_map(itemgetter(i), arg) for arg, d in zip(args, dims, strict=True))
            return function(*taken)

        return pytree.tree_map(lambda *parts: torch.stack(parts), *map(one, range(size)))
