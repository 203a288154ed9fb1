"""Environments of gymnasium that move together: a VectorEnv."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from torch import Tensor

from weft.sources.gym.outside import Outside, Table, seeds_of
from weft.sources.stage import Kept, Moved

__all__ = ["Together"]

VectorEnv = gymnasium.vector.VectorEnv[Any, Any, Any]
Infos = dict[str, Any]
DISABLED = "vectorization_mode='sync', vector_kwargs={'autoreset_mode': 'Disabled'}"


class Together(Outside):
    """A vector environment, whose episodes begin anew when the stage says so, whatever it does by itself.

    Episodes that have ended are begun anew by `options={"reset_mask": ...}`, from seeds of their keys; a step gives the
    observation that the episode ended with in each of gymnasium's modes: with `Disabled` and `NextStep` it is what the
    step returns, and with `SameStep` it is `final_obs`. What cannot begin single episodes anew is refused, except with
    `SameStep`, where it begins them by itself, from seeds of its own. So do the environments of envpool, whose seeds
    are fixed when they are made.

    Args:
        envs: the vector environment; whoever made it closes it.
        pixels, masks: as for `Outside`.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> envs = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync", max_episode_steps=1)
        >>> stage, keys = Together(envs), fold(key_of(0), torch.arange(2))
        >>> kept, first = stage.begin(keys)
        >>> moved = stage.step(kept, torch.tensor([0, 1]), keys)
        >>> moved.truncated.tolist(), bool((moved.observation == first).any())
        ([True, True], False)
    """

    def __init__(self, envs: VectorEnv, pixels: bool | None = None, masks: bool | None = None) -> None:
        base = envs.unwrapped
        self.envs, self._mode = envs, envs.metadata.get("autoreset_mode")
        if isinstance(self._mode, str):
            self._mode = AutoresetMode(self._mode)
        self._ours = isinstance(base, SyncVectorEnv | AsyncVectorEnv)
        self._pool = hasattr(base, "all_env_ids")  # envpool's
        self._partial = self._ours or self._pool or self._mode is AutoresetMode.DISABLED
        self._refuse(base)
        name = type(base).__name__ if self._pool else str(envs)
        one = envs.single_observation_space, envs.single_action_space
        super().__init__(name, *one, self._limit(base), pixels, masks)

    def __deepcopy__(self, memo: object) -> Together:
        """Another stage in the environment that was given."""
        return Together(self.envs, self.pixels, self.masks)

    def _refuse(self, base: VectorEnv) -> None:
        """Raises where episodes could not be begun anew one by one."""
        fix = f"make it by gymnasium.make_vec(..., {DISABLED})"
        if not isinstance(self._mode, AutoresetMode):
            raise ValueError(
                f"expected metadata['autoreset_mode'] of {self.envs} to say how its episodes begin anew, got "
                f"{self._mode!r}; {fix}"
            )
        if self._mode is AutoresetMode.NEXT_STEP and not self._partial:
            raise ValueError(
                f"expected a vector environment that begins single episodes anew, got {self.envs} with autoreset_mode "
                f"NextStep, which begins them a step later; {fix}, or give its id"
            )
        late = isinstance(base, AsyncVectorEnv) and not base.shared_memory and self._mode is AutoresetMode.NEXT_STEP
        if late:  # gymnasium 1.4 forgets there that an episode has begun anew, and begins another one
            raise ValueError(
                f"expected {self.envs} with shared_memory=True beside autoreset_mode NextStep, got False; {fix}"
            )

    def _limit(self, base: VectorEnv) -> int | None:
        """Steps after which the last of its episodes is cut."""
        if self._ours:
            limits = self._asked("_max_episode_steps")
            return None if limits is None else max(limits)
        if self._pool:
            return int(base.config["max_episode_steps"])  # type: ignore[attr-defined]
        return None if base.spec is None else base.spec.max_episode_steps

    def _asked(self, name: str) -> tuple[Any, ...] | None:
        """What every environment answers to a name, if all of them know it."""
        base = self.envs.unwrapped
        if not self._ours or not all(base.call("has_wrapper_attr", name)):  # type: ignore[attr-defined]
            return None
        return tuple(base.call(name))  # type: ignore[attr-defined]

    # --- playing --------------------------------------------------------------------------------------

    def begin(self, keys: Tensor) -> tuple[Kept, Tensor]:
        if len(keys) != self.envs.num_envs:
            raise ValueError(
                f"expected {self.envs.num_envs} episodes side by side (envs={self.envs.num_envs}, no replicas), as "
                f"many as {self.name} has, got {len(keys)}; make it with as many, or give its id"
            )
        self._claim([self.envs.unwrapped])
        self._device = keys.device
        self._raw, infos = self._reset(keys)
        self._seen, self._over = self._raw, np.zeros(len(keys), bool)
        self._anew, self._ends = self._over, (self._over, self._over)
        self.masked = self._tells(infos)
        legal = self._legal(self._masks(infos), self._over) if self.masked else None
        return self._kept(len(keys), legal), self._seen

    def step(self, kept: Kept, action: Tensor, keys: Tensor) -> Moved:
        self._present(kept)
        over = self._over
        waiting = bool(over.any())
        actions = self.writer.together(action, over if waiting else None)
        self._turn = 0  # should a step fail half-way, there is no going on
        if waiting and self._mode is AutoresetMode.DISABLED:  # those that wait are played on, unseen
            self._reset(keys, over)
        observed, reward, *found, infos = self.envs.step(actions)
        ends = np.array(found[0], bool), np.array(found[1], bool)
        self._raw = seen = self._rows(observed, together=True)
        masks = self._masks_anew = self._masks(infos) if self.masked else None
        self._anew = ends[0] | ends[1] if self._mode is AutoresetMode.SAME_STEP else np.zeros_like(over)
        if self._anew.any():
            seen, masks = self._final(seen, infos, masks)
        if waiting:
            seen = torch.where(_wide(over, seen), self._seen, seen)
            reward = np.where(over, 0.0, reward)
            ends = np.where(over, self._ends[0], ends[0]), np.where(over, self._ends[1], ends[1])
        self._seen, self._ends = seen, ends
        return self._moved(seen, reward, ends, None if masks is None else self._legal(masks, ends[0] | ends[1]))

    def _final(self, seen: Tensor, infos: Infos, masks: Table | None) -> tuple[Tensor, Table | None]:
        """What the episodes ended with that have begun anew in the same step."""
        which = np.flatnonzero(self._anew)
        if "final_obs" not in infos:
            raise ValueError(
                f"expected final_obs in the info of {self.name}, whose autoreset_mode is SameStep, where an episode "
                f"ends, got {sorted(infos)}"
            )
        seen = seen.clone()
        seen[which] = self._rows([infos["final_obs"][i] for i in which])
        if masks is not None:
            masks = masks.copy()
            masks[which] = self._masks(infos["final_info"])[which]
        return seen, masks

    def restart(self, kept: Kept, over: Tensor, keys: Tensor) -> tuple[Kept, Tensor]:
        self._present(kept)
        which, legal = over.cpu().numpy(), kept.get("legal")
        if not which.any():
            return self._kept(len(over), legal), torch.zeros_like(self._seen)
        if self._partial:
            self._turn = 0
            self._raw, infos = self._reset(keys, which)
            masks = self._masks(infos) if self.masked else None
        elif (which & ~self._anew).any():
            raise ValueError(
                f"expected a vector environment whose episodes can be cut, got {self.name} in autoreset_mode SameStep, "
                f"which begins them anew at their own ends alone; leave horizon out, or make it with {DISABLED}"
            )
        else:
            masks = self._masks_anew
        if masks is not None and legal is not None:
            legal = legal.clone()
            legal[over] = self._legal(masks[which], np.zeros(int(which.sum()), bool))
        self._seen = torch.where(_wide(which, self._seen), self._raw, self._seen)
        self._over = self._over & ~which
        return self._kept(len(over), legal), self._seen

    def _reset(self, keys: Tensor, which: Table | None = None) -> tuple[Tensor, Infos]:
        """What is observed once some episodes, or all, have begun anew."""
        given: dict[str, Any] = {} if which is None else {"options": {"reset_mask": which.copy()}}
        if self._ours:
            given["seed"] = seeds_of(keys)
        elif which is None and not self._pool:
            given["seed"] = seeds_of(keys[:1])[0]
        observed, infos = self.envs.reset(**given)
        seen = self._rows(observed, together=True)
        if which is None or self._ours:
            return seen, infos
        if self._pool:  # which tells of no others
            return self._raw.index_copy(0, torch.from_numpy(np.flatnonzero(which)).to(self._device), seen), infos
        if not torch.equal(seen[~which].nan_to_num(), self._raw[~which].nan_to_num()):
            raise RuntimeError(
                f"expected {self.name} to begin anew the episodes of options['reset_mask'] alone, as autoreset_mode "
                "Disabled asks, got other observations of the others"
            )
        return seen, infos

    def render(self, kept: Kept) -> Tensor | None:
        """Frames, where it was made with `render_mode="rgb_array"`."""
        self._present(kept)
        if self.envs.render_mode != "rgb_array":
            return None
        every = {"env_ids": np.arange(self.envs.num_envs)} if self._pool else {}
        return self._frames(list(self.envs.render(**every) or ()))

    # --- what is legal ----------------------------------------------------------------------------------

    def _look(self) -> bool:
        self._claim([self.envs.unwrapped])
        _, infos = self.envs.reset() if self._pool else self.envs.reset(seed=0)
        return self._tells(infos)

    def _tells(self, infos: Infos) -> bool:
        by_method = self._asked("action_masks") is not None
        if by_method and "action_mask" not in infos and self._mode is AutoresetMode.SAME_STEP:
            raise ValueError(
                f"expected action_mask in the info of {self.name}, whose action_masks() tells in autoreset_mode "
                f"SameStep of the episode after the one that ended; make it with {DISABLED}"
            )
        return by_method or "action_mask" in infos

    def _masks(self, infos: Infos) -> Table:
        """What the environments say is legal."""
        if "action_mask" in infos:
            return np.array(list(infos["action_mask"]))
        by_method = self._asked("action_masks")
        if by_method is None:
            raise ValueError(
                f"expected action_mask in the info of every step of {self.name}, as of its first observation, got an "
                f"info with {sorted(infos)}"
            )
        return np.array(by_method)


def _wide(rows: Table, values: Tensor) -> Tensor:
    """Which rows, to choose among values."""
    return torch.from_numpy(rows).to(values.device).reshape(-1, *(1,) * (values.dim() - 1))
