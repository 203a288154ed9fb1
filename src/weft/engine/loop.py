"""The loop: every training of weft runs through `train`."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self, SupportsIndex, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core.source import Batch, Source
from weft.core.state import State
from weft.core.trees import tree_map
from weft.engine.answering import renew, validated
from weft.engine.asking import rows_to_measure
from weft.engine.capture import Captured, stepper
from weft.engine.distributed import anywhere
from weft.engine.engine import Diverged, Engine, loss_name
from weft.engine.rating import look, rates_of
from weft.engine.replicas import fresh, gathered, reading, reported, surveyed

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "TOLD",
    "History",
    "Pause",
    "Plan",
    "Record",
    "begin",
    "progress_of",
    "recorded",
    "stop",
    "train",
    "training",
]


Record = dict[str, Any]
"""What one evaluation says, by name: numbers, or arrays over replicas."""
TOLD = ("step", "epoch", "seconds", "task")
"""What every record says."""


class Signed(Protocol):
    """What has a negative: a number, an array, a tensor."""

    def __neg__(self) -> Self: ...


Value = TypeVar("Value", bound=Signed)


class History(list[Record]):
    """One record per evaluation; a column by its name. With replicas a value is an array over them.

    >>> History([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}])["loss"]
    array([2., 1.])
    """

    @overload
    def __getitem__(self, which: str) -> NDArray[np.float64]: ...
    @overload
    def __getitem__(self, which: SupportsIndex) -> Record: ...
    @overload
    def __getitem__(self, which: slice) -> list[Record]: ...

    def __getitem__(self, which: str | SupportsIndex | slice) -> NDArray[np.float64] | Record | list[Record]:
        if isinstance(which, str):
            if which not in {name for record in self for name in record}:
                raise KeyError(f"expected one of {sorted({n for r in self for n in r})}, got {which!r}")
            gap = next(np.full_like(np.asarray(r[which], dtype=float), math.nan) for r in self if which in r)
            return np.array([record.get(which, gap) for record in self])
        return super().__getitem__(which)

    def to_frame(self) -> pd.DataFrame:
        """A pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(list(self))


@dataclass
class Pause:
    """Asks a training to stop after the step at hand (Ctrl-C), when its state can be kept."""

    asked: bool = False


@dataclass
class Plan:
    """How long to train and what to look at on the way.

    Attributes:
        steps: updates to make.
        every: updates between two records; None for a fiftieth of `env_steps`.
        env_steps: steps of the source's worlds after which training ends, where nobody knows how many updates those
            are: a replica ends after the update at which it has played as many.
        patience: records without progress after which a run stops and its best parameters are put
            back; None to go on to the end.
        best: whether the best parameters are put back at the end, with `patience` or without.
        tolerance: the least change of the progress measure that counts.
        validation: where the progress measure is taken, or None for the training batch.
        memory: bytes that an evaluation may take at a time.
        pause: looked at after each step.
        judge: further measures of a state on the validation, for each replica, by name.
    """

    steps: int
    every: int | None
    env_steps: int | None = None
    patience: int | None = None
    best: bool = False
    tolerance: float = 1e-4
    validation: Source | None = None
    memory: int = 2**30
    pause: Pause = field(default_factory=Pause)
    judge: Callable[[Engine, State], dict[str, Tensor]] | None = None

    def judged(self, engine: Engine, state: State, taken: Collection[str]) -> dict[str, Tensor]:
        """The further measures, as a record calls them."""
        told = {} if self.judge is None else {f"valid_{n}": v for n, v in self.judge(engine, state).items()}
        if odd := sorted(told.keys() & set(taken)):
            name = odd[0].removeprefix("valid_")
            raise ValueError(
                f"expected metrics under names of their own, got {name!r}, which {type(engine.objective).__name__} "
                f"measures itself; leave it out, or give it by name: metrics={{'my_{name}': ...}}"
            )
        return told


def recorded(value: Tensor) -> float | NDArray[np.float64]:
    """A tensor as it stands in a record: a number, or an array over replicas."""
    return value.item() if value.dim() == 0 else value.detach().double().cpu().numpy()


