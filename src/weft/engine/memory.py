"""How much memory a computation takes, by watching the tensors that it makes: on every device, within `torch.func` too.

`torch.autograd.graph.saved_tensors_hooks` tells what autograd keeps, but `torch.func` refuses it, and a forward may
take gradients of its inputs. So the tensors are watched as they are made.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["made", "peak"]


class _Watch(TorchDispatchMode):
    """Shows every tensor with memory of its own to `see`, as soon as it is made."""

    def __init__(self, see: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.see = see

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for t in pytree.tree_leaves(result):
            if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in given:  # else a view, or in place
                self.see(t)
        return result


def made(compute: Callable[[], object]) -> list[Tensor]:
    """Every tensor that is made; kept alive until the list is given up."""
    every: list[Tensor] = []
    with _Watch(every.append):
        compute()
    return every


def peak(compute: Callable[[], object]) -> int:
    """The most bytes that tensors made on the way, and the result, take at one time.

    >>> import torch
    >>> peak(lambda: torch.zeros(10) + torch.zeros(10))  # two zeros, and their sum
    120
    """
    living: list[tuple[StorageWeakRef, int]] = []
    most = 0

    def see(t: Tensor) -> None:
        nonlocal living, most
        living = [(held, size) for held, size in living if not held.expired()]
        living.append((StorageWeakRef(t.untyped_storage()), t.untyped_storage().nbytes()))
        most = max(most, sum(size for _, size in living))

    with _Watch(see):
        result = compute()
    del result
    return most
