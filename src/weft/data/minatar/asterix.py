"""Asterix: treasure to be fetched from rows in which enemies run, too."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from weft.core.legal import Flag
from weft.data.minatar.game import DOWN, LEFT, NOTHING, RIGHT, SIZE, UP, Game, marked, one_of, steered

__all__ = ["Asterix", "AsterixState"]

ROWS = SIZE - 2
RAMP = 100  # steps between two rises of the difficulty, less those of counting


class AsterixState(NamedTuple):
    """Where an episode of Asterix stands. Of the rows 1 to 8 each holds one thing at most.

    Attributes:
        x, y: the player's column and row, (n,).
        there, right, gold: whether there is a thing in the row, runs to the right, and is treasure: (n, 8), booleans.
        column: where it is, (n, 8).
        spawn_every, spawn_in: steps between two new things, and to the next, (n,).
        move_every, move_in: the same of their moves.
        ramp_in, ramps: steps to the next rise of the difficulty, and how many there were.
    """

    x: Tensor
    y: Tensor
    there: Tensor
    right: Tensor
    gold: Tensor
    column: Tensor
    spawn_every: Tensor
    spawn_in: Tensor
    move_every: Tensor
    move_in: Tensor
    ramp_in: Tensor
    ramps: Tensor


class Asterix(Game[AsterixState]):
    """Fetch treasure, worth 1 each, and keep clear of enemies, of which a touch ends the episode.

    The player walks in all four directions within eight rows. Every so many steps (10 at first) a thing appears at the
    left or right end of a row that is free, a treasure in one of three cases and else an enemy, and every so many steps
    (5 at first) all things move by one cell towards the other end, where they vanish. After each hundred steps or so
    the difficulty rises: things appear a step sooner after each other, and every second time they also move sooner.

    A world of tensors with MinAtar's rules, step for step (version 1.0.15). Seen are the player, the enemies, the cells
    behind all that moves, and the treasures. There is no limit of steps: give a source a `horizon`. A new episode
    begins with "nothing" as last action, where MinAtar keeps that of the episode before.

    Args:
        sticky: probability of the last action in place of the chosen one.
        ramping: whether the difficulty rises.
        minimal: offer only nothing (0), left (1), up (2), right (3) and down (4), in place of all six actions.

    References:
        Young and Tian, "MinAtar: An Atari-inspired testbed for thorough and reproducible reinforcement learning
        experiments", arXiv 1903.03176; sticky actions: Machado et al., arXiv 1709.06009.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> world = Asterix()
        >>> keys = fold(key_of(0), torch.arange(3))
        >>> position, observation = world.reset(keys)
        >>> for t in range(11):
        ...     position, observation, reward, ended = world.step(position, torch.tensor([0, 0, 0]), fold(keys, t))
        >>> observation[:, [1, 3]].sum((1, 2, 3))
        tensor([1., 1., 1.])
    """

    channels = {"player": (70, 160, 250), "enemy": (220, 60, 60), "trail": (110, 110, 110), "gold": (250, 210, 60)}
    useful = (NOTHING, LEFT, UP, RIGHT, DOWN)
    draws = 3

    def __init__(self, *, sticky: float = 0.1, ramping: bool = True, minimal: bool = False) -> None:
        super().__init__(sticky=sticky, minimal=minimal)
        Flag().check(ramping, "ramping")
        self.ramping = bool(ramping)

    def begin(self, drawn: Tensor) -> AsterixState:
        """The player in the middle of an empty board."""
        none = torch.zeros(len(drawn), dtype=torch.int64, device=drawn.device)
        free = torch.zeros((len(drawn), ROWS), dtype=torch.bool, device=drawn.device)
        return AsterixState(
            none + 5,
            none + 5,
            free,
            free,
            free,
            free.long(),
            none + 10,
            none + 10,
            none + 5,
            none + 5,
            none + RAMP,
            none,
        )

    def play(self, state: AsterixState, action: Tensor, drawn: Tensor) -> tuple[AsterixState, Tensor, Tensor]:
        """A new thing comes, the player moves, then the things do."""
        state = self._spawned(state, drawn)
        x, y = steered(action, state.x, LEFT, RIGHT), steered(action, state.y, UP, DOWN, 1, ROWS)
        mine = torch.arange(1, ROWS + 1, device=x.device) == y[:, None]

        met = state.there & mine & (state.column == x[:, None])
        there = state.there & ~(met & state.gold)
        turn = (state.move_in == 0)[:, None]
        column = state.column + torch.where(turn, 2 * state.right.long() - 1, 0)
        there = there & (column >= 0) & (column < SIZE)
        met_then = there & turn & mine & (column == x[:, None])
        there = there & ~(met_then & state.gold)

        fetched = ((met & state.gold).long() + (met_then & state.gold).long()).sum(1)
        caught = ((met | met_then) & ~state.gold).any(1)
        after = state._replace(
            x=x,
            y=y,
            there=there,
            column=column,
            spawn_in=state.spawn_in - 1,
            move_in=torch.where(turn[:, 0], state.move_every, state.move_in) - 1,
        )
        return self._harder(after) if self.ramping else after, fetched, caught

    @staticmethod
    def _spawned(state: AsterixState, drawn: Tensor) -> AsterixState:
        """With a new thing where it is time, in one of the rows that are free."""
        due = state.spawn_in == 0
        free = ~state.there
        pick = one_of(drawn[:, 2], free.sum(1))
        new = due[:, None] & free & (free.cumsum(1) - 1 == pick[:, None])
        right, gold = (drawn[:, 0] < 1 / 2)[:, None], (drawn[:, 1] < 1 / 3)[:, None]
        return state._replace(
            there=state.there | new,
            right=torch.where(new, right, state.right),
            gold=torch.where(new, gold, state.gold),
            column=torch.where(new, torch.where(right, 0, SIZE - 1), state.column),
            spawn_in=torch.where(due, state.spawn_every, state.spawn_in),
        )

    @staticmethod
    def _harder(state: AsterixState) -> AsterixState:
        """Things come and move sooner, where it is time and as long as they can."""
        rising = (state.spawn_every > 1) | (state.move_every > 1)
        due = rising & (state.ramp_in < 0)
        return state._replace(
            move_every=state.move_every - (due & (state.move_every > 1) & (state.ramps % 2 == 1)).long(),
            spawn_every=state.spawn_every - (due & (state.spawn_every > 1)).long(),
            ramps=state.ramps + due.long(),
            ramp_in=torch.where(due, RAMP, state.ramp_in - rising.long()),
        )

    def look(self, state: AsterixState) -> list[Tensor]:
        """Player, enemies, the cells behind what moves, treasures."""
        cells = torch.arange(SIZE, device=state.x.device)
        behind = state.column - 2 * state.right.long() + 1
        here, back = cells == state.column[..., None], cells == behind[..., None]
        things = [(here, state.there & ~state.gold), (back, state.there), (here, state.there & state.gold)]
        enemy, trail, gold = (pad(cell & shown[..., None], (0, 0, 1, 1)) for cell, shown in things)
        return [marked(state.x, state.y, torch.ones_like(state.x, dtype=torch.bool)), enemy, trail, gold]