def begin(engine: Engine, state: State, plan: Plan) -> None:
    """Makes a state ready for a plan; what has diverged stays as it is, and each goes on by its own clock."""
    engine.total = plan.steps
    late = [state.step - state.step_of(k) for k in range(state.replicas or 1)]
    state.late = torch.tensor(late, device=state.device) if any(late) else None
    state.ended = dict.fromkeys(state.diverged, state.step)
    state.origin, state.tally, state.best = state.step, {}, {}
    state.stopped = {k: state.stopped[k] for k in state.diverged}
    alive = [k not in state.stopped for k in range(state.replicas or 1)]
    state.active = torch.tensor(alive if state.replicas else alive[0], device=state.device)


def stop(state: State, why: str) -> None:
    """Ends what is still going, between two steps."""
    for k, going in enumerate(state.active.reshape(-1).tolist()):
        if going:
            state.ended[k] = state.step
            state.stopped[k] = f"{why} at step {state.step_of(k)}"
    state.active.fill_(False)


def train(engine: Engine, state: State, source: Source, plan: Plan, history: History | None = None) -> History:
    """Trains until the plan's steps are made or every replica has stopped; see `training`."""
    history = History() if history is None else history
    for _ in training(engine, state, source, plan, history):
        pass
    return history


def training(engine: Engine, state: State, source: Source, plan: Plan, history: History) -> Iterator[Record]:
    """Trains while it is iterated over, giving each record as it is made.

    The records are appended to `history`; with that of an interrupted training, it goes on from there.
    """
    end = state.origin + plan.steps
    started = time.perf_counter() - (history[-1]["seconds"] if history else 0.0)
    engine.data_rows = source.size
    reading(source, state, plan.steps)
    surveyed(source, state)
    if history and state.step > state.origin and source.resumes == "restart":
        source.recall(state, history[-1])
    stream = engine.batches(source, state)
    stepping = stepper(engine, state)
    try:
        while state.step < end and bool(state.active.any()):
            state.tally.setdefault("going", state.active.clone())
            looked = _looks(plan, state, source)
            made = stepping.round(source, _room(plan, state, end)) if isinstance(stepping, Captured) else None
            batch, reports = made or _stepped(stepping, state, stream)
            for name, loss in (item for report in reports for item in report.items()):
                total, turns = state.tally.get(name, (0.0, 0))
                state.tally[name] = (total + loss, turns + 1)
            over = _played_out(plan, state, source)
            if _looks(plan, state, source) > looked or bool(over.any()) or state.step == end:
                engine.settle(state)
                record = _record(engine, state, source, plan, batch)
                _end(state, over & state.active, f"played {plan.env_steps} steps of its worlds")
                record = {"step": state.step, "epoch": len(history) + 1, **record}
                history.append({**record, "seconds": time.perf_counter() - started})
                yield history[-1]
            if anywhere(plan.pause.asked):
                renew(engine, state, source)
                raise KeyboardInterrupt
    except Diverged:
        history.append({"step": state.step, "epoch": len(history) + 1, "seconds": time.perf_counter() - started})
        if state.replicas is None:
            raise
        warnings.warn("every replica has diverged; the run stops", RuntimeWarning, stacklevel=2)
    renew(engine, state, source)
    _restore_best(state, plan)
    for k in range(state.replicas or 1):
        state.stopped.setdefault(k, f"completed {plan.steps} steps")


def _stepped(
    stepping: Engine | Captured, state: State, stream: Iterator[Batch]
) -> tuple[Batch, list[dict[str, Tensor]]]:
    """One update: (its batch, its losses)."""
    batch = next(stream)
    return batch, [stepping.step(state, batch)]


def _room(plan: Plan, state: State, end: int) -> int:
    """How many updates may be made before the next record is due."""
    if plan.every is None or plan.env_steps is not None:
        return 0  # nobody knows
    return min(plan.every - (state.step - state.origin) % plan.every, end - state.step)


def _looks(plan: Plan, state: State, source: Source) -> int:
    """How many records have been due by now."""
    if plan.every is not None or plan.env_steps is None:
        return (state.step - state.origin) // (plan.every or 1)
    played = source.played(state)
    least = played[state.active].min() if played.dim() and bool(state.active.any()) else played.min()
    return int(50 * least) // plan.env_steps


def _played_out(plan: Plan, state: State, source: Source) -> Tensor:
    """Which replicas have played as many steps of their worlds as they may."""
    if plan.env_steps is None:
        return torch.zeros((), dtype=torch.bool)
    return state.active & (source.played(state) >= plan.env_steps)


