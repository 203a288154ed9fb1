"""What is solved, not descended: parameters at once, and the same record, validation and conventions around them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from weft.core.source import Source
from weft.core.state import State
from weft.core.trees import tree_stack
from weft.engine.asking import measure, rows_to_measure
from weft.engine.engine import Diverged, Engine
from weft.engine.loop import TOLD, History, Plan, Record, recorded
from weft.engine.replicas import apart, fresh, reading, reported

__all__ = ["solving"]


def solving(engine: Engine, state: State, source: Source, plan: Plan, history: History) -> Iterator[Record]:
    """Solves while it is iterated over, giving the one record that there is: of no step, on all rows of the data.

    It is appended to `history`; with that of an interrupted training, there is nothing left to do.
    """
    if history:
        return
    started = time.perf_counter()
    reading(source, state, plan.steps)
    runs = [state.replica(k) for k in range(state.replicas or 1)]
    for k, run in enumerate(runs):
        _solved(run, source)
        if not all(bool(torch.isfinite(p).all()) for p in run.params.values()):
            state.stopped[k] = "diverged: the solution is not finite"
            run.active.fill_(False)
    if len(state.diverged) == len(runs):
        raise Diverged(
            f"expected a finite solution of {type(engine.objective).__name__}, got NaN or infinity; look for extreme "
            "values in the data, or for hyperparameters at which there is none"
        )
    values = _measured(runs, source, plan.memory)
    if plan.validation is not None:
        held = _measured([fresh(plan.validation, run) for run in runs], plan.validation, plan.memory)
        values.update({f"valid_{name}": value for name, value in held.items()})
    told = {name: recorded(value if state.replicas else value[0]) for name, value in values.items()}
    told.update({name: recorded(value) for name, value in reported(source, state, {*told, *TOLD}).items()})
    history.append({"step": state.step, "epoch": 1, **told, "seconds": time.perf_counter() - started})
    yield history[-1]
    if plan.pause.asked:
        raise KeyboardInterrupt
    for k in range(len(runs)):
        state.stopped.setdefault(k, "solved")


def _solved(run: State, source: Source) -> None:
    """One run's parameters, in place."""
    found = run.objective.solve(source, run)
    for name, value in found.items():
        if name not in run.params:
            raise KeyError(
                f"expected {type(run.objective).__name__}.solve to give parameters among {sorted(run.params)}, got "
                f"{name!r}; make it in build"
            )
        run.params[name].copy_(value.reshape(run.params[name].shape))


def _measured(runs: list[State], source: Source, memory: int) -> dict[str, Tensor]:
    """The objective's measures over a source, of each run by itself."""
    rows = rows_to_measure(runs[0], source, memory)
    return tree_stack([measure(run, source.once(apart(run), rows)) for run in runs])
