"""What MinAtar's games share: a board of ten by ten cells, six actions that may stick, draws apart from the rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from weft.core.legal import Flag, Number
from weft.core.random import unit
from weft.core.source import Field

__all__ = ["DOWN", "FIRE", "LEFT", "NOTHING", "RIGHT", "SIZE", "UP", "Game", "marked", "one_of", "steered"]

SIZE = 10
NOTHING, LEFT, UP, RIGHT, DOWN, FIRE = range(6)
ZOOM = 8

State = TypeVar("State")


class Game(ABC, Generic[State]):
    """A game on a board of 10 x 10 cells, for many episodes at once, as pure functions of tensors.

    Seen are the cells in which each kind of thing stands, `(channels, 10, 10)`, 0 or 1 in float32. The actions are 0
    nothing, 1 left, 2 up, 3 right, 4 down, 5 fire; with the probability `sticky` the action that was last played is
    played once more instead. A position is (the action last played, the game's own state).

    What is random is apart from the rules: `move` is told the numbers that `step` draws from the keys, each uniform in
    [0, 1), the first for the stickiness, and `start` those that `reset` draws.

    Args:
        sticky: probability of the last action in place of the chosen one.
        minimal: offer only the actions that do something in this game, numbered from 0 in the order above.
    """

    observation: Field
    action: Field
    horizon: int | None = None

    channels: ClassVar[dict[str, tuple[int, int, int]]]
    """What is seen, in order, and its colour in pictures; what comes later is painted over what comes before."""
    useful: ClassVar[tuple[int, ...]]
    """The actions that do something."""
    starts: ClassVar[int] = 0
    """How many numbers a start asks for."""
    draws: ClassVar[int] = 0
    """How many numbers a step asks for, beside the one for the stickiness."""

    def __init__(self, *, sticky: float = 0.1, minimal: bool = False) -> None:
        Number(0.0, 1.0).check(sticky, "sticky")
        Flag().check(minimal, "minimal")
        self.sticky, self.minimal = float(sticky), bool(minimal)
        self._codes = self.useful if minimal else tuple(range(6))
        self._tables: dict[torch.device, Tensor] = {}
        self.observation = Field((len(self.channels), SIZE, SIZE), torch.float32)
        self.action = Field((), torch.int64, classes=len(self._codes))

    # --- the rules, which each game gives -----------------------------------------------------------------

    @abstractmethod
    def begin(self, drawn: Tensor) -> State:
        """The state at the start of an episode for each row of `starts` numbers."""

    @abstractmethod
    def play(self, state: State, action: Tensor, drawn: Tensor) -> tuple[State, Tensor, Tensor]:
        """(state, reward as a whole number, terminated) after an action, given `draws` numbers for each episode."""

    @abstractmethod
    def look(self, state: State) -> list[Tensor]:
        """The cells of each channel, (n, 10, 10) as booleans."""

    # --- the world ----------------------------------------------------------------------------------------

    def reset(self, keys: Tensor) -> tuple[tuple[Tensor, State], Tensor]:
        """(position, observation) at the start of one episode for each key."""
        return self.start(unit(keys, (max(1, self.starts),))[:, : self.starts])

    def step(
        self, position: tuple[Tensor, State], action: Tensor, keys: Tensor
    ) -> tuple[tuple[Tensor, State], Tensor, Tensor, Tensor]:
        """(position, observation, reward, terminated) after an action in each episode."""
        return self.move(position, action, unit(keys, (1 + self.draws,)))

    def start(self, drawn: Tensor) -> tuple[tuple[Tensor, State], Tensor]:
        """What `reset` gives, from its draws (n, starts)."""
        _expect_drawn(drawn, len(drawn), self.starts)
        state = self.begin(drawn)
        last = torch.full((len(drawn),), NOTHING, dtype=torch.int64, device=drawn.device)
        return (last, state), self._seen(state).float()

    def move(
        self, position: tuple[Tensor, State], action: Tensor, drawn: Tensor
    ) -> tuple[tuple[Tensor, State], Tensor, Tensor, Tensor]:
        """What `step` gives, from its draws (n, 1 + draws)."""
        last, state = position
        _expect_drawn(drawn, len(last), 1 + self.draws)
        done = torch.where(drawn[:, 0] < self.sticky, last, self._known(action, len(last)))
        after, reward, terminated = self.play(state, done, drawn[:, 1:])
        return (done, after), self._seen(after).float(), reward.float(), terminated

    def render(self, position: tuple[Tensor, State]) -> Tensor:
        """Pictures of the boards, (n, 80, 80, 3) in torch.uint8."""
        seen = self._seen(position[1])
        picture = torch.zeros((len(seen), SIZE, SIZE, 3), dtype=torch.uint8, device=seen.device)
        for cells, colour in zip(seen.unbind(1), self.channels.values(), strict=True):
            paint = torch.tensor(colour, dtype=torch.uint8, device=seen.device)
            picture = torch.where(cells[..., None], paint, picture)
        return picture.repeat_interleave(ZOOM, 1).repeat_interleave(ZOOM, 2)

    def _seen(self, state: State) -> Tensor:
        return torch.stack(self.look(state), 1)

    def _known(self, action: Tensor, n: int) -> Tensor:
        """The action in MinAtar's numbers."""
        if action.is_floating_point() or action.shape != (n,):
            raise ValueError(
                f"expected a whole number as action for each of {n} episodes, got shape {tuple(action.shape)} in "
                f"{action.dtype}"
            )
        count, device = len(self._codes), action.device
        if n and not action.is_cuda and not 0 <= int(action.min()) <= int(action.max()) < count:
            raise ValueError(f"expected actions from 0 to {count - 1}, got {action}")
        if count == 6:
            return action.long()
        if device not in self._tables:  # copied to a device once
            self._tables[device] = torch.tensor(self._codes, device=device)
        return self._tables[device].index_select(0, action)


def marked(x: Tensor, y: Tensor, there: Tensor) -> Tensor:
    """The cells (column x, row y) of those that are there, (n, k) each or (n,), as a board (n, 10, 10) of booleans."""
    cell = torch.where(there, y * SIZE + x, SIZE * SIZE).reshape(len(x), -1)  # the others on a cell that is cut off
    board = torch.zeros((len(x), SIZE * SIZE + 1), dtype=torch.bool, device=x.device)
    return board.scatter(1, cell, True)[:, :-1].unflatten(1, (SIZE, SIZE))


def one_of(drawn: Tensor, count: Tensor | int) -> Tensor:
    """A whole number below `count`, evenly, by a number in [0, 1)."""
    return (drawn * count).long()


def steered(action: Tensor, at: Tensor, back: int, forth: int, first: int = 0, last: int = SIZE - 1) -> Tensor:
    """A coordinate after an action, one less by `back` and one more by `forth`, within its bounds."""
    return (at + (action == forth).long() - (action == back).long()).clamp(first, last)


def _expect_drawn(drawn: Tensor, n: int, count: int) -> None:
    wanted: Sequence[int] = (n, count)
    if tuple(drawn.shape) != wanted:
        raise ValueError(f"expected numbers in [0, 1) as draws, of shape {wanted}, got {tuple(drawn.shape)}")
