"""What the claims on weaving strategies with control share: Catch with more to see than its board, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.bench.claims import Report
from weft.bench.pictures import BLUE, ORANGE
from weft.core import Field
from weft.data import Catch


class Cues(Catch):
    """Catch, seen as a row of numbers: the board's squares in some order, and cues of where the ball will fall.

    A cue is -size, 0 or size: to the left, below or to the right of the ball's column is where the paddle stands.

    Args:
        side: rows and columns of the board.
        order: of the squares; default: as they are.
        shown: for each cue whether it is shown, else it is 0.
        size: of the cues.
    """

    def __init__(
        self, side: int, *, order: Sequence[int] | None = None, shown: Sequence[bool] = (), size: float = 1.0
    ) -> None:
        super().__init__(side, side)
        self.order = torch.arange(side * side) if order is None else torch.tensor(order)
        self.shown, self.size = torch.tensor(shown, dtype=torch.float32), size
        self.observation = Field((side * side + len(self.shown),), torch.float32)

    def _see(self, position: Tensor) -> Tensor:
        board = super()._see(position).flatten(1)[:, self.order]
        towards = (position[:, 1] - position[:, 2]).sign().float().unsqueeze(-1)
        return torch.cat([board, self.size * towards * self.shown], -1)


class Attacked:
    """A world in which a policy does not see what is there, but what within eps of it speaks most against its choice.

    Args:
        world: what is there.
        policy: logits of rows.
        eps: by how much each number may be off.
    """

    def __init__(self, world: Cues, policy: Any, eps: float) -> None:
        self.world, self.policy, self.eps = world, policy, eps
        self.observation, self.action, self.horizon = world.observation, world.action, world.horizon

    def reset(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        position, seen = self.world.reset(keys)
        return position, self._moved(seen)

    def step(self, position: Tensor, action: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        after, seen, reward, ended = self.world.step(position, action, keys)
        return after, self._moved(seen), reward, ended

    def _moved(self, seen: Tensor) -> Tensor:
        """One step of gradient sign down the log-probability of the best action."""
        with torch.enable_grad():
            seen = seen.detach().requires_grad_()
            law = self.policy(seen).log_softmax(-1)
            (slope,) = torch.autograd.grad(law.amax(-1).sum(), seen)
        return (seen - self.eps * slope.sign()).detach()


def pairs(
    report: Report, name: str, scores: dict[str, dict[str, Any]], seeds: list[int], alt: str, caption: str
) -> None:
    """A table of returns by seed, and a panel for each kind of world: without and with, a line for each seed."""
    kinds = list(next(iter(scores.values())))
    rows = [(seed, *(own[kind][i] for kind in kinds for own in scores.values())) for i, seed in enumerate(seeds)]
    columns = [f"{kind}, {how}" for kind in kinds for how in scores]
    report.table("Mean returns by seed", ["seed", *columns], rows, digits=2)
    size = (4.2 * len(kinds), 3.6)
    with report.picture(name, alt=alt, caption=caption, panels=len(kinds), size=size) as axes:
        for ax, kind in zip(axes, kinds, strict=True):
            for i in range(len(seeds)):
                ax.plot(list(scores), [own[kind][i] for own in scores.values()], "o-", color=BLUE, alpha=0.5)
            ax.plot(list(scores), [own[kind].mean() for own in scores.values()], "s-", color=ORANGE, linewidth=2.5)
            ax.set(title=kind, ylim=(-1.1, 1.1), xlim=(-0.3, 1.3))
        axes[0].set_ylabel("mean return")
