"""Runs: a Learner's trainings, one or many replicas, from their start to their answers.

A run is an engine and a state. Replicas are stacked in one run where they can be trained at once, and
are one run each where they cannot.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch import Tensor

from weft.core.configured import closest
from weft.core.objective import Objective
from weft.core.random import fold, key_of
from weft.core.source import Source, Spec
from weft.core.state import State
from weft.core.strategy import Strategy
from weft.core.trees import tree_map, tree_stack
from weft.engine.build import build
from weft.engine.distributed import Lost, world
from weft.engine.engine import Engine
from weft.engine.loop import History, Plan, begin, train
from weft.engine.progress import Bar
from weft.engine.schedule import is_torch_scheduler
from weft.engine.vectorize import VectorizationWarning, blame
from weft.learner.reading import DTYPES

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = [
    "Run",
    "answering",
    "ask",
    "assemble",
    "draw",
    "go_on",
    "records",
    "settings",
    "single",
    "solve_all",
    "start",
    "train_all",
]

Run = tuple[Engine, State]
_ROWS = 8192  # rows at a time when a capability is asked


def settings(replicas: Any, seed: int) -> list[dict[str, Any]]:
    """What distinguishes each replica: parameter values by name."""
    if replicas is None:
        return [{"random_state": seed}]
    if isinstance(replicas, int | np.integer) and not isinstance(replicas, bool):
        if replicas < 1:
            raise ValueError(f"expected replicas >= 1, got {replicas}")
        return [{"random_state": seed + k} for k in range(int(replicas))]
    if not isinstance(replicas, dict) or not replicas:
        raise TypeError(
            f"expected replicas to be a number or lists by parameter name, got {replicas!r}; for example "
            'replicas=8 or replicas={"optimizer__lr": [1e-3, 1e-2]}'
        )
    for name, values in replicas.items():
        if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str):
            raise TypeError(f"expected a list of values for {name!r} in replicas, got {values!r}")
    lengths = {name: len(values) for name, values in replicas.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ValueError(
            f"expected lists of one length in replicas, one value for each replica, got {lengths}; for every "
            "combination of values write them out, as itertools.product does"
        )
    count = next(iter(lengths.values()))
    return [{"random_state": seed, **{n: v[k] for n, v in replicas.items()}} for k in range(count)]


# --- training ---------------------------------------------------------------------------------------


def start(learner: Learner, objective: Objective, strategy: Strategy, source: Source) -> list[Run]:
    """Builds the objective and the state of every run: one, stacked replicas, or one run each."""
    device = learner._device()
    for setting in learner._replica_settings:
        _with(learner, setting)  # unknown names and values out of range are refused before anything else
    if learner.replicas is not None and _stackable(learner, objective, strategy, learner._replica_settings):
        ((engine, seeds, builds),) = assemble(learner, objective, source.spec, source, stacked=True)
        state = engine.init(seeds, device, learner.init, builds)
        if _vectorizes(engine, state, source):
            return [(engine, state)]
    parts = assemble(learner, objective, source.spec, source, stacked=False)
    return [(engine, engine.init(seeds, device, learner.init, builds)) for engine, seeds, builds in parts]


def assemble(
    learner: Learner, objective: Objective, spec: Spec, kind: Source | Engine, *, stacked: bool
) -> list[tuple[Engine, list[int], list[Objective]]]:
    """Engines without states: one for all replicas at once, or one for each; with seeds and built objectives."""
    each, dtype = learner._replica_settings, DTYPES[learner.dtype]
    owners = [_with(learner, setting) for setting in each]
    seeds = [int(setting["random_state"]) for setting in each]
    if stacked:
        swept = {n: [s[n] for s in each] for n in each[0] if n != "random_state"}
        tensors = {n.partition("__")[2]: _numbers(n, v).to(learner._device(), dtype) for n, v in swept.items()}
        builds = [build(objective, spec, seed, dtype) for seed in seeds]
        return [(make_engine(owners[0], builds[0], kind, swept=tensors, replicas=len(each)), seeds, builds)]
    parts = []
    for own, seed in zip(owners, seeds, strict=True):
        built = build(own._objective(), spec, seed, dtype)
        parts.append((make_engine(own, built, kind), [seed], [built]))
    return parts


def _numbers(name: str, values: list[Any]) -> Tensor:
    try:
        return torch.tensor(values, dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"expected numbers for {name!r} in replicas, got {values!r}") from error


def make_engine(
    learner: Learner,
    built: Objective,
    source: Source | Engine,
    *,
    swept: dict[str, Tensor] | None = None,
    replicas: int | None = None,
) -> Engine:
    """The engine for a learner's present parameters, and for batches as this source (or another engine) has them."""
    names = [name for name, _ in built.named_parameters()]
    optimizers = learner._optimizers(built)
    for optimizer in optimizers.values():
        frozen = [optimizer.freeze] if isinstance(optimizer.freeze, str) else optimizer.freeze
        for pattern in (*frozen, *(optimizer.groups or {})):
            if not any(fnmatchcase(name, pattern) for name in names):
                raise closest(pattern, names, "a pattern that fits parameter names")
    return Engine(
        built,
        learner._strategy(),
        optimizers,
        grouped=source.grouped,
        episodic=source.episodic,
        clip=learner.clip,
        pieces=learner.accumulate,
        memory=learner.memory,
        weighting=learner.weighting,
        schedule=learner.schedule,
        swept=swept,
        replicas=replicas,
    )