def _end(state: State, over: Tensor, why: str) -> None:
    """Ends what is over by now, and keeps what its optimizers have gathered."""
    for k in torch.nonzero(over.reshape(-1)).flatten().tolist():
        state.ended[k] = state.step
        if state.replicas is not None:  # the others' steps move on what it has gathered, too
            state.best.setdefault("gathered", {})[k] = gathered(state, k)
        state.stopped[k] = f"{why}, at step {state.step_of(k)}"
    state.active.logical_and_(~over.to(state.active.device))


def _record(engine: Engine, state: State, source: Source, plan: Plan, batch: Batch) -> Record:
    """The mean losses since the last record, and the measures now; early stopping looks at them."""
    going = state.tally.pop("going")
    values = {name: total / turns for name, (total, turns) in state.tally.items()}
    rates, state.tally = rates_of(engine, state), {}
    if not source.episodic:
        measures = engine.measure(state, source.latest(state, batch), grouped=engine.grouped)
        moves = {loss_name(player) for player in engine.players} | {"loss"}  # those come from the steps
        values.update({n: v for n, v in measures.items() if n not in moves})
    if plan.validation is not None:
        renew(engine, state, source)
        looking = fresh(plan.validation, state)
        rows = rows_to_measure(looking, plan.validation, plan.memory)
        measures = validated(engine, looking, plan.validation, rows)
        values.update({f"valid_{name}": v for name, v in measures.items()})
        values |= plan.judged(engine, state, values)
    values |= {name: rate for name, rate in rates.items() if name not in values}
    values.update(reported(source, state, {*values, *TOLD}))
    look(engine, state, progress_of(engine, values)[1])
    _keep_best(engine, state, plan, values)
    # A replica that had stopped before has nothing to report.
    return {n: recorded(torch.where(going, v, math.nan) if v.dim() else v) for n, v in values.items()}


def progress_of(engine: Engine, values: Mapping[str, Value]) -> tuple[str, Value]:
    """The objective's progress measure among the recorded values, turned so that less is better."""
    name, direction = engine.progress
    for candidate in (f"valid_{name}", name, "valid_loss", "loss"):
        if candidate in values:
            rising = direction == "max" and candidate.endswith(name)
            return candidate, -values[candidate] if rising else values[candidate]
    raise ValueError(f"expected the progress measure {name!r} among {sorted(values)}; check the objective's measure()")


def _keep_best(engine: Engine, state: State, plan: Plan, values: dict[str, Tensor]) -> None:
    """Early stopping, replica by replica."""
    _, now = progress_of(engine, values)
    if not state.best:
        state.best = {"value": torch.full_like(now, math.inf), "waited": torch.zeros_like(now, dtype=torch.int64)}
        if plan.best:
            state.best |= tree_map(torch.clone, _kept(engine, state))
    better = state.active & (now < state.best["value"] - plan.tolerance * state.best["value"].abs().clamp_max(1.0))
    state.best["value"] = torch.where(better, now, state.best["value"])
    state.best["waited"] = torch.where(better, 0, state.best["waited"] + 1)
    if not plan.best:
        return
    state.best |= _where(better, _kept(engine, state), state.best)
    if plan.patience is None:
        return
    late = state.active & (state.best["waited"] >= plan.patience)
    _end(state, late, f"no progress in {plan.patience} evaluations")


def _kept(engine: Engine, state: State) -> dict[str, Any]:
    """What early stopping puts back: what was trained, and what makes other parameters answer in its place."""
    kept: dict[str, Any] = {"params": state.params, "buffers": state.buffers}
    others = {"strategy": state.strategy, "statistics": state.statistics}
    return {**kept, **others} if engine.strategy.does("answer") else kept


def _where(better: Tensor, now: Any, before: Any) -> Any:
    """A tree's tensors where it is better, else those of the tree before (unless it has grown since)."""
    if isinstance(now, dict):
        return {name: _where(better, value, before.get(name)) for name, value in now.items()}
    if before is None or before.shape != now.shape:
        return now.clone()
    return torch.where(better.reshape(better.shape + (1,) * (now.dim() - better.dim())), now, before)


def _restore_best(state: State, plan: Plan) -> None:
    if not plan.best or "params" not in state.best:
        return
    for kind, tree in (("params", state.params), ("buffers", state.buffers)):
        for name, t in tree.items():
            t.copy_(state.best[kind][name])
    for kind in ("strategy", "statistics"):
        if kind in state.best:
            setattr(state, kind, tree_map(torch.clone, state.best[kind]))
