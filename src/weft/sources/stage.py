"""Stage: where episodes are played, many at once, in step. A world of tensors is one kind, gymnasium's another."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from weft.core.legal import told
from weft.core.random import fold, key_of
from weft.core.source import Field
from weft.core.world import World

__all__ = ["Kept", "Moved", "Stage", "Tensors", "stage_of", "where_rows"]

MOST = 2**18  # so many numbers of episodes that may begin are drawn ahead at once, at most

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
        masked: whether it says which actions are legal.
    """

    observation: Field
    action: Field
    horizon: int | None
    resumes: str
    masked: bool

    @property
    def endless(self) -> bool:
        """Whether it says that an episode can get to where it never ends by itself, though rewards go on."""

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
        self.masked = hasattr(world, "legal")
        self._offered: Any = world
        self._spec: pytree.TreeSpec | None = None
        self._never = torch.zeros(0, dtype=torch.bool)

    @property
    def endless(self) -> bool:
        return bool(getattr(self._offered, "endless", False))

    def _flat(self, position: object) -> Kept:
        if isinstance(position, Tensor) and self._spec is not None:  # the usual case, at every step
            return {"0": position}
        leaves, self._spec = pytree.tree_flatten(position)
        return {str(i): leaf for i, leaf in enumerate(leaves)}

    def _position(self, kept: Kept) -> Any:
        if self._spec is None:  # a resumed run has not begun an episode in this process
            self._flat(self.world.reset(fold(key_of(0), torch.zeros(1, dtype=torch.int64)))[0])
        if self._spec is not None and self._spec.is_leaf():
            return kept["0"]
        return pytree.tree_unflatten([kept[str(i)] for i in range(len(kept))], self._spec)  # type: ignore[arg-type]

    def begin(self, keys: Tensor) -> tuple[Kept, Tensor]:
        position, observation = self.world.reset(keys)
        return self._flat(position), observation

    def step(self, kept: Kept, action: Tensor, keys: Tensor) -> Moved:
        position, observation, reward, terminated = self.world.step(self._position(kept), action, keys)
        if self._never.shape != terminated.shape or self._never.device != terminated.device:
            self._never = torch.zeros_like(terminated)  # a world says only where an episode ends by itself
        return Moved(self._flat(position), observation, reward, terminated, self._never)

    def restart(self, kept: Kept, over: Tensor, keys: Tensor) -> tuple[Kept, Tensor]:
        fresh, observation = self.begin(keys)
        return {name: where_rows(over, fresh[name], leaf) for name, leaf in kept.items()}, observation

    def legal(self, kept: Kept) -> Tensor | None:
        return self._offered.legal(self._position(kept)) if self.masked else None

    def render(self, kept: Kept) -> Tensor | None:
        return self._offered.render(self._position(kept)) if hasattr(self.world, "render") else None


class Beginnings:
    """New episodes for those that end in any of many turns.

    Where a stage keeps nothing elsewhere (`resumes` is `exact`), the beginnings of many turns are made in one call: the
    same ones, as each depends on its key alone.

    Args:
        stage: where it is played.
        keys: of the episodes, `(turns, n)`.
    """

    def __init__(self, stage: Stage, keys: Tensor) -> None:
        self.stage, self.keys = stage, keys
        self._first, self._size = 0, 0
        self._ahead: Sequence[tuple[Kept, Tensor]] = ()

    def put(self, turn: int, kept: Kept, over: Tensor) -> tuple[Kept, Tensor]:
        """As `Stage.restart`, at one of the turns."""
        if self.stage.resumes != "exact":
            return self.stage.restart(kept, over, self.keys[turn])
        if not self._ahead or turn >= self._first + len(self._ahead):
            self._first, self._ahead = turn, self._made(turn)
        fresh, observation = self._ahead[turn - self._first]
        return {name: where_rows(over, fresh[name], leaf) for name, leaf in kept.items()}, observation

    def _made(self, turn: int) -> Sequence[tuple[Kept, Tensor]]:
        """The beginnings of this turn and of some after it; of one first, which tells how large they are."""
        count = MOST // self._size if self._size else 1
        keys = self.keys[turn : turn + max(1, count)]
        fresh, observation = self.stage.begin(keys.flatten())
        each = {name: leaf.unflatten(0, keys.shape).unbind() for name, leaf in fresh.items()}
        self._size = sum(leaf.numel() for leaf in fresh.values()) // len(keys) + 1
        seen = observation.unflatten(0, keys.shape).unbind()
        return [({name: leaves[i] for name, leaves in each.items()}, seen[i]) for i in range(len(keys))]


def stage_of(world: object, arguments: Mapping[str, Any] | None = None) -> Stage:
    """Where a world is played.

    Args:
        world: a world of tensors; or gymnasium's: an id such as `"CartPole-v1"`, a function without arguments that
            makes an environment, an environment (in which one episode at a time can be played), a vector environment.
        arguments: beside an id, those of `gymnasium.make` by name, such as `render_mode`; beside all of gymnasium's
            `pixels`, whether what is observed are pictures (else that is seen from the space), and `masks`, whether
            policies are told which actions are legal (else they are where the environment says so).

    gymnasium's environments keep their state themselves, so that a resumed run begins new episodes (`resumes` is
    `restart`), and an episode depends on its key alone as far as the environment honours its seed.

    Example:
        >>> from weft.data import CartPole
        >>> stage_of(CartPole()).resumes, stage_of("CartPole-v1").resumes
        ('exact', 'restart')
    """
    outside = sys.modules.get("gymnasium")
    theirs = outside is not None and isinstance(world, outside.Env | outside.vector.VectorEnv)
    if not theirs and not isinstance(world, str | type) and isinstance(world, World):
        if arguments:
            raise ValueError(
                f"expected arguments beside what gymnasium makes, got {sorted(arguments)} beside the world "
                f"{type(world).__name__}; give them to the world itself"
            )
        return Tensors(world)
    if not theirs and not isinstance(world, str) and not callable(world):
        missing = [name for name in ("observation", "action", "horizon", "reset", "step") if not hasattr(world, name)]
        raise TypeError(
            "expected a world of tensors such as weft.data.CartPole(), a gymnasium id such as 'CartPole-v1', an "
            f"environment of gymnasium's or a function that makes one, got {told(world)}, which is no world of tensors "
            f"without {', '.join(missing)}"
        )
    try:
        import gymnasium  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"expected gymnasium for {told(world)}, which is not installed; pip install weft[gym]"
        ) from error
    from weft.sources.gym.made import gymnasium_stage

    return gymnasium_stage(world, arguments or {})
