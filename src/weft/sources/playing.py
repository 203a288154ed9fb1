"""Playing: what sources share whose rows come from acting in worlds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from weft.core.legal import Legal, Such, Whole
from weft.core.random import fold
from weft.core.source import Batch, Source, SourceState, rows_of
from weft.core.state import State
from weft.core.trees import tree_map
from weft.core.world import World
from weft.engine.acting import asked_of
from weft.sources.collector import WINDOW, Collector
from weft.sources.stage import stage_of
from weft.sources.strange import refuse_endless, refuse_objective

__all__ = ["ACTED", "WORLDS", "Playing", "Worlds", "called_world"]

Worlds = str | World[Any] | Callable[[], Any] | Any
"""A world of tensors, what gymnasium knows, or a list of those."""
WORLDS = Such(
    "a world of tensors such as weft.data.CartPole(), a gymnasium id such as 'CartPole-v1', an environment of "
    "gymnasium's or a function that makes one, or a list of those",
    lambda given: isinstance(given, str | list | tuple) or callable(given) or hasattr(given, "reset"),
)
ACTED: dict[str, Legal] = {
    "world": WORLDS,
    "envs": Whole(1),
    "horizon": Whole(1) | None,
    "arguments": Such("arguments by name", lambda given: isinstance(given, Mapping)) | None,
}
"""What the settings of a source that acts may be."""


class Playing(Source):
    """Worlds with episodes side by side, what is kept of them, and what is told of their returns.

    What it keeps is a tree for each world, by its number; see `Collector`.

    Args:
        world: a world, or a list of them: then each is a group of its own.
        envs: episodes side by side (in each world).
        horizon: steps after which an episode is cut; default: the world's own.
        arguments: further ones for gymnasium, by name.
        window: so many episodes, the last that have ended, make the return that is told.
    """

    stacks = True
    acts = True
    counts = True
    legal: ClassVar[dict[str, Legal]] = ACTED
    ask = "sample_action"
    """What the objective is asked at each turn."""

    def __init__(
        self,
        world: Worlds,
        *,
        envs: int,
        horizon: int | None,
        arguments: Mapping[str, Any] | None,
        window: int = WINDOW,
    ) -> None:
        self.grouped = isinstance(world, list | tuple)
        given = list(world) if isinstance(world, list | tuple) else [world]
        if not given:
            raise ValueError("expected at least one world, got an empty list")
        self.envs = int(envs)

        def collectors() -> list[Collector]:
            return [Collector(stage_of(w, arguments), self.envs, horizon, called_world(w), window) for w in given]

        self.collectors, self._made = collectors(), collectors
        self._besides: list[Collector] = []
        kinds = [(one.stage.observation, one.stage.action) for one in self.collectors]
        if any(kind != kinds[0] for kind in kinds):
            raise ValueError(f"expected worlds with one kind of observation and action, got {kinds}")
        self.horizon = max(one.horizon for one in self.collectors)
        self.resumes = "exact" if all(one.stage.resumes == "exact" for one in self.collectors) else "restart"
        self.spec = dict(self.collectors[0].spec)

    # --- what is kept, and told -----------------------------------------------------------------------

    def admit(self, state: State) -> None:
        """Raises where the objective cannot act here."""
        for collector in self.collectors:
            refuse_objective(collector, state, self.ask)

    def teaches(self, state: State) -> None:
        """Raises where what the objective learns does not exist here."""
        for collector in self.collectors:
            refuse_endless(collector, state)

    def init(self, state: State) -> SourceState:
        """Episodes that have just begun."""
        self.admit(state)
        key = state.key("worlds")
        return {str(e): one.begin(state, fold(key, e)) for e, one in enumerate(self.collectors)}

    def report(self, state: State) -> dict[str, Tensor]:
        """The mean return and length of the last episodes that have ended, and how many steps were played in all."""
        return self.told([state.source[str(e)] for e in range(len(self.collectors))])

    @staticmethod
    def told(trees: list[SourceState]) -> dict[str, Tensor]:
        """The same, of what is kept of each world."""
        means = {n: torch.stack([tree[f"{n}s"].nanmean(-1) for tree in trees]).mean(0) for n in ("return", "length")}
        return {**means, "env_steps": torch.stack([tree["steps"] for tree in trees]).sum(0).double()}

    def played(self, state: State) -> Tensor:
        """The steps that were played in all worlds."""
        return torch.stack([state.source[str(e)]["steps"] for e in range(len(self.collectors))]).sum(0)

    def recall(self, state: State, record: Mapping[str, Any]) -> None:
        """The steps that were played before an interruption count on."""
        if "env_steps" in record:
            before = torch.as_tensor(record["env_steps"], device=state.device)
            steps = state.source["0"]["steps"]
            steps += before.nan_to_num().to(steps)

    def warns(self, state: State) -> str | None:
        """That no reward was anything but zero, where the objective learns from them; or that no episode has ended by
        itself, where without a discount values exist only if some do."""
        if not state.source:
            return None
        return self._unpaid(state) or self._all_cut(state)

    def _all_cut(self, state: State) -> str | None:
        """The worlds in which every episode was cut, where the objective's values count on there undiscounted."""
        trees = [state.source[str(e)] for e in range(len(self.collectors))]
        cut = [bool((~tree["ended"] & ~tree["lengths"].isnan().all(-1)).any()) for tree in trees]
        if state.objective.bootstraps != 1 or not any(cut):
            return None
        where = ", ".join(dict.fromkeys(one.name for one, lost in zip(self.collectors, cut, strict=True) if lost))
        return (
            f"expected episodes that end by themselves for {type(state.objective).__name__} without a discount, got "
            f"{where}, in which every episode of {int(self.played(state).max()):,} steps was cut: the value of what "
            "follows counts on there, and may grow without end; discount (.99), give a longer horizon, or let the "
            "world end an episode (terminated) where the limit is part of the task"
        )

    def _unpaid(self, state: State) -> str | None:
        """That no reward was anything but zero, where the objective learns from them."""
        if "reward" not in state.objective.fields:
            return None
        paid = torch.stack([state.source[str(e)]["paid"] for e in range(len(self.collectors))]).any(0).reshape(-1)
        steps = int(self.played(state).max())
        if not steps or bool(paid.all()):
            return None
        where = ", ".join(dict.fromkeys(one.name for one in self.collectors))
        whose = "" if not bool(paid.any()) or len(paid) == 1 else f" of {int((~paid).sum())} of {len(paid)} replicas"
        return (
            f"expected rewards to learn from, got zero at all steps{whose}, {steps:,} in "
            f"{where}: nothing can be learned from them; explore more or play longer, or look whether the world pays "
            "what it should"
        )

    def judge(self, state: State) -> dict[str, Tensor]:
        """The mean return and length of fresh episodes, each played to its end."""
        self.admit(state)
        trees, _ = self.whole(state, state.key("rollout", "once"))
        return {name: value for name, value in self.told(trees).items() if name != "env_steps"}

    def contents(self) -> dict[str, Any]:
        """How many episodes there are, how long they may be, and what else was set."""
        return {type(self).__name__.lower(): f"{self.envs} {self.horizon} {len(self.collectors)} {self._settings()}"}

    def _settings(self) -> str:
        return ""

    # --- playing ---------------------------------------------------------------------------------------

    @property
    def beside(self) -> list[Collector]:
        """Who plays apart from what goes on: the same, where nothing is kept outside of the state."""
        if self.resumes == "exact":
            return self.collectors
        self._besides = self._besides or self._made()
        return self._besides

    def whole(self, state: State, key: Tensor) -> tuple[list[SourceState], Batch]:
        """Whole episodes, one for each row: what is kept of each world then, and the rows `(..., envs, time, ...)`."""
        trees, batches = [], []
        for e, collector in enumerate(self.beside):
            own = fold(key, e)
            begun = {**collector.begin(state, own), **self._ring(state, collector)}
            tree, played = collector.play(state, begun, collector.horizon, own, ask=self.ask, again=False)
            trees.append(tree)
            batches.append(played)
        return trees, self._together(state, batches)

    def _ring(self, state: State, collector: Collector) -> SourceState:
        """Room for the returns of all that is played to its end at once."""
        lead = () if state.replicas is None else (state.replicas,)
        ring = torch.full((*lead, self.envs), torch.nan, dtype=torch.float64, device=state.device)
        return {"returns": ring, "lengths": ring.clone()}

    def _together(self, state: State, batches: list[Batch]) -> Batch:
        """The worlds' rows as groups, where there are groups."""
        if not self.grouped:
            return batches[0]
        axis = 0 if state.replicas is None else 1
        longest = max(batch["reward"].shape[axis + 1] for batch in batches)
        same = [{n: _lengthened(v, longest, axis + 1, n) for n, v in batch.items()} for batch in batches]
        return {name: torch.stack([batch[name] for batch in same], axis) for name in same[0]}

    def credited(self, state: State, batch: Batch, key: Tensor) -> Batch:
        """The rows with what the objective adds, which has seen all of them first; of groups each by itself."""
        axis = 0 if state.replicas is None else 1
        worlds = len(self.collectors) if self.grouped else 1
        self.witnessed(state, tree_map(lambda t: t.flatten(axis, axis + 1), batch) if self.grouped else batch, key)
        if not state.objective.credits:
            return batch
        each = [
            self._credited(state, tree_map(lambda t: t.select(axis, e), batch) if self.grouped else batch, fold(key, e))  # noqa: B023
            for e in range(worlds)
        ]
        return {name: torch.stack([one[name] for one in each], axis) for name in each[0]} if self.grouped else each[0]

    def witnessed(self, state: State, batch: Batch, key: Tensor) -> None:
        """Lets the objective look at what was played, `(rows, time)`, before it learns from it."""
        if not state.objective.witnesses:
            return
        for name, value in asked_of(state, "witness", batch, key).items():
            if name not in state.buffers:
                raise KeyError(f"expected witness to give buffers among {sorted(state.buffers)}, got {name!r}")
            state.buffers[name] = value.to(state.buffers[name])

    def _credited(self, state: State, batch: Batch, key: Tensor) -> Batch:
        added, shape = asked_of(state, "credit", batch, key), batch["reward"].shape
        for name, value in added.items():
            if value.shape[: len(shape) - 1] != shape[:-1]:
                raise ValueError(
                    f"expected credit to give {name!r} for each of the {tuple(shape)} steps played, got shape "
                    f"{tuple(value.shape)}"
                )
        return {**batch, **added}

    def rows(self, state: State, batch: Batch) -> Batch:
        """What was played as the objective reads it: trajectories as they are, or their steps one by one."""
        if state.objective.trajectories:
            return batch
        axis = batch["reward"].dim() - 2
        batch = dict(batch)
        if "mask" in batch:
            batch["weight"] = batch["mask"]
        return {name: value.flatten(axis, axis + 1) for name, value in batch.items()}

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        """Fresh episodes, none of those trained on, ungrouped."""
        key = state.key("rollout", "once")
        _, batch = self.whole(state, key)
        batch = self.rows(state, self.credited(_traceless(state), batch, key))
        if self.grouped:
            axis = 0 if state.replicas is None else 1
            batch = tree_map(lambda t: t.flatten(axis, axis + 1), batch)
        axis = 0 if state.replicas is None else 1
        for part in zip(*(torch.split(v, rows, axis) for v in batch.values()), strict=True):
            yield dict(zip(batch, part, strict=True))

    def count(self, state: State, batch: Batch) -> int:
        """The rows of a batch, of one replica."""
        return rows_of(batch, 0 if state.replicas is None else 1)


def _traceless(state: State) -> State:
    """The state with buffers of its own, which what it is shown may change without a trace."""
    from dataclasses import replace

    return replace(state, buffers=dict(state.buffers))


def called_world(world: object) -> str:
    """What the messages call a world."""
    return repr(world) if isinstance(world, str) else getattr(world, "__name__", type(world).__name__)


def _lengthened(values: Tensor, longest: int, axis: int, name: str) -> Tensor:
    """Rows made as long as others: by the last observation, or by zeros."""
    rest = longest - values.shape[axis]
    if not rest:
        return values
    if name.endswith("observation"):
        last = values.narrow(axis, -1 % values.shape[axis], 1)
        return torch.cat([values, last.expand(*values.shape[:axis], rest, *values.shape[axis + 1 :])], axis)
    return pad(values, (*(0, 0) * (values.dim() - axis - 1), 0, rest))