def _with(learner: Learner, setting: dict[str, Any]) -> Learner:
    """A single run's learner, with a replica's own settings."""
    if not isinstance(learner.replicas, dict):
        return learner  # the seeds differ, nothing else
    own = copy.copy(learner)
    for outer in {name.partition("__")[0] for name in setting if "__" in name}:
        setattr(own, outer, clone(getattr(own, outer, None), safe=False))
    own.set_params(**setting, replicas=None)
    own._strategy().validate()
    return own


def _stackable(learner: Learner, objective: Objective, strategy: Strategy, each: list[dict[str, Any]]) -> bool:
    """Whether the replicas can be trained as one; says once why not."""
    free = {"random_state", "optimizer__lr", *(f"strategy__{name}" for name in strategy.sweeps)}
    fixed = [name for name in each[0] if name not in free]
    odd = [o for o in learner._optimizers(objective).values() if not o.elementwise]
    reason = ""
    if fixed:
        reason = f"{fixed[0]!r} changes what is computed"
    elif odd:
        reason = f"{odd[0]!r} does not act on each component by itself"
    elif is_torch_scheduler(learner.schedule) and "optimizer__lr" in each[0]:
        reason = "a torch scheduler keeps one learning rate"
    if reason:
        warnings.warn(f"replicas are trained one after another: {reason}", VectorizationWarning, stacklevel=5)
    return not reason


def _vectorizes(engine: Engine, state: State, source: Source) -> bool:
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


def go_on(learner: Learner, runs: list[Run], source: Source, *, carry: bool) -> list[Run]:
    """The runs with engines for the learner's present parameters, which may have changed since.

    `carry` keeps what the optimizers have gathered (momenta), for another pass over the same task.
    """
    count = len(settings(learner.replicas, 0))
    if count != len(learner.seeds_):
        raise ValueError(
            f"expected the {len(learner.seeds_)} replicas that training began with, got {count}; fit anew, without "
            "warm_start"
        )
    renewed = []
    for (old, state), setting in zip(runs, learner._replica_settings, strict=False):
        own = _with(learner, setting)
        swept = old.swept if old.rates is None else {**old.swept, "lr": old.rates}
        engine = make_engine(own, old.objective, source, swept=swept, replicas=old.replicas)
        engine.adopt(old)
        if _kinds(engine.strategy) != _kinds(old.strategy):
            for player in engine.players:
                each = [state.replica(k) for k in range(state.replicas or 1)]
                fresh = [engine.strategy.init({n: run.params[n] for n in engine.names[player]}) for run in each]
                state.strategy[player] = tree_stack(fresh) if state.replicas else fresh[0]
        before = dict(state.optimizers)
        engine.prepare(state)
        if carry and engine.names == old.names:
            for player, optimizer in before.items():
                _carry(optimizer, state.optimizers[player])
        renewed.append((engine, state))
    return renewed


def _carry(before: torch.optim.Optimizer, now: torch.optim.Optimizer) -> None:
    """Gives an optimizer what another has gathered over the same parameters in the same groups."""
    old, new = before.state_dict(), now.state_dict()
    alike = type(before) is type(now) and len(old["param_groups"]) == len(new["param_groups"])
    if alike and all(a["params"] == b["params"] for a, b in zip(old["param_groups"], new["param_groups"], strict=True)):
        now.load_state_dict({**new, "state": old["state"]})


def _kinds(strategy: Strategy) -> list[type]:
    return [type(part) for part in getattr(strategy, "parts", [strategy])]


def train_all(
    runs: list[Run], source: Source, plan: Plan, phase: dict[str, Any], *, keep: Callable[..., None], shown: bool
) -> None:
    """Runs the plan in every run, then consolidates the task.

    `phase` tells how far that has come: the task, and for each run begun its records and whether it is
    done. `keep` is called whenever state and phase are such that the training can go on from them.
    """
    task, begun, first = phase["task"], phase["runs"], world()[0] == 0
    for i, (engine, state) in enumerate(runs):
        if i == len(begun):
            begin(engine, state, plan)
            if task is not None:
                engine.release(state, task)
            begun.append({"records": History(), "done": False})
            keep()
        if begun[i]["done"]:
            continue
        engine.total = plan.steps
        with Bar(plan, engine, shown=shown and first) as bar:
            seen = [*plan.observers, bar.update] if first else []
            observers = [*seen, lambda record: keep(must=False)]
            train(engine, state, source, replace(plan, observers=observers), begun[i]["records"])
        if task is not None:
            engine.consolidate(state, source, task)
        begun[i]["done"] = True
        keep()


