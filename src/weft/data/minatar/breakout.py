"""Breakout: a ball kept in play by a paddle, below a wall of bricks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from weft.data.minatar.game import LEFT, NOTHING, RIGHT, SIZE, Game, marked, one_of, steered

__all__ = ["Breakout", "BreakoutState"]


class BreakoutState(NamedTuple):
    """Where an episode of Breakout stands.

    Attributes:
        paddle: its column, (n,).
        x, y: the ball's column and row, (n,).
        dx, dy: its way, -1 or 1 each.
        last_x, last_y: where it was before.
        struck: whether it was in a brick's cell at the last step; then it breaks none.
        bricks: (n, 10, 10), booleans.
    """

    paddle: Tensor
    x: Tensor
    y: Tensor
    dx: Tensor
    dy: Tensor
    last_x: Tensor
    last_y: Tensor
    struck: Tensor
    bricks: Tensor


class Breakout(Game[BreakoutState]):
    """Break bricks with a ball that is bounced by a paddle; each brick is worth 1, a ball that falls ends the episode.

    The ball moves by one cell along a diagonal at each step. Walls, ceiling and bricks reflect it, and a brick that it
    meets is broken, unless it met one the step before. In the lowest row the paddle sends it back up: on its own way
    sideways if it came from the paddle's column, and the way that it came if it is about to fall into it. The wall is
    three rows; once it is gone, the next ball to come down finds a new one. The ball starts at the left or right edge.

    A world of tensors with MinAtar's rules, step for step (version 1.0.15); difficulty does not rise in this game.
    Seen are the paddle, the ball, where it was before, and the bricks. There is no limit of steps: give a source a
    `horizon`. A new episode begins with "nothing" as last action, where MinAtar keeps that of the episode before.

    Args:
        sticky: probability of the last action in place of the chosen one.
        minimal: offer only nothing (0), left (1) and right (2), in place of all six actions.

    References:
        Young and Tian, "MinAtar: An Atari-inspired testbed for thorough and reproducible reinforcement learning
        experiments", arXiv 1903.03176; sticky actions: Machado et al., arXiv 1709.06009.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> world = Breakout(minimal=True)
        >>> keys = fold(key_of(0), torch.arange(3))
        >>> position, observation = world.reset(keys)
        >>> position, observation, reward, ended = world.step(position, torch.tensor([0, 1, 2]), fold(keys, "step"))
        >>> observation.shape, observation[:, 3].sum((1, 2)), reward
        (torch.Size([3, 4, 10, 10]), tensor([30., 30., 30.]), tensor([0., 0., 0.]))
    """

    channels = {"paddle": (70, 160, 250), "ball": (255, 255, 255), "trail": (120, 120, 120), "brick": (220, 90, 60)}
    useful = (NOTHING, LEFT, RIGHT)
    starts = 1

    def begin(self, drawn: Tensor) -> BreakoutState:
        """A ball in the fourth row, at the left edge or at the right, on its way down."""
        right = one_of(drawn[:, 0], 2)
        x, y = (SIZE - 1) * right, torch.full_like(right, 3)
        wall = _wall(right).expand(len(right), SIZE, SIZE).clone()
        struck = torch.zeros_like(right, dtype=torch.bool)
        return BreakoutState(torch.full_like(right, 4), x, y, 1 - 2 * right, torch.ones_like(right), x, y, struck, wall)

    def play(self, state: BreakoutState, action: Tensor, drawn: Tensor) -> tuple[BreakoutState, Tensor, Tensor]:
        """The paddle moves first, then the ball."""
        paddle = steered(action, state.paddle, LEFT, RIGHT)
        x, y = state.x + state.dx, state.y + state.dy
        dx = torch.where((x < 0) | (x >= SIZE), -state.dx, state.dx)
        ceiling = y < 0
        x, y = x.clamp(0, SIZE - 1), y.clamp(0, SIZE - 1)

        brick = state.bricks.flatten(1).gather(1, (y * SIZE + x)[:, None])[:, 0]
        broken = brick & ~state.struck
        bricks = state.bricks & ~marked(x, y, broken)

        low = y == SIZE - 1
        bricks = bricks | ((low & ~bricks.flatten(1).any(1))[:, None, None] & _wall(x))
        above = low & (state.x == paddle)
        beside = low & ~above & (x == paddle)
        caught = above | beside

        dx = torch.where(beside, -dx, dx)
        dy = torch.where(ceiling | broken | caught, -state.dy, state.dy)
        y = torch.where(broken | caught, state.y, y)
        after = BreakoutState(paddle, x, y, dx, dy, state.x, state.y, brick, bricks)
        return after, broken.long(), low & ~caught

    def look(self, state: BreakoutState) -> list[Tensor]:
        """Paddle, ball, where it was, bricks."""
        always = torch.ones_like(state.struck)
        return [
            marked(state.paddle, torch.full_like(state.paddle, SIZE - 1), always),
            marked(state.x, state.y, always),
            marked(state.last_x, state.last_y, always),
            state.bricks,
        ]


def _wall(like: Tensor) -> Tensor:
    """The bricks of a whole wall, (10, 1)."""
    row = torch.arange(SIZE, device=like.device)[:, None]
    return (row >= 1) & (row <= 3)
