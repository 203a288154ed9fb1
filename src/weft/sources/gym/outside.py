"""What the stages of gymnasium share: environments keep their state themselves, and a number says whose turn it is."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from weft.core.legal import told
from weft.core.source import Field
from weft.sources.gym.acted import Writer
from weft.sources.gym.observed import reader_of
from weft.sources.stage import Kept, Moved

__all__ = ["Outside", "Table", "seeds_of"]

Found = TypeVar("Found")
Table = np.ndarray[Any, Any]
_players: weakref.WeakValueDictionary[int, Outside] = weakref.WeakValueDictionary()
"""Which stage plays in an environment at present, by the environment's id; a stage holds its environments."""
_turns = count(1)
"""Every turn in this process has a number of its own, so that what was kept of another is known."""


def seeds_of(keys: Tensor) -> list[int]:
    """Seeds for what is not ours, by 31 bits of each key."""
    seeds: list[int] = (keys & (2**31 - 1)).tolist()
    return seeds


class Outside:
    """A stage whose environments keep their state themselves, so that there is one present and no way back to it.

    What is kept is the number of the turn, and which actions are legal where the environments say so. Asked about
    another turn than the last one, the stage refuses: those episodes are gone.

    Args:
        name: what the messages call the environment.
        observation: space of one observation.
        action: space of one action.
        horizon: steps after which the environment itself cuts, as far as it says so.
        pixels: whether what looks like pictures is pictures; None asks its shape.
        masks: whether to ask which actions are legal; None where the environment says so.

    Attributes:
        names: of the entries of an observation, where it was flattened from parts.
    """

    resumes = "restart"
    endless = False  # gymnasium does not say

    def __init__(
        self,
        name: str,
        observation: spaces.Space[Any],
        action: spaces.Space[Any],
        horizon: int | None,
        pixels: bool | None,
        masks: bool | None,
    ) -> None:
        self.name, self.pixels, self.masks = name, pixels, masks
        self.horizon = int(horizon) if isinstance(horizon, int | np.integer) and horizon > 0 else None
        self.reader, self.writer = _of(name, lambda: (reader_of(observation, pixels), Writer(action)))
        self.observation = Field(self.reader.shape, torch.float32)
        self.action, self.names = self.writer.field, self.reader.names
        self._turn = 0
        self._device = torch.device("cpu")
        self._over: Table = np.zeros(0, bool)
        self._masked: bool | None = None

    # --- whose turn it is -----------------------------------------------------------------------------

    def _claim(self, environments: Sequence[object]) -> None:
        """These are played in here from now on; whoever did so before has lost its episodes."""
        for one in environments:
            before = _players.get(id(one))
            if before is not None and before is not self:
                before._turn = 0
            _players[id(one)] = self

    def _present(self, kept: Kept) -> None:
        """Raises where what is kept is not of the last turn."""
        if not self._turn or set(kept["turn"].tolist()) != {self._turn}:
            raise RuntimeError(
                f"expected the episodes of {self.name} as the last step has left them, got those of another turn; an "
                "environment keeps its state itself and has been played in since, so begin anew, and give each source "
                "(training, validation) environments of its own, by an id or by a function that makes them"
            )

    def _kept(self, episodes: int, legal: Tensor | None) -> Kept:
        self._turn = next(_turns)
        kept: Kept = {"turn": torch.full((episodes,), self._turn, device=self._device)}
        return kept if legal is None else {**kept, "legal": legal}

    # --- what is said of it ---------------------------------------------------------------------------

    @property
    def masked(self) -> bool:
        """Whether the environments say which actions are legal, by `action_mask` in the info or by `action_masks()`."""
        if self._masked is None:
            self.masked = self.masks is not False and self._look()
        return bool(self._masked)

    @masked.setter
    def masked(self, found: bool) -> None:
        if self.masks and not found:
            raise ValueError(
                f"expected {self.name} to say which actions are legal, by action_mask in its info or action_masks(), "
                "beside masks=True, got neither"
            )
        self._masked = found and self.masks is not False

    def _look(self) -> bool:
        """Begins an episode to see whether there are masks."""
        raise NotImplementedError

    def legal(self, kept: Kept) -> Tensor | None:
        return kept["legal"] if self.masked else None

    def _legal(self, masks: object, ended: Table) -> Tensor:
        """Masks as truths; where an episode has ended and none is legal, all are: nothing is chosen there."""
        if self.action.classes is None:
            raise ValueError(
                f"expected actions that are one of finitely many beside the action masks of {self.name}, got "
                f"{self.action}; make one choice of them by a wrapper, or leave the masks out"
            )
        found = np.array(masks).astype(bool)
        if found.shape != (len(ended), self.action.classes):
            raise ValueError(
                f"expected action masks of {self.name} for {self.action.classes} actions in each of {len(ended)} "
                f"episodes, got shape {found.shape}"
            )
        none = np.asarray(~found.any(-1))
        if (none & ~ended).any():
            raise ValueError(
                f"expected an action that is legal, got none in episode {int(np.argmax(none & ~ended))} of "
                f"{self.name}, which goes on; end it there (terminated)"
            )
        found[none] = True
        return self._tensor(found)

    def _frames(self, frames: Sequence[object]) -> Tensor:
        """Pictures of the episodes."""
        drawn = [np.asarray(frame) for frame in frames]
        looks = {(frame.shape, frame.dtype) for frame in drawn}
        if len(looks) != 1 or drawn[0].ndim != 3 or drawn[0].shape[-1] != 3 or drawn[0].dtype != np.uint8:
            raise ValueError(f"expected {self.name} to render pictures (H, W, 3) in numpy.uint8, got {looks}")
        return torch.from_numpy(np.stack(drawn))

    def _rows(self, values: object, together: bool = False) -> Tensor:
        """What is observed, as a tensor."""
        return self._tensor(_of(self.name, lambda: self.reader(values, together)))

    def _tensor(self, values: Table) -> Tensor:
        """On the device of those who play."""
        tensor = torch.from_numpy(values)
        return tensor if self._device.type == "cpu" else tensor.to(self._device)

    def _moved(
        self, seen: Tensor, reward: Sequence[float] | Table, ends: tuple[Table, Table], legal: Tensor | None
    ) -> Moved:
        """What a step has led to: `ends` are terminated, truncated."""
        try:
            earned = np.array(reward, np.float32)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"expected a number as the reward of each step of {self.name}, got {told(reward)}"
            ) from error
        if not earned.shape == ends[0].shape == ends[1].shape == seen.shape[:1]:
            raise ValueError(
                f"expected a reward and two truths (terminated, truncated) for each of {seen.shape[0]} episodes of "
                f"{self.name}, got shapes {earned.shape}, {ends[0].shape} and {ends[1].shape}"
            )
        self._over = ends[0] | ends[1]
        terminated, truncated = self._tensor(ends[0]), self._tensor(ends[1])
        return Moved(self._kept(seen.shape[0], legal), seen, self._tensor(earned), terminated, truncated)


def _of(name: str, ask: Callable[[], Found]) -> Found:
    """What is found, or the error with the environment's name to it."""
    try:
        return ask()
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
