"""Runs: a Learner's trainings, one or many replicas, from their start to the end of a task.

Replicas are stacked in one run where they can be trained at once, and are one run each where they cannot.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from weft.core.configured import closest
from weft.core.objective import Objective
from weft.core.source import Source, Spec
from weft.core.state import State
from weft.core.strategy import Known, Strategy
from weft.core.trees import tree_map, tree_stack
from weft.engine import verbs
from weft.engine.answering import answers
from weft.engine.build import build, seeded
from weft.engine.distributed import Lost, anywhere, world
from weft.engine.engine import Engine
from weft.engine.fresh import estranged, staying
from weft.engine.loop import Plan, Record, begin, stop, training
from weft.engine.progress import Bar
from weft.engine.replicas import admitted, gathered
from weft.engine.schedule import is_plateau, is_torch_scheduler
from weft.engine.solving import solving
from weft.engine.taking import takes, thawed
from weft.engine.vectorize import VectorizationWarning, blame
from weft.learner.pretrained import noted, resolved
from weft.learner.settings import Settings, optimizers_of
from weft.learner.training import Begun, Phase, Run, Training

if TYPE_CHECKING:
    pass

__all__ = [
    "Kind",
    "assemble",
    "copied",
    "go_on",
    "learned",
    "make_engine",
    "records",
    "start",
    "train_all",
    "vectorizes",
]


class Kind(Protocol):
    """What an engine must know of the batches: a source says it, and another engine does."""

    @property
    def grouped(self) -> bool: ...

    @property
    def episodic(self) -> bool: ...


# --- beginning ------------------------------------------------------------------------------------------


def start(
    settings: Settings, each: list[Settings], told: list[dict[str, Any]], source: Source, *, replicated: bool
) -> list[Run]:
    """Builds the objective and the state of every run: one, stacked replicas, or one run each.

    Args:
        settings: the learner's own.
        each: those of each replica, for what is swept differs between them.
        told: what distinguishes each replica, by name.
        source: what they will learn from.
        replicated: whether there are replicas, be it one.
    """
    if settings.objective.solved and isinstance(settings.init, Mapping) and any(map(takes, settings.init.values())):
        raise ValueError(
            f"expected an objective that is descended beside init={noted(settings.init)}, got "
            f"{type(settings.objective).__name__}, whose solution does not depend on where it begins; leave init out"
        )
    settings = replace(settings, init=resolved(settings.init))
    each = [replace(own, init=resolved(own.init) if "init" in told[0] else settings.init) for own in each]
    if replicated and _stackable(settings, told):
        parts = assemble(settings, each, told, source.spec, source, stacked=True)
        ((engine, seeds, builds),) = parts
        state = engine.init(seeds, settings.device, settings.init, builds)
        if settings.objective.solved or vectorizes(engine, state, source):
            _warn_of_discarded(settings, [builds[0]])
            _warn_of_thawed(settings, engine)
            return [Run(engine, state)]
    parts = assemble(settings, each, told, source.spec, source, stacked=False)
    _warn_of_discarded(settings, [builds[0] for _, _, builds in parts])
    _warn_of_thawed(settings, parts[0][0])
    return [
        Run(engine, engine.init(seeds, settings.device, own.init, builds))
        for own, (engine, seeds, builds) in zip(each, parts, strict=True)
    ]


def _warn_of_thawed(settings: Settings, engine: Engine) -> None:
    """Says where a parameter was frozen where it was taken from, and learns here."""
    names = [name for own in engine.names.values() for name in own]
    name = "" if isinstance(settings.init, str) else thawed(engine.objective, settings.init, names)
    if name:
        warnings.warn(
            f"expected {name!r} to stay as it is, since it is frozen where init takes it from, got an optimizer that "
            f"trains it; freeze it here as well, by Optimizer(..., freeze={name!r})",
            stacklevel=7,
        )


def _warn_of_discarded(settings: Settings, builds: list[Objective]) -> None:
    """Says where weights that a module came with, and that are no fresh draw, are drawn anew."""
    given = [value for value in settings.objective.get_params().values() if isinstance(value, nn.Module)]
    if settings.init == "keep" or not any(True for module in given for _ in module.parameters()):
        return
    for built in builds:
        name = estranged(built, settings.init, seeded)
        if name:
            warnings.warn(
                f"expected init='keep' for a module with weights of its own, got init={settings.init!r}, which draws "
                f"them anew from the seed: {name!r} has values that no fresh draw has; pass init='keep' to begin with "
                f"them, init={{'net.0.*': 'keep'}} for some, or a factory in place of the module",
                stacklevel=7,
            )
            return


def assemble(
    settings: Settings, each: list[Settings], told: list[dict[str, Any]], spec: Spec, kind: Kind, *, stacked: bool
) -> list[tuple[Engine, list[int], list[Objective]]]:
    """Engines without states: one for all replicas at once, or one for each; with seeds and built objectives."""
    seeds = [int(one["random_state"]) for one in told]
    if stacked:
        swept = {n: [one[n] for one in told] for n in told[0] if n != "random_state"}
        values = {n.partition("__")[2]: _swept(n, v).to(settings.device, settings.dtype) for n, v in swept.items()}
        builds = [build(settings.objective, spec, seed, settings.dtype) for seed in seeds]
        return [(make_engine(each[0], builds[0], kind, swept=values, replicas=len(told)), seeds, builds)]
    parts = []
    for own, seed in zip(each, seeds, strict=True):
        built = build(own.objective, spec, seed, settings.dtype)
        parts.append((make_engine(own, built, kind), [seed], [built]))
    return parts


def _swept(name: str, values: list[Any]) -> Tensor:
    """One number for each replica."""
    try:
        return torch.tensor(values, dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"expected numbers for {name!r} in replicas, got {values!r}") from error


def make_engine(
    settings: Settings,
    built: Objective,
    kind: Kind,
    *,
    swept: dict[str, Tensor] | None = None,
    replicas: int | None = None,
) -> Engine:
    """The engine for these settings, and for batches of this kind."""
    names = [name for name, _ in built.named_parameters()]
    optimizers = optimizers_of(settings.optimizer, built)
    stays = staying(built, settings.init)  # what of it is frozen by its name is frozen with its statistics
    for player, optimizer in optimizers.items():
        for name, parameter in built.named_parameters():
            if name.startswith(f"{player}." if player else "") and name in stays and not optimizer.trains(name):
                parameter.requires_grad_(False)
    for optimizer in optimizers.values():
        frozen = [optimizer.freeze] if isinstance(optimizer.freeze, str) else optimizer.freeze
        for pattern in (*frozen, *(optimizer.groups or {})):
            if not any(fnmatchcase(name, pattern) for name in names):
                raise closest(pattern, names, "a pattern that fits parameter names")
    return Engine(
        built,
        settings.strategy,
        optimizers,
        grouped=kind.grouped,
        episodic=kind.episodic,
        clip=settings.clip,
        pieces=settings.accumulate,
        memory=settings.memory,
        weighting=settings.weighting,
        schedule=settings.schedule,
        swept=swept,
        replicas=replicas,
        progress=settings.progress,
        lowered=settings.lowered,
    )


def _stackable(settings: Settings, told: list[dict[str, Any]]) -> bool:
    """Whether the replicas can be trained as one; says once why not."""
    free = {"random_state", "optimizer__lr", *(f"strategy__{name}" for name in settings.strategy.sweeps)}
    fixed = [name for name in told[0] if name not in free]
    optimizers = optimizers_of(settings.optimizer, settings.objective).values()
    odd = [o for o in optimizers if not o.elementwise]
    waits = is_plateau(settings.schedule)  # each replica reduces its own rate
    own = [o for o in optimizers if not o.proportional] if waits or "optimizer__lr" in told[0] else []
    reason = ""
    if fixed:
        reason = f"{fixed[0]!r} changes what is computed"
    elif settings.objective.solved:
        apart = settings.objective.solves == "apart"
        reason = f"the solutions of {type(settings.objective).__name__} may differ in shape" if apart else ""
    elif odd:
        reason = f"{odd[0]!r} does not act on each component by itself"
    elif own:
        reason = f"the steps of {own[0]!r} do not go with its learning rate"
    elif is_torch_scheduler(settings.schedule) and not waits and "optimizer__lr" in told[0]:
        reason = "a torch scheduler keeps one learning rate"
    if reason:
        warnings.warn(f"replicas are trained one after another: {reason}", VectorizationWarning, stacklevel=5)
    return not reason


def vectorizes(engine: Engine, state: State, source: Source) -> bool:
    """Tries one gradient and one evaluation over all replicas; False where a layer has no rule for it."""
    try:
        engine.probe(state, source)
    except Lost:
        raise
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        warnings.warn(
            f"replicas are trained one after another: {blame(error)} cannot be vectorized by torch.vmap "
            f"({str(error).splitlines()[0][:120]})",
            VectorizationWarning,
            stacklevel=5,
        )
        return False
    return True


def go_on(training: Training, each: list[Settings], source: Source, *, carry: bool) -> list[Run]:
    """The runs with engines for the learner's present parameters, which may have changed since.

    `carry` keeps what the optimizers have gathered (momenta), for another pass over the same task.
    """
    renewed = []
    runs = [own for run in training.runs for own in _parted(run, each, carry=carry)]
    for (old, state), own in zip(runs, each, strict=False):
        swept = old.swept if old.rates is None else {**old.swept, "lr": old.rates}
        engine = make_engine(own, old.objective, source, swept=swept, replicas=old.replicas)
        engine.adopt(old)
        if _kinds(engine.strategy) != _kinds(old.strategy):
            for player in engine.players:
                replicas = [state.replica(k) for k in range(state.replicas or 1)]
                own_params = [{n: run.params[n] for n in engine.names[player]} for run in replicas]
                fresh = [verbs.init(engine.strategy, params) for params in own_params]
                state.strategy[player] = tree_stack(fresh) if state.replicas else fresh[0]
        before = dict(state.optimizers)
        engine.prepare(state)
        if carry and engine.names == old.names:
            for player, optimizer in before.items():
                _carry(optimizer, state.optimizers[player])
        renewed.append(Run(engine, state))
    return renewed


def _parted(run: Run, each: list[Settings], *, carry: bool) -> list[Run]:
    """The run; one for each of its replicas where those have stopped at different steps and cannot go on as one."""
    engine, state = run
    sound = [k for k in range(state.replicas or 1) if k not in state.diverged]
    made = {state.step_of(k) for k in sound}
    turns = any(len({step % engine.objective.every(player) for step in made}) > 1 for player in engine.players)
    apart = carry and len({state.ended.get(k, state.step) for k in sound}) > 1
    counts = apart and any(optimizer.state for optimizer in state.optimizers.values())
    if state.replicas is None or not (turns or counts):
        return [run]
    reason = "the players' turns" if turns else "what their optimizers have gathered"
    warnings.warn(
        f"replicas are trained one after another from here on: they stopped at different steps, and {reason} are no "
        "longer the same for all",
        VectorizationWarning,
        stacklevel=6,
    )
    kept, alone = state.best.get("gathered", {}), []
    for k in range(state.replicas):
        own = copied(Run(engine, state.replica(k)), each[k])
        for player, held in (kept[k] if k in kept else gathered(state, k)).items():
            optimizer = own.state.optimizers[player]
            optimizer.load_state_dict({**optimizer.state_dict(), "state": held})
        alone.append(own)
    return alone


def _carry(before: torch.optim.Optimizer, now: torch.optim.Optimizer) -> None:
    """Gives an optimizer what another has gathered over the same parameters in the same groups."""
    old, new = before.state_dict(), now.state_dict()
    alike = type(before) is type(now) and len(old["param_groups"]) == len(new["param_groups"])
    if alike and all(a["params"] == b["params"] for a, b in zip(old["param_groups"], new["param_groups"], strict=True)):
        now.load_state_dict({**new, "state": old["state"]})


def _kinds(strategy: Strategy) -> list[type]:
    return [type(part) for part in strategy.parts]


# --- training -------------------------------------------------------------------------------------------


def admit(runs: list[Run], source: Source, validation: Source | None) -> list[Run]:
    """The runs, if their objectives refuse no rows of the data; before anything is kept of them."""
    for _, state in runs:
        admitted(source, state, training=True)
        if validation is not None:
            admitted(validation, state, training=False)
    return runs


def train_all(
    runs: list[Run],
    source: Source,
    plan: Plan,
    phase: Phase,
    *,
    watch: Callable[[Engine, State, Record], list[object]],
    note: Callable[[Engine, Record], None],
    keep: Callable[[bool], None],
    shown: bool,
) -> None:
    """Runs the plan in every run, then consolidates the task.

    `watch` is called with each record, and ends the run at hand where it says True; so is `note`; `keep` is called
    whenever state and phase are such that the training can go on from them, with whether it must.
    """
    first = world()[0] == 0
    said: set[str] = set()
    for i, (engine, state) in enumerate(runs):
        if i == len(phase.runs):
            begin(engine, state, plan)
            known = Known(state.step + plan.steps, source.epoch, phase.task, phase.once, source.extent)
            _warn(engine.strategy, known, plan, source, said)
            for player, own in state.strategy.items():
                state.strategy[player] = verbs.begin(engine.strategy, known, own)
            if phase.task is not None:
                engine.release(state, phase.task)
            phase.runs.append(Begun())
            keep(True)
        if phase.runs[i].done:
            continue
        engine.total = plan.steps
        with Bar(plan, engine, shown=shown and first) as bar:
            learning = solving if engine.objective.solved else training
            for record in learning(engine, state, source, plan, phase.runs[i].records):
                told = watch(engine, state, record) if first else []
                if first:
                    bar.update(record)
                if anywhere(any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in told)):
                    stop(state, "stopped by a callback")
                note(engine, record)
                keep(False)
        if state.step < state.origin + plan.steps and not state.diverged:
            known = Known(state.step, source.epoch, phase.task, phase.once, source.extent)
            _warn(engine.strategy, known, plan, source, said)
        for text in (source.warns(state), engine.objective.warns(phase.runs[i].records)):
            if text is not None and text not in said:
                said.add(text)
                warnings.warn(text, stacklevel=6)
        if phase.task is not None:
            engine.consolidate(state, source, phase.task)
        phase.runs[i].done = True
        keep(True)


def _warn(strategy: Strategy, known: Known, plan: Plan, source: Source, said: set[str]) -> None:
    """Says, once in a training, which settings come to nothing in it."""
    told = [part.warns(known) for part in strategy.parts]
    if plan.patience is not None and plan.validation is None and source.size is not None:
        told.append(
            f"expected rows held out beside patience={plan.patience}, got none: progress on the rows that are learned "
            "stops no overfitting; give validation=0.2, or validation=(X, y)"
        )
    for text in told:
        if text is not None and text not in said:
            said.add(text)
            warnings.warn(text, stacklevel=6)


def records(phase: Phase) -> Iterator[dict[str, Any]]:
    """A phase's records, those of several runs side by side; what stopped early has NaN from there on."""
    histories = [run.records for run in phase.runs]
    for i in range(max((len(h) for h in histories), default=0)):
        beside: list[dict[str, Any]] = [h[i] if i < len(h) else {} for h in histories]
        whole = max(beside, key=len)
        if len(histories) > 1:
            fixed = ("step", "epoch", "seconds")
            whole = {n: v if n in fixed else np.array([r.get(n, math.nan) for r in beside]) for n, v in whole.items()}
        yield {**whole, "task": phase.task} if phase.task is not None else {**whole}


def learned(run: Run) -> Objective:
    """The engine's objective, with what the (first) run has learned put into it, on the CPU."""
    objective, first = run.engine.objective, answers(*run)
    state = (first[0] if len(first) == 1 else run.state).replica(0)
    for name, tensor in (*objective.named_parameters(), *objective.named_buffers()):
        value = state.params[name] if name in state.params else state.buffers[name]
        tensor.data = value.detach().to(tensor.device, copy=True)
    return objective.eval()


def copied(run: Run, settings: Settings) -> Run:
    """One replica as a run of its own, with copies of its tensors and fresh optimizers."""
    trees = {
        name: tree_map(Tensor.clone, getattr(run.state, name))
        for name in ("params", "buffers", "strategy", "statistics", "source")
    }
    state = replace(run.state, **trees, optimizers={}, best={})
    engine = make_engine(settings, deepcopy(run.engine.objective), run.engine)
    state.objective = engine.objective
    engine.adopt(run.engine)
    engine.prepare(state)
    return Run(engine, state)
