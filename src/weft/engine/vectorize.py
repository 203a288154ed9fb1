"""One function over many slices: `vmap`, or a loop where a layer cannot be vectorized."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["Mapper", "VectorizationWarning", "blame", "in_chunks", "vectorized", "vectorizing"]

_depth = threading.local()
# What has no rule of its own is looped over inside torch.vmap; docs/vectorized.md tells, not a warning at each run.
torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]


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


def vectorized(function: Callable[..., Any], dims: Any = 0) -> Callable[..., Any]:
    """`torch.vmap`, with attention by the one kernel that has a rule for it."""
    mapped = torch.vmap(function, in_dims=dims)

    def run(*args: Any) -> Any:
        _depth.count = getattr(_depth, "count", 0) + 1
        try:
            with sdpa_kernel(SDPBackend.MATH):
                return mapped(*args)
        finally:
            _depth.count -= 1

    return run


def _first(result: Any) -> Tensor:
    while not isinstance(result, Tensor):
        result = next(iter(result.values())) if isinstance(result, dict) else result[0]
    return result


def _join(results: list[Any], join: Callable[[list[Tensor]], Tensor]) -> Any:
    head = results[0]
    if isinstance(head, dict):
        return {name: _join([r[name] for r in results], join) for name in head}
    if isinstance(head, tuple):
        return tuple(_join([r[i] for r in results], join) for i in range(len(head)))
    return join(results)


def _room(part: Any, size: int) -> Any:
    """Space for a result of which one chunk is given."""
    if isinstance(part, dict):
        return {name: _room(value, size) for name, value in part.items()}
    if isinstance(part, tuple):
        return tuple(_room(value, size) for value in part)
    return part.new_empty((size, *part.shape[1:]))


def _put(whole: Any, part: Any, window: slice) -> None:
    if isinstance(part, dict | tuple):
        for name in part if isinstance(part, dict) else range(len(part)):
            _put(whole[name], part[name], window)
    else:
        whole[window] = part


def _take(arg: Any, dim: int | None, index: Any) -> Any:
    if dim is None:
        return arg
    if isinstance(arg, dict):
        return {name: _take(value, dim, index) for name, value in arg.items()}
    return arg[index]


def in_chunks(function: Callable[..., Any], args: Sequence[Any], size: int, chunk: int) -> Any:
    """A function of arguments with a leading axis of `size`, which it maps, called on so many of them at a time."""
    if chunk >= size:
        return function(*args)
    whole: Any = None
    for start in range(0, size, chunk):
        window = slice(start, start + chunk)
        part = function(*(_take(a, 0, window) for a in args))
        whole = _room(part, size) if whole is None else whole
        _put(whole, part, window)  # in place: parts and whole side by side would take twice the memory
    return whole


class Mapper:
    """Maps a function over the leading axis of some of its arguments.

    The first call tries `torch.vmap`; where PyTorch has no rule for a layer it falls back to a loop,
    says so once (`VectorizationWarning`) and remembers.
    """

    def __init__(self) -> None:
        self.looped: str | None = None

    def __call__(self, function: Callable[..., Any], dims: Sequence[int | None], *args: Any) -> Any:
        if self.looped is None:
            try:
                return vectorized(function, tuple(dims))(*args)
            except (RuntimeError, NotImplementedError, AttributeError) as error:
                result = self._loop(function, dims, args)  # if this fails too, its error is the clear one
                self.looped = blame(error)
                warnings.warn(
                    f"{self.looped} cannot be vectorized by torch.vmap ({str(error).splitlines()[0][:120]}); "
                    "a loop over the groups gives the same result more slowly",
                    VectorizationWarning,
                    stacklevel=2,
                )
                return result
        return self._loop(function, dims, args)

    def _loop(self, function: Any, dims: Any, args: Any) -> Any:
        size = next(_first(a).shape[0] for a, d in zip(args, dims, strict=True) if d is not None and a != {})
        results = [function(*(_take(a, d, i) for a, d in zip(args, dims, strict=True))) for i in range(size)]
        return _join(results, torch.stack)
