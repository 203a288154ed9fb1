"""Asking an objective at a state: its capabilities, and its measures over batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from weft.core.corpus import Corpus
from weft.core.objective import Objective
from weft.core.random import fold, key_of, keyed
from weft.core.source import Batch, Source, flatten_groups
from weft.core.state import State
from weft.core.trees import Params, tree_leaves, tree_map, tree_stack
from weft.engine.distributed import joined, total, world
from weft.engine.holding import evaluating, holding
from weft.engine.memory import rows_at_a_time
from weft.engine.precision import lowering, raised
from weft.engine.replicas import apart, mapped, numbered
from weft.engine.serving import serving
from weft.engine.vectorize import vectorized

__all__ = ["call", "call_all", "fitting_measure", "measure", "rows_to_measure", "together"]

_looped: WeakKeyDictionary[Objective, set[str]] = WeakKeyDictionary()  # methods that cannot be vectorized
_MOST = 4096  # rows at a time when something is measured


def call(
    state: State,
    name: str,
    *args: object,
    key: Tensor,
    rows: Tensor | Callable[[], Tensor] | None = None,
    fields: Params | None = None,
    options: Mapping[str, object] | None = None,
) -> Any:
    """A method of the objective at one run's parameters, in evaluation mode, without gradients.

    Args:
        state: the run.
        name: the method.
        args: what it is asked about.
        key, rows: what its draws are keyed by; rows may be a function, which is asked once something is drawn.
        fields: further arguments by name, with a value for each row.
        options: further arguments that are the same for all rows.
    """
    objective = state.objective
    method, held = getattr(objective, name), holding(objective, state.params, dict(state.buffers))
    ask, what = method, (name, *sorted(fields or ()), repr(options)) if fields or options else name
    if fields or options:
        args = (*args, fields or {})

        def ask(*given: Any) -> Any:
            return method(*given[:-1], **given[-1], **(options or {}))

    # A measure may run the forward more than once, and means the same draws.
    drawing = keyed(key, rows, again=name == "measure")
    numbers = (lambda: drawing.rows) if callable(rows) else rows  # which are then asked for once
    lowered = lowering(objective, key.device)
    with evaluating(objective), torch.no_grad(), held, drawing, lowered, serving(objective, ask, args, numbers, what):
        answer = ask(*args)
    return answer if objective.lowered is None else raised(answer)


def together(states: list[State], name: str) -> bool:
    """Whether a method can be asked of these runs at once: they have one structure, and nothing has kept it from it."""
    alike = all(state.objective is states[0].objective for state in states)
    return len(states) > 1 and alike and name not in _looped.get(states[0].objective, ())


def call_all(
    states: list[State],
    name: str,
    asked: Tensor | int,
    *,
    keys: list[Tensor],
    rows: Tensor | Callable[[], Tensor],
    fields: Params,
    options: Mapping[str, object],
    apart: bool,
) -> list[Any]:
    """A method at each of several runs' parameters: in one vectorized pass, or one after another to the same result.

    Args:
        states: the runs.
        name: the method.
        asked: what it is asked about.
        keys: one for each run.
        rows, fields, options: as for `call`.
        apart: whether each run has its own rows, on the leading axis of `asked`, `rows` and `fields`.
    """

    def one(params: Params, buffers: Params, key: Tensor, rows: Tensor, given: Params, fields: Params) -> Any:
        run = State(states[0].objective, params, buffers, key)
        answer = call(run, name, given.get("asked", asked), key=key, rows=rows, fields=fields, options=options)
        if any(
            isinstance(leaf, list) for leaf in pytree.tree_leaves(answer, is_leaf=lambda part: isinstance(part, list))
        ):
            raise NotImplementedError("lists of rows")
        return answer

    given = {"asked": asked} if isinstance(asked, Tensor) else {}
    rows = rows() if callable(rows) else rows
    if together(states, name):
        own = 0 if apart else None
        stacked = (tree_stack([s.params for s in states]), tree_stack([s.buffers for s in states]), torch.stack(keys))
        try:
            every = vectorized(one, (0, 0, 0, own, own, own))(*stacked, rows, given, fields)
            return [pytree.tree_map(itemgetter(k), every) for k in range(len(states))]
        except Exception:  # as the loop will tell itself, where it is not the vectorizing that it does not bear
            pass
    answers = []
    for k, (state, key) in enumerate(zip(states, keys, strict=True)):
        part = itemgetter(k) if apart else (lambda tensor: tensor)
        ask = asked if isinstance(asked, int) else part(asked)
        own_fields = {n: part(values) for n, values in fields.items()}
        answers.append(call(state, name, ask, key=key, rows=part(rows), fields=own_fields, options=options))
    if together(states, name):
        _looped.setdefault(states[0].objective, set()).add(name)
    return answers


def measure(state: State, batches: Iterator[Batch], *, grouped: bool = False) -> dict[str, Tensor]:
    """The objective's measures over batches, each one number (per replica), weighted by example."""
    rank, size = world()
    sums: list[dict[str, Params]] = []
    rows: list[dict[str, Any]] = []
    corpora: dict[str, Corpus] = {}
    key, turn = fold(key_of(state.seeds), "measure"), 0

    def one(params: Params, buffers: Params, part: Batch, key: Tensor) -> dict[str, Any]:
        told = call(State(state.objective, params, buffers, key), "measure", part, key=key, rows=part["row"])
        weight = part.get("weight")
        real = torch.ones_like(part["row"], dtype=torch.float64) if weight is None else weight
        count = part["row"].shape[0]
        whole = {n: m.checked(n, count) for n, m in told.items() if isinstance(m, Corpus)}
        corpora.update(whole)
        measures: Params = {n: v for n, v in told.items() if n not in whole}
        if "mass" in state.objective.provides:
            run = State(state.objective, params, buffers, key)
            own: Tensor = call(run, "masses", part, key=key, rows=part["row"])
            weight = own if weight is None else weight * own
        mass = weight.sum() if weight is not None else torch.ones_like(part["row"]).sum()
        weighed = {
            n: (v * mass if v.dim() == 0 else (v if weight is None else v * weight).sum()) for n, v in measures.items()
        }
        gathered = {n: m.gathered(real) for n, m in whole.items()}
        summed = {n: tree for n, tree in gathered.items() if whole[n].rows is None}
        kept = {n: tree for n, tree in gathered.items() if n not in summed}
        return {"sums": {"means": weighed, "mass": {"mass": mass}, "totals": summed}, "rows": kept}

    for turn, batch in enumerate(batches):
        if turn and turn % size != rank:
            continue  # another process's; the first is run by all, for it tells what is measured
        batch = numbered(batch, state.replicas, grouped=grouped)
        if grouped:
            batch = (
                flatten_groups(batch)
                if state.replicas is None
                else tree_map(partial(torch.flatten, start_dim=1, end_dim=2), batch)
            )
        found = mapped(state.replicas, one, state.params, state.buffers, batch, key)
        sums.append(found["sums"])
        rows.append(found["rows"])
    if not sums:
        return {}
    where, axis = f"after step {state.step}", 0 if state.replicas is None else 1
    if turn and rank:
        sums[0] = tree_map(torch.zeros_like, sums[0])
        rows[0] = tree_map(lambda t: t.narrow(axis, 0, 0), rows[0])
    whole: dict[str, Any] = tree_map(partial(torch.sum, dim=0), tree_stack(sums))
    whole = total(whole, where) if turn else whole
    values = {n: v / whole["mass"]["mass"] for n, v in whole["means"].items()}
    if corpora:
        kept = joined(rows, axis, turn + 1, where) if turn else rows[0]
        values |= _concluded(corpora, {**whole["totals"], **kept}, state, next(iter(values.values()), None))
    return values


