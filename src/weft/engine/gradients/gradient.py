"""The gradient that a strategy makes of one player's loss: a pure function of tensors and a route.

It can be mapped over replicas; all but `pool`, which comes between `local` and `conclude` where several processes
share a batch.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from weft.core.objective import reduce
from weft.core.random import keyed
from weft.core.source import Batch, rows_of
from weft.core.strategy import Loss, Strategy, StrategyState
from weft.core.trees import Params, tree_map
from weft.engine.distributed import gather, largest, mean, refuse_moving
from weft.engine.gradients.groups import by_groups
from weft.engine.gradients.loss import Parts, Place, Slope, base_loss, differentiate, shares
from weft.engine.gradients.pooled import pooled, side_by_side
from weft.engine.gradients.route import Route, in_groups
from weft.engine.vectorize import Mapper

__all__ = ["conclude", "gradient", "local", "pool", "shared_axis"]


def gradient(route: Route, mapper: Mapper, at: Place, batch: Batch, strategy: Strategy, state: StrategyState) -> Slope:
    """The gradient, the mean loss, the buffers after the forward and the strategy's state.

    Args:
        route: how it is computed; from `look`.
        mapper: maps over the groups, and remembers what cannot be vectorized.
        at: one run's tensors.
        batch: numbered; all of it.
        strategy: makes one gradient of the groups'.
        state: the strategy's.
    """
    parts = _parts(route, mapper, at, batch, strategy, state, whole=True)
    return conclude(route, parts, at, strategy, state)


def local(route: Route, mapper: Mapper, at: Place, batch: Batch, strategy: Strategy, state: StrategyState) -> Parts:
    """What a share of the batch gives, before the strategy combines it."""
    parts = _parts(route, mapper, at, batch, strategy, state, whole=False)
    if "rows" in parts:
        parts["mass"] = torch.full_like(parts["loss"], parts.pop("rows"))
    return parts


def shared_axis(grouped: bool, strategy: Strategy) -> int:
    """The axis of a batch that processes may share: rows, or whole groups where the loss needs them whole."""
    return 1 if grouped and not strategy.sight.whole else 0


def pool(
    route: Route,
    parts: Parts,
    buffers: Params,
    batch: Batch,
    strategy: Strategy,
    stacked: int,
    where: str,
    *,
    check: bool,
) -> Parts:
    """All processes' parts made those of the whole batch.

    Args:
        route: by which the parts were computed.
        parts: what the share of this process gives.
        buffers: those before the forward.
        batch: the whole batch.
        strategy: says what the parts are.
        stacked: leading axes of all tensors that stand for replicas: 0 or 1.
        where: for the message if a process is lost.
        check: whether to raise where the forward leaves buffers that depend on the rows at hand.
    """
    mass, after = parts["mass"], parts["buffers"]
    whole = mass.sum(-1) if mass.dim() > stacked else mass
    # Averaging the change keeps what does not change as it is, to the last bit.
    moved = {name: b - buffers[name] for name, b in after.items() if b.is_floating_point()}
    counted = {name: b for name, b in after.items() if not b.is_floating_point()}
    pooled: Parts = {"gradient": parts["gradient"], "loss": parts["loss"]}
    axis = stacked + shared_axis(route.grouped, strategy)
    sight = strategy.sight
    if sight.each and (sight.whole or not sight.grouped):  # of whole groups or single examples
        pooled["mass"] = mass
        groups = rows_of(batch, stacked) if axis > stacked else 1  # examples of all groups are end to end
        pooled = tree_map(lambda t: t.unflatten(stacked, (groups, -1)), pooled)
        pooled = gather(pooled, stacked + 1, rows_of(batch, axis), where)
        pooled = tree_map(lambda t: t.flatten(stacked, stacked + 1), pooled)
    else:
        pooled, pooled["mass"] = mean(pooled, mass, where)
    moved = mean(moved, whole, where)[0] if moved else {}
    counted = largest(counted, where) if counted else {}
    pooled["buffers"] = {name: buffers[name] + moved[name] if name in moved else counted[name] for name in after}
    if after and check:
        refuse_moving(after, pooled["buffers"], whole, where)
    if "recalled" in parts:
        pooled["recalled"] = parts["recalled"]  # every process recalls the same rows
    return pooled


def conclude(route: Route, parts: Parts, at: Place, strategy: Strategy, state: StrategyState) -> Slope:
    """From the parts of a whole batch to what `gradient` gives: the groups combined, the penalty added."""
    losses, value, sight = parts["loss"], parts["loss"], strategy.sight
    state = parts.get("state", state)
    with keyed(at.key):
        if sight.together or not (sight.each or strategy.does("combine")):
            slopes = parts["gradient"]
        elif not sight.each:  # the batch is one group
            one = tree_map(lambda t: t.unsqueeze(0), parts["gradient"])
            loss = losses.unsqueeze(0)
            slopes, state = strategy.combine(one, loss, torch.ones_like(loss), state)
        else:
            weights = shares(parts["mass"], route.weighting)
            value = (weights * losses).sum()
            if "sums" in parts:
                slopes, state = strategy.conclude(parts["sums"], losses, weights, state)
            else:
                slopes, state = strategy.combine(parts["gradient"], losses, weights, state)
        if strategy.does("steer"):
            slopes, state = strategy.steer(slopes, parts.get("recalled"), state)
        if strategy.does("penalty"):
            extra = strategy.pull(at.params, state)
            if extra is None:
                extra, _ = differentiate(lambda p: (strategy.penalty(p, state), {}), at.params, route.transform)
            slopes = {name: g + extra[name] for name, g in slopes.items()}
    return slopes, value, parts["buffers"], state


def _parts(
    route: Route, mapper: Mapper, at: Place, batch: Batch, strategy: Strategy, state: StrategyState, *, whole: bool
) -> Parts:
    """What the batch gives, and beside it the gradient on the rows that the strategy recalls."""

    def base(buffers: Params) -> Loss:
        return base_loss(route.objective, at.others, buffers, at.key, route.player)

    def wrapped(buffers: Params) -> Loss:
        return strategy.wrap(base(buffers), state)

    with keyed(at.key):
        if strategy.sees == "rows":
            parts = pooled(route, wrapped, at.params, at.buffers, batch)
        elif strategy.sight.together:
            together = side_by_side(batch, route.weighting, next(iter(at.params.values())).dtype)
            seen = partial(strategy.observe, state=state)
            parts = pooled(route, wrapped, at.params, at.buffers, together, seen)
        else:
            groups = in_groups(batch, strategy, route.grouped)
            parts = by_groups(route, mapper, wrapped, at.params, at.buffers, groups, strategy, whole=whole)
        rows = strategy.recall(batch, state) if strategy.does("recall") else None
        if rows is not None:
            parts["recalled"] = _recalled(route, base(at.buffers), at.params, rows)
    return parts


def _recalled(route: Route, loss: Loss, params: Params, rows: Batch) -> Params:
    """The gradient of the objective's own mean loss on rows that a strategy recalls."""

    def scalar(p: Params) -> tuple[Tensor, Params]:
        output = loss(p, rows)
        return reduce(output.losses, output.weight), {}

    return differentiate(scalar, params, route.transform)[0]
