"""Foresight: what many forwards are about to draw, drawn at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from weft.core.random import Asked, Drawn, fold

__all__ = ["Foresight"]

MOST = 2**20  # so many numbers are drawn ahead at once, at most


class Foresight:
    """What forwards that draw alike, one after another, each under a key of its own, draw: for many of them at once.

    The same numbers bit for bit, for the price of a few large draws in place of many small ones.

    Args:
        keys: of the forwards, in order on the last axis; axes before it are those of stacked replicas.
        rows: the row numbers in force in each.

    >>> import torch
    >>> from weft.core.random import key_of, keyed, normal
    >>> keys, rows = fold(key_of(0), torch.arange(3)), torch.arange(2)
    >>> ahead = Foresight(keys, rows)
    >>> found = []
    >>> for t in range(3):
    ...     with keyed(keys[t], rows, foreseen=ahead.at(t)) as frame:
    ...         found.append(normal((2,), place="z"))
    ...     ahead.learn(frame.asked)
    >>> with keyed(keys[2], rows):
    ...     torch.equal(normal((2,), place="z"), found[2]), len(frame.asked)
    (True, 0)
    """

    def __init__(self, keys: Tensor, rows: Tensor) -> None:
        self.keys, self.rows = keys, rows
        self._asked: list[Asked] = []
        self._ready: dict[int, Drawn] = {}

    def learn(self, asked: list[Asked]) -> None:
        """Draws ahead from here on what a forward has asked for."""
        self._asked += [one for one in asked if one not in self._asked]
        self._ready = {}

    def at(self, turn: int) -> Drawn:
        """What one of the forwards will ask for, as far as it is known."""
        if turn not in self._ready:
            self._ready = self._made(turn)
        return self._ready[turn]

    def _made(self, turn: int) -> dict[int, Drawn]:
        """Of this forward and those after it, as many as may be drawn at once."""
        size = sum(math.prod(shape) for _, shape, *_ in self._asked) * math.prod(self.keys.shape[:-1])
        keys = self.keys[..., turn : turn + max(1, MOST // max(1, size))]
        blocks = {asked: self._block(asked, keys) for asked in self._asked}
        return {turn + i: {a: block[i] for a, block in blocks.items()} for i in range(keys.shape[-1])}

    def _block(self, asked: Asked, keys: Tensor) -> Sequence[Tensor]:
        make, shape, where, within, shared, dtype = asked
        axis, keys = keys.dim() - 1, fold(keys, where, *within)
        if shared:
            return make(keys, shape, dtype).unbind(axis)
        return make(fold(keys.unsqueeze(-1), self.rows), shape[1:], dtype).unbind(axis)
