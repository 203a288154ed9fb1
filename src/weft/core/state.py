"""State: what must be kept to go on, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from weft.core.objective import Objective
from weft.core.random import fold, integer, key_of
from weft.core.source import Batch, SourceState
from weft.core.strategy import StrategyState
from weft.core.trees import Params, tree_map

__all__ = ["State", "aside"]


@dataclass
class State:
    """The whole of a training run. With replicas, every tensor has them on its leading axis.

    Attributes:
        objective: the built objective; its structure is used, its own tensors are not.
        params: parameters by name, trainable and frozen.
        buffers: the module's buffers (running statistics) by name.
        seeds: the seed, or one per replica.
        replicas: how many, or None for a single run (no leading axis).
        strategy: the strategy's state, one tree for each player.
        optimizers: `torch.optim` optimizers by player, over `params`' tensors.
        step: updates made so far; the clock of every keyed draw. Of replicas, as if none had ever stopped early.
        late: how many fewer each replica had made when the current source began to be read; None where all as many.
        ended: the `step` at which each replica stopped that has stopped since, by number.
        clock: each replica's own step as a tensor, while a step is recorded to be replayed.
        origin: the step at which the current source began to be read.
        planned: steps that the current training was to make from there.
        source: what the current source keeps between batches, see `Source.init`.
        resumes: the current source's word: `restart` where a checkpoint leaves out what it keeps.
        active: whether training goes on; false once stopped early or diverged.
        stopped: why each stopped replica stopped, by number (0 for a single run).
        statistics: the buffers under the parameters that answer, by the answer's number, where the strategy has others
            answer than those trained, and where buffers depend on them.
        best: the best progress so far, the parameters and buffers then, and evaluations since.
        tally: since the last record: the sum of each loss with its number of steps, and who was active.
        tasks: names of the tasks that were consolidated, in order.
        act: answers a capability of the objective at the current parameters; set by the engine.
        adapting: adapts to a few examples; set by the engine.
    """

    objective: Objective
    params: Params
    buffers: Params
    seeds: Tensor
    replicas: int | None = None
    strategy: dict[str, StrategyState] = field(default_factory=dict)
    optimizers: dict[str, Any] = field(default_factory=dict)
    step: int = 0
    origin: int = 0
    planned: int = 0
    source: SourceState = field(default_factory=dict)
    resumes: str = "exact"
    late: Tensor | None = None
    ended: dict[int, int] = field(default_factory=dict)
    clock: Tensor | None = None
    active: Tensor = field(default_factory=lambda: torch.tensor(True))
    stopped: dict[int, str] = field(default_factory=dict)
    statistics: dict[str, Params] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)
    tally: dict[str, Any] = field(default_factory=dict)
    tasks: list[str] = field(default_factory=list)
    act: Callable[..., Any] | None = None
    adapting: Callable[[State, Batch, bool], State] | None = None
    _roots: dict[tuple[int | str, ...], Tensor] = field(default_factory=dict, repr=False)

    @property
    def device(self) -> torch.device:
        return self.seeds.device

    @property
    def dtype(self) -> torch.dtype:
        """That of the parameters, or of the buffers where there are none."""
        floats = [t.dtype for t in (*self.params.values(), *self.buffers.values()) if t.is_floating_point()]
        return floats[0] if floats else torch.get_default_dtype()

    @property
    def diverged(self) -> set[int]:
        """The replicas that have diverged."""
        return {k for k, why in self.stopped.items() if why.startswith("diverged")}

    @property
    def progress(self) -> float:
        """The share of the planned steps that is done, in [0, 1], for schedules; 0 where nothing is planned.

        Replicas that go on have done the same share, whatever their clocks; of one that has stopped see `replica(k)`.
        """
        return min(1.0, (self.step - self.origin) / self.planned) if self.planned else 0.0

    def key(self, *places: int | str) -> Tensor:
        """The key of a place at the current step, for each replica at its own."""
        return fold(self.root(*places), self.own(self.step) if self.clock is None else self.clock)

    def root(self, *places: int | str) -> Tensor:
        """The key of a place, whatever the step."""
        if places not in self._roots:
            self._roots[places] = fold(key_of(self.seeds), *places)
        return self._roots[places]

    def own(self, step: int) -> int | Tensor:
        """A step by the replicas' own clocks: a number, or one for each where some are late."""
        return step if self.late is None else step - self.late

    def step_of(self, k: int) -> int:
        """Updates that a replica has made itself."""
        return self.ended.get(k, self.step) - (0 if self.late is None else int(self.late[k]))

    def call(self, capability: str, *args: Any, key: Tensor, rows: Tensor | None = None) -> Any:
        """Asks the objective, as it is now, for a capability: a rollout's way to an action."""
        if self.act is None:
            raise RuntimeError("expected a state held by an engine, got one without; use Engine.init")
        return self.act(self, capability, *args, key=key, rows=rows)

    def adapt(self, batch: Batch, *, grouped: bool = False) -> State:
        """A view of it with parameters adapted to a few rows, as the strategy's inner loop adapts them in training (or
        as the objective does), so that an adapted policy can draw its own query.

        Args:
            batch: the rows, `(n, ...)`, or `(replicas, n, ...)`.
            grouped: whether tasks are stacked on the axis before the rows. Each is adapted to by itself, and the view
                has them for replicas, with draws of their own: the tasks of the first replica, then of the second.
        """
        if self.adapting is None:
            raise RuntimeError(
                "expected a state held by an engine to adapt, got one without, or one that is adapted already; use "
                "Engine.init, and adapt from the state that is trained"
            )
        return self.adapting(self, batch, grouped)

    def replica(self, k: int) -> State:
        """One replica of it, as views: what a single run with that seed holds (without optimizers)."""
        if self.replicas is None:
            if k:
                raise IndexError(f"expected replica 0 of a single run, got {k}")
            return self
        if not -self.replicas <= k < self.replicas:
            raise IndexError(f"expected a replica in 0..{self.replicas - 1}, got {k}")
        k %= self.replicas
        return State(
            objective=self.objective,
            params=tree_map(lambda t: t[k], self.params),
            buffers=tree_map(lambda t: t[k], self.buffers),
            seeds=self.seeds[k],
            strategy=tree_map(lambda t: t[k], self.strategy),
            statistics=tree_map(lambda t: t[k], self.statistics),
            step=self.step_of(k),
            origin=self.origin - (0 if self.late is None else int(self.late[k])),
            planned=self.planned,
            source=tree_map(lambda t: t[k], self.source),
            resumes=self.resumes,
            active=self.active[k],
            stopped={0: self.stopped[k]} if k in self.stopped else {},
            tasks=list(self.tasks),
            act=self.act,
            adapting=self.adapting,
        )


def aside(state: State, *places: int | str) -> State:
    """The state at which a source draws what is not learned from: the same at any step, for all seeds and replicas.

    Args:
        state: where the run stands, or what a source sees of it.
        places: what is drawn there, by names and numbers; no training draws at any of them.
    """
    seed = integer(fold(key_of(0), "aside", *places))
    return State(
        objective=state.objective,
        params=state.params,
        buffers=state.buffers,
        seeds=torch.full_like(state.seeds, seed),
        replicas=state.replicas,
        source=state.source,
        active=state.active,
        act=state.act,
    )
