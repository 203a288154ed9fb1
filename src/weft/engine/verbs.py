"""The verbs of a strategy, asked of its parts in their order, each with its own state.

The state of a weave is a dictionary by its parts' names; that of a single strategy is its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.func import grad

from weft.core.source import Batch
from weft.core.strategy import Known, Local, Loss, Penalty, Strategy, StrategyState, Summing, weighted_mean
from weft.core.trees import Params, tree_add, tree_map
from weft.core.weave import Weave

__all__ = [
    "adapt",
    "answers",
    "begin",
    "combine",
    "conclude",
    "consolidate",
    "each",
    "init",
    "penalties",
    "pull",
    "release",
    "replaced",
    "sums_of",
    "through",
    "wrap",
]


def each(strategy: Strategy, state: StrategyState) -> Iterator[tuple[str, Strategy, StrategyState]]:
    """Every part with its name ("" for a single strategy) and its state."""
    if isinstance(strategy, Weave):
        yield from ((name, part, state[name]) for name, part in strategy.named.items())
    else:
        yield "", strategy, state


def replaced(state: StrategyState, name: str, after: StrategyState) -> StrategyState:
    """The whole state with that of a part replaced."""
    return {**state, name: after} if name else after


def init(strategy: Strategy, params: Params) -> StrategyState:
    """The state before the first step, on the parameters' device."""
    if isinstance(strategy, Weave):
        return {name: init(part, params) for name, part in strategy.named.items()}
    device = next((p.device for p in params.values()), None)  # what is solved may have buffers alone
    return tree_map(lambda t: t if device is None else t.to(device), strategy.init(params))


def begin(strategy: Strategy, known: Known, state: StrategyState) -> StrategyState:
    """The state where a training begins."""
    for name, part, own in each(strategy, state):
        state = replaced(state, name, part.begin(known, own))
    return state


def wrap(strategy: Strategy, loss: Loss, state: StrategyState) -> Loss:
    """The loss, wrapped by each in turn: the last one is the outermost."""
    for _, part, own in each(strategy, state):
        loss = part.wrap(loss, own)
    return loss


def combine(
    strategy: Strategy, gradients: Params, losses: Tensor, weights: Tensor, state: StrategyState
) -> tuple[Params, StrategyState]:
    """One gradient from the groups' gradients, by the part that combines them, or their weighted mean."""
    for name, part, own in each(strategy, state):
        if part.does("combine"):
            combined, after = part.combine(gradients, losses, weights, own)
            return combined, replaced(state, name, after)
    return weighted_mean(gradients, weights), state


def conclude(
    strategy: Strategy, sums: StrategyState, losses: Tensor, weights: Tensor, state: StrategyState
) -> tuple[Params, StrategyState]:
    """The same from sums over the groups, which `sums_of` has made."""
    for name, part, own in each(strategy, state):
        summing = sums_of(part)
        if summing is not None:
            combined, after = summing.conclude(sums, losses, weights, own)
            return combined, replaced(state, name, after)
    raise ValueError(f"expected a strategy that combines by sums, got {strategy!r}")


def through(strategy: Strategy, verb: str, value: Params, state: StrategyState, *given: Any) -> tuple[Any, Any]:
    """A gradient through a verb of each part that does more than nothing; and the whole state after it."""
    for name, part, own in each(strategy, state):
        if part.does(verb):
            value, after = getattr(part, verb)(value, *given, own)
            state = replaced(state, name, after)
    return value, state


def sums_of(strategy: Strategy) -> Summing | None:
    """The part that combines by sums over the groups, if one does; not where its `combine` is another."""
    summing = (p for p in strategy.parts if isinstance(p, Summing) and type(p).combine is Summing.combine)
    return next(summing, None)


def penalties(strategy: Strategy, state: StrategyState) -> list[tuple[Penalty, StrategyState]]:
    """The parts that add to the loss outside the groups."""
    return [(part, own) for _, part, own in each(strategy, state) if isinstance(part, Penalty)]


def pull(strategy: Strategy, params: Params, state: StrategyState) -> Params | None:
    """The gradient of the sum of the penalties, or None where there are none."""
    total: Params | None = None
    for part, own in penalties(strategy, state):
        slope = part.pull(params, own) if part.pulls else None
        slope = grad(part.penalty)(params, own) if slope is None else slope
        total = slope if total is None else tree_add(total, slope)
    return total


def answers(strategy: Strategy, params: Params, state: StrategyState) -> list[Params]:
    """The parameters that answer, one or several."""
    found = [params]
    for _, part, own in each(strategy, state):
        found = [answer for given in found for answer in part.answer(given, own)]
    return found


def consolidate(strategy: Strategy, local: Local, state: StrategyState, task: str) -> StrategyState:
    """The state after a task has ended."""
    for name, part, own in each(strategy, state):
        state = replaced(state, name, part.consolidate(local, own, task))
    return state


def release(strategy: Strategy, state: StrategyState, task: str) -> StrategyState:
    """The state when a task begins (again)."""
    for name, part, own in each(strategy, state):
        state = replaced(state, name, part.release(own, task))
    return state


def adapt(strategy: Strategy, loss: Loss, params: Params, batch: Batch, state: StrategyState) -> Params:
    """Parameters adapted to a few examples: by each that adapts, of the loss as those before it wrap it."""
    for _, part, own in each(strategy, state):
        if part.does("adapt"):
            params = part.adapt(loss, params, batch, own)
        else:
            loss = part.wrap(loss, own)
    return params
