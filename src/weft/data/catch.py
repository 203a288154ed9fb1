"""Catch: a ball falls, a paddle below should be there in time."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.legal import Whole
from weft.core.random import unit
from weft.core.source import Field
from weft.data.drawing import BLUE, DARK, RED, Canvas

__all__ = ["Catch"]


class Catch:
    """Catch a falling ball with a paddle, by moving it left (0), not at all (1) or right (2).

    The ball begins in the top row, in any column, and falls by one row in each step; the paddle begins in the middle of
    the lowest row. When the ball gets there the episode ends, worth 1 where the paddle is below it and -1 elsewhere;
    until then nothing is earned. Seen is the board, 1 where the ball or the paddle is. It is bsuite's Catch; a picture
    has its one channel first.

    A position is (row of the ball, its column, column of the paddle), (n, 3).

    Args:
        rows: of the board.
        columns: of the board.

    References:
        Osband and others, "Behaviour suite for reinforcement learning", ICLR 2020; Mnih, Heess, Graves and Kavukcuoglu,
        "Recurrent models of visual attention", NIPS 2014.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> world = Catch()
        >>> position, board = world.reset(fold(key_of(0), torch.arange(50)))
        >>> for _ in range(world.horizon):
        ...     towards = (position[:, 1] - position[:, 2]).sign() + 1
        ...     position, board, reward, ended = world.step(position, towards)
        >>> board.shape, reward.mean(), ended.all()
        (torch.Size([50, 1, 10, 5]), tensor(1.), tensor(True))
    """

    action = Field((), torch.int64, classes=3)

    def __init__(self, rows: int = 10, columns: int = 5) -> None:
        Whole(2).check(rows, "Catch's rows")
        Whole(1).check(columns, "Catch's columns")
        self.rows, self.columns = rows, columns
        self.horizon = rows - 1
        ends = rows * columns
        self.observation = Field((1, rows, columns), torch.float32, low=(0.0,) * ends, high=(1.0,) * ends)

    def reset(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """One episode's start for each key, and the board."""
        column = (unit(keys, (), torch.float64) * self.columns).long()
        position = torch.stack([torch.zeros_like(column), column, torch.full_like(column, self.columns // 2)], -1)
        return position, self._see(position)

    def step(
        self, position: Tensor, action: Tensor, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The position, observation, reward and end after a move; nothing in it is random."""
        row, column, paddle = position.unbind(-1)
        row = row + 1
        paddle = (paddle + action - 1).clamp(0, self.columns - 1)
        after, ended = torch.stack([row, column, paddle], -1), row == self.rows - 1
        reward = torch.where(column == paddle, 1.0, -1.0) * ended
        return after, self._see(after), reward, ended

    def _see(self, position: Tensor) -> Tensor:
        ball, paddle = self._squares(position)
        return (ball | paddle).unsqueeze(1).float()

    def _squares(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Where the ball and the paddle are, as boards."""
        row, column, paddle = position[:, :, None, None].unbind(1)
        down = torch.arange(self.rows, device=position.device)[:, None]
        across = torch.arange(self.columns, device=position.device)
        return (down == row) & (across == column), (down == self.rows - 1) & (across == paddle)

    def render(self, position: Tensor) -> Tensor:
        """The board: the ball red, the paddle blue."""
        ball, paddle = self._squares(position)
        canvas = Canvas(
            len(position),
            (0.0, self.columns, -self.rows, 0.0),
            width=16 * self.columns,
            device=position.device,
        )
        canvas.squares(torch.where(ball, 2, paddle.long()), (DARK, BLUE, RED))
        return canvas.pictures()
