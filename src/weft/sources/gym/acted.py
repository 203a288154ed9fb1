"""What gymnasium's environments are told to do: actions as their spaces have them, from rows of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from weft.core.source import Field

__all__ = ["Writer"]

Rows = np.ndarray[Any, Any]
SLACK = 1e-4
"""So far outside of its bounds an action is taken for rounding, and put back."""


class Writer:
    """Makes actions of a space from rows.

    Args:
        space: of one action.

    Attributes:
        field: what a row of actions is.

    Example:
        >>> writer = Writer(spaces.Dict({"turn": spaces.Discrete(3, start=-1), "jump": spaces.Discrete(2)}))
        >>> writer.field.choices, [{k: int(v) for k, v in act.items()} for act in writer.apart(torch.tensor([[1, 0]]))]
        ((2, 3), [{'jump': 1, 'turn': -1}])
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._part = _part(space, "action")
        kinds = {leaf.numbers for leaf in self._part.leaves()}
        if len(kinds) > 1:
            raise ValueError(
                f"expected actions that are all numbers or all choices, got both in {space}; act in one kind by a "
                "wrapper of gymnasium.wrappers.TransformAction"
            )
        leaves = self._part.leaves()
        self._numbers = kinds == {True}
        low = tuple(v for leaf in leaves for v in leaf.low)
        high = tuple(v for leaf in leaves for v in leaf.high)
        self._start = int(leaves[0].start[0]) if leaves[0].start.size else 0
        shape = leaves[0].shape if isinstance(self._part, _Leaf) else (len(low),)
        if self._numbers:
            self.field = Field(shape, torch.float32, low=low, high=high)
        elif isinstance(space, spaces.Discrete):
            self.field = Field((), torch.int64, classes=int(space.n))
        else:
            self.field = Field(shape, torch.int64, choices=tuple(int(v) for v in high))
        self._low, self._high = (np.array(ends, dtype=np.float64).reshape(shape) for ends in (low, high))

    def together(self, action: Tensor, idle: Rows | None = None) -> object:
        """What gymnasium makes of many actions: arrays, in the space's own tree.

        Args:
            action: a row for each episode.
            idle: which have ended: what is done there does not matter.
        """
        rows = self._checked(action, idle)
        return self._part.write(rows.reshape(len(rows), -1))

    def apart(self, action: Tensor, idle: Rows | None = None) -> list[Any]:
        """One action after another."""
        classes = self.field.classes
        if classes is not None and idle is None and action.dtype == torch.int64 and action.dim() == 1:
            numbers: list[int] = action.tolist()  # the common case, which a step of a fast environment would notice
            if numbers and min(numbers) >= 0 and max(numbers) < classes:
                return [self._start + number for number in numbers] if self._start else numbers
        rows = self._checked(action, idle)
        if classes is not None:
            return [self._start + number for number in rows.tolist()]
        whole = self._part.write(rows.reshape(len(rows), -1))
        return [self._part.row(whole, i) for i in range(len(rows))]

    def _checked(self, action: Tensor, idle: Rows | None) -> Rows:
        """The rows; raises where there is an action that the space has not."""
        field = self.field
        if action.shape[1:] != field.shape or action.is_floating_point() != self._numbers:
            raise ValueError(
                f"expected an action of shape {field.shape} in {field.dtype} for each episode, got "
                f"{tuple(action.shape[1:])} in {action.dtype}"
            )
        rows: Rows = action.detach().cpu().numpy()
        if idle is not None:
            rows = rows.copy()
            rows[idle] = np.clip(0, self._low, self._high) if self._numbers else 0
        if not self._numbers:
            most = self._high if field.classes is None else field.classes
            wrong = (rows < 0) | (rows >= most)
        else:
            wrong = ~((rows >= self._low - SLACK) & (rows <= self._high + SLACK) & np.isfinite(rows))
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            said = (
                f"between {field.low} and {field.high}" if self._numbers else f"below {field.classes or field.choices}"
            )
            raise ValueError(
                f"expected actions {said}, got {rows[at]} in entry {list(at[1:])} of episode {at[0]}; let the policy "
                "squash, clamp or mask what it draws"
            )
        return np.clip(rows, self._low, self._high) if self._numbers else rows


class _Leaf:
    """Numbers, or choices, of one space.

    Args:
        shape: as the space has them.
        dtype: as the space has it.
        numbers: whether they are numbers.
        low, high: the bounds of each entry; of choices 0 and how many there are.
        start: what the first choice is called.
    """

    def __init__(
        self, space: spaces.Space[Any], numbers: bool, low: Rows, high: Rows, start: Rows | None = None
    ) -> None:
        self.shape, self.dtype, self.numbers = space.shape or (), space.dtype, numbers
        self.low, self.high = low.flatten().tolist(), high.flatten().tolist()
        self.start = np.zeros(len(self.low), np.int64) if start is None else start.flatten()

    def leaves(self) -> list[_Leaf]:
        return [self]

    def write(self, flat: Rows) -> object:
        whole = flat if self.numbers else flat + self.start
        return whole.astype(self.dtype).reshape(len(flat), *self.shape)

    def row(self, whole: Any, i: int) -> object:
        return whole[i]


class _Branch:
    """Parts by name or by number."""

    def __init__(self, parts: dict[Any, _Part], named: bool) -> None:
        self.parts, self.named = parts, named
        self.widths = [sum(len(leaf.low) for leaf in part.leaves()) for part in parts.values()]

    def leaves(self) -> list[_Leaf]:
        return [leaf for part in self.parts.values() for leaf in part.leaves()]

    def write(self, flat: Rows) -> object:
        pieces = np.split(flat, np.cumsum(self.widths)[:-1], 1)
        whole = {k: part.write(piece) for (k, part), piece in zip(self.parts.items(), pieces, strict=True)}
        return whole if self.named else tuple(whole.values())

    def row(self, whole: Any, i: int) -> object:
        own = {k: part.row(whole[k], i) for k, part in self.parts.items()}
        return own if self.named else tuple(own.values())


_Part = _Leaf | _Branch


def _part(space: spaces.Space[Any], name: str) -> _Part:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        named = isinstance(space, spaces.Dict)
        parts = dict(space.spaces.items()) if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))
        if not parts:
            raise ValueError(f"expected something to be done, got an empty space for {name!r}")
        return _Branch({key: _part(part, f"{name}.{key}") for key, part in parts.items()}, named)
    if isinstance(space, spaces.Discrete):
        return _Leaf(space, False, np.zeros(1), np.array([space.n]), np.array([space.start]))
    if isinstance(space, spaces.MultiDiscrete):
        return _Leaf(space, False, np.zeros(space.shape), space.nvec, space.start)
    if isinstance(space, spaces.MultiBinary):
        return _Leaf(space, False, np.zeros(space.shape), np.full(space.shape, 2))
    if isinstance(space, spaces.Box):
        if not np.issubdtype(space.dtype, np.floating):
            raise ValueError(
                f"expected whole numbers as actions in a MultiDiscrete space, got {space} for {name!r}; wrap it by "
                "gymnasium.wrappers.TransformAction"
            )
        return _Leaf(space, True, space.low, space.high)
    what = "strings" if isinstance(space, spaces.Text) else "what has no fixed size"
    raise ValueError(f"expected actions of numbers or choices, got {what} in {name!r}: {space}; wrap the environment")
