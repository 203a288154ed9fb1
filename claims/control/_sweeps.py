"""All steps that a world knows, each with its probability: what learning from play does on the average."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from weft.core.objective import Output
from weft.core.source import Batch, Field, Source
from weft.core.state import State
from weft.data import FiniteMDP
from weft.objectives import TD


class Sweeps(Source):
    """Every step (s, a, s') of a finite world, weighed by share(s) played(a | s) p(s' | s, a).

    Args:
        world: it ends nowhere, or in states.
        played: the policy that plays, (S, A).
        share: of the steps that is spent in each state.
        seen: what is observed of each state, (S, F); default: one-hot rows.
    """

    def __init__(self, world: FiniteMDP, played: Tensor, share: Tensor, seen: Tensor | None = None) -> None:
        p, states = world.transition.double(), len(world.start)
        seen = torch.eye(states) if seen is None else seen
        weight = share.double()[:, None, None] * played.double()[..., None] * p
        s, a, to = (weight > 0).nonzero(as_tuple=True)
        reward = world.reward if world.reward.dim() == 3 else world.reward[..., None].expand_as(p)
        ends = torch.zeros(states, dtype=torch.bool) if world.ends is None else world.ends
        seen = seen.double()
        self.rows = {"observation": seen[s], "action": a, "reward": reward.double()[s, a, to]}
        self.rows |= {"next_observation": seen[to], "terminated": ends[to], "truncated": torch.zeros_like(ends[to])}
        self.rows["weight"] = weight[s, a, to]
        self.spec = {name: Field(tuple(v.shape[1:]), v.dtype) for name, v in self.rows.items() if name != "weight"}
        self.spec["action"] = Field((), torch.int64, classes=p.shape[1])

    def batches(self, state: State) -> Iterator[Batch]:
        """All steps, without end."""
        while True:
            yield dict(self.rows)


def resting(way: Tensor) -> Tensor:
    """The share of all steps that a chain without ends spends in each state."""
    size = len(way)
    system = torch.cat([way.T - torch.eye(size).to(way), torch.ones(1, size).to(way)])
    right = torch.zeros(size + 1).to(way)
    right[-1] = 1.0
    return torch.linalg.lstsq(system, right[:, None]).solution.squeeze(-1)


def world_of(way: Tensor, reward: Any) -> FiniteMDP:
    """A chain as a world with one action."""
    return FiniteMDP(way[:, None], torch.as_tensor(reward, dtype=torch.float64)[:, None])


class Full(TD):
    """The whole gradient: targets are moved too."""

    def forward(self, batch: Any, player: str = "") -> Output:
        value = self.value(batch["observation"])
        goal = batch["reward"] + self.discount * self.value(batch["next_observation"]) * ~batch["terminated"]
        rho = self._ratio(batch)
        return Output(0.5 * (goal - value) ** 2 * (1.0 if rho is None else rho))