def _concluded(corpora: dict[str, Corpus], gathered: dict[str, Any], state: State, like: Tensor | None) -> Params:
    """The measures of the corpus from all that was gathered, replica by replica."""
    dtype = state.dtype if like is None else like.dtype
    values: Params = {}
    with torch.no_grad():
        for name, corpus in corpora.items():
            each = [
                corpus.concluded(
                    name, gathered[name] if state.replicas is None else tree_map(itemgetter(k), gathered[name]), dtype
                )
                for k in range(state.replicas or 1)
            ]
            values[name] = torch.stack(each).to(state.device) if state.replicas else each[0].to(state.device)
    return values


def rows_to_measure(state: State, source: Source, memory: int) -> int:
    """How many rows of a source are measured at a time, for all replicas at once; of one without an end, its batch."""
    if source.size is None and not state.objective.episodic:
        return _MOST

    def few(run: State) -> Batch:
        return next(iter(source.once(apart(run), 16)))

    kind = tuple((name, field.shape, str(field.dtype)) for name, field in source.spec.items())
    if state.objective.episodic:  # how many rows an episode has is not in the spec
        kind += tuple(("", tuple(t.shape[1:]), str(t.dtype)) for t in tree_leaves(few(state.replica(0))))
    return fitting_measure(state, kind, few, _MOST if source.size is None else source.size, memory)


def fitting_measure(state: State, kind: Hashable, few: Callable[[State], Batch], have: int, memory: int) -> int:
    """The same, given what a row is like and how to get 16 of them, or as many as there are."""

    def prepare() -> Callable[[int], object]:
        run = state.replica(0)
        some = few(run)

        def compute(n: int) -> object:
            part = tree_map(lambda t: t[:n].clone(), some)
            return part, measure(run, iter([part]))

        return compute

    each = memory // (state.replicas or 1)
    return rows_at_a_time(state.objective, ("measure", kind), prepare, have, each, _MOST)
