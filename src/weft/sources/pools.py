"""Pools of rows that episodes are drawn from: those of tasks that are given, and those of classes."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from weft.core.random import bits, fold, permutation, row_hash
from weft.core.source import Batch, Field, Spec
from weft.sources.arrays import as_array

__all__ = ["ClassPool", "Pool", "Rows", "TaskPool"]

Rows = ArrayLike | Tensor


class Pool:
    """Rows of several kinds (tasks, or classes), of which an episode takes those of one, or of several.

    Called with keys and a number, it gives so many rows for each key.

    Args:
        x: all rows.
        kind: of which kind each of them is, by name or number.
        least: fewer rows of a kind are refused.

    Attributes:
        called: what a kind is called in messages.
    """

    called = "task"

    def __init__(self, x: Rows, kind: Rows, *, least: int) -> None:
        self.x = _numbers(x)
        self.names, codes = np.unique(as_array(kind), return_inverse=True)
        sizes = np.bincount(codes, minlength=len(self.names))
        if sizes.min() < least:
            small = self.names[int(sizes.argmin())]
            raise ValueError(
                f"expected at least {least} rows (shots + queries) in every {self.called}, got {sizes.min()} in "
                f"{small!r}; lower shots or queries, or leave that {self.called} out"
            )
        order = np.argsort(codes, kind="stable")
        starts = np.cumsum(sizes) - sizes
        within = np.minimum(np.arange(sizes.max())[None, :], sizes[:, None] - 1)
        self.members = torch.as_tensor(order[starts[:, None] + within])
        self.sizes = torch.as_tensor(sizes)

    def to(self, device: torch.device) -> None:
        """Moves it, once: later batches find it there."""
        if self.sizes.device != device:
            for name, value in vars(self).items():
                if isinstance(value, Tensor):
                    setattr(self, name, value.to(device))

    def within(self, keys: Tensor, chosen: Tensor) -> Tensor:
        """The rows of what each episode has chosen, each in an order of its own; fewer than the most are repeated.

        Args:
            keys: one for each episode, `(episodes,)`.
            chosen: numbers of kinds, `(episodes,)` or `(episodes, several)`.
        """
        most = self.members.shape[1]
        words = bits(fold(keys, "rows"), (*chosen.shape[1:], most))
        real = torch.arange(most, device=keys.device) < self.sizes[chosen].unsqueeze(-1)
        order = torch.argsort(torch.where(real, words, torch.iinfo(torch.int64).max), dim=-1)
        return self.members[chosen].gather(-1, order)

    def drawn(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The rows that each episode may take, in random order, `(episodes, kinds, most)`, and how many there are."""
        raise NotImplementedError(f"{type(self).__name__} does not define drawn(keys)")

    def take(self, index: Tensor) -> Batch:
        """Rows by their numbers, `(episodes, kinds, rows)`, those of several kinds end to end."""
        raise NotImplementedError(f"{type(self).__name__} does not define take(index)")

    def __call__(self, keys: Tensor, rows: int) -> Batch:
        return self.take(self.drawn(keys)[0][..., :rows])

    def contents(self) -> Batch:
        """What it holds."""
        return {"x": self.x, self.called: self.members}

    def extent(self, field: str) -> tuple[float, float]:
        """The least and the largest value of a field."""
        low, high = getattr(self, field).aminmax()
        return low.item(), high.item()

    def shared(self, other: Pool) -> str:
        """What two pools have in common, in words, or "" where nothing tells that they do."""
        own, theirs = (set(row_hash(pool.x).tolist()) for pool in (self, other))
        if own & theirs:
            hashes = row_hash(other.x)[other.members[:, 0]].tolist()
            named = [name for name, one in zip(other.names.tolist(), hashes, strict=True) if one in own]
            return f"{len(own & theirs)} rows that are in both" + (f", of {named[0]!r} and others" if named else "")
        both = sorted({*map(str, self.names.tolist())} & {*map(str, other.names.tolist())})
        return f"{self.called} names that are in both, such as {both[0]!r}" if both else ""


class TaskPool(Pool):
    """Tasks out of arrays: a key chooses a task, then rows of it without replacement."""

    def __init__(self, x: Rows, y: Rows, task: Rows, *, least: int) -> None:
        self.y = _numbers(y)
        if not len(as_array(x)) == len(self.y) == len(as_array(task)):
            raise ValueError(
                f"expected X, y and task of one length, got {len(as_array(x))}, {len(self.y)} and "
                f"{len(as_array(task))} rows"
            )
        super().__init__(x, task, least=least)

    def contents(self) -> Batch:
        return {"x": self.x, "y": self.y, "task": self.members}

    def drawn(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        self.to(keys.device)
        chosen = (bits(fold(keys, "task"), ()) & (2**31 - 1)) % len(self.sizes)
        return self.within(keys, chosen).unsqueeze(1), self.sizes[chosen].unsqueeze(1)

    def take(self, index: Tensor) -> Batch:
        flat = index.flatten(1)
        return {"x": self.x[flat], "y": self.y[flat]}


class ClassPool(Pool):
    """Classes out of arrays: a key chooses some, numbers them anew in random order, then rows of each."""

    called = "class"

    def __init__(self, x: Rows, y: Rows, *, ways: int, least: int) -> None:
        labels, self.ways = as_array(y), ways
        if labels.ndim != 1 or labels.dtype.kind not in "iubUSO":
            raise TypeError(
                f"expected y with one class for each row, a whole number or a name, got {labels.dtype} of shape "
                f"{labels.shape}; numbers of a scale are no classes: for tasks of regression give (X, y, task)"
            )
        if len(as_array(x)) != len(labels):
            raise ValueError(f"expected X and y of one length, got {len(as_array(x))} and {len(labels)} rows")
        known = len(np.unique(labels))
        if known < ways:
            raise ValueError(f"expected at least {ways} classes for episodes with ways={ways}, got {known}")
        super().__init__(x, labels, least=least)

    @property
    def spec(self) -> Spec:
        return {"x": Field(tuple(self.x.shape[1:]), self.x.dtype), "y": Field((), torch.int64, self.ways)}

    def extent(self, field: str) -> tuple[float, float]:
        return (0.0, self.ways - 1.0) if field == "y" else super().extent(field)

    def drawn(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        self.to(keys.device)
        chosen = permutation(fold(keys, "classes"), len(self.sizes))[:, : self.ways]
        return self.within(keys, chosen), self.sizes[chosen]

    def take(self, index: Tensor) -> Batch:
        label = torch.arange(self.ways, device=index.device).unsqueeze(-1).expand(index.shape)
        return {"x": self.x[index.flatten(1)], "y": label.flatten(1)}


def _numbers(values: Rows) -> Tensor:
    tensor = values if isinstance(values, Tensor) else torch.as_tensor(_plain(values))
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _plain(values: ArrayLike) -> NDArray[np.generic]:
    array = np.asarray(values)
    return array if array.flags.writeable else array.copy()
