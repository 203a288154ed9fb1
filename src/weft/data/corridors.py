"""Corridors in which one does not see where one is: the short corridor, and the T-maze, which asks for a memory."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.legal import Whole
from weft.core.random import unit
from weft.core.source import Field
from weft.data.finite import FiniteMDP

__all__ = ["ShortCorridor", "TMaze"]


class ShortCorridor(FiniteMDP):
    """Three cells that look alike, left (0) and right (1) switched in the second: the best policy is a drawn one.

    One starts in the first cell and ends on getting to the right of the third; each step is worth -1. To the left of
    the first cell is a wall. Nothing is seen but a 1. Going right with probability p earns

        2 (p - 2) / (p (1 - p)),     at most -11.66, at p = 2 - sqrt 2 = .586,

    while a policy without chance never ends, so that a horizon must be given, here or to the source that plays.

    Args:
        horizon: steps after which an episode is cut, or None.

    References:
        Sutton and Barto, "Reinforcement learning: an introduction", 2018, example 13.1.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> world = ShortCorridor()
        >>> keys = fold(key_of(0), torch.arange(2))
        >>> state, observation = world.reset(keys)
        >>> for right in ([1, 1], [1, 0], [1, 1]):
        ...     state, observation, reward, ended = world.step(state, torch.tensor(right), keys)
        >>> state, observation, ended
        (tensor([1, 3]), tensor([[1.],
                [1.]]), tensor([False,  True]))
    """

    def __init__(self, *, horizon: int | None = None) -> None:
        to = torch.tensor([[0, 1], [2, 0], [1, 3], [3, 3]])
        last = torch.arange(4) == 3
        reward = torch.full((4, 2), -1.0).masked_fill(last[:, None], 0.0)
        super().__init__(torch.eye(4)[to], reward, start=torch.eye(4)[0], ends=last, horizon=horizon)
        self.observation = Field((1,), torch.float32)

    def _see(self, state: Tensor) -> Tensor:
        return torch.ones_like(state, dtype=torch.float32).unsqueeze(-1)


class TMaze:
    """Walk down a corridor and turn to the side that a sign at its beginning told.

    One goes north (0), east (1), south (2) or west (3). The corridor has `length` steps from the start, at
    its west end, to the junction. Seen are three bits:

        at the start   0 1 1 (turn north) or 1 1 0 (turn south),
        on the way     1 0 1,
        at the junction   0 1 0,

    and which way to turn is drawn for each episode. Turning at the junction ends it, worth 4 on the right side and -.1
    on the wrong one; a move against a wall leaves one where one is and is worth -.1, all else is worth 0. A policy
    without a memory turns at random, for 1.95 on average; the best one earns 4, after `length` steps and one more.
    Nothing cuts an episode, unless a horizon is given, here or to the source that plays.

    A position is (steps from the start, 1 for north or 0), (n, 2).

    Args:
        length: of the corridor.
        horizon: steps after which an episode is cut, or None.

    References:
        Bakker, "Reinforcement learning with long short-term memory", NIPS 2001 (proceedings of 2002).

    Example:
        >>> from weft.core.random import fold, key_of
        >>> world = TMaze(length=2)
        >>> keys = fold(key_of(0), torch.arange(4))
        >>> position, told = world.reset(keys)
        >>> for action in (torch.ones(4), torch.ones(4), 2 * told[:, 0]):
        ...     position, seen, reward, ended = world.step(position, action.long(), keys)
        >>> reward, ended
        (tensor([4., 4., 4., 4.]), tensor([True, True, True, True]))
    """

    observation = Field((3,), torch.float32, low=(0.0,) * 3, high=(1.0,) * 3)
    action = Field((), torch.int64, classes=4)

    def __init__(self, length: int = 10, *, horizon: int | None = None) -> None:
        Whole(1).check(length, "TMaze's length")
        (Whole(1) | None).check(horizon, "TMaze's horizon")
        self.length, self.horizon = length, horizon

    def reset(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """One episode's start for each key, and the sign."""
        north = (unit(keys, (), torch.float64) < 0.5).long()
        position = torch.stack([torch.zeros_like(north), north], -1)
        return position, self._see(position)

    def step(
        self, position: Tensor, action: Tensor, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The position, observation, reward and end after a move; nothing in it is random."""
        at, north = position.unbind(-1)
        turned = (at == self.length) & (action % 2 == 0)
        to = (at + (action == 1).long() - (action == 3).long()).clamp(0, self.length)
        right = turned & ((action == 0) == (north == 1))
        reward = 4.0 * right - 0.1 * ((to == at) & ~right)
        after = torch.stack([to, north], -1)
        return after, self._see(after), reward.float(), turned

    def _see(self, position: Tensor) -> Tensor:
        at, north = position.unbind(-1)
        start, junction = at == 0, at == self.length
        way = ~start & ~junction
        return torch.stack([way | (start & (north == 0)), ~way, way | (start & (north == 1))], -1).float()
