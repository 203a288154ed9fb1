"""Seaquest: a submarine that shoots, saves divers and must come up for air."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from weft.core.legal import Flag
from weft.data.minatar.game import DOWN, FIRE, LEFT, NOTHING, RIGHT, SIZE, UP, Game, marked, one_of, steered

__all__ = ["Seaquest", "SeaquestState"]

AIR, CREW = 200, 6
RELOAD, THEIR_RELOAD = 5, 10
DIVER_EVERY, DIVER_MOVES = 30, 5
FISH, SUB = 1, 2
SHOTS, DIVERS, ENEMIES = 2, 2, 30  # as many as there can be at once


class SeaquestState(NamedTuple):
    """Where an episode of Seaquest stands. What swims is kept newest first, with zeros for what is no more.

    Attributes:
        x, y: the front of the submarine, (n,).
        right: whether it looks to the right.
        reload: steps until it can fire.
        air: oxygen left.
        crew: divers on board; below zero after six were brought up.
        surfaced: whether it has been at the surface since the last step.
        spawn_every, spawn_in, divers_in: steps between two new enemies, to the next, and to the next diver.
        move_every: steps that an enemy rests between two moves.
        ramps: how often the difficulty has risen.
        shots: the submarine's, (n, 2, 4): there, x, y, way (-1 or 1).
        divers: (n, 2, 5): there, x, y, way, steps until it moves.
        enemies: (n, 30, 6): 1 a fish or 2 a submarine, x, y, way, steps until it moves, and until it fires.
        left_bombs, right_bombs: the enemies' shots by their way, (n, 10, 10), booleans.
    """

    x: Tensor
    y: Tensor
    right: Tensor
    reload: Tensor
    air: Tensor
    crew: Tensor
    surfaced: Tensor
    spawn_every: Tensor
    spawn_in: Tensor
    divers_in: Tensor
    move_every: Tensor
    ramps: Tensor
    shots: Tensor
    divers: Tensor
    enemies: Tensor
    left_bombs: Tensor
    right_bombs: Tensor


class Seaquest(Game[SeaquestState]):
    """Shoot fish and submarines, worth 1 each, pick up divers, and come up with them before the air is used up.

    The submarine moves in all four directions, looks to where it last moved sideways and fires every fifth step at
    most. Enemies come from both sides, a submarine in one of three cases and else a fish, every 20 steps at first; none
    comes into a row in which one swims the other way. They rest 5 steps between two moves at first; submarines fire to
    where they swim every eleventh step. Every 30 steps there comes a diver.

    Air lasts for 200 steps. At the surface it is full again, for the price of a diver; with six on board all are
    brought up, each tenth of the air that was left is worth 1, and with none the episode ends. It also ends where there
    is no air, or where an enemy or its shot touches the submarine's front. Each time one comes up enemies come a step
    sooner, and every second time they also move sooner, down to every third step.

    A world of tensors with MinAtar's rules, step for step (version 1.0.15), the odd ones included: bringing up six
    divers costs one more, so that -1 are on board; with fewer than none one may come up, and owes one diver more.
    Seen are the submarine's front and back, its shots, the cells behind all that swims, the enemies' shots, fish,
    submarines, and in the lowest row air and crew; and divers. There is no limit of steps: give a source a `horizon`. A
    new episode begins with "nothing" as last action, where MinAtar keeps that of the episode before.

    Args:
        sticky: probability of the last action in place of the chosen one.
        ramping: whether the difficulty rises.
        minimal: offer only the actions that do something, which here are all six.

    References:
        Young and Tian, "MinAtar: An Atari-inspired testbed for thorough and reproducible reinforcement learning
        experiments", arXiv 1903.03176; sticky actions: Machado et al., arXiv 1709.06009.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> world = Seaquest()
        >>> keys = fold(key_of(0), torch.arange(2))
        >>> position, observation = world.reset(keys)
        >>> for t in range(40):
        ...     position, observation, reward, ended = world.step(position, torch.tensor([4, 5]), fold(keys, t))
        >>> observation[:, 7, 9]  # the second has stayed at the surface
        tensor([[1., 1., 1., 1., 1., 1., 1., 1., 0., 0.],
                [1., 1., 1., 1., 1., 1., 1., 1., 1., 1.]])
    """

    channels = {
        "front": (70, 160, 250),
        "back": (40, 100, 180),
        "shot": (255, 255, 255),
        "trail": (90, 90, 90),
        "bomb": (250, 140, 60),
        "fish": (220, 60, 60),
        "sub": (180, 60, 160),
        "air": (120, 200, 230),
        "crew": (250, 210, 60),
        "diver": (250, 210, 60),
    }
    useful = (NOTHING, LEFT, UP, RIGHT, DOWN, FIRE)
    draws = 5

    def __init__(self, *, sticky: float = 0.1, ramping: bool = True, minimal: bool = False) -> None:
        super().__init__(sticky=sticky, minimal=minimal)
        Flag().check(ramping, "ramping")
        self.ramping = bool(ramping)

    def begin(self, drawn: Tensor) -> SeaquestState:
        """At the surface of an empty sea, looking to the left."""
        n, device = len(drawn), drawn.device
        none = torch.zeros(n, dtype=torch.int64, device=device)
        no, empty = none > 0, torch.zeros((n, SIZE, SIZE), dtype=torch.bool, device=device)
        shots, divers, enemies = (none.new_zeros((n, *size)) for size in ((SHOTS, 4), (DIVERS, 5), (ENEMIES, 6)))
        timers = (none + 20, none + 20, none + DIVER_EVERY, none + 5, none)
        return SeaquestState(
            none + 5, none, no, none, none + AIR, none, ~no, *timers, shots, divers, enemies, empty, empty
        )

    def play(self, state: SeaquestState, action: Tensor, drawn: Tensor) -> tuple[SeaquestState, Tensor, Tensor]:
        """Others come, the submarine acts, then its shots, divers, enemies and their shots move, and air is used."""
        state = self._steered(self._joined(state, drawn), action)
        state, shot = self._shoot(state)
        state = self._pick_up(state)
        state, shot_then, rammed, fired = self._swim(state)
        state, struck = self._bombed(state, fired)
        ended = rammed | struck | (state.air <= 0)
        state, saved, choked = self._breathe(state)
        return state, shot + shot_then + saved, ended | choked

    @staticmethod
    def _joined(state: SeaquestState, drawn: Tensor) -> SeaquestState:
        """With a new enemy and a new diver where it is time."""
        chance, sort, depth, their_chance, their_depth = drawn.unbind(1)
        ways = 1 - 2 * (torch.stack([chance, their_chance], 1) >= 1 / 2).long()  # to the right, or to the left
        x, y = torch.where(ways > 0, 0, SIZE - 1), 1 + one_of(torch.stack([depth, their_depth], 1), SIZE - 2)
        kind = torch.where(sort < 1 / 3, SUB, FISH)
        there, _, rows, others = state.enemies.unbind(-1)[:4]
        barred = ((there > 0) & (rows == y[:, :1]) & (others != ways[:, :1])).any(1)
        enemy = [kind, x[:, 0], y[:, 0], ways[:, 0], state.move_every, torch.full_like(kind, THEIR_RELOAD)]
        diver = [torch.ones_like(kind), x[:, 1], y[:, 1], ways[:, 1], torch.full_like(kind, DIVER_MOVES)]
        come, dive = state.spawn_in == 0, state.divers_in == 0
        return state._replace(
            enemies=_pushed(state.enemies, enemy, come & ~barred),
            divers=_pushed(state.divers, diver, dive),
            spawn_in=torch.where(come, state.spawn_every, state.spawn_in) - 1,
            divers_in=torch.where(dive, DIVER_EVERY, state.divers_in) - 1,
        )

    @staticmethod
    def _steered(state: SeaquestState, action: Tensor) -> SeaquestState:
        fires = (action == FIRE) & (state.reload == 0)
        shot = [torch.ones_like(state.x), state.x, state.y, _way(state.right)]
        return state._replace(
            x=steered(action, state.x, LEFT, RIGHT),
            y=steered(action, state.y, UP, DOWN, 0, SIZE - 2),
            right=(state.right | (action == RIGHT)) & (action != LEFT),
            shots=_pushed(state.shots, shot, fires),
            reload=(torch.where(fires, RELOAD, state.reload) - 1).clamp(min=0),
        )

    @staticmethod
    def _shoot(state: SeaquestState) -> tuple[SeaquestState, Tensor]:
        """The submarine's shots fly; each takes one enemy of those in its cell: a fish first, then the oldest."""
        there, x, y, way = state.shots.unbind(-1)
        x = x + way
        there = there * _inside(x).long()
        kind, column, row = state.enemies.unbind(-1)[:3]
        rank = torch.arange(1, ENEMIES + 1, device=x.device) + ENEMIES * (kind == FISH).long()
        meets = _meets(kind, column, row, there, x, y)
        rank = rank[..., None] * meets.long()
        best = rank.amax(1)
        gone = (meets & (rank == best[:, None])).any(-1)
        shots = _only(torch.stack([there, x, y, way], -1), (there > 0) & (best == 0))
        return state._replace(shots=shots, enemies=_only(state.enemies, ~gone)), (best > 0).sum(1)

    @staticmethod
    def _pick_up(state: SeaquestState) -> SeaquestState:
        """Divers swim; those that the submarine meets come on board, the newest first, as long as there is room."""
        there, x, y, way, wait = state.divers.unbind(-1)
        moves = wait == 0
        after = x + torch.where(moves, way, 0)
        met = (there > 0) & (y == state.y[:, None]) & ((x == state.x[:, None]) | (after == state.x[:, None]))
        taken = met & (state.crew[:, None] + met.cumsum(1) <= CREW)
        divers = torch.stack([there, after, y, way, torch.where(moves, DIVER_MOVES, wait - 1)], -1)
        stays = (there > 0) & _inside(after) & ~taken
        return state._replace(divers=_only(divers, stays), crew=state.crew + taken.sum(1))

    @staticmethod
    def _swim(state: SeaquestState) -> tuple[SeaquestState, Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Enemies swim, into the submarine or its shots, and submarines fire: what was shot, who was rammed, bombs."""
        kind, x, y, way, wait, reload = state.enemies.unbind(-1)
        there, moves = kind > 0, (kind > 0) & (wait == 0)
        after = x + torch.where(moves, way, 0)
        rams = there & (y == state.y[:, None]) & ((x == state.x[:, None]) | (after == state.x[:, None]))
        shots, columns, rows = state.shots.unbind(-1)[:3]
        meets = _meets(kind * moves.long(), after, y, shots, columns, rows)  # no two enemies come into one cell at once
        shot = meets.any(-1)
        fires = (kind == SUB) & (reload == 0)
        seen = fires & _inside(after)
        bombs = (marked(after, y, seen & (way < 0)), marked(after, y, seen & (way > 0)))
        wait = torch.where(moves, state.move_every[:, None], wait - 1)
        reload = torch.where(fires, THEIR_RELOAD, reload - 1)
        enemies = _only(torch.stack([kind, after, y, way, wait, reload], -1), there & _inside(after) & ~shot)
        state = state._replace(enemies=enemies, shots=_only(state.shots, ~meets.any(1)))
        return state, shot.sum(1), rams.any(1), bombs

    @staticmethod
    def _bombed(state: SeaquestState, fired: tuple[Tensor, Tensor]) -> tuple[SeaquestState, Tensor]:
        """The enemies' shots fly."""
        left, right = state.left_bombs | fired[0], state.right_bombs | fired[1]
        here = marked(state.x, state.y, torch.ones_like(state.right))
        left_then, right_then = pad(left[:, :, 1:], (0, 1)), pad(right[:, :, :-1], (1, 0))
        struck = ((left | right | left_then | right_then) & here).flatten(1).any(1)
        return state._replace(left_bombs=left_then, right_bombs=right_then), struck

    def _breathe(self, state: SeaquestState) -> tuple[SeaquestState, Tensor, Tensor]:
        """Under water air is used up, at the surface it is bought by a diver: reward and who has none to give."""
        under = state.y > 0
        comes = ~under & ~state.surfaced
        up, full = comes & (state.crew != 0), state.crew == CREW
        reward = torch.where(up & full, state.air * 10 // AIR, 0)
        rises = up & ((state.spawn_every > 1) | (state.move_every > 2)) & self.ramping
        after = state._replace(
            air=torch.where(up, AIR, state.air - under.long()),
            crew=torch.where(up, torch.where(full, 0, state.crew) - 1, state.crew),
            surfaced=(state.surfaced | up) & ~under,
            move_every=state.move_every - (rises & (state.move_every > 2) & (state.ramps % 2 == 1)).long(),
            spawn_every=state.spawn_every - (rises & (state.spawn_every > 1)).long(),
            ramps=state.ramps + rises.long(),
        )
        return after, reward, comes & ~up

    def look(self, state: SeaquestState) -> list[Tensor]:
        """Front, back, shots, trails, the enemies' shots, fish, submarines, air, crew, divers."""
        always, cell = torch.ones_like(state.right), torch.arange(SIZE, device=state.x.device)
        there, x, y = state.shots.unbind(-1)[:3]
        kind, column, row, way = state.enemies.unbind(-1)[:4]
        diver, across, deep, course = state.divers.unbind(-1)[:4]
        behind, swims = torch.cat([column - way, across - course], 1), torch.cat([kind, diver], 1) > 0
        lowest = (cell == SIZE - 1)[:, None]
        air = cell < (state.air.clamp(min=0) * 10 // AIR)[:, None]
        crew = (cell < SIZE - 1) & (cell >= SIZE - 1 - state.crew[:, None])
        return [
            marked(state.x, state.y, always),
            marked(state.x - _way(state.right), state.y, always),
            marked(x, y, there > 0),
            marked(behind, torch.cat([row, deep], 1), swims & _inside(behind)),
            state.left_bombs | state.right_bombs,
            marked(column, row, kind == FISH),
            marked(column, row, kind == SUB),
            air[:, None] & lowest,
            crew[:, None] & lowest,
            marked(across, deep, diver > 0),
        ]


def _way(right: Tensor) -> Tensor:
    return 2 * right.long() - 1


def _inside(x: Tensor) -> Tensor:
    return (x >= 0) & (x < SIZE)


def _pushed(kept: Tensor, new: list[Tensor], when: Tensor) -> Tensor:
    """With a new one at the front, where there is one; what is at the end, long gone by then, drops out."""
    moved = torch.cat([torch.stack(new, -1)[:, None], kept[:, :-1]], 1)
    return torch.where(when[:, None, None], moved, kept)


def _only(kept: Tensor, stays: Tensor) -> Tensor:
    """With zeros for those that do not stay."""
    return torch.where(stays[..., None], kept, 0)


def _meets(kind: Tensor, column: Tensor, row: Tensor, there: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Which enemies (n, k) are where which shots (n, m) are, (n, k, m)."""
    same = (column[..., None] == x[:, None]) & (row[..., None] == y[:, None])
    return same & (kind > 0)[..., None] & (there > 0)[:, None]
