"""Which draws of a module are its rows': learned by running it once more, not guessed from shapes.

A call of `nn.Dropout` or `torch.randn` does not say which of its axes are rows. The first time, a module is
run again on half or twice the rows, and the axis that doubles is theirs. A draw that has none (DropConnect's, of
weights) is shared by all rows. Where the axis holds several positions of each row, as after
`x.reshape(n * t, d)`, those of a row must follow each other: rows outermost.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from weft.core.random import key_of, keyed
from weft.engine.ambient import Axes, ambient
from weft.engine.vectorize import vectorizing

__all__ = ["learn", "serving"]

FEW = 64

_DRAWLESS = ("linear", "activation", "conv", "container", "flatten", "normalization", "pooling", "padding", "sparse")
_without_draws: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
_known: WeakKeyDictionary[nn.Module, dict[Hashable, Axes]] = WeakKeyDictionary()


def serving(
    module: nn.Module,
    ask: Callable[..., object],
    args: Sequence[object],
    rows: Tensor | Callable[[], Tensor | None] | None,
    what: Hashable,
) -> AbstractContextManager[object]:
    """Serves the draws of `ask(*args)`, which runs a module; arguments as for `learn`."""
    if not _draws(module):
        return nullcontext()
    known = _known.get(module)
    plain = not module.training and not vectorizing() and not torch.cuda.is_initialized()
    if plain and rows is not None and known and known.get((what, False)) == {}:
        return Unmoved()
    return _serving(module, ask, args, rows, what)


class Unmoved:
    """Raises where PyTorch's generator (the CPU's) moves within it: what drew nothing when it was looked at is to draw
    nothing. That costs less than to look at every call.

    >>> with Unmoved():
    ...     torch.rand(2)
    Traceback (most recent call last):
        ...
    ValueError: expected a forward that draws as often for every batch, got a draw more; ...
    """

    def __enter__(self) -> None:
        self.before = torch.get_rng_state()

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None and not torch.equal(self.before, torch.get_rng_state()):
            raise ValueError(
                "expected a forward that draws as often for every batch, got a draw more; draw always and choose by "
                "torch.where, or draw by weft.core.random"
            )


@contextmanager
def _serving(
    module: nn.Module,
    ask: Callable[..., object],
    args: Sequence[object],
    rows: Tensor | Callable[[], Tensor | None] | None,
    what: Hashable,
) -> Iterator[None]:
    rows = rows() if callable(rows) else rows
    learn(module, ask, args, rows, what)
    if rows is None:
        with ambient():
            yield
    else:
        with ambient(_known[module][what, module.training], len(rows)):
            yield


def learn(
    module: nn.Module, ask: Callable[..., object], args: Sequence[object], rows: Tensor | None, what: Hashable
) -> bool:
    """Whether the module may draw, and if so, the first time, which of its draws are the rows'.

    Torch's layers without randomness do not, nor do weft's own, which draw by `weft.core.random`.

    Args:
        module: what is run.
        ask: runs it, and may be called more than once.
        args: numbers or trees of tensors; what is as long as the rows is doubled.
        rows: row numbers, or None where every draw is shared.
        what: which of the module's answers it is.
    """
    if not _draws(module):
        return False
    known = _known.setdefault(module, {})
    if rows is not None and (what, module.training) not in known:
        known[what, module.training] = _axes_of(ask, args, rows)
    return True


def _draws(module: nn.Module) -> bool:
    """Whether a module may draw; looked up once."""
    without = _without_draws.get(module)
    if without is None:
        without = _without_draws[module] = not any(_may_draw(layer) for layer in module.modules())
    return not without


def _axes_of(ask: Callable[..., object], args: Sequence[object], rows: Tensor) -> Axes:
    """The axes of the rows in the draws of `ask(*args)`, found by asking on twice the rows."""
    n = len(rows) if len(rows) <= FEW else len(rows) // 2  # many are not doubled: memory was planned for them

    def shapes(size: int) -> dict[int, tuple[int, ...]]:
        given = pytree.tree_map(partial(_sized, rows=len(rows), size=size), tuple(args))
        with torch.no_grad(), keyed(key_of(0, rows.device)), ambient() as watching:
            ask(*given)
        return watching.shapes

    once = shapes(n)
    twice = shapes(2 * n) if once else {}
    if once.keys() != twice.keys():
        raise ValueError(
            f"expected a forward that draws as often for {2 * n} rows as for {n}, got {len(twice)} random calls and "
            f"{len(once)}; draw always and choose by torch.where, or draw by weft.core.random"
        )
    return {call: _axis(once[call], twice[call], n) for call in once}


def _sized(leaf: object, rows: int, size: int) -> object:
    """What is as long as the rows, with another number of them."""
    if isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == rows:
        return leaf[:size] if size <= rows else torch.cat([leaf, leaf])
    return size if isinstance(leaf, int) and leaf == rows and not isinstance(leaf, bool) else leaf


def _axis(once: tuple[int, ...], twice: tuple[int, ...], rows: int) -> tuple[int, int] | None:
    """Which axis grew with the rows."""
    grown = [axis for axis, (a, b) in enumerate(zip(once, twice, strict=False)) if a != b]
    if len(once) == len(twice) and not grown:
        return None
    if len(once) == len(twice) and len(grown) == 1:
        axis = grown[0]
        if once[axis] % rows == 0 and twice[axis] == 2 * once[axis]:
            return axis, once[axis] // rows
    raise ValueError(
        f"expected draws with the rows along one axis, a row's positions side by side, got {once} for {rows} rows and "
        f"{twice} for {2 * rows}; draw by weft.core.random, which says whose draws they are"
    )


def _may_draw(layer: nn.Module) -> bool:
    kind = type(layer)
    home = kind.__module__
    known = home.startswith("weft.") or home in {f"torch.nn.modules.{name}" for name in _DRAWLESS}
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    return not known or bool(hooked) or kind in (nn.RReLU, nn.MultiheadAttention)
