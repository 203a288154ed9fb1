"""One run or stacked replicas, alike: a function over all of them, their sources and batches, their row numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from operator import is_not, itemgetter
from typing import Any, TypeVar

import torch
from torch import Tensor

from weft.core.source import Batch, Source, SourceState, flatten_groups, number_rows
from weft.core.state import State
from weft.core.strategy import StrategyState
from weft.core.trees import Params, tree_cat, tree_leaves, tree_map, tree_same, tree_stack
from weft.engine.vectorize import vectorized

__all__ = [
    "View",
    "admitted",
    "apart",
    "batches",
    "begun",
    "broadcast",
    "called",
    "fresh",
    "gathered",
    "going",
    "mapped",
    "numbered",
    "once",
    "reading",
    "reported",
    "surveyed",
]

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


# --- a source and what it keeps -----------------------------------------------------------------------


def reading(source: Source, state: State, steps: int) -> None:
    """A state begins to read a source in so many steps, or goes on with it after an interruption."""
    state.planned, state.resumes = steps, source.resumes
    if state.step == state.origin or source.resumes == "restart":
        state.source = begun(source, state)
        if state.step > state.origin and state.source:
            warnings.warn(
                f"{called(source)} begins anew at step {state.step}: it resumes by restart, what it had kept is not in "
                "the checkpoint, and the run is not the uninterrupted one",
                stacklevel=8,
            )


def begun(source: Source, state: State) -> SourceState:
    """What a source keeps before its first batch, stacked over replicas."""
    if state.replicas is None or source.stacks:
        tree = source.init(state)
        _refuse_kept(tree, source, state.replicas)
    else:
        trees = [source.init(state.replica(k)) for k in range(state.replicas)]
        _refuse_unlike(trees, source)
        tree = tree_stack(trees)
    return tree_map(lambda t: t.to(state.device), tree)


def surveyed(source: Source, state: State) -> None:
    """Shows the objective the data that a training begins to read; before the first step it may set buffers by them."""
    objective = state.objective
    if not objective.surveys or state.step != state.origin:
        return
    runs = [state.replica(k) for k in range(state.replicas or 1)]
    found = [objective.survey(source, apart(run)) for run in runs]
    if state.step:
        return  # a later task: what the first data told stands
    name = f"{type(objective).__name__}.survey"
    for own, run in zip(found, runs, strict=True):
        for buffer, value in own.items():
            if buffer not in run.buffers:
                raise KeyError(f"expected {name} to give buffers among {sorted(run.buffers)}, got {buffer!r}")
            if value.shape != run.buffers[buffer].shape or not bool(torch.isfinite(value).all()):
                raise ValueError(
                    f"expected {name} to give {buffer!r} as finite numbers in the shape that it was built, "
                    f"{tuple(run.buffers[buffer].shape)}, got shape {tuple(value.shape)} or others"
                )
    for buffer in found[0]:
        value = torch.stack([own[buffer] for own in found]) if state.replicas else found[0][buffer]
        state.buffers[buffer] = value.detach().to(state.buffers[buffer])


def admitted(source: Source, state: State, *, training: bool) -> None:
    """Lets the objective refuse the rows of a source before it learns from them, or is measured on them."""
    if not state.objective.refuses or (source.acts and state.objective.fields[0] not in source.spec):
        return  # what has learned from labels is played: its rows come of what it does
    run = state.replica(0)
    parts = list(source.once(fresh(source, run), 2**20))
    rows = parts[0] if len(parts) == 1 else tree_cat(parts)
    if state.objective.episodic:
        inside = [flatten_groups(rows[part]) for part in ("support", "query")]
        rows = tree_cat([{name: part[name] for name in source.spec} for part in inside])
    state.objective.refuse_rows(rows, training=training)


def fresh(source: Source, state: State) -> State:
    """The state as a source sees it that is read for the first time, and leaves no trace: a probe, a validation."""
    tree = begun(source, state)
    return replace(state, source=tree, buffers=dict(state.buffers)) if tree or state.source else state


def apart(state: State) -> State:
    """The state with a copy of what its source keeps, which can be read on without a trace."""
    if not state.source:
        return state
    return replace(state, source=tree_map(torch.clone, state.source), buffers=dict(state.buffers))


def reported(source: Source, state: State, taken: Collection[str]) -> Params:
    """The numbers that a source tells of itself, for each replica; names that are taken are refused."""
    if state.replicas is None or source.stacks:
        values = source.report(state)
    else:
        values = tree_stack([source.report(state.replica(k)) for k in range(state.replicas)])
    shape = () if state.replicas is None else (state.replicas,)
    for name, value in values.items():
        if name in taken:
            raise ValueError(
                f"expected {called(source)} to report under names of its own, got {name!r}, which the record has "
                "already; call it otherwise"
            )
        if not isinstance(value, Tensor) or value.shape not in ((), shape):
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise TypeError(f"expected {called(source)} to report {name!r} as a tensor of shape {shape}, got {got}")
    return {name: value.expand(shape) for name, value in values.items()}


def _refuse_kept(tree: object, source: Source, replicas: int | None) -> None:
    """Raises where a source keeps anything but a tree of tensors, or has not stacked it."""
    name = called(source)
    if not isinstance(tree, dict):
        raise TypeError(f"expected {name} to keep a dictionary of tensors in state.source, got {tree!r}")
    for leaf in tree_leaves(tree):
        if not isinstance(leaf, Tensor):
            raise TypeError(
                f"expected {name} to keep tensors in state.source, got {leaf!r} ({type(leaf).__name__}); a number is "
                "kept as torch.tensor(number)"
            )
        if replicas is not None and leaf.shape[:1] != (replicas,):
            raise ValueError(
                f"expected {name}, which says stacks = True, to keep tensors with the {replicas} replicas on their "
                f"leading axis, got shape {tuple(leaf.shape)}"
            )


def _refuse_unlike(trees: list[SourceState], source: Source) -> None:
    """Raises where what a source keeps for each replica cannot be stacked."""
    for tree in trees:
        _refuse_kept(tree, source, None)
        if not tree_same(tree, trees[0]):
            raise ValueError(
                f"expected {called(source)} to keep tensors of the same names and shapes for every replica, got "
                "others; keep as many rows for each and mark those in use, or train the replicas one by one"
            )


def _renewed(now: list[SourceState], before: list[SourceState], stacked: SourceState) -> SourceState:
    """What a source keeps for each replica, stacked; what none has replaced is left as it was, for it may be large."""
    after: SourceState = {}
    for name, first in now[0].items():
        own, old = [tree[name] for tree in now], [tree.get(name) for tree in before]
        if isinstance(first, dict):
            after[name] = _renewed(own, [tree or {} for tree in old], stacked.get(name, {}))
        else:
            after[name] = torch.stack(own) if any(map(is_not, own, old)) else stacked[name]
    return after


def called(source: Source) -> str:
    """A source's name; of one that passes on another's batches, the other's."""
    inner = getattr(source, "source", None)
    return called(inner) if isinstance(inner, Source) else type(source).__name__


