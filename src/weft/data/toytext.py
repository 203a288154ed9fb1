"""The text worlds of gymnasium, FrozenLake, Taxi and CliffWalking, as finite decision processes that end."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from weft.core.legal import Number
from weft.data.drawing import BLUE, BROWN, DARK, GREEN, GREY, ICE, RED, WHITE, YELLOW, Canvas
from weft.data.finite import FiniteMDP
from weft.data.grids import AROUND, check_way, marked, neighbours, pictured, rows_of, slipping

__all__ = ["CliffWalking", "FrozenLake", "Taxi"]

LAKES = {
    "4x4": "SFFF FHFH FFFH HFFG",
    "8x8": "SFFFFFFF FFFFFFFF FFFHFFFF FFFFFHFF FFFHFFFF FHHFFFHF FHFFHFHF FFFHFFFG",
}


class FrozenLake(FiniteMDP):
    """Cross a frozen lake to the goal, worth 1, by moving left (0), down (1), right (2) or up (3).

    The map has starts `S`, ice `F`, holes `H` and goals `G`; holes and goals end an episode. On the slippery ice a move
    goes as meant with probability 1 - slip, and at a right angle to that with slip / 2 to each side. A state is a
    square, counted row by row; it is seen as a one-hot row. Its tables are those of gymnasium's FrozenLake-v1, whose
    `is_slippery=False` is slip 0 and whose `success_rate` is 1 - slip; an episode lasts at most 100 steps, and 200 on
    the map "8x8", as with its FrozenLake8x8-v1.

    Args:
        plan: "4x4", "8x8", or a map of one's own, as text or as a list of its rows.
        slip: the probability of a move at a right angle.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> lake = FrozenLake(slip=0.0)
        >>> state, observation = lake.reset(fold(key_of(0), torch.arange(3)))
        >>> state, _, reward, ended = lake.step(state, torch.tensor([0, 1, 2]), fold(key_of(1), torch.arange(3)))
        >>> state, reward, ended.any()
        (tensor([0, 4, 1]), tensor([0., 0., 0.]), tensor(False))
    """

    def __init__(self, plan: str | Sequence[str] = "4x4", *, slip: float = 2 / 3) -> None:
        Number(0, 1).check(slip, "FrozenLake's slip")
        known = isinstance(plan, str) and plan in LAKES
        self.rows = rows = LAKES[str(plan)].split() if known else rows_of(plan, "SFHG")
        starts, goals, holes = (marked(rows, which).flatten() for which in "SGH")
        to = neighbours(torch.ones(len(rows), len(rows[0]), dtype=torch.bool), ((0, -1), (1, 0), (0, 1), (-1, 0)))
        check_way(to, starts, goals, holes)
        ends = goals | holes
        to = torch.where(ends[:, None], torch.arange(len(to))[:, None], to)
        reward = goals.double().expand(len(to), 4, len(to)) * (~ends)[:, None, None]
        start = starts.double() / starts.sum()
        horizon = 200 if plan == "8x8" else 100
        super().__init__(slipping(to, slip), reward, start=start, ends=ends, horizon=horizon)

    def render(self, state: Tensor) -> Tensor:
        """The lake and where one stands: starts grey, holes blue, goals green."""
        kinds = torch.tensor([["FSHG".index(found) for found in row] for row in self.rows])
        columns = len(self.rows[0])
        hole = (0.45, 0.62, 0.75)
        return pictured(kinds, (ICE, GREY, hole, GREEN), state // columns, state % columns).pictures()


class CliffWalking(FiniteMDP):
    """Walk along a cliff from one end to the other, by moving up (0), right (1), down (2) or left (3).

    There are 4 rows of 12 squares; one starts at the lower left and ends at the lower right. Each step is worth -1; one
    onto the squares between, the cliff, is worth -100 and leads back to the start. A state is a square, counted row by
    row; it is seen as a one-hot row. Its tables are those of gymnasium's CliffWalking-v1. As there, nothing cuts an
    episode, unless a horizon is given, here or to the source that plays.

    Args:
        horizon: steps after which an episode is cut, or None.

    References:
        Sutton and Barto, "Reinforcement learning: an introduction", 2018, example 6.6.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> cliff = CliffWalking()
        >>> keys = fold(key_of(0), torch.arange(2))
        >>> state, _ = cliff.reset(keys)
        >>> state, _, reward, ended = cliff.step(state, torch.tensor([0, 1]), keys)
        >>> state, reward
        (tensor([24, 36]), tensor([  -1., -100.]))
    """

    def __init__(self, *, horizon: int | None = None) -> None:
        square = torch.arange(48)
        cliff, first, last = (square > 36) & (square < 47), square == 36, square == 47
        to = neighbours(torch.ones(4, 12, dtype=torch.bool), AROUND)
        fallen = cliff[to]
        transition = one_hot(to.masked_fill(fallen, 36), 48).double()
        reward = torch.full(to.shape, -1.0).masked_fill(fallen, -100.0)
        super().__init__(transition, reward, start=first.double(), ends=last, horizon=horizon)

    def render(self, state: Tensor) -> Tensor:
        """The cliff (brown), the start (grey), the goal (green) and where one stands."""
        kinds = torch.zeros(4, 12, dtype=torch.int64)
        kinds[3] = torch.tensor([1, *[2] * 10, 3])
        return pictured(kinds, (WHITE, GREY, BROWN, GREEN), state // 12, state % 12).pictures()


EAST = ("1011", "1011", "1111", "0101", "0101")  # whether one gets from a square to the next one on its right
STOPS = ((0, 0), (0, 4), (4, 0), (4, 3))  # red, green, yellow, blue


class Taxi(FiniteMDP):
    """Fetch a passenger and bring them to where they want to be.

    One goes south (0), north (1), east (2) or west (3), picks the passenger up (4) and lets them out (5). There are 5
    by 5 squares with some walls between them, and four stops. A step is worth -1, letting the passenger out where they
    want to be is worth 20 and ends the episode, trying to pick up or let out where that cannot be is worth -10. An
    episode begins on any square, with the passenger at one stop on the way to another; it lasts at most 200 steps. A
    state is ((row 5 + column) 5 + passenger) 4 + destination, the passenger at stop 0 to 3 or inside (4); it is seen as
    a one-hot row. Its tables are those of gymnasium's Taxi-v4 (neither rainy nor fickle), and `legal` is its mask of
    the actions that change something.

    References:
        Dietterich, "Hierarchical reinforcement learning with the MAXQ value function decomposition", Journal of
        Artificial Intelligence Research 13, 2000.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> taxi = Taxi()
        >>> state, observation = taxi.reset(fold(key_of(0), torch.arange(3)))
        >>> observation.shape, taxi.legal(torch.tensor([0]))  # at stop 0 with the passenger there
        (torch.Size([3, 500]), tensor([[ True, False,  True, False,  True, False]]))
    """

    def __init__(self) -> None:
        state = torch.arange(500)
        row, column, who, to = _parted(state)
        stop = torch.full((5, 5), -1)
        for number, (down, right) in enumerate(STOPS):
            stop[down, right] = number
        here = stop[row, column]
        east = torch.tensor([[0, *map(int, ways), 0] for ways in EAST])
        rows = (row + 1).clamp_max(4), (row - 1).clamp_min(0), row, row
        columns = column, column, column + east[row, column + 1], column - east[row, column]
        after = [((r * 5 + c) * 5 + who) * 4 + to for r, c in zip(rows, columns, strict=True)]
        inside = who == 4
        taken, out = here == who, inside & (here >= 0)
        after += [torch.where(taken, state + 4 * (4 - who), state), torch.where(out, state + 4 * (here - 4), state)]
        led, arrived = torch.stack(after, 1), out & (here == to)
        reward = torch.full(led.shape, -1.0)
        reward[~taken, 4], reward[~out, 5], reward[arrived, 5] = -10.0, -10.0, 20.0
        ends = torch.zeros(500, 6, 500, dtype=torch.bool)
        ends[state[arrived], 5, led[arrived, 5]] = True
        start = (~inside & (who != to)).double()
        super().__init__(one_hot(led, 500).float(), reward, start=start / start.sum(), ends=ends, horizon=200)
        self.mask = led != state[:, None]

    def legal(self, state: Tensor) -> Tensor:
        """Which actions change something, `(n, 6)`."""
        return self._there("mask", state.device)[state]

    def render(self, state: Tensor) -> Tensor:
        """The walls, the stops in their colours, the destination marked dark, the taxi and the passenger (in it)."""
        row, column, who, to = _parted(state)
        kinds = torch.zeros(5, 5, dtype=torch.int64, device=state.device)
        for number, (down, right) in enumerate(STOPS):
            kinds[down, right] = number + 1
        canvas = Canvas(len(state), (0.0, 5.0, -5.0, 0.0), width=160, device=state.device)
        canvas.squares(kinds[None], (WHITE, RED, GREEN, YELLOW, BLUE))
        for down, ways in enumerate(EAST):
            for right, way in enumerate(ways):
                if way == "0":
                    canvas.line((right + 1.0, -down), (right + 1.0, -down - 1.0), 0.1, DARK)
        places = torch.tensor(STOPS, device=state.device)
        wanted, waits = places[to], places[who.clamp_max(3)]
        canvas.box((wanted[:, 1] + 0.5, -0.9 - wanted[:, 0]), (0.5, 0.1), DARK)
        canvas.box((column + 0.5, -0.5 - row), (0.36, 0.22), BROWN)
        at = torch.where((who == 4)[:, None], torch.stack([row, column], -1), waits)
        canvas.disc((at[:, 1] + 0.5, -0.5 - at[:, 0]), 0.15, DARK)
        return canvas.pictures()


def _parted(state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Row, column, passenger and destination."""
    return state // 100, state // 20 % 5, state // 4 % 5, state % 4
