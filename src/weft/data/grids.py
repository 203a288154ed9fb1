"""Gridworlds: a map given as text, on which one moves from square to square."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from weft.core.legal import Number
from weft.data.drawing import BLUE, DARK, GREEN, GREY, RED, WHITE, Canvas, Colour
from weft.data.finite import FiniteMDP, reached

__all__ = ["AROUND", "GridWorld", "check_way", "marked", "neighbours", "pictured", "rows_of", "slipping"]

AROUND = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left, as (down, right)


def rows_of(plan: str | Sequence[str], letters: str) -> list[str]:
    """The rows of a map, which is text of several lines or a list of its rows, and holds no other letters."""
    lines = plan.strip().splitlines() if isinstance(plan, str) else list(plan)
    if not all(isinstance(line, str) for line in lines):
        raise TypeError(f"expected a map as text or as a list of its rows as text, got rows such as {lines[0]!r}")
    rows = [line.strip() for line in lines]
    if not rows or len(set(map(len, rows))) != 1 or not rows[0]:
        raise ValueError(
            f"expected a map whose rows are equally long, got rows of lengths {[len(row) for row in rows]}"
        )
    odd = sorted({letter for row in rows for letter in row} - set(letters))
    if odd:
        raise ValueError(f"expected a map of the letters {' '.join(letters)}, got {' '.join(map(repr, odd))}")
    return rows


def marked(rows: Sequence[str], which: str) -> Tensor:
    """Where a map has one of these letters, as truths (rows, columns)."""
    return torch.tensor([[found in which for found in row] for row in rows])


def neighbours(free: Tensor, moves: Sequence[tuple[int, int]]) -> Tensor:
    """The square that each move leads to from each, (squares, moves), counted row by row.

    Args:
        free: (rows, columns), false where there is a wall; that, and the edge, leave one where one is.
        moves: by how many rows down and columns to the right.

    Example:
        >>> neighbours(torch.tensor([[True, True, False]]), [(0, 1), (0, -1)]).tolist()
        [[1, 0], [1, 0], [2, 1]]
    """
    rows, columns = free.shape
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    led = []
    for down, right in moves:
        to_row, to_column = (row + down).clamp(0, rows - 1), (column + right).clamp(0, columns - 1)
        open_ = free[to_row, to_column]
        led.append((torch.where(open_, to_row, row) * columns + torch.where(open_, to_column, column)).flatten())
    return torch.stack(led, 1)


def slipping(to: Tensor, slip: float) -> Tensor:
    """The probabilities of where one gets to, (S, A, S), in double precision.

    Args:
        to: where each action leads, (S, A), the actions in a circle, such as up, right, down, left.
        slip: with half this probability each, it is the action before or after in the circle that happens.
    """
    sure = one_hot(to, len(to)).double()
    return (1.0 - slip) * sure + slip / 2 * (sure.roll(1, 1) + sure.roll(-1, 1))


def pictured(squares: Tensor, colours: tuple[Colour, ...], row: Tensor, column: Tensor) -> Canvas:
    """A board for each episode (16 pixels a square), with a disc where one stands."""
    rows, columns = squares.shape
    canvas = Canvas(len(row), (0.0, columns, -rows, 0.0), width=16 * columns, device=row.device)
    canvas.squares(squares.to(row.device)[None], colours)
    canvas.disc((column + 0.5, -0.5 - row), 0.33, BLUE)
    return canvas


class GridWorld(FiniteMDP):
    """Find the goal on a map, by moving up (0), right (1), down (2) or left (3).

    The map has walls `#`, floor `.`, starts `S`, goals `G` and pits `P`, such as

        S.#G
        ..#.
        ....

    A move against a wall or over the edge leaves one where one is. With probability `slip` a move goes at a right angle
    to what was meant, to either side alike. An episode begins on any `S`, all alike, or, where there is none, on any
    `.`; it ends in goals and pits. A state is a square that is no wall, counted row by row, and seen as a one-hot row.
    All tables are there, for exact answers (see `FiniteMDP`); an ended episode stays where it is and earns nothing.

    Args:
        plan: the map, as text or as a list of its rows.
        goal: what reaching a goal is worth.
        pit: what falling into a pit is worth.
        step: what each step is worth beside that.
        slip: the probability of a move at a right angle.
        horizon: steps after which an episode is cut, or None.

    Attributes:
        squares: row and column of each state, (S, 2).

    References:
        Russell and Norvig, "Artificial intelligence: a modern approach", chapter 17, whose 4x3 world is the example.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> world = GridWorld(["...G", ".#.P", "S..."], step=-0.04, slip=0.2)
        >>> state, observation = world.reset(fold(key_of(0), torch.arange(5)))
        >>> world.squares[state[0]], observation.shape
        (tensor([2, 0]), torch.Size([5, 11]))
        >>> up = torch.zeros(5, dtype=torch.int64)
        >>> _, _, reward, ended = world.step(state, up, fold(key_of(1), torch.arange(5)))
        >>> reward[0], ended.any()
        (tensor(-0.0400), tensor(False))
    """

    def __init__(
        self,
        plan: str | Sequence[str],
        *,
        goal: float = 1.0,
        pit: float = -1.0,
        step: float = 0.0,
        slip: float = 0.0,
        horizon: int | None = 100,
    ) -> None:
        for name, value in (("goal", goal), ("pit", pit), ("step", step)):
            Number().check(value, f"GridWorld's {name}")
        Number(0, 1).check(slip, "GridWorld's slip")
        rows = rows_of(plan, "#.SGP")
        free = ~marked(rows, "#")
        of = free.flatten().nonzero().squeeze(-1)
        number = free.flatten().cumsum(0) - 1
        to = number[neighbours(free, AROUND)[of]]
        starts, goals, pits = (marked(rows, which).flatten()[of] for which in "SGP")
        starts = starts if bool(starts.any()) else ~(goals | pits)
        ends = goals | pits
        check_way(to, starts, goals, pits)
        to = torch.where(ends[:, None], torch.arange(len(of))[:, None], to)
        paid = step + goal * goals.double() + pit * pits.double()
        reward = paid.expand(len(of), 4, len(of)) * (~ends)[:, None, None]
        start = starts.double() / starts.sum()
        super().__init__(slipping(to, slip), reward, start=start, ends=ends, horizon=horizon)
        self.rows, self.squares = rows, torch.stack([of // len(rows[0]), of % len(rows[0])], -1)

    def render(self, state: Tensor) -> Tensor:
        """The map and where one stands: walls dark, starts grey, goals green, pits red."""
        kinds = torch.tensor([[".#SGP".index(found) for found in row] for row in self.rows])
        row, column = self._there("squares", state.device)[state].unbind(-1)
        return pictured(kinds, (WHITE, DARK, GREY, GREEN, RED), row, column).pictures()


def check_way(to: Tensor, starts: Tensor, goals: Tensor, pits: Tensor) -> None:
    """Raises where there is nowhere to begin, or no way to a goal from where one begins."""
    if not bool(starts.any()):
        raise ValueError("expected a map with a square to begin on, got none; write one as S")
    way = one_hot(to, len(to)).amax(1).bool() & ~(goals | pits)[:, None]
    lost = starts & ~reached(way.T, goals)
    if bool(lost.any()):
        raise ValueError(
            f"expected a map with a way to a goal G from wherever one begins, got none from {int(lost.sum())} of "
            f"{int(starts.sum())} squares"
        )
