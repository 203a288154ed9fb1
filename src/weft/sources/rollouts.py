"""Rollouts: whole episodes, played by the policy that is being learned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch

from weft.core.legal import Flag, Legal, check
from weft.core.source import Batch, Field, SourceState
from weft.core.state import State
from weft.sources.playing import ACTED, Playing, Worlds

__all__ = ["Rollouts"]


class Rollouts(Playing):
    """Plays whole episodes with the current policy, anew at each step of training.

    Each step plays `envs` episodes from (seed, step), each to its end or to the horizon, with actions drawn by the
    objective's `sample_action`. Played are, of shape `(envs, time, ...)`,

        observation, action, reward, terminated, truncated, next_observation, mask,

    where mask is 1 up to the end of an episode and 0 after it (there the last observation is repeated), and time is
    that of the longest of them (on a GPU the horizon's); and whatever the objective's `credit(batch)` adds to that (an
    advantage over the other episodes). A row is an episode, where the objective learns from `trajectories`; else it is
    a step, and the mask is its weight. `spec` describes one observation and one action.

    Args:
        world: a world of tensors such as `weft.data.CartPole()`, a gymnasium id such as `"CartPole-v1"`, an environment
            of gymnasium's or a function that makes one; or a list of those: then each is a group of its own.
        envs: episodes per step (of each world).
        horizon: steps after which an episode is cut; default: the world's own.
        greedy: ask for the best action (`act`) in place of a drawn one, to validate.
        arguments: further ones for gymnasium, by name.

    Example:
        >>> from weft import Learner
        >>> from weft.data import CartPole
        >>> from weft.objectives import REINFORCE
        >>> learner = Learner(REINFORCE(), steps=3, random_state=0).fit(Rollouts(CartPole(), envs=8))
        >>> learner.act([0.0, 0.0, 0.1, 0.5]) in (0, 1)
        True
    """

    legal: ClassVar[dict[str, Legal]] = {**ACTED, "greedy": Flag()}

    def __init__(
        self,
        world: Worlds,
        *,
        envs: int = 64,
        horizon: int | None = None,
        greedy: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        check(Rollouts, locals())
        super().__init__(world, envs=envs, horizon=horizon, arguments=arguments)
        self.greedy, self.ask = greedy, "act" if greedy else "sample_action"
        self.spec |= {"mask": Field((), torch.float32)}

    def _settings(self) -> str:
        return str(self.greedy)

    def init(self, state: State) -> SourceState:
        """Nothing played yet."""
        self.admit(state)
        lead = () if state.replicas is None else (state.replicas,)
        none = {
            "steps": torch.zeros(lead, dtype=torch.int64, device=state.device),
            "paid": torch.zeros(lead, dtype=torch.bool, device=state.device),
            "ended": torch.zeros(lead, dtype=torch.bool, device=state.device),
        }
        return {str(e): {**self._ring(state, one), **none} for e, one in enumerate(self.collectors)}

    def batches(self, state: State) -> Iterator[Batch]:
        """Batches without end, each played by the state as it is by then."""
        self.teaches(state)
        while True:
            key = state.key("rollout")
            trees, batch = self.whole(state, key)
            for e, tree in enumerate(trees):
                before = state.source[str(e)]
                told = {"returns": tree["returns"], "lengths": tree["lengths"]}
                counted = {"steps": before["steps"] + tree["steps"]}
                counted |= {name: before[name] | tree[name] for name in ("paid", "ended")}
                state.source[str(e)] = {**told, **counted}
            yield self.rows(state, self.credited(state, batch, key))
