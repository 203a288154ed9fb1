"""A task's beginning and end, and adaptation after training: what a strategy keeps, lets go and makes of a few rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.core.random import fold, key_of, keyed
from weft.core.source import Batch, Source, number_rows, rows_of
from weft.core.state import State
from weft.core.strategy import Local, Strategy, StrategyState
from weft.core.trees import Params, tree_map
from weft.engine import verbs
from weft.engine.asking import call
from weft.engine.fresh import in_training
from weft.engine.gradients.curvature import factors, products
from weft.engine.gradients.loss import base_loss
from weft.engine.gradients.squares import Passes, rows_to_square, squares
from weft.engine.moves import check_given, projected
from weft.engine.replicas import apart, mapped, numbered

if TYPE_CHECKING:
    from weft.engine.engine import Engine

__all__ = ["adapted", "adapting", "consolidated", "in_order", "inner"]


def consolidated(
    run: State,
    strategy: Strategy,
    player: str,
    names: Collection[str],
    source: Source,
    task: str,
    rows: int,
    memory: int,
) -> StrategyState:
    """A strategy's state after a task has ended: what it keeps of the task, from the unwrapped loss.

    Args:
        run: one run.
        strategy: with that run's own hyperparameters.
        player: whose loss.
        names: the player's parameters.
        source: the task's rows.
        task: its name.
        rows: at most so many at a time.
        memory: bytes that passes over them may take.
    """
    params, others = _apart(run, names)
    key = fold(key_of(run.seeds), "consolidate", task)
    made = partial(Passes, run.objective, params, others, run.buffers, key=key, player=player, memory=memory)
    if strategy.does("consolidate") and source.size is not None:
        kind = tuple((name, field.shape, str(field.dtype)) for name, field in source.spec.items())
        rows = min(rows, rows_to_square(made, kind, lambda: next(in_order(source, run, 16)), source.size))

    def batches() -> Iterator[Batch]:
        return in_order(source, run, rows)

    passes = made(batches)
    sums = partial(squares, passes), partial(factors, passes), partial(products, passes)
    ask, refuse = partial(call, run, key=fold(key, "ask")), partial(run.objective.refuse_rows, training=False)
    local = Local(run.objective, params, *sums, batches, ask, refuse)
    with keyed(key):
        return verbs.consolidate(strategy, local, run.strategy[player], task)


def in_order(source: Source, run: State, rows: int) -> Iterator[Batch]:
    """One pass over the data of one run, so many rows at a time, numbered through."""
    first = 0
    for batch in source.once(apart(run), rows):
        numbered = number_rows(batch, 1)
        yield numbered if "row" in batch else {**numbered, "row": numbered["row"] + first}
        first += rows_of(batch)


def adapted(run: State, strategy: Strategy, player: str, names: Collection[str], batch: Batch) -> tuple[Params, Params]:
    """One run's parameters and buffers, adapted to a few examples: by the objective, or by the strategy."""
    key = fold(key_of(run.seeds), "adapt")
    return _by_objective(run, batch, key) if run.objective.adapts else _inner(run, strategy, player, names, batch, key)


def adapting(engine: Engine, state: State, batch: Batch, grouped: bool) -> State:
    """A view of a state, of one run or stacked replicas, with parameters adapted to a few rows; see `State.adapt`."""
    objective, player, lead = state.objective, engine.players[0], 0 if state.replicas is None else 1
    if not objective.adapts and not engine.strategy.does("adapt"):
        raise TypeError(
            f"expected a strategy that adapts, such as MAML(), or an objective that does, got {engine.strategy!r} with "
            f"{type(objective).__name__}, whose parameters no few rows change"
        )
    batch = numbered(batch, state.replicas, grouped=grouped)
    tasks = batch["row"].shape[lead] if grouped else None
    seeds = state.seeds
    if tasks is not None:
        own = torch.arange(tasks, device=state.device)
        seeds = fold(fold(key_of(seeds), "task").unsqueeze(-1), own).flatten()

    def one(params: Params, buffers: Params, key: Tensor, batch: Batch, own: StrategyState, swept: Params) -> Any:
        strategy = engine.strategy.having(**swept) if swept else engine.strategy

        def to(batch: Batch) -> tuple[Params, Params]:
            run = State(objective, params, buffers, key, strategy={player: own})
            if objective.adapts:
                return _by_objective(run, batch, key)
            return _inner(run, strategy, player, names, batch, key)

        return engine.mappers[player](to, (0,), batch) if grouped else to(batch)

    names, training = engine.names[player], objective.training
    params = {name: p.detach() for name, p in state.params.items()}
    try:
        at = (params, state.buffers, state.key("step", player), batch, state.strategy[player], engine.swept)
        params, buffers = mapped(state.replicas, one, *at)
    finally:
        objective.train(training)

    def spread(value: Tensor | None) -> Tensor | None:
        return value if tasks is None or value is None or not value.dim() else value.repeat_interleave(tasks)

    replicas, active = state.replicas, state.active
    if tasks is not None:
        replicas = tasks * (state.replicas or 1)
        params, buffers = (tree_map(lambda t: t.flatten(0, lead), tree) for tree in (params, buffers))
        active = active.reshape(-1).repeat_interleave(tasks)
    return State(
        objective=objective,
        params=params,
        buffers=buffers,
        seeds=seeds,
        replicas=replicas,
        step=state.step,
        origin=state.origin,
        planned=state.planned,
        late=spread(state.late),
        clock=spread(state.clock),
        active=active,
        act=state.act,
    )


def _inner(
    run: State, strategy: Strategy, player: str, names: Collection[str], batch: Batch, key: Tensor
) -> tuple[Params, Params]:
    """Parameters adapted by the strategy, as in training."""
    in_training(run.objective)
    return inner(run, strategy, player, names, batch, key), run.buffers


def inner(run: State, strategy: Strategy, player: str, names: Collection[str], batch: Batch, key: Tensor) -> Params:
    """One run's parameters after the strategy's inner steps on some rows; the objective is in training mode."""
    params, others = _apart(run, names)
    loss = base_loss(run.objective, others, run.buffers, key, "")
    with keyed(key):
        after = verbs.adapt(strategy, loss, params, number_rows(batch, 1), run.strategy[player])
    found = {**run.params, **{n: p.detach() for n, p in after.items()}}
    if run.objective.projects:
        found |= projected(run.objective, None, found, names)
    return found


def _by_objective(run: State, batch: Batch, key: Tensor) -> tuple[Params, Params]:
    """Parameters and buffers with those in place that the objective changes."""
    batch = number_rows(batch, 1)
    changed: Params = call(run, "adapt", batch, key=key, rows=batch["row"])
    before = {**run.params, **run.buffers}
    check_given(run.objective, "adapt", before, changed)
    after = {name: changed.get(name, value).detach() for name, value in before.items()}
    params = {name: after[name] for name in run.params}
    if run.objective.projects:
        params |= projected(run.objective, None, params, [name for name in changed if name in params])
    return params, {name: after[name] for name in run.buffers}


def _apart(run: State, names: Collection[str]) -> tuple[Params, Params]:
    """A player's parameters, and everyone else's."""
    params = {n: run.params[n].detach() for n in names}
    return params, {n: p.detach() for n, p in run.params.items() if n not in params}
