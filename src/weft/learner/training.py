"""The training: what a fit has made, and what the next one, an answer, a measure or the folder goes on from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from weft.core.configured import closest
from weft.core.source import Batch, Spec
from weft.core.state import State
from weft.engine import asking
from weft.engine.answering import answers, measured
from weft.engine.engine import Engine
from weft.engine.loop import History

__all__ = ["Begun", "Phase", "Run", "Training", "refuse_unfitted"]


def refuse_unfitted(learner: Any) -> None:
    """Raises for a learner that was not fitted, in scikit-learn's words."""
    if not learner.__sklearn_is_fitted__():  # which scikit-learn asks last, after much that costs more than an answer
        check_is_fitted(learner)


class Run(NamedTuple):
    """An engine and the state that it trains: one run, or replicas stacked in one."""

    engine: Engine
    state: State


@dataclass
class Begun:
    """A run in the phase at hand: its records, and whether it is done."""

    records: History = field(default_factory=History)
    done: bool = False


@dataclass
class Phase:
    """How far the task at hand has come.

    Attributes:
        task: its name, or None where there are no tasks.
        once: whether it is one pass, as `partial_fit` makes without a task.
        runs: those begun, in order; empty before the phase and after it.
        data: digests of what it learns from, by name, where it is kept in a folder.
        kept: its best checkpoints so far, the best first, where some are kept.
    """

    task: str | None = None
    once: bool = False
    runs: list[Begun] = field(default_factory=list)
    data: dict[str, str] = field(default_factory=dict)
    kept: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Training:
    """What a Learner has trained, as `learner.training_`.

    Attributes:
        settings: what distinguishes each replica: parameter values by name, the seed as `random_state`.
        spec: names, shapes and dtypes of a row.
        runs: one; or one in which all replicas are stacked; or, where they cannot be, one for each.
        phase: how far the task at hand has come.
        folder: where it was loaded from, if it was.
        run: a name that no other training has; a folder holds one.
        drawn: how many rows it has been asked to draw; the next draw goes on from there.
        missing: parameters that were given when it was kept and were not given again when it was loaded.
    """

    settings: list[dict[str, Any]]
    spec: Spec
    runs: list[Run]
    phase: Phase = field(default_factory=Phase)
    folder: Path | None = None
    run: str = field(default_factory=lambda: uuid4().hex)
    missing: tuple[str, ...] = ()
    drawn: int = 0

    @property
    def every(self) -> list[Run]:
        """Every replica as a single run, its tensors as views."""
        return [Run(engine, state.replica(k)) for engine, state in self.runs for k in range(state.replicas or 1)]

    @property
    def answering(self) -> list[list[Run]]:
        """Every replica as the single runs that answer for it: one, where the strategy does not say otherwise."""
        if len(self.runs) == 1 and self.runs[0].state.replicas is None:
            engine, state = self.runs[0]
            return [[Run(engine, one) for one in answers(engine, state)]]
        each = [(engine, state, answers(engine, state)) for engine, state in self.runs]
        return [
            [Run(engine, one.replica(k)) for one in found]
            for engine, state, found in each
            for k in range(state.replicas or 1)
        ]

    @property
    def diverged(self) -> list[bool]:
        """Whether each replica has diverged."""
        return [k in state.diverged for _, state in self.runs for k in range(state.replicas or 1)]

    @property
    def alone(self) -> Run:
        """The one run that was trained; raises where there are several."""
        if sum(state.replicas or 1 for _, state in self.runs) > 1:
            raise ValueError("expected one trained run, got several replicas; measure one: learner.replica(0)")
        return self.runs[0]

    def measured(self, data: Batch, rows: NDArray[np.int64], measure: str) -> NDArray[np.float64]:
        """One of the objective's measures over some rows of the data, for each replica; a row's draws are its own."""
        parts = [_measured(run, data, torch.from_numpy(rows), measure) for run in self.runs]
        return np.concatenate(parts)


def _measured(run: Run, data: Batch, rows: Tensor, measure: str) -> NDArray[np.float64]:
    engine, state = run
    kind = tuple((name, tuple(values.shape[1:]), str(values.dtype)) for name, values in data.items())
    memory = engine.memory * (engine.replicas or 1)

    def few(_: State) -> Batch:
        return {name: values[rows[:16]].to(state.device) for name, values in data.items()}

    at_a_time = asking.fitting_measure(state, kind, few, len(rows), memory)

    def batches(_: State) -> Iterator[Batch]:
        for part in rows.split(at_a_time):
            batch = {name: values[part].to(state.device) for name, values in data.items()}
            batch["row"] = part.to(state.device)
            if engine.replicas is not None:
                batch = {name: v.expand(engine.replicas, *v.shape) for name, v in batch.items()}
            yield batch

    values = measured(engine, state, lambda at: asking.measure(at, batches(at)))
    if measure not in values:
        raise closest(measure, values, f"a measure that {type(engine.objective).__name__} reports")
    each: NDArray[np.float64] = values[measure].detach().double().reshape(-1).cpu().numpy()
    return each
