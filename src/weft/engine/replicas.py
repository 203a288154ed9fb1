"""One run or stacked replicas, alike: a function over all of them, their batches, their row numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, TypeVar

import torch
from torch import Tensor

from weft.core.source import Batch, Source, number_rows
from weft.core.state import State
from weft.core.strategy import StrategyState
from weft.core.trees import tree_map, tree_stack
from weft.engine.vectorize import vectorized

__all__ = ["batches", "broadcast", "gathered", "going", "mapped", "numbered", "once"]

Result = TypeVar("Result")


def mapped(replicas: int | None, function: Callable[..., Result], *args: object) -> Result:
    """A function of one run's tensors, over all replicas at once."""
    return function(*args) if replicas is None else vectorized(function)(*args)


def broadcast(replicas: int | None, value: Tensor, like: Tensor) -> Tensor:
    """One number per replica, shaped to multiply a stacked tensor."""
    return value if replicas is None else value.reshape(-1, *(1,) * (like.dim() - 1))


def going(active: Tensor, now: StrategyState, before: StrategyState) -> StrategyState:
    """Replicas' state after a step, which one that has stopped keeps as it was (unless it has grown)."""
    after: StrategyState = {}
    for name, value in now.items():
        old = before.get(name)
        if old is not None and isinstance(value, dict):
            after[name] = going(active, value, old)
        elif old is not None and value.shape == old.shape:
            after[name] = torch.where(broadcast(len(active), active, value), value, old)
        else:
            after[name] = value
    return after


def gathered(state: State, k: int) -> dict[str, Any]:
    """What the optimizers have gathered for one replica (momenta, counts of steps), by player, as copies."""

    def own(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: own(part) for name, part in value.items()}
        return (value[k] if value.dim() else value).clone() if isinstance(value, Tensor) else value

    return {player: own(optimizer.state_dict()["state"]) for player, optimizer in state.optimizers.items()}


def batches(source: Source, state: State) -> Iterator[Batch]:
    """The source's batches, stacked over replicas where the source does not do so itself."""
    yield from _stacked(source.batches, source, state)


def once(source: Source, state: State, rows: int) -> Iterator[Batch]:
    """The source's one pass, stacked likewise."""
    yield from _stacked(lambda view: source.once(view, rows), source, state)


def _stacked(read: Callable[[Any], Iterator[Batch]], source: Source, state: State) -> Iterator[Batch]:
    if state.replicas is None or source.stacks:
        yield from read(state)
    else:
        for each in zip(*(read(_View(state, k)) for k in range(state.replicas)), strict=True):
            yield tree_stack(list(each))


class _View:
    """One replica of a state that goes on changing, as a source sees it."""

    def __init__(self, state: State, k: int) -> None:
        self._state, self._k = state, k

    def __getattr__(self, name: str) -> object:
        return getattr(self._state.replica(self._k), name)


def numbered(batch: Batch, replicas: int | None, *, grouped: bool) -> Batch:
    """The batch with row numbers on it, the same in every replica."""
    dims = 2 if grouped else 1
    if replicas is None:
        return number_rows(batch, dims)
    one = number_rows(tree_map(itemgetter(0), batch), dims)
    return _with_rows(batch, one, replicas)


def _with_rows(batch: Batch, numbered: Batch, replicas: int) -> Batch:
    merged = {}
    for name, value in numbered.items():
        if isinstance(value, dict):
            merged[name] = _with_rows(batch[name], value, replicas)
        else:
            merged[name] = batch[name] if name in batch else value.expand(replicas, *value.shape)
    return merged
