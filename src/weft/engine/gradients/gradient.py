"""The gradient that a strategy makes of one player's loss: a pure function of tensors and a route.

It can be mapped over replicas; all but `pool`, which comes between `local` and `conclude` where several processes
share a batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weft.core.objective import reduce
from weft.core.random import keyed
from weft.core.source import Batch, judged_rows, rows_of
from weft.core.strategy import Loss, OwnLoss, OwnMean, Strategy, StrategyState
from weft.core.trees import Params, tree_leaves, tree_map
from weft.engine import verbs
from weft.engine.distributed import gather, largest, mean, refuse_moving, world
from weft.engine.gradients.groups import by_groups
from weft.engine.gradients.loss import Parts, Place, Slope, base_loss, massed, shares
from weft.engine.gradients.pooled import mean_loss, mean_over, pooled, side_by_side, weighed
from weft.engine.gradients.route import Route, in_groups
from weft.engine.vectorize import Mapper

__all__ = ["conclude", "gradient", "local", "own_loss", "own_mean", "pool", "shared_axis"]


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
    return conclude(route, mapper, parts, at, batch, strategy, state)


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
    mass, after = parts["mass"], {n: b for n, b in parts["buffers"].items() if check or n not in route.carried}
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
    pooled["buffers"] |= {n: b for n, b in parts["buffers"].items() if n in route.carried}
    return pooled


def conclude(
    route: Route, mapper: Mapper, parts: Parts, at: Place, batch: Batch, strategy: Strategy, state: StrategyState
) -> Slope:
    """From the parts of a whole batch to what `gradient` gives: groups combined, steered, the penalties added."""
    before = state

    def gradient_at(params: Params) -> Params:
        there = at._replace(params=params)
        found = _parts(route, mapper, there, batch, strategy, before, whole=True)
        return _combined(route, found, strategy, before)[0]

    with keyed(at.key):
        slopes, value, state = _combined(route, parts, strategy, state)
        if strategy.does("steer"):
            loss = own_loss(route, at, batch, strategy)
            slopes, state = verbs.through(strategy, "steer", slopes, state, at.params, loss, gradient_at)
        extra = verbs.pull(strategy, at.params, state)
        if extra is not None:
            slopes = {name: g + extra[name] for name, g in slopes.items()}
    return slopes, value, parts["buffers"], state


def own_rows(route: Route, at: Place, batch: Batch, strategy: Strategy) -> Batch:
    """The rows of a batch that the objective's own loss is of, with what each counts."""
    seen = judged_rows(batch)
    if strategy.sight.grouped or route.pieces > 1:
        seen = massed(route.objective, route.player, at, seen, route.pieces)
    if strategy.sight.grouped:
        seen = weighed(seen, route.weighting, next(iter(at.params.values())).dtype)
    return seen


def own_mean(route: Route, at: Place, batch: Batch, strategy: Strategy) -> OwnMean:
    """The mean over a batch of what is read of the objective's own outputs, as strategies are given it."""
    base = base_loss(route.objective, at.others, at.buffers, at.key, route.player)

    def over(read: Callable[..., Tensor], *places: Params) -> Tensor:
        return mean_over(route, base, read, places, own_rows(route, at, batch, strategy))

    return over


def own_loss(route: Route, at: Place, batch: Batch, strategy: Strategy) -> OwnLoss:
    """The objective's own mean loss, of the whole batch or of other rows, as strategies are given it."""
    base = base_loss(route.objective, at.others, at.buffers, at.key, route.player)
    seen = own_rows(route, at, batch, strategy)

    def loss(params: Params, rows: Batch | None = None) -> Tensor:
        if rows is None:
            return mean_loss(route, base, params, seen)
        output = base(params, rows)
        return reduce(output.losses, output.weight)

    return loss


def _combined(
    route: Route, parts: Parts, strategy: Strategy, state: StrategyState
) -> tuple[Params, Tensor, StrategyState]:
    """One gradient, the mean loss, and the strategy's state after it has combined the groups."""
    losses, sight = parts["loss"], strategy.sight
    if sight.each:
        weights = shares(parts["mass"], route.weighting)
        value = (weights * losses).sum()
        if "sums" in parts:
            slopes, state = verbs.conclude(strategy, parts["sums"], losses, weights, state)
        else:
            slopes, state = verbs.combine(strategy, parts["gradient"], losses, weights, state)
        return slopes, value, state
    slopes, loss, left = parts["gradient"], losses.unsqueeze(0), dict(parts.get("left", {}))
    for name, part, own in verbs.each(strategy, state):
        if part.does("combine"):  # the batch is one group
            if part.sees == "all groups":
                own = _with_left(part, own, left)
            one = tree_map(lambda t: t.unsqueeze(0), slopes)
            slopes, after = part.combine(one, loss, torch.ones_like(loss), own)
            state = verbs.replaced(state, name, after)
    if left:
        raise ValueError(
            f"expected every tree in Output.left to be taken by a strategy that sees all groups and has a combine, got "
            f"{len(left)} that none of {strategy!r} takes"
        )
    return slopes, losses, state


def _with_left(part: Strategy, state: StrategyState, left: dict[str, Params]) -> StrategyState:
    """A part's state, and beside it what its `wrap` has left: the first tree that no part before it has taken."""
    if not left:
        raise ValueError(
            f"expected what {part!r} leaves in Output.left, got nothing: a strategy that wraps its loss has dropped "
            "it; let it return dataclasses.replace(output, losses=...)"
        )
    tree = left.pop(next(iter(left)))
    if both := tree.keys() & state.keys():
        raise ValueError(f"expected {part!r} to leave names that its state does not have, got {sorted(both)} in both")
    return {**state, **tree}


def _parts(
    route: Route, mapper: Mapper, at: Place, batch: Batch, strategy: Strategy, state: StrategyState, *, whole: bool
) -> Parts:
    """What the batch gives."""

    def wrapped(buffers: Params) -> Loss:
        return verbs.wrap(strategy, base_loss(route.objective, at.others, buffers, at.key, route.player), state)

    alone = strategy.sees == "rows" and route.pieces == 1 and world()[1] == 1  # then the one forward tells
    if not alone:
        chunks = 1 if strategy.sees == "rows" else -(-len(next(tree_leaves(batch))) // route.chunk)
        batch = massed(route.objective, route.player, at, batch, max(route.pieces, chunks))
    with keyed(at.key):
        if strategy.sees == "rows":
            return pooled(route, wrapped, at.params, at.buffers, batch)
        if strategy.sight.together:
            together = side_by_side(batch, route.weighting, next(iter(at.params.values())).dtype)
            return pooled(route, wrapped, at.params, at.buffers, together)
        groups = in_groups(batch, strategy, route.grouped)
        return by_groups(route, mapper, wrapped, at.params, at.buffers, groups, strategy, whole=whole)
