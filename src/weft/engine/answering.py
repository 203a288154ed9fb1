"""Which parameters answer and are validated: those trained, or others that the strategy has; and their statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from weft.core.objective import Objective
from weft.core.random import fold, key_of
from weft.core.source import Source, rows_of
from weft.core.state import State
from weft.core.strategy import StrategyState
from weft.core.trees import Params, tree_map, tree_stack
from weft.engine import verbs
from weft.engine.adapting import judged
from weft.engine.asking import measure, rows_to_measure
from weft.engine.fresh import frozen_layers, in_training
from weft.engine.gradients.loss import base_loss, carried
from weft.engine.moves import projected
from weft.engine.replicas import mapped, once
from weft.engine.tasks import in_order

if TYPE_CHECKING:
    from weft.engine.engine import Engine

__all__ = ["answers", "measured", "renew", "validated"]

_MOST = 1024  # rows at a time when statistics are taken anew


def answers(engine: Engine, state: State) -> list[State]:
    """The state as it answers, once or several times; replicas stay stacked."""
    if not engine.strategy.does("answer"):
        return [state]
    each: dict[str, list[Params]] = {}
    for player in engine.players:

        def one(params: Params, own: StrategyState, swept: Params) -> dict[str, Params]:
            strategy = engine.strategy.having(**swept) if swept else engine.strategy
            return {str(i): found for i, found in enumerate(verbs.answers(strategy, params, own))}

        params = {name: state.params[name].detach() for name in engine.names[player]}
        each[player] = list(mapped(engine.replicas, one, params, state.strategy[player], engine.swept).values())
    several = []
    for i in range(max(map(len, each.values()))):
        params = dict(state.params)
        for found in each.values():
            params.update(found[i % len(found)])
        if state.objective.projects:
            names = [name for own in engine.names.values() for name in own]
            params.update(projected(state.objective, engine.replicas, params, names))
        several.append(replace(state, params=params, buffers=state.statistics.get(str(i), state.buffers)))
    return several


def measured(engine: Engine, state: State, measures: Callable[[State], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The measures of a state, taken at the parameters that answer; of several, their mean."""
    each = [measures(one) for one in answers(engine, state)]
    return each[0] if len(each) == 1 else tree_map(partial(torch.mean, dim=0), tree_stack(each))


def validated(engine: Engine, state: State, source: Source, rows: int) -> dict[str, Tensor]:
    """The measures on a validation source: of all rows, so many at a time.

    Where the objective acts there, what it earns in fresh episodes; of tasks what it measures once it has adapted to
    each.
    """

    def measures(at: State) -> dict[str, Tensor]:
        if source.episodic:
            return judged(engine, at, source)
        return source.judge(at) if source.acts else measure(at, once(source, at, rows)) | source.judge(at)

    return measured(engine, state, measures)


def renew(engine: Engine, state: State, source: Source) -> None:
    """Takes running statistics anew where other parameters answer than those that were trained."""
    state.statistics = {}
    if not engine.strategy.does("answer") or not _norms(state.objective):
        return
    for i, one in enumerate(answers(engine, state)):
        runs = [_passed(engine, one.replica(k), source) for k in range(state.replicas or 1)]
        state.statistics[str(i)] = tree_stack(runs) if engine.replicas else runs[0]


def _norms(objective: Objective) -> dict[str, nn.modules.batchnorm._BatchNorm]:
    """The layers that keep averages of the statistics of batches."""
    kind = nn.modules.batchnorm._BatchNorm
    moving = {n: m for n, m in objective.named_modules() if isinstance(m, kind) and m.track_running_stats}
    return {n: m for n, m in moving.items() if not any(m is frozen for frozen in frozen_layers(objective))}


def _passed(engine: Engine, run: State, source: Source) -> Params:
    """A run's buffers after one pass over the data: running statistics are the means over its batches."""
    fits = rows_to_measure(run, source, engine.memory * (engine.replicas or 1))
    rows = max(2, min(_MOST, fits))  # a row by itself has no variance
    norms = _norms(run.objective)
    momenta = {name: layer.momentum for name, layer in norms.items()}
    buffers = {name: b.clone() for name, b in run.buffers.items()}
    for name, layer in norms.items():
        layer.momentum = None  # PyTorch's word for a plain mean over batches
        buffers[f"{name}.num_batches_tracked"].zero_()
    training = run.objective.training
    in_training(run.objective)
    key, held = fold(key_of(run.seeds), "statistics"), carried(run.objective)
    try:
        with torch.no_grad():
            for batch in in_order(source, run, rows):
                if rows_of(batch) == 1 and bool(buffers[f"{next(iter(norms))}.num_batches_tracked"]):
                    continue  # a last row by itself has no variance
                for player in engine.players:
                    after = base_loss(run.objective, {}, buffers, key, player)(run.params, batch).buffers
                    buffers = {**after, **{name: run.buffers[name] for name in held}}
    finally:
        run.objective.train(training)
        for name, layer in norms.items():
            layer.momentum = momenta[name]
    return buffers
