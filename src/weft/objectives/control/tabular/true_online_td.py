"""True online TD(lambda): at every step the values that all lambda-returns so far lead to, at the cost of a trace."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from weft.core.legal import Number, Whole
from weft.core.objective import Iterations, Objective, Output, capability
from weft.core.random import categorical
from weft.core.source import Batch, Source, Spec
from weft.core.state import State
from weft.objectives.control.steps import actions_of
from weft.objectives.control.tabular.given import POLICY, Given, probabilities_of, refuse_table
from weft.sources.rollouts import Rollouts

__all__ = ["TrueOnlineTD", "true_online"]


class TrueOnlineTD(Objective):
    """Learns what a given policy is worth, by linear values that move at every step of every episode.

    With x_t what is observed, v = w x, and z = 0, v_old = 0 where an episode begins, after each step

        z <- discount trace z + (1 - step discount trace z x_t) x_t
        w <- w + step (delta + v(s_t) - v_old) z - step (v(s_t) - v_old) x_t,
        delta = r_t + discount v(s_{t+1}) - v(s_t),    v_old = v(s_{t+1}), both by w before it has moved,

    which is, step by step, the algorithm that goes back at each step and moves every state of the episode towards its
    lambda-return as far as that is known by then. It is no gradient step of a loss of the step alone: episodes are
    played by the source, and gone through one after another. What was cut has not ended.

    Args:
        policy: who plays: a table (S, A), a function from observations to probabilities, or None for even draws.
        discount: of later rewards.
        trace: lambda.
        step: the step size.
        episodes: how many are learned from, at least.

    References:
        van Seijen, Mahmood, Pilarski, Machado and Sutton, "True online temporal-difference learning", Journal of
        Machine Learning Research 17, 2016.

    Example:
        >>> from weft import Learner
        >>> from weft.data import GridWorld
        >>> objective = TrueOnlineTD(discount=0.9, trace=0.8, step=0.01, episodes=800)
        >>> learner = Learner(objective, random_state=0).fit(objective.plays(GridWorld(["S.G"])))
        >>> learner.value(torch.eye(3)[:2]).round(1)
        array([0.4, 0.6], dtype=float32)
    """

    solved = True
    on_policy = False  # who plays does not change
    fields = ("observation", "reward", "next_observation", "terminated")
    legal = {
        "policy": POLICY,
        "discount": Number(0, 1),
        "trace": Number(0, 1),
        "step": Number(0, ends="()"),
        "episodes": Whole(1),
    }
    weights: Tensor

    def __init__(
        self,
        *,
        policy: Given = None,
        discount: float = 0.99,
        trace: float = 0.9,
        step: float = 0.1,
        episodes: int = 1000,
    ) -> None:
        super().__init__()
        self.policy = policy
        self.discount = discount
        self.trace = trace
        self.step = step
        self.episodes = episodes

    @property
    def bootstraps(self) -> float:  # type: ignore[override]
        """Where play is cut its own value counts on."""
        return self.discount

    def plays(self, world: Any, **settings: Any) -> Source:
        """Whole episodes, 10 of them played at once."""
        return Rollouts(world, **{"envs": 10, **settings})

    def build(self, spec: Spec) -> None:
        if "mask" not in spec:
            raise ValueError(
                f"expected whole episodes for TrueOnlineTD, got rows of {', '.join(spec)}; call fit(Rollouts(world))"
            )
        self.actions = actions_of(spec, "TrueOnlineTD")
        size = math.prod(spec["observation"].shape)
        if self.policy is not None and not callable(self.policy):
            refuse_table(torch.as_tensor(self.policy), size, self.actions, "TrueOnlineTD's policy")
        self.register_buffer("weights", torch.zeros(size))

    def solve(self, source: Source, state: State) -> Iterations:
        """A record of each play, and the weights."""
        weights, done = torch.zeros_like(self.weights, dtype=torch.float64), 0
        state = replace(state, source=source.init(state))
        while done < self.episodes:
            state.step += 1
            errors, begun = [], done
            for episode in self._episodes(next(source.batches(state))):
                weights, error = true_online(weights, episode, self.discount, self.trace, self.step)
                errors.append(error)
                done += 1
            yield {"error": torch.cat(errors).square().mean(), "episodes": float(done)}
            if done == begun:
                raise ValueError("expected episodes from the source, got none")
        if (text := source.warns(state)) is not None:
            warnings.warn(text, stacklevel=2)
        return {"weights": weights}

    def _episodes(self, batch: Batch) -> Iterator[Batch]:
        """Episode after episode, of rows that lie end to end, those that were played once it was over left out."""
        over = batch["terminated"] | batch["truncated"]
        played = batch["mask"] > 0
        rows = {n: batch[n][played] for n in ("observation", "reward", "next_observation", "terminated")}
        lengths = (over[played].nonzero().flatten() + 1).tolist()
        for first, last in zip([0, *lengths], lengths, strict=False):
            yield {name: value[first:last] for name, value in rows.items()}

    def forward(self, batch: Batch, player: str = "") -> Output:
        goal = batch["reward"] + self.discount * self.value(batch["next_observation"]) * ~batch["terminated"]
        return Output(0.5 * (goal - self.value(batch["observation"])) ** 2)

    @capability()
    def value(self, observation: Tensor) -> Tensor:
        """v(s) of each row."""
        return observation.flatten(1).to(self.weights) @ self.weights

    def sample_action(self, observation: Tensor) -> Tensor:
        """An action for each row, drawn from the policy."""
        chance = probabilities_of(self.policy, observation, self.actions, "TrueOnlineTD's policy")
        return categorical(chance.log(), place="action")


def true_online(weights: Tensor, episode: Batch, discount: float, trace: float, step: float) -> tuple[Tensor, Tensor]:
    """The weights after an episode, and its errors delta.

    Args:
        weights: (entries,), before it.
        episode: `observation`, `reward`, `next_observation` and `terminated` of its steps, (time, ...).
        discount, trace, step: as for `TrueOnlineTD`.
    """
    seen, then = (episode[n].flatten(1).to(weights) for n in ("observation", "next_observation"))
    eligible, old, errors = torch.zeros_like(weights), weights.new_zeros(()), []
    for x, after, reward, over in zip(seen, then, episode["reward"], episode["terminated"], strict=True):
        value, following = weights @ x, (weights @ after) * ~over
        error = reward.to(weights) + discount * following - value
        eligible = discount * trace * eligible + (1 - step * discount * trace * (eligible @ x)) * x
        weights = weights + step * (error + value - old) * eligible - step * (value - old) * x
        old = following
        errors.append(error)
    return weights, torch.stack(errors)
