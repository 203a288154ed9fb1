"""Episodes that nothing is learned from: what is measured of each, once a run has adapted to its support part."""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.core.random import fold, key_of
from weft.core.source import Batch, Source, number_rows, rows_of
from weft.core.state import State, aside
from weft.core.strategy import Strategy
from weft.core.trees import Params, tree_leaves, tree_map, tree_stack
from weft.engine.asking import measure
from weft.engine.fresh import in_training
from weft.engine.memory import rows_at_a_time
from weft.engine.replicas import batches
from weft.engine.tasks import inner

if TYPE_CHECKING:
    from weft.engine.engine import Engine

__all__ = ["judged", "of_each"]


def judged(engine: Engine, state: State, source: Source) -> dict[str, Tensor]:
    """The measures of a strategy that learns from episodes, on the same ones at any step: their mean, per replica."""
    batch = next(batches(source, aside(state, "validation")))
    if state.replicas is None:
        return {name: values.mean() for name, values in of_each(engine, state, batch).items()}
    each = [of_each(engine, state.replica(k), tree_map(itemgetter(k), batch), k) for k in range(state.replicas)]
    return tree_map(partial(torch.mean, dim=-1), tree_stack(each))


def of_each(engine: Engine, run: State, batch: Batch, k: int = 0) -> dict[str, Tensor]:
    """One run's measures of each episode by itself, `(episodes,)` by name.

    A strategy that learns from episodes adapts to the support part, as `Learner.adapt` does, and is measured on the
    query part; an objective that reads episodes measures them as they are.

    Args:
        engine: whose strategy.
        run: a single one.
        batch: episodes, on the leading axis of both parts.
        k: which replica of the engine's it is, for what is swept.
    """
    episodes = engine.strategy.sight.episodic
    strategy = engine.strategy.having(**tree_map(itemgetter(k), engine.swept)) if engine.swept else engine.strategy
    some = partial(_adapted, engine, run, strategy) if episodes else partial(_read, run)
    count = rows_of(batch)
    if not episodes:
        batch = number_rows(batch, 1)
    shapes = tuple((tuple(t.shape[1:]), str(t.dtype)) for t in tree_leaves(batch))

    def first(n: int) -> object:
        part = tree_map(lambda t: t[:n].clone(), batch)
        return part, some(part)

    memory = engine.memory * (engine.replicas or 1)
    at_a_time = rows_at_a_time(run.objective, ("episodes", shapes), lambda: first, min(count, 4), memory, count)
    parts = [some(tree_map(lambda t: t[a : a + at_a_time], batch)) for a in range(0, count, at_a_time)]  # noqa: B023
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _adapted(engine: Engine, run: State, strategy: Strategy, batch: Batch) -> Params:
    """Measures of the query parts, each at the parameters that its support part leads to."""
    player, key = engine.players[0], fold(key_of(run.seeds), "adapt")
    names, training = engine.names[player], run.objective.training

    def one(support: Batch) -> Params:
        found = inner(run, strategy, player, names, support, key)
        return {name: found[name] for name in names}

    in_training(run.objective)
    try:
        changed = engine.mappers[player](one, (0,), batch["support"])
    finally:
        run.objective.train(training)
    return _measured(run, {**_spread(run.params, rows_of(batch)), **changed}, batch["query"])


def _read(run: State, batch: Batch) -> Params:
    """Measures of episodes as rows, one at a time."""
    return _measured(run, _spread(run.params, rows_of(batch)), tree_map(partial(torch.unsqueeze, dim=1), batch))


def _measured(run: State, params: Params, batch: Batch) -> Params:
    """Measures of some batches, each at parameters of its own: as of so many replicas."""
    count = rows_of(batch)
    active = torch.ones(count, dtype=torch.bool, device=run.device)
    many = State(run.objective, params, _spread(run.buffers, count), run.seeds.expand(count), count, active=active)
    try:
        return measure(many, iter([batch]))
    except (RuntimeError, NotImplementedError, AttributeError):  # a layer that cannot be vectorized
        each = [measure(many.replica(i), iter([tree_map(itemgetter(i), batch)])) for i in range(count)]
        return tree_stack(each)


def _spread(tensors: Params, count: int) -> Params:
    return {name: t.expand(count, *t.shape) for name, t in tensors.items()}
