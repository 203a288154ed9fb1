"""Tables: a finite decision process as rows, for what is solved by its tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from weft.core.legal import Legal, Such, check
from weft.core.source import Batch, Field, Source
from weft.core.state import State
from weft.core.trees import tree_map

__all__ = ["Tabled", "Tables"]


class Tabled(Protocol):
    """A finite decision process given by its tables, such as `weft.data.FiniteMDP`."""

    transition: Tensor
    reward: Tensor
    start: Tensor
    ends: Tensor | None


TABLES = ("transition", "reward", "start", "ends")
TABLED = Such(
    "a finite decision process with its tables, such as weft.data.FiniteMDP, FrozenLake or GridWorld",
    lambda given: all(hasattr(given, name) for name in TABLES),
)


class Tables(Source):
    """Gives the tables of a finite decision process: a row for each state s and action a.

    A row, state by state, has

        observation   s, as a one-hot row, whatever the world shows of it
        action        a
        reward        the mean of r given s and a
        transition    p(s' and the episode goes on | s, a), (S,)
        ends          p(the episode ends | s, a)
        start         p(s_0 = s)

    From a state in which an episode has surely ended nothing is played: it ends there, and earns nothing. The world's
    horizon is not among these: where it cuts an episode, that has not ended.

    Args:
        world: a `weft.data.FiniteMDP`, or another with such tables.

    References:
        Puterman, "Markov decision processes", 1994, section 2.1.

    Example:
        >>> from weft.data import FrozenLake
        >>> Tables(FrozenLake()).size
        64
    """

    epoch = 1
    legal: ClassVar[dict[str, Legal]] = {"world": TABLED}

    def __init__(self, world: Tabled) -> None:
        check(Tables, locals())
        reward = world.reward.double()
        states, actions = int(reward.shape[0]), int(reward.shape[1])
        played, over = world.transition.double(), torch.zeros((), dtype=torch.float64)
        played = played / played.sum(-1, keepdim=True)
        if world.ends is not None:
            over = world.ends.double()
        mean = (played * reward).sum(-1) if reward.dim() == 3 else reward
        ended = over == 1 if over.dim() == 1 else torch.zeros(states, dtype=torch.bool)
        mean = mean.masked_fill(ended[:, None], 0.0)
        goes_on = (played * (1 - over)).masked_fill(ended[:, None, None], 0.0)
        ends = (played * over).sum(-1).masked_fill(ended[:, None], 1.0)
        start = world.start.double()
        self.rows: Batch = {
            "observation": one_hot(torch.arange(states), states).double().repeat_interleave(actions, 0),
            "action": torch.arange(actions).repeat(states),
            "reward": mean.flatten(),
            "transition": goes_on.flatten(0, 1),
            "ends": ends.flatten(),
            "start": (start / start.sum()).repeat_interleave(actions),
        }
        self.size = states * actions
        self.spec = {name: Field(tuple(value.shape[1:]), value.dtype) for name, value in self.rows.items()}
        self.spec["action"] = Field((), torch.int64, classes=actions)

    def batches(self, state: State) -> Iterator[Batch]:
        """All rows, again and again."""
        while True:
            yield tree_map(lambda t: t.to(state.device), self.rows)

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        """All rows, in their order."""
        for first in range(0, self.size or 0, rows):
            yield tree_map(lambda t: t[first : first + rows].to(state.device), self.rows)  # noqa: B023

    def contents(self) -> dict[str, Any]:
        """The tables."""
        return dict(self.rows)
