"""Space Invaders: a cannon against waves of aliens that come down."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from weft.core.legal import Flag
from weft.data.minatar.game import FIRE, LEFT, NOTHING, RIGHT, SIZE, Game, marked, steered

__all__ = ["SpaceInvaders", "SpaceInvadersState"]

RELOAD, ALIENS_RELOAD = 5, 10
SLOWEST, FASTEST = 12, 6


class SpaceInvadersState(NamedTuple):
    """Where an episode of Space Invaders stands.

    Attributes:
        cannon: its column, (n,).
        reload: steps until it can fire, (n,).
        aliens, shots, bombs: the aliens, what the cannon has fired and what they have, (n, 10, 10), booleans.
        way: theirs, -1 or 1, (n,).
        move_every, move_in: steps between two of their moves, at most, and to the next, (n,).
        fire_in: steps to their next bomb, (n,).
    """

    cannon: Tensor
    reload: Tensor
    aliens: Tensor
    shots: Tensor
    bombs: Tensor
    way: Tensor
    move_every: Tensor
    move_in: Tensor
    fire_in: Tensor


class SpaceInvaders(Game[SpaceInvadersState]):
    """Shoot aliens, worth 1 each, before one of them or of their bombs reaches the cannon, which ends the episode.

    The cannon moves along the lowest row and fires every fifth step at most. The aliens move sideways together, every
    twelfth step or once in as many steps as there are aliens left, if those are fewer; at an edge they come down by a
    row and turn instead, and the episode ends where they cannot. Every tenth step the lowest alien of the column that
    is nearest to the cannon (of two, the left one) drops a bomb. Shots and bombs fly by a cell at each step. A wave
    that is shot is followed by another, which moves a step sooner, down to every sixth.

    A world of tensors with MinAtar's rules, step for step (version 1.0.15). Seen are the cannon, the aliens, the aliens
    again in one of two channels that say whether they move to the left or to the right, the shots and the bombs. There
    is no limit of steps: give a source a `horizon`. A new episode begins with "nothing" as last action, where MinAtar
    keeps that of the episode before.

    Args:
        sticky: probability of the last action in place of the chosen one.
        ramping: whether the difficulty rises from wave to wave.
        minimal: offer only nothing (0), left (1), right (2) and fire (3), in place of all six actions.

    References:
        Young and Tian, "MinAtar: An Atari-inspired testbed for thorough and reproducible reinforcement learning
        experiments", arXiv 1903.03176; sticky actions: Machado et al., arXiv 1709.06009.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> world = SpaceInvaders(minimal=True)
        >>> keys = fold(key_of(0), torch.arange(3))
        >>> position, observation = world.reset(keys)
        >>> position, observation, reward, ended = world.step(position, torch.tensor([0, 0, 3]), fold(keys, "step"))
        >>> observation[:, 1].sum((1, 2)), observation[:, 4].sum((1, 2))  # aliens, shots
        (tensor([24., 24., 24.]), tensor([0., 0., 1.]))
    """

    channels = {
        "cannon": (70, 160, 250),
        "alien": (90, 200, 90),
        "alien to the left": (90, 200, 90),
        "alien to the right": (160, 220, 90),
        "shot": (255, 255, 255),
        "bomb": (220, 60, 60),
    }
    useful = (NOTHING, LEFT, RIGHT, FIRE)

    def __init__(self, *, sticky: float = 0.1, ramping: bool = True, minimal: bool = False) -> None:
        super().__init__(sticky=sticky, minimal=minimal)
        Flag().check(ramping, "ramping")
        self.ramping = bool(ramping)

    def begin(self, drawn: Tensor) -> SpaceInvadersState:
        """A whole wave at the top."""
        none = torch.zeros(len(drawn), dtype=torch.int64, device=drawn.device)
        empty = torch.zeros((len(drawn), SIZE, SIZE), dtype=torch.bool, device=drawn.device)
        slow = none + SLOWEST
        return SpaceInvadersState(
            none + 5, none, empty | _wave(none), empty, empty, none - 1, slow, slow, none + ALIENS_RELOAD
        )

    def play(
        self, state: SpaceInvadersState, action: Tensor, drawn: Tensor
    ) -> tuple[SpaceInvadersState, Tensor, Tensor]:
        """The cannon acts, shots and bombs fly, the aliens move and fire, and what is hit is gone."""
        fires = (action == FIRE) & (state.reload == 0)
        cannon, lowest = steered(action, state.cannon, LEFT, RIGHT), torch.full_like(state.cannon, SIZE - 1)
        here = marked(cannon, lowest, torch.ones_like(fires))
        shots = pad((state.shots | marked(cannon, lowest, fires))[:, 1:], (0, 0, 0, 1))
        bombs = pad(state.bombs[:, :-1], (0, 0, 1, 0))
        ended = _any((bombs | state.aliens) & here)

        turn = state.move_in == 0
        left, right = state.aliens[:, :, 0].any(1), state.aliens[:, :, -1].any(1)
        down = turn & torch.where(state.way < 0, left, right)
        ended = ended | (down & state.aliens[:, -1].any(1))
        way = torch.where(down, -state.way, state.way)
        across = torch.where((way < 0)[:, None, None], state.aliens.roll(-1, 2), state.aliens.roll(1, 2))
        aliens = torch.where(down[:, None, None], state.aliens.roll(1, 1), across)
        aliens = torch.where(turn[:, None, None], aliens, state.aliens)
        ended = ended | _any(aliens & here)
        many = state.aliens.flatten(1).sum(1)
        move_in = torch.where(turn, torch.minimum(many, state.move_every), state.move_in) - 1

        bomb = state.fire_in == 0
        bombs = bombs | marked(*_nearest(aliens, cannon), bomb)
        hit = aliens & shots
        aliens, shots = aliens & ~hit, shots & ~hit
        shot = ~_any(aliens)
        after = SpaceInvadersState(
            cannon=cannon,
            reload=(torch.where(fires, RELOAD, state.reload) - 1).clamp(min=0),
            aliens=aliens | (shot[:, None, None] & _wave(cannon)),
            shots=shots,
            bombs=bombs,
            way=way,
            move_every=state.move_every - (shot & (state.move_every > FASTEST)).long() * int(self.ramping),
            move_in=move_in,
            fire_in=torch.where(bomb, ALIENS_RELOAD, state.fire_in) - 1,
        )
        return after, hit.flatten(1).sum(1), ended

    def look(self, state: SpaceInvadersState) -> list[Tensor]:
        """Cannon, aliens, aliens to the left, to the right, shots, bombs."""
        cannon = marked(state.cannon, torch.full_like(state.cannon, SIZE - 1), torch.ones_like(state.way > 0))
        left = (state.way < 0)[:, None, None]
        return [cannon, state.aliens, state.aliens & left, state.aliens & ~left, state.shots, state.bombs]


def _any(board: Tensor) -> Tensor:
    return board.flatten(1).any(1)


def _wave(like: Tensor) -> Tensor:
    """The cells of a whole wave, (10, 10)."""
    cell = torch.arange(SIZE, device=like.device)
    return (cell < 4)[:, None] & (cell >= 2) & (cell < 8)


def _nearest(aliens: Tensor, cannon: Tensor) -> tuple[Tensor, Tensor]:
    """Column and row of the lowest alien in the column that is nearest to the cannon, of two the left one."""
    cell = torch.arange(SIZE, device=cannon.device)
    away = 2 * (cell - cannon[:, None]).abs() + (cell > cannon[:, None]).long()
    column = torch.where(aliens.any(1), away, 2 * SIZE).argmin(1)
    rows = torch.where(aliens, cell[:, None], -1).amax(1)
    return column, rows.gather(1, column[:, None])[:, 0].clamp(min=0)
