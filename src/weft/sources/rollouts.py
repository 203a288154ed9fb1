"""Rollouts: episodes played in an environment by the policy that is being learned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import one_hot

from weft.core.legal import Flag, Legal, Such, Whole, check
from weft.core.random import fold
from weft.core.source import Batch, Field, Source
from weft.core.state import State
from weft.core.trees import tree_map, tree_stack

__all__ = ["Environment", "Rollouts"]

Position = TypeVar("Position")


class Environment(Protocol[Position]):
    """What `Rollouts` plays in: many episodes at once, as pure functions of tensors.

    Whatever is random in it is drawn from the keys (`weft.core.random.unit`, `gauss`), one per episode
    and step, so that an episode depends on nothing else. `weft.data.CartPole` is an example.

    Attributes:
        observation: shape and dtype of one observation.
        action: shape and dtype of one action, and the number of actions as `classes`.
        horizon: steps after which an episode is cut.
    """

    observation: Field
    action: Field
    horizon: int

    def reset(self, keys: Tensor) -> tuple[Position, Tensor]:
        """(state, observation) at the start of one episode per key."""

    def step(self, state: Position, action: Tensor, keys: Tensor) -> tuple[Position, Tensor, Tensor, Tensor]:
        """(state, observation, reward, done) after an action in each episode."""


World = str | Environment[Any]  # what an episode's state is, is the world's own affair


def _plays(given: object) -> bool:
    return isinstance(given, str | list | tuple) or hasattr(given, "reset")


class Rollouts(Source):
    """Plays whole episodes with the current policy; a row of a batch is a trajectory.

    Each step of training plays `envs` episodes anew from (seed, step), each to its end or to the
    horizon, with actions drawn by the objective's `sample_action`. A batch holds

        observation (envs, horizon, ...), action and reward (envs, horizon), mask (envs, horizon),

    where mask is 1 up to the end of an episode and 0 after it (there the last observation is repeated);
    and whatever the objective's `credit(batch)` adds to that (an advantage over the other episodes),
    where it has one. `spec` describes one observation and one action.

    Args:
        environment: a gymnasium id such as `"CartPole-v1"`, an `Environment` of tensors such as
            `weft.data.CartPole()`, or a list of those: then each is a group of its own.
        envs: episodes per step (of each environment).
        horizon: steps after which an episode is cut; default: the environment's own.
        greedy: ask for the best action (`act`) in place of a drawn one, to validate.

    Example:
        >>> from weft import Learner
        >>> from weft.data import CartPole
        >>> from weft.objectives import REINFORCE
        >>> learner = Learner(REINFORCE(), steps=3, random_state=0).fit(Rollouts(CartPole(), envs=8))
        >>> learner.act([0.0, 0.0, 0.1, 0.5]) in (0, 1)
        True
    """

    stacks = True
    acts = True
    legal: ClassVar[dict[str, Legal]] = {
        "environment": Such(
            "a gymnasium id such as 'CartPole-v1', an environment of tensors such as weft.data.CartPole(), or a list "
            "of those",
            _plays,
        ),
        "envs": Whole(1),
        "horizon": Whole(1) | None,
        "greedy": Flag(),
    }

    def __init__(
        self,
        environment: World | list[Any] | tuple[World, ...],
        *,
        envs: int = 64,
        horizon: int | None = None,
        greedy: bool = False,
    ) -> None:
        check(Rollouts, locals())
        self.grouped = isinstance(environment, list | tuple)
        self.envs, self.greedy = int(envs), greedy
        given = list(environment) if isinstance(environment, list | tuple) else [environment]
        if not given:
            raise ValueError("expected at least one environment, got an empty list")
        self.worlds: list[Environment[Any]] = [
            _Gymnasium(w, self.envs, horizon) if isinstance(w, str) else w for w in given
        ]
        for world in self.worlds:
            missing = [n for n in ("reset", "step", "observation", "action", "horizon") if not hasattr(world, n)]
            if missing:
                raise TypeError(
                    f"expected a gymnasium id such as 'CartPole-v1' or an environment of tensors such as "
                    f"weft.data.CartPole(), got {world!r} without {', '.join(missing)}"
                )
        kinds = [(world.observation, world.action) for world in self.worlds]
        if any(kind != kinds[0] for kind in kinds):
            raise ValueError(f"expected environments with one kind of observation and action, got {kinds}")
        action = kinds[0][1]
        if action.classes is None or action.shape:
            raise ValueError(
                "expected an environment with finitely many actions, a Field of shape () with their number as classes, "
                f"got {action}: actions that are numbers are not served yet; give the environment a few to choose from"
            )
        self.horizon = int(horizon or max(world.horizon for world in self.worlds))
        self.resumes = "restart" if any(isinstance(w, _Gymnasium) for w in self.worlds) else "exact"
        self.spec = {
            "observation": kinds[0][0],
            "action": kinds[0][1],
            "reward": Field((), torch.float32),
            "mask": Field((), torch.float32),
        }

    def batches(self, state: State) -> Iterator[Batch]:
        """Batches without end, each played by the state as it is by then."""
        while True:
            yield self._collect(state, "rollout")

    def contents(self) -> Batch:
        """How many episodes there are, and how long they may be."""
        return {"rollouts": f"{self.envs} {self.horizon} {self.greedy} {len(self.worlds)}"}

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        """Fresh episodes, none of those trained on, ungrouped."""
        if self.grouped:
            axis = 0 if state.replicas is None else 1
            yield tree_map(lambda t: t.flatten(axis, axis + 1), self._collect(state, "rollout", "once"))
        else:
            yield self._collect(state, "rollout", "once")

    def _collect(self, state: State, *place: str) -> Batch:
        """A batch played by each replica for itself, and credited by the objective."""
        if state.replicas is not None:
            return tree_stack([self._collect(state.replica(k), *place) for k in range(state.replicas)])
        groups = []
        for e, world in enumerate(self.worlds):
            key = fold(state.key(*place), e)
            batch = self._play(world, state, key)
            batch.update(state.call("credit", batch, key=key))
            groups.append(batch)
        return tree_stack(groups) if self.grouped else groups[0]

    def _play(self, world: Environment[Position], state: State, key: Tensor) -> Batch:
        """One episode in each of the environment's copies, in step."""
        dtype = next(p.dtype for p in state.params.values() if p.is_floating_point())
        rows = torch.arange(self.envs, device=state.device)
        horizon = min(self.horizon, world.horizon)
        times = torch.arange(horizon, device=state.device)
        episodes = fold(key, "episode", rows)
        turns = fold(episodes, times[:, None]).unbind()
        draws = fold(key, "action", times).unbind()
        ask = "act" if self.greedy else "sample_action"
        position, observation = world.reset(fold(episodes, "reset"))
        going = torch.ones(self.envs, dtype=torch.bool, device=state.device)
        seen: dict[str, list[Tensor]] = {name: [] for name in self.spec}
        for t in range(horizon):
            observation = observation.to(dtype) if observation.is_floating_point() else observation
            action = state.call(ask, observation, key=draws[t], rows=rows)
            position, after, reward, done = world.step(position, action, turns[t])
            turn = {
                "observation": observation,
                "action": torch.where(going, action, 0),
                "reward": torch.where(going, reward.to(dtype), 0.0),  # what has ended may drift to infinity
                "mask": going.to(dtype),
            }
            for name, value in turn.items():
                seen[name].append(value)
            going = going & ~done
            if not bool(going.any()):
                break
            shape = (self.envs,) + (1,) * (after.dim() - 1)
            observation = torch.where(going.reshape(shape), after.to(observation.dtype), observation)
        return {
            name: _padded(torch.stack(values, 1), self.horizon, repeat=name == "observation")
            for name, values in seen.items()
        }


