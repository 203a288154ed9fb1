"""Segments: stretches of play of one length, learned from in passes, after which play goes on where it stood."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from weft.core.legal import Legal, Whole, check
from weft.core.objective import Objective
from weft.core.random import fold, permutation
from weft.core.source import Batch, SourceState
from weft.core.state import State
from weft.core.trees import tree_map
from weft.sources.playing import ACTED, Playing, Worlds

__all__ = ["Segments"]


class Segments(Playing):
    """Plays `length` steps in each of `envs` rows, learns from them in `passes`, and plays on from where it stood.

    An episode that ends within a segment begins anew there: `terminated` says that it has ended by itself, `truncated`
    that it was cut, and `next_observation` is what was observed after the step, not what the new one begins with. What
    is played, `(envs, length, ...)`, is shown to the objective's `credit`, which adds advantages and what else it
    needs; then its rows (steps; whole stretches, where the objective learns from `trajectories`) are given in an order
    that is drawn for each pass, `batch_size` at a time. A policy's memory at each step is there as `memory_...`.

    Args:
        world: as for `Rollouts`.
        envs: episodes side by side (in each world).
        length: steps of a segment.
        passes: over the rows of a segment.
        batch_size: rows of an update (of each world), which divide those of a segment; None for all of them.
        horizon: steps after which an episode is cut; default: the world's own.
        arguments: further ones for gymnasium, by name.

    References:
        Mnih et al., "Asynchronous methods for deep reinforcement learning", arXiv 1602.01783 (segments); Schulman,
        Wolski, Dhariwal, Radford and Klimov, "Proximal policy optimization algorithms", arXiv 1707.06347 (passes).

    Example:
        >>> from weft.data import CartPole
        >>> source = Segments(CartPole(), envs=4, length=32, passes=2, batch_size=64)
        >>> sorted(source.spec)
        ['action', 'next_observation', 'observation', 'reward', 'terminated', 'truncated']
    """

    legal: ClassVar[dict[str, Legal]] = {
        **ACTED,
        "length": Whole(1),
        "passes": Whole(1),
        "batch_size": Whole(1) | None,
    }

    def __init__(
        self,
        world: Worlds,
        *,
        envs: int = 8,
        length: int = 128,
        passes: int = 1,
        batch_size: int | None = None,
        horizon: int | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        check(Segments, locals())
        super().__init__(world, envs=envs, horizon=horizon, arguments=arguments)
        self.length, self.passes = int(length), int(passes)
        self.batch_size = None if batch_size is None else int(batch_size)
        self.stale = self.passes > 1 or self.batch_size not in (None, self.envs * self.length)

    def _settings(self) -> str:
        return f"{self.length} {self.passes} {self.batch_size}"

    def _parts(self, objective: Objective) -> int:
        """Updates in one pass."""
        rows = self.envs if objective.trajectories else self.envs * self.length
        size = rows if self.batch_size is None else self.batch_size
        if rows % size:
            what = "stretches" if objective.trajectories else "steps"
            raise ValueError(
                f"expected a batch_size that divides the {rows} {what} of a segment, got {size}; take one such as "
                f"{max(d for d in range(1, size + 1) if rows % d == 0)}"
            )
        return rows // size

    def updates(self, env_steps: int, objective: Objective) -> int:
        """How many updates so many steps of the worlds allow."""
        segments = env_steps // (self.envs * self.length * len(self.collectors))
        return segments * self.passes * self._parts(objective)

    def init(self, state: State) -> SourceState:
        """Episodes that have just begun, and no segment yet."""
        self._parts(state.objective)
        lead = () if state.replicas is None else (state.replicas,)
        return {**super().init(state), "turn": torch.zeros(lead, dtype=torch.int64, device=state.device)}

    def batches(self, state: State) -> Iterator[Batch]:
        """Batches without end; a segment is played whenever the last one is used up."""
        parts = self._parts(state.objective)
        while True:
            tree = state.source
            turn = int(tree["turn"].reshape(-1)[0])
            if turn == 0:
                tree = {**tree, **self._segment(state, tree)}
            if turn % parts == 0 and parts > 1:
                tree["order"] = self._order(state, tree["segment"])
            tree["turn"] = torch.full_like(tree["turn"], (turn + 1) % (parts * self.passes))
            state.source = tree
            yield self._part(tree, turn % parts, parts)

    def _segment(self, state: State, tree: SourceState) -> SourceState:
        """What is kept of the worlds after a segment, and its rows."""
        key, found, batches = state.key("segment"), {}, []
        for e, collector in enumerate(self.collectors):
            found[str(e)], played = collector.play(state, tree[str(e)], self.length, fold(key, e), ask=self.ask)
            batches.append(played)
        batch = self.rows(state, self.credited(state, self._together(state, batches), fold(key, "credit")))
        return {**found, "segment": batch}

    def _order(self, state: State, batch: Batch) -> Tensor:
        """The order of the rows in a pass, drawn for each replica (and world)."""
        lead = 0 if state.replicas is None else 1
        key, rows = state.key("pass"), batch["reward"].shape[lead + self.grouped]
        if self.grouped:
            key = fold(key.unsqueeze(-1), torch.arange(len(self.collectors), device=state.device))
        return permutation(key, rows)

    def _part(self, tree: SourceState, part: int, parts: int) -> Batch:
        """So many rows of a segment, by their order in this pass."""
        if parts == 1:
            return dict(tree["segment"])
        order: Tensor = tree["order"]
        size = order.shape[-1] // parts
        index = order[..., part * size : (part + 1) * size]
        return tree_map(lambda t: taken(t, index), dict(tree["segment"]))

    def latest(self, state: State, batch: Batch) -> Iterator[Batch]:
        """The segment at hand, in parts as large as those that are learned from."""
        parts = self._parts(state.objective)
        yield from (batch,) if parts == 1 else (self._part(state.source, i, parts) for i in range(parts))

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        """The segment at hand, or where there is none yet one that is played apart."""
        if "segment" not in state.source:
            yield from super().once(state, rows)
            return
        axis = (0 if state.replicas is None else 1) + self.grouped
        batch = tree_map(lambda t: t.flatten(axis - 1, axis) if self.grouped else t, dict(state.source["segment"]))
        axis -= self.grouped
        for first in range(0, batch["reward"].shape[axis], rows):
            yield tree_map(lambda t: t.narrow(axis, first, min(rows, t.shape[axis] - first)), batch)  # noqa: B023


def taken(values: Tensor, index: Tensor) -> Tensor:
    """Rows by their numbers, whose leading axes are alike: `(..., rows, ...)` by `(..., n)`.

    >>> taken(torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[2, 0], [1, 1]]))
    tensor([[3, 1],
            [5, 5]])
    """
    axis = index.dim() - 1
    if not axis:
        return values[index]
    flat, rows = values.flatten(0, axis), values.shape[axis]
    starts = torch.arange(0, flat.shape[0], rows, device=index.device).reshape(*values.shape[:axis], 1)
    return flat[starts + index]
