"""Freeway: a chicken that crosses a road of eight lanes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from weft.data.minatar.game import DOWN, NOTHING, SIZE, UP, Game, marked, one_of

__all__ = ["Freeway", "FreewayState"]

LANES = SIZE - 2
COLUMN = 4  # the chicken's
PAUSE = 3
LIMIT = 2500


class FreewayState(NamedTuple):
    """Where an episode of Freeway stands. Each of the rows 1 to 8 is a lane with one car.

    Attributes:
        row: the chicken's, (n,).
        pause: steps until it can move, (n,).
        left: steps that are left, (n,); the episode ends when none is left and one more is made.
        car: the cars' columns, (n, 8).
        wait: steps until they move, (n, 8).
        speed: steps that they rest between two moves, (n, 8), below zero for those that drive to the left.
    """

    row: Tensor
    pause: Tensor
    left: Tensor
    car: Tensor
    wait: Tensor
    speed: Tensor


class Freeway(Game[FreewayState]):
    """Cross the road as often as possible, for 1 each time; a car that hits the chicken sends it back to the start.

    The chicken moves up or down by a cell, every third step at most. In each of eight lanes a car drives to the left or
    to the right, back in at the other end, and rests from 1 to 5 steps between two moves. Whenever the chicken has
    reached the top, it starts anew at the bottom, and the cars get other speeds and ways. An episode has 2,501 steps.

    A world of tensors with MinAtar's rules, step for step (version 1.0.15); difficulty does not rise in this game.
    Seen are the chicken, the cars, and behind each car a cell in one of five channels, for its speed. As in MinAtar,
    the last step is an end, not a cut, though how many are left is not seen. A new episode begins with "nothing" as
    last action, where MinAtar keeps that of the episode before.

    Args:
        sticky: probability of the last action in place of the chosen one.
        minimal: offer only nothing (0), up (1) and down (2), in place of all six actions.

    References:
        Young and Tian, "MinAtar: An Atari-inspired testbed for thorough and reproducible reinforcement learning
        experiments", arXiv 1903.03176; sticky actions: Machado et al., arXiv 1709.06009.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> world = Freeway(minimal=True)
        >>> keys = fold(key_of(0), torch.arange(3))
        >>> position, observation = world.reset(keys)
        >>> observation[:, 1].sum((1, 2)), observation[:, 2:].sum((1, 2, 3))  # as many trails as cars
        (tensor([8., 8., 8.]), tensor([8., 8., 8.]))
    """

    channels = {
        "chicken": (250, 250, 250),
        "car": (220, 60, 60),
        "speed 1": (250, 210, 60),
        "speed 2": (200, 170, 60),
        "speed 3": (150, 130, 60),
        "speed 4": (110, 95, 60),
        "speed 5": (75, 65, 50),
    }
    useful = (NOTHING, UP, DOWN)
    starts = draws = 2 * LANES
    horizon = LIMIT + 1

    def begin(self, drawn: Tensor) -> FreewayState:
        """All cars at the left edge, the chicken at the bottom."""
        speed = _speeds(drawn)
        none = torch.zeros_like(speed[:, 0])
        return FreewayState(none + SIZE - 1, none + PAUSE, none + LIMIT, torch.zeros_like(speed), speed.abs(), speed)

    def play(self, state: FreewayState, action: Tensor, drawn: Tensor) -> tuple[FreewayState, Tensor, Tensor]:
        """The chicken moves, then the cars; it is hit by a car that stands or comes where it is."""
        way = (action == DOWN).long() - (action == UP).long()
        moves = (way != 0) & (state.pause == 0)
        row = (state.row + torch.where(moves, way, 0)).clamp(0, SIZE - 1)
        won = row == 0
        row = torch.where(won, SIZE - 1, row)
        speed = torch.where(won[:, None], _speeds(drawn), state.speed)
        wait = torch.where(won[:, None], speed.abs(), state.wait)

        turn = wait == 0
        car = (state.car + torch.where(turn, speed.sign(), 0)) % SIZE
        lane = torch.arange(1, LANES + 1, device=row.device) == row[:, None]
        hit = (lane & ((state.car == COLUMN) | (car == COLUMN))).any(1)
        after = FreewayState(
            row=torch.where(hit, SIZE - 1, row),
            pause=(torch.where(moves, PAUSE, state.pause) - 1).clamp(min=0),
            left=state.left - 1,
            car=car,
            wait=torch.where(turn, speed.abs(), wait - 1),
            speed=speed,
        )
        return after, won.long(), after.left < 0

    def look(self, state: FreewayState) -> list[Tensor]:
        """Chicken, cars, and the cells behind the cars of each speed."""
        cells = torch.arange(SIZE, device=state.row.device)
        behind = cells == ((state.car - state.speed.sign()) % SIZE)[..., None]
        trails = [behind & (state.speed.abs() == speed)[..., None] for speed in range(1, 6)]
        chicken = marked(torch.full_like(state.row, COLUMN), state.row, torch.ones_like(state.row, dtype=torch.bool))
        return [chicken, *(pad(board, (0, 0, 1, 1)) for board in [cells == state.car[..., None], *trails])]


def _speeds(drawn: Tensor) -> Tensor:
    """Of each car, from 1 to 5, to the left or to the right."""
    much, way = drawn.chunk(2, 1)
    return (1 + one_of(much, 5)) * (1 - 2 * (way < 1 / 2).long())