def records(phase: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A phase's records, those of several runs side by side."""
    if phase["runs"]:
        yield from _merged([run["records"] for run in phase["runs"]], phase["task"])


def solve_all(runs: list[Run], source: Source) -> None:
    """For objectives that are solved, not descended: parameters in closed form, the same conventions around."""
    for engine, state in runs:
        for k in range(state.replicas or 1):
            run = state.replica(k)
            for name, value in engine.objective.solve(source, run).items():  # type: ignore[operator]
                run.params[name].copy_(value.reshape(run.params[name].shape))
            state.stopped[k] = "solved"


def _merged(histories: list[History], task: str | None) -> Iterator[dict[str, Any]]:
    """Records of runs made one after another, side by side; what stopped early has NaN from there on."""
    for i in range(max(len(h) for h in histories)):
        records = [h[i] if i < len(h) else {} for h in histories]
        whole: dict[str, Any] = dict(max(records, key=len))  # type: ignore[arg-type]
        if len(histories) > 1:
            fixed = ("step", "epoch", "seconds")
            whole = {n: v if n in fixed else np.array([r.get(n, math.nan) for r in records]) for n, v in whole.items()}
        yield {**whole, "task": task} if task is not None else whole


# --- answers ----------------------------------------------------------------------------------------


def singles(runs: list[Run]) -> list[Run]:
    """Every replica as a single run."""
    return [(engine, state.replica(k)) for engine, state in runs for k in range(state.replicas or 1)]


def single(learner: Learner, k: int) -> Learner:
    """One replica as a fitted learner of its own, with copies of its tensors."""
    every = singles(learner._runs)
    if not -len(every) <= k < len(every):
        raise IndexError(f"expected a replica in 0..{len(every) - 1}, got {k}")
    k %= len(every)
    setting = learner._replica_settings[k]
    engine, state = every[k]
    trees = {name: tree_map(Tensor.clone, getattr(state, name)) for name in ("params", "buffers", "strategy")}
    state = replace(state, **trees, optimizers={}, best={})
    own = copy.copy(_with(learner, setting))
    alone = make_engine(own, engine.objective, engine)
    alone.adopt(engine)
    alone.prepare(state)
    own.replicas, own.seeds_, own._replica_settings = None, [learner.seeds_[k]], [setting]
    own._runs = [(alone, state)]
    own.history_ = History(
        {n: v[k] if isinstance(v, np.ndarray) else v for n, v in record.items()} for record in learner.history_
    )
    own._conclude()
    return own


def answering(learner: Learner) -> list[Run]:
    """The replicas that answer: all that did not diverge; after a sweep, the best."""
    every = singles(learner._runs)
    if isinstance(learner.replicas, dict):
        return [every[learner.best_replica_]]
    sound = [(e, s) for e, s in every if not s.diverged]
    if not sound:
        raise NotFittedError("expected a trained replica, got none: every one has diverged; see stop_reason_")
    return sound


def ask(learner: Learner, name: str, x: Tensor) -> np.ndarray[Any, Any]:
    """A capability that works row by row, merged over replicas."""
    mark = learner._objective().capabilities()[name]
    runs = answering(learner)
    if mark.merge == "refuse" and len(runs) > 1:
        raise ValueError(
            f"expected one replica to answer {name!r}, got {len(runs)}, whose answers cannot be averaged; "
            f"ask one of them: .replica(0).{name}(...)"
        )
    parts: list[Tensor] = []
    device = runs[0][1].device
    for first in range(0, len(x), _ROWS):
        chunk = x[first : first + _ROWS].to(device)
        rows = torch.arange(first, first + len(chunk), device=device)
        answers = [e.call(s, name, chunk, key=fold(key_of(s.seeds), name), rows=rows) for e, s in runs]
        merged = answers[0]
        if len(answers) > 1:
            stacked = torch.stack(answers)
            logarithms = mark.merge == "logmeanexp"
            merged = torch.logsumexp(stacked, 0) - math.log(len(answers)) if logarithms else stacked.mean(0)
        parts.append(mark.finish(merged) if mark.finish else merged)
    return _as_numpy(torch.cat(parts))


def draw(learner: Learner, n: int) -> np.ndarray[Any, Any]:
    """Samples, shared out among the replicas."""
    runs = answering(learner)
    edges = [k * n // len(runs) for k in range(len(runs) + 1)]
    drawn = []
    for (engine, state), a, b in zip(runs, edges[:-1], edges[1:], strict=True):
        if b > a:
            rows = torch.arange(a, b, device=state.device)
            drawn.append(engine.call(state, "sample", b - a, key=fold(key_of(state.seeds), "sample"), rows=rows))
    return _as_numpy(torch.cat(drawn))


def _as_numpy(answer: Tensor) -> np.ndarray[Any, Any]:
    """NumPy knows no bfloat16."""
    return (answer.float() if answer.dtype == torch.bfloat16 else answer).cpu().numpy()
