"""Who plays bandits: nothing is trained, all is learned within an episode, in a memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.core.objective import Objective, Output, Solution, capability
from weft.core.random import categorical
from weft.core.source import Batch, Source, Spec
from weft.core.state import State
from weft.sources.rollouts import Rollouts

__all__ = ["Bandit", "Memory", "evenly_among_the_best"]

Memory = dict[str, Tensor]


class Bandit(Objective):
    """A policy that learns within each episode which arm to choose, from the arm and the reward that it sees.

    What it knows is its memory, which begins anew with every episode; there are no parameters, and `fit` tells it how
    many arms there are, and what the first episodes earn. `act` is what it does, exploration included.

    A subclass says what it remembers of `count` bandits that begin (`begins`), how that changes by what an arm gave
    (`learned`), and the logits of its choice (`scores`).
    """

    solved = True
    on_policy = True
    fields = ("reward",)
    contextual = False
    arms: int
    contexts: int
    begun: Tensor

    def build(self, spec: Spec) -> None:
        seen, action = spec.get("observation"), spec.get("action")
        name = type(self).__name__
        if seen is None or action is None or action.classes is None or len(seen.shape) != 1:
            raise ValueError(f"expected play with bandits for {name}, got others; call fit(Rollouts(Bandits()))")
        self.arms, self.contexts = action.classes, seen.shape[0] - action.classes - 1
        if self.contexts < 0 or (self.contexts > 0) != self.contextual:
            raise ValueError(
                f"expected bandits {'with contexts' if self.contextual else 'without contexts'} for {name}, whose "
                f"{action.classes} arms ask for observations of {action.classes + 1} numbers"
                f"{' and more' if self.contextual else ''} (the last arm as a one-hot row, its reward), got "
                f"{seen.shape[0]}; such as weft.data.Bandits({'contexts=5' if self.contextual else ''})"
            )
        self.register_buffer("begun", torch.zeros(()))

    def plays(self, world: Any, **settings: Any) -> Source:
        """Whole episodes of 100 bandits."""
        return Rollouts(world, **{"envs": 100, **settings})

    def solve(self, source: Source, state: State) -> Solution:
        """Nothing is learned before an episode."""
        return {"begun": torch.zeros_like(self.begun)}

    def forward(self, batch: Batch, player: str = "") -> Output:
        return Output(-batch["reward"])

    # --- within an episode ----------------------------------------------------------------------------------

    def begins(self, count: int) -> Memory:
        """What it remembers of bandits that begin."""
        raise NotImplementedError(f"{type(self).__name__} does not define begins(count)")

    def learned(self, memory: Memory, arm: Tensor, reward: Tensor) -> Memory:
        """The memory, once it is known what an arm gave: `arm` a one-hot row, of zeros where none was chosen yet."""
        raise NotImplementedError(f"{type(self).__name__} does not define learned(memory, arm, reward)")

    def scores(self, memory: Memory, context: Tensor) -> Tensor:
        """The logits of its choice, (n, arms)."""
        raise NotImplementedError(f"{type(self).__name__} does not define scores(memory, context)")

    def start(self, count: int) -> Memory:
        """What is remembered at the beginning of episodes, and that no step is gone."""
        return {"gone": self.begun.new_zeros(count), **self.begins(count)}

    def sample_action(self, observation: Tensor, memory: Memory | None = None) -> Any:
        """The arm for each bandit, and the memory; without one, the arm of the first step."""
        first = memory is None
        memory = self.start(len(observation)) if memory is None else memory
        arm, reward, context = observation.split([self.arms, 1, self.contexts], -1)
        known = {**memory, **self.learned(memory, arm, reward)}
        scores = self.scores(known, context)
        chosen = categorical(scores, place="arm")
        chosen = torch.where(
            scores.isneginf().all(-1) | scores.isnan().any(-1), -1, chosen
        )  # which whoever plays refuses
        after = {**known, **self.chose(known, context), "gone": memory["gone"] + 1}
        return chosen if first else (chosen, after)

    def chose(self, memory: Memory, context: Tensor) -> Memory:
        """What else it remembers of a choice."""
        return {}

    @capability(merge="refuse", kind="direct")
    def act(self, observation: Tensor, memory: Memory | None = None) -> Any:
        """The arm for each bandit, as `sample_action`: to explore is part of it."""
        return self.sample_action(observation, memory)


def evenly_among_the_best(worth: Tensor) -> Tensor:
    """The logits of a choice among the largest, (n, arms)."""
    return torch.where(worth == worth.amax(-1, keepdim=True), 0.0, -torch.inf)
