"""Environments of gymnasium one by one, in turns."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from weft.core.legal import told
from weft.sources.gym.outside import Outside, Table, seeds_of
from weft.sources.stage import Kept, Moved

__all__ = ["Environments"]

Env = gymnasium.Env[Any, Any]


class Environments(Outside):
    """As many environments as there are episodes, each moved by itself.

    Args:
        make: makes one; its environments are closed when they are needed no longer. Or an environment: then one episode
            at a time can be played, and whoever made it closes it.
        name: what the messages call it.
        pixels, masks: as for `Outside`.

    Example:
        >>> import gymnasium
        >>> from weft.core.random import fold, key_of
        >>> stage = Environments(lambda: gymnasium.make("CartPole-v1"), "CartPole-v1")
        >>> kept, observation = stage.begin(fold(key_of(0), torch.arange(3)))
        >>> moved = stage.step(kept, torch.tensor([0, 1, 1]), torch.arange(3))
        >>> moved.observation.shape, moved.reward, stage.horizon
        (torch.Size([3, 4]), tensor([1., 1., 1.]), 500)
    """

    def __init__(
        self, make: Callable[[], Env] | Env, name: str, pixels: bool | None = None, masks: bool | None = None
    ) -> None:
        self._make = None if isinstance(make, gymnasium.Env) else make
        self._envs: list[Env] = []
        self._envs.append(make if isinstance(make, gymnasium.Env) else self._made(make, name))
        if self._make is not None:
            weakref.finalize(self, _close, self._envs)
        first = self._envs[0]
        seen, done = (getattr(first, kind, None) for kind in ("observation_space", "action_space"))
        if not isinstance(seen, gymnasium.Space) or not isinstance(done, gymnasium.Space):
            raise TypeError(f"expected {name} with an observation_space and an action_space, got {seen} and {done}")
        limit = first.get_wrapper_attr("_max_episode_steps") if first.has_wrapper_attr("_max_episode_steps") else None
        super().__init__(name, seen, done, limit, pixels, masks)
        self._last: list[Any] = []

    def __deepcopy__(self, memo: object) -> Environments:
        """Another stage, which makes environments of its own, or plays in the one that was given."""
        return Environments(self._make or self._envs[0], self.name, self.pixels, self.masks)

    def _made(self, make: Callable[[], Env], name: str) -> Env:
        """One more, which is none of those that there are."""
        env = make()
        if not isinstance(env, gymnasium.Env) or isinstance(env, gymnasium.vector.VectorEnv):
            raise TypeError(
                f"expected {name} to make an environment of gymnasium's (gymnasium.Env), got {told(env)}; worlds of "
                "tensors and vector environments are given as they are"
            )
        if any(env.unwrapped is other.unwrapped for other in self._envs):
            raise ValueError(
                f"expected {name} to make a new environment each time, got the same one twice; episodes side by side "
                "cannot share it: make it inside of the function"
            )
        return env

    def _number(self, episodes: int) -> None:
        """So many environments, which are played in here from now on."""
        if self._make is None and episodes != 1:
            raise ValueError(
                f"expected one episode at a time in an instance of {self.name} (envs=1, no replicas), got {episodes}; "
                "give its id, or a function that makes one: lambda: gymnasium.make(...)"
            )
        while len(self._envs) > max(1, episodes):
            self._envs.pop().close()
        while self._make is not None and len(self._envs) < episodes:
            self._envs.append(self._made(self._make, self.name))
        self._claim([env.unwrapped for env in self._envs])

    def close(self) -> None:
        """Closes the environments that it has made; beginning anew makes others."""
        self._turn = 0
        if self._make is not None:
            _close(self._envs)

    # --- playing --------------------------------------------------------------------------------------

    def begin(self, keys: Tensor) -> tuple[Kept, Tensor]:
        self._number(len(keys))
        self._device = keys.device
        begun = [env.reset(seed=seed) for env, seed in zip(self._envs, seeds_of(keys), strict=False)]
        self._last = [(seen, 0.0, False, False, info) for seen, info in begun]
        self._over = np.zeros(len(keys), bool)
        self.masked = bool(begun) and self._tells(begun[0][1])
        legal = self._now(self._over) if self.masked else None
        return self._kept(len(keys), legal), self._rows([seen for seen, _ in begun])

    def step(self, kept: Kept, action: Tensor, keys: Tensor) -> Moved:
        self._present(kept)
        waiting = bool(self._over.any())
        actions = self.writer.apart(action, self._over if waiting else None)
        self._turn = 0  # should a step fail half-way, there is no going on
        if waiting:  # those that have ended stay as they did
            last = [(seen, 0.0, *rest) for seen, _, *rest in self._last]
            each = zip(self._envs, actions, last, self._over.tolist(), strict=True)
            self._last = [before if ended else env.step(chosen) for env, chosen, before, ended in each]
        else:
            self._last = [env.step(chosen) for env, chosen in zip(self._envs, actions, strict=True)]
        seen, reward, terminated, truncated, _ = zip(*self._last, strict=True)
        ends = np.array(terminated, bool), np.array(truncated, bool)
        legal = self._now(ends[0] | ends[1]) if self.masked else None
        return self._moved(self._rows(seen), reward, ends, legal)

    def restart(self, kept: Kept, over: Tensor, keys: Tensor) -> tuple[Kept, Tensor]:
        self._present(kept)
        self._turn = 0
        seeds, which = seeds_of(keys), [i for i, ended in enumerate(over.tolist()) if ended]
        for i in which:
            seen, info = self._envs[i].reset(seed=seeds[i])
            self._last[i] = (seen, 0.0, False, False, info)
        self._over[which] = False
        observation = torch.zeros((len(seeds), *self.observation.shape), device=self._device)
        if which:
            observation[which] = self._rows([self._last[i][0] for i in which])
        return self._kept(len(seeds), self._now(self._over) if self.masked else None), observation

    def render(self, kept: Kept) -> Tensor | None:
        """Frames, where the environments were made with `render_mode="rgb_array"`."""
        self._present(kept)
        if self._envs[0].render_mode != "rgb_array":
            return None
        return self._frames([env.render() for env in self._envs])

    # --- what is legal ----------------------------------------------------------------------------------

    def _look(self) -> bool:
        if not self._envs:
            self._number(1)
        self._claim([self._envs[0].unwrapped])
        return self._tells(self._envs[0].reset(seed=0)[1])

    def _tells(self, info: dict[str, Any]) -> bool:
        return "action_mask" in info or self._envs[0].has_wrapper_attr("action_masks")

    def _now(self, ended: Table) -> Tensor:
        """Which actions are legal as the environments stand."""
        infos = [last[-1] for last in self._last]
        if all("action_mask" in info for info in infos):
            return self._legal([info["action_mask"] for info in infos], ended)
        if not self._envs[0].has_wrapper_attr("action_masks"):
            raise ValueError(
                f"expected action_mask in the info of every step of {self.name}, as of its first observation, got an "
                f"info with {sorted(next(info for info in infos if 'action_mask' not in info))}"
            )
        masks = [env.get_wrapper_attr("action_masks")() for env in self._envs]
        return self._legal(masks, ended)


def _close(environments: list[Env]) -> None:
    while environments:
        environments.pop().close()