def _padded(values: Tensor, horizon: int, *, repeat: bool) -> Tensor:
    """(n, t, ...) made (n, horizon, ...): by the last real entry, or by zeros."""
    rest = horizon - values.shape[1]
    last = values[:, -1:]
    tail = (last if repeat else torch.zeros_like(last)).expand(-1, rest, *values.shape[2:])
    return torch.cat([values, tail], 1)


class _Gymnasium:
    """A gymnasium environment's copies as an `Environment`; finished ones play on unseen."""

    def __init__(self, name: str, envs: int, horizon: int | None) -> None:
        try:
            import gymnasium
        except ImportError as error:
            raise ImportError(
                f"expected gymnasium to be installed for {name!r}, got none; pip install 'weft[gym]', or give an "
                "environment of tensors such as weft.data.CartPole()"
            ) from error
        try:
            self.envs: Any = gymnasium.make_vec(name, num_envs=envs, vectorization_mode="sync")
        except gymnasium.error.Error as error:
            raise ValueError(f"expected the id of an installed gymnasium environment, got {name!r}: {error}") from error
        limit = gymnasium.spec(name).max_episode_steps if horizon is None else horizon
        if limit is None:
            raise ValueError(
                f"expected an environment that ends, got {name!r} without a limit of steps; give horizon=..."
            )
        self.horizon = limit
        seen, acts = self.envs.single_observation_space, self.envs.single_action_space
        if not isinstance(acts, gymnasium.spaces.Discrete):
            raise ValueError(f"expected an environment with finitely many actions (Discrete), got {name!r} with {acts}")
        if isinstance(seen, gymnasium.spaces.Discrete):
            self.states = int(seen.n)
        elif isinstance(seen, gymnasium.spaces.Box):
            self.states = 0
        else:
            raise ValueError(
                f"expected observations that are numbers (Box) or a state (Discrete), got {name!r} with {seen}"
            )
        # One-hot rows and class numbers count from zero; gymnasium's may start elsewhere.
        self.first = (int(getattr(seen, "start", 0)), int(acts.start))
        self.observation = Field((self.states,) if self.states else tuple(seen.shape or ()), torch.float32)
        self.action = Field((), torch.int64, classes=int(acts.n))

    def _see(self, observation: ArrayLike, device: torch.device) -> Tensor:
        seen = torch.as_tensor(observation, device=device)
        return one_hot(seen - self.first[0], self.states).float() if self.states else seen.float()

    def reset(self, keys: Tensor) -> tuple[torch.device, Tensor]:
        seeds = (keys & (2**63 - 1)).tolist()
        return keys.device, self._see(self.envs.reset(seed=seeds)[0], keys.device)

    def step(self, state: torch.device, action: Tensor, keys: Tensor) -> tuple[torch.device, Tensor, Tensor, Tensor]:
        observation, reward, ended, cut, _ = self.envs.step(action.cpu().numpy() + self.first[1])
        earned, over = (torch.as_tensor(v, device=state) for v in (reward, ended | cut))
        return state, self._see(observation, state), earned, over