def batches(source: Source, state: State) -> Iterator[Batch]:
    """The source's batches, stacked over replicas where the source does not do so itself."""
    yield from _stacked(source.batches, source, state)


def once(source: Source, state: State, rows: int) -> Iterator[Batch]:
    """The source's one pass, stacked likewise; it leaves no trace in what the source keeps."""
    yield from _stacked(lambda view: source.once(view, rows), source, apart(state))


def _stacked(read: Callable[[Any], Iterator[Batch]], source: Source, state: State) -> Iterator[Batch]:
    if state.replicas is None or source.stacks:
        for batch in read(state):
            _refuse_kept(state.source, source, state.replicas)
            yield batch
        return
    views = [View(partial(state.replica, k), state.replica(k).source) for k in range(state.replicas)]
    before = [tree_map(lambda t: t, view.source) for view in views]  # a source may change the dictionary itself
    for each in zip(*map(read, views), strict=True):
        now = [view.source for view in views]
        _refuse_unlike(now, source)
        state.source = _renewed(now, before, state.source)
        for k, view in enumerate(views):  # what is changed in place from here on is changed in the state
            view.source = tree_map(itemgetter(k), state.source)
        before = [tree_map(lambda t: t, view.source) for view in views]
        yield tree_stack(list(each))


class View:
    """A state that goes on changing, as a source sees it that keeps a tree of its own there.

    Args:
        look: the state as it is by now.
        source: the tree.
    """

    progress: float  # the state's, unless it is set

    def __init__(self, look: Callable[[], State], source: SourceState) -> None:
        self._look, self.source = look, source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._look(), name)


# --- rows ---------------------------------------------------------------------------------------------


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
