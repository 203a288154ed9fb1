"""A gradient for every group or example, chunked under a memory bound; their sums, and the mean of groups."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import itemgetter

import torch
from torch import Tensor
from torch.func import grad_and_value

from weft.core.objective import reduce
from weft.core.source import Batch, flatten_groups
from weft.core.strategy import Strategy, StrategyState, Summing
from weft.core.trees import Params, tree_add, tree_map
from weft.engine.gradients.coupled import Jacobian
from weft.engine.gradients.layers import Changed
from weft.engine.gradients.loss import Parts, Wrapped, counted, differentiate, masses, shares
from weft.engine.gradients.pooled import split
from weft.engine.gradients.route import Route
from weft.engine.vectorize import Mapper, in_chunks
from weft.engine.verbs import sums_of

__all__ = ["by_groups"]

Gradients = tuple[Params, tuple[Tensor, Params]]
"""Of some groups: their gradients, their losses and the buffers after each."""


def by_groups(
    route: Route,
    mapper: Mapper,
    wrapped: Wrapped,
    params: Params,
    buffers: Params,
    batch: Batch,
    strategy: Strategy,
    *,
    whole: bool,
) -> Parts:
    """What the groups on a batch's leading axis give: the gradient of each, or of their mean.

    Args:
        route, mapper: how; what cannot be vectorized is remembered in the mapper.
        wrapped: the strategy's loss.
        params, buffers: those to differentiate by, and those before the forward.
        batch: see `in_groups`.
        strategy: says what is wanted of the groups.
        whole: whether all groups are here, so that sums over them may take the place of their gradients.
    """
    mass = masses(batch, next(iter(params.values())).dtype)
    weights = shares(mass, route.weighting)

    def each(p: Params, held: Params, part: Batch) -> tuple[Tensor, Params]:
        output = wrapped(held)(p, part)
        return reduce(output.losses, output.weight), output.buffers

    if not strategy.sight.each:
        parts = _mean(route, mapper, each, params, buffers, batch, weights)
        parts["mass"] = counted(mass, route.weighting).sum()
        return parts

    def one(p: Params, held: Params, part: Batch) -> Gradients:
        return grad_and_value(lambda q: each(q, held, part), has_aux=True)(p)

    def alone(p: Params, held: Params, part: Batch) -> Gradients:
        return differentiate(lambda q: each(q, held, part), p, route.transform)

    shared: Jacobian | None = None
    if route.coupled:
        shared = Jacobian(mapper, wrapped, params, buffers, split(flatten_groups(batch), route.pieces), route.carried)
        batch, buffers = {"place": shared.places}, {}

    def some(held: Params, part: Batch) -> Gradients:
        if shared is not None:
            gradients, losses = shared(part["place"])
            return gradients, (losses, {})
        if route.layers is not None:
            with suppress(Changed):  # this batch goes the general way
                gradients, losses = route.layers(wrapped(buffers), params, part, transform=route.transform)
                return gradients, (losses, {})
        return mapper(one, (None, 0, 0), params, held, part, alone=alone)

    spread = _spread(buffers, len(weights))
    summing = sums_of(strategy)
    if route.chunk < len(weights) and summing is not None and whole:
        parts = _summed(route, some, spread, batch, weights, summing)
    else:
        gradients, (losses, after) = in_chunks(some, (spread, batch), len(weights), route.chunk)
        parts = {"gradient": gradients, "loss": losses, "buffers": _merged(route, after, weights)}
    if shared is not None:
        parts["buffers"] = shared.buffers
    parts["mass"] = mass
    return parts


def _mean(
    route: Route,
    mapper: Mapper,
    each: Callable[[Params, Params, Batch], tuple[Tensor, Params]],
    params: Params,
    buffers: Params,
    batch: Batch,
    weights: Tensor,
) -> Parts:
    """The gradient of the groups' weighted mean loss, where each group's loss stands by itself."""
    whole: Parts = {}
    after: list[Params] = []
    for start in range(0, len(weights), route.chunk):
        window = slice(start, start + route.chunk)
        part = tree_map(itemgetter(window), batch)

        def scalar(p: Params, part: Batch = part, counts: Tensor = weights[window]) -> tuple[Tensor, Params]:
            losses, left = mapper(partial(each, p), (0, 0), _spread(buffers, len(counts)), part)
            return (counts * losses).sum(), left

        gradient, (value, left) = differentiate(scalar, params, route.transform)
        some: Parts = {"gradient": gradient, "loss": value}
        whole = tree_add(whole, some) if whole else some
        after.append(left)
    return {**whole, "buffers": _merged(route, _joined(after, buffers), weights)}


def _summed(
    route: Route,
    some: Callable[[Params, Batch], Gradients],
    spread: Params,
    batch: Batch,
    weights: Tensor,
    summing: Summing,
) -> Parts:
    """Sums over the groups in place of their gradients: no more of those than fit the bound are ever there."""
    sums: StrategyState = {}
    losses: list[Tensor] = []
    after: list[Params] = []
    for start in range(0, len(weights), route.chunk):
        window = slice(start, start + route.chunk)
        part, held = (tree_map(itemgetter(window), tree) for tree in (batch, spread))
        gradients, (values, left) = some(held, part)
        more = summing.summarize(gradients, weights[window])
        del gradients
        sums = tree_add(sums, more) if sums else more
        losses.append(values)
        after.append(left)
    return {"sums": sums, "loss": torch.cat(losses), "buffers": _merged(route, _joined(after, spread), weights)}


def _spread(buffers: Params, count: int) -> Params:
    return {name: b.expand(count, *b.shape) for name, b in buffers.items()}


def _joined(after: list[Params], names: Params) -> Params:
    return {name: torch.cat([buffers[name] for buffers in after]) for name in names}


def _merged(route: Route, buffers: Params, weights: Tensor) -> Params:
    """Buffers become one: statistics are averaged, counters take their largest value, carried ones are alike."""

    def one(name: str, b: Tensor) -> Tensor:
        if name in route.carried:
            return b[0]
        return torch.tensordot(weights.to(b.dtype), b, dims=1) if b.is_floating_point() else b.amax(0)

    return {name: one(name, b) for name, b in buffers.items()}
