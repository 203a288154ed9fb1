"""How much memory a computation takes, by watching the tensors that it makes: on every device, within `torch.func` too.

`torch.autograd.graph.saved_tensors_hooks` tells what autograd keeps, but `torch.func` refuses it, and a forward may
take gradients of its inputs. So the tensors are watched as they are made.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["made", "peak", "rows_at_a_time"]

_FEW = 8  # so many rows, and twice as many, tell what a row takes
_AMPLE = 4  # so many times the most rows as a single one takes, with what it takes in any case: nothing else is tried
_SEEN = 65  # of the memory, in percent: what kernels take for themselves (convolutions, up to half as much) is not seen
_STILL = 2000  # tensors made without a new peak, after which a long loop (a Markov chain) is no longer watched
_known: WeakKeyDictionary[nn.Module, dict[Hashable, int]] = WeakKeyDictionary()


class _Watch(TorchDispatchMode):
    """Shows every tensor with memory of its own to `see`, as soon as it is made, until that says True: enough."""

    def __init__(self, see: Callable[[Tensor], bool | None]) -> None:
        super().__init__()
        self.see, self.enough = see, False

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        if self.enough:
            return result
        given = {t.untyped_storage().data_ptr() for t in _tensors((args, kwargs))}
        for t in _tensors(result):
            if t.untyped_storage().data_ptr() not in given:  # else a view, or in place
                self.enough = self.see(t) is True or self.enough
        return result


def _tensors(tree: object) -> Iterator[Tensor]:
    """Those in an operation's arguments or results, which hold no other containers; faster than a general tree."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for part in tree:
            yield from _tensors(part)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))


def made(compute: Callable[[], object]) -> list[Tensor]:
    """Every tensor that is made; kept alive until the list is given up."""
    every: list[Tensor] = []
    with _Watch(every.append):
        compute()
    return every


def peak(compute: Callable[[], object]) -> int:
    """The most bytes that tensors made on the way, and the result, take at one time.

    Watching costs more than computing: where thousands of tensors have come and gone without a new peak, as in a chain,
    what follows is taken to be alike.

    >>> import torch
    >>> peak(lambda: torch.zeros(10) + torch.zeros(10))  # two zeros, and their sum
    120
    """
    living: list[tuple[StorageWeakRef, int]] = []
    most = still = 0

    def see(t: Tensor) -> bool:
        nonlocal living, most, still
        living = [(held, size) for held, size in living if not held.expired()]
        living.append((StorageWeakRef(t.untyped_storage()), t.untyped_storage().nbytes()))
        now = sum(size for _, size in living)
        still = 0 if now > most else still + 1
        most = max(most, now)
        return still >= _STILL

    with _Watch(see):
        result = compute()
    del result
    return most


def rows_at_a_time(
    module: nn.Module,
    what: Hashable,
    prepare: Callable[[], Callable[[int], object]],
    have: int,
    memory: int,
    most: int,
) -> int:
    """How many rows fit the memory at a time, by what few of them take; looked up once for each module and purpose.

    Args:
        module: whose computation it is.
        what: for what, with all that a row's size depends on.
        prepare: gives what does it for so many rows, without effect.
        have: how many there are.
        memory: bytes that may be taken.
        most: so many at most.
    """
    if have < 2:
        return most
    found, key = _known.setdefault(module, {}), (what, memory, most)
    if key not in found:
        few = min(_FEW, have // 2)
        try:
            compute = prepare()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the computation itself will say it
                one = peak(lambda: compute(1))
                if _AMPLE * one * most < memory:
                    return found.setdefault(key, most)
                few = max(1, min(few, memory // max(1, 2 * one)))  # what is tried must fit as well
                some, double = (peak(lambda n=n: compute(n)) for n in (few, 2 * few))  # type: ignore[misc]
        except Exception:  # as it will tell itself, where it is not the watching that it does not bear
            return most
        each = max(1, -(-(double - some) // few))
        found[key] = max(1, min(most, (_SEEN * memory // 100 - max(0, some - few * each)) // each))
    return found[key]
