"""Stage: where episodes are played, many at once, in step. A world of tensors is one kind, gymnasium's another."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from weft.core.random import fold, key_of
from weft.core.source import Field
from weft.core.world import World

__all__ = ["Kept", "Moved", "Stage", "Tensors", "where_rows"]

Kept = dict[str, Any]
"""What is kept of the episodes between two steps: a tree (dictionaries) of tensors, a row for each episode."""


class Moved(NamedTuple):
    """What a step has led to, a row for each episode; of one that has ended, before it begins anew.

    Attributes:
        kept: of the episodes.
        observation: after the step.
        reward: floating-point.
        terminated: whether the episode has ended by itself.
        truncated: whether the world has cut it. Whoever plays cuts at the horizon, too.
    """

    kept: Kept
    observation: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor


class Stage(Protocol):
    """Episodes side by side, in step, that can begin anew one by one.

    Attributes:
        observation, action: shape and dtype of one of them, as in `World`.
        horizon: steps after which an episode is cut, or None.
        resumes: `exact` where `kept` is all that there is, else `restart`.
    """

    observation: Field
    action: Field
    horizon: int | None
    resumes: str

    def begin(self, keys: Tensor) -> tuple[Kept, Tensor]:
        """(kept, observation) at the start of one episode for each key."""

    def step(self, kept: Kept, action: Tensor, keys: Tensor) -> Moved:
        """What an action in each episode leads to."""

    def restart(self, kept: Kept, over: Tensor, keys: Tensor) -> tuple[Kept, Tensor]:
        """(kept, observation of all) once those that are over have begun anew; what is said of others is not read."""

    def legal(self, kept: Kept) -> Tensor | None:
        """Which actions are legal, `(n, actions)`; None where the world does not say."""

    def render(self, kept: Kept) -> Tensor | None:
        """Pictures, `(n, H, W, 3)` in torch.uint8; None where the world draws none."""


def where_rows(rows: Tensor, now: Tensor, before: Tensor) -> Tensor:
    """Some rows of one tensor, the others of another."""
    return torch.where(rows.reshape(-1, *(1,) * (now.dim() - 1)), now, before)


class Tensors:
    """A world of tensors as a stage: its position's leaves are what is kept."""

    resumes = "exact"

    def __init__(self, world: World[Any]) -> None:
        self.world = world
        self.observation, self.action, self.horizon = world.observation, world.action, world.horizon
        self._spec: pytree.TreeSpec | None = None

    def _flat(self, position: object) -> Kept:
        leaves, self._spec = pytree.tree_flatten(position)
        return {str(i): leaf for i, leaf in enumerate(leaves)}

    def _position(self, kept: Kept) -> Any:
        if self._spec is None:  # a resumed run has not begun an episode in this process
            self._flat(self.world.reset(fold(key_of(0), torch.zeros(1, dtype=torch.int64)))[0])
        return pytree.tree_unflatten([kept[str(i)] for i in range(len(kept))], self._spec)  # type: ignore[arg-type]

    def begin(self, keys: Tensor) -> tuple[Kept, Tensor]:
        position, observation = self.world.reset(keys)
        return self._flat(position), observation

    def step(self, kept: Kept, action: Tensor, keys: Tensor) -> Moved:
        position, observation, reward, terminated = self.world.step(self._position(kept), action, keys)
        return Moved(self._flat(position), observation, reward, terminated, torch.zeros_like(terminated))

    def restart(self, kept: Kept, over: Tensor, keys: Tensor) -> tuple[Kept, Tensor]:
        if over.is_cuda:  # which rows are over is not asked of the device
            fresh, observation = self.begin(keys)
            return {name: where_rows(over, fresh[name], leaf) for name, leaf in kept.items()}, observation
        which = over.nonzero().squeeze(-1)
        fresh, some = self.begin(keys[which])
        anew = {name: leaf.index_copy(0, which, fresh[name]) for name, leaf in kept.items()}
        observation = some.new_zeros((len(over), *some.shape[1:]))
        return anew, observation.index_copy(0, which, some)

    def legal(self, kept: Kept) -> Tensor | None:
        return self.world.legal(self._position(kept)) if hasattr(self.world, "legal") else None

    def render(self, kept: Kept) -> Tensor | None:
        return self.world.render(self._position(kept)) if hasattr(self.world, "render") else None
