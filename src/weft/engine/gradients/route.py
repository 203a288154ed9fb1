"""How a player's gradient is computed: settings, and what one look at a first batch decides."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import itemgetter

import torch
from torch import Tensor

from weft.core.objective import Objective
from weft.core.source import Batch, flatten_groups, judged_rows, rows_of
from weft.core.strategy import Loss, Strategy
from weft.core.trees import Params, tree_leaves, tree_map
from weft.engine.gradients.coupled import fitting, mixes
from weft.engine.gradients.layers import GroupGradients
from weft.engine.gradients.loss import Place, base_loss, carried
from weft.engine.memory import made
from weft.engine.verbs import sums_of

__all__ = ["Route", "in_groups", "look", "saved", "saved_bytes"]

_SOME = 16  # groups that are asked what they leave in carried buffers


@dataclass(frozen=True)
class Route:
    """How the gradient that a strategy makes of a player's loss is computed; made by `look`.

    Attributes:
        objective: the built objective.
        player: whose loss, or "" for the only player.
        grouped: whether batches carry groups on a leading axis.
        weighting: how groups count: by `example` (their share of the rows) or by `group` (equally).
        pieces: in how many parts the rows of an ungrouped batch are run through (accumulation).
        transform: whether a vmap over replicas is around it.
        bytes: what one group or example takes; 0 where the gradient is that of the mean loss alone.
        chunk: how many of them fit the memory bound at a time.
        layers: their gradients from one backward of all rows, where the layers' rule holds.
        carried: buffers that are never averaged: every group changes them alike.
        coupled: whether examples' gradients are those of a forward that all rows share, since the net mixes them.
    """

    objective: Objective
    player: str
    grouped: bool
    weighting: str
    pieces: int
    transform: bool
    carried: frozenset[str] = frozenset()
    bytes: int = 0
    chunk: int = 1
    layers: GroupGradients | None = None
    coupled: bool = False


def look(
    objective: Objective,
    player: str,
    at: Place,
    batch: Batch,
    strategy: Strategy,
    *,
    grouped: bool,
    weighting: str = "example",
    pieces: int = 1,
    memory: int = 2**30,
    transform: bool = False,
) -> Route:
    """Looks at a first batch of one run, outside of any vmap; see `Route`.

    What one group takes are the bytes of its gradients and, as autograd tells, of its activations. A wrapped loss
    runs the forward more than once, and may differentiate it twice. Beside the groups there are sums over them, of
    two kinds mostly, while parts are added to them.

    Args:
        objective, player, grouped, weighting, pieces, transform: see `Route`.
        at: one run's tensors.
        batch: numbered.
        strategy: says what is wanted of the groups.
        memory: bytes that a vectorized pass over groups or examples may take at a time.
    """
    made = partial(Route, objective, player, grouped, weighting, pieces, transform, carried(objective))
    if not (strategy.sight.each or strategy.sight.whole):
        if pieces > 1:
            _refuse_apart(objective, player, at, _halves(flatten_groups(batch) if grouped else batch), "accumulate=1")
        return made()
    batch = in_groups(batch, strategy, grouped)
    params, loss = at.params, base_loss(objective, at.others, at.buffers, at.key, player)
    group = tree_map(itemgetter(0), batch)
    gradients = sum(p.numel() * p.element_size() for p in params.values())
    passes = 4 if strategy.does("wrap") else 2
    beside = 4 * gradients if sums_of(strategy) is not None else 0
    if strategy.sees == "examples":
        flat = flatten_groups(batch)
        if rows_of(flat) == 1 or mixes(objective, player, at, flat):  # of a single row nothing is known
            if pieces > 1:
                _refuse_apart(objective, player, at, _halves(flat), "accumulate=1")
            size, chunk = fitting(saved(loss, params, flat), params, flat, passes // 2, memory - beside)
            return made(bytes=size, chunk=chunk, coupled=True)
    some = [tree_map(itemgetter(i), batch) for i in range(min(_SOME, len(next(tree_leaves(batch)))))]
    _refuse_apart(objective, player, at, some, f"a strategy that sees rows, such as ERM(), not {strategy!r},")
    size = 2 * gradients + passes * saved_bytes(loss, params, judged_rows(group))
    layers = _layers(objective, loss, params, batch, strategy)
    if layers is not None:
        size += layers.bytes * rows_of(group)
    return made(bytes=size, chunk=max(1, (memory - beside) // max(size, 1)), layers=layers)


def _halves(batch: Batch) -> list[Batch]:
    half = rows_of(batch) // 2
    return [tree_map(itemgetter(slice(half)), batch), tree_map(itemgetter(slice(half, None)), batch)]


def _refuse_apart(objective: Objective, player: str, at: Place, parts: list[Batch], mend: str) -> None:
    """Raises where parts of a batch would leave carried buffers apart, of which there is one and no mean."""
    names = carried(objective)
    loss = base_loss(objective, at.others, at.buffers, at.key, player)
    left: list[Params] = []
    for part in parts if names else ():
        with torch.no_grad():
            after = loss(at.params, judged_rows(part)).buffers
        left.append({name: after[name] for name in names})
    for name in sorted(names):
        if any(not torch.allclose(other[name], left[0][name]) for other in left[1:]):
            raise ValueError(
                f"expected {mend} beside {type(objective).__name__}, which carries {name!r} from step to step, got "
                "parts of a batch that would each leave their own, since it depends on their rows; what is carried is "
                "never averaged (a statistic would be: leave it out of carried)"
            )


def in_groups(batch: Batch, strategy: Strategy, grouped: bool) -> Batch:
    """The batch with what counts as a group on the leading axis: single examples, where those are wanted."""
    if strategy.sees != "examples":
        return batch
    return tree_map(partial(torch.unsqueeze, dim=1), flatten_groups(batch) if grouped else batch)


def saved(loss: Loss, params: Params, batch: Batch) -> list[Tensor]:
    """What autograd keeps for the backward of one loss; all that its forward makes, where autograd does not tell."""
    kept: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        kept.append(t)
        return t

    leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
    with torch.enable_grad():
        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                loss(leaves, batch)
        except RuntimeError:  # torch.func refuses those hooks, and the loss may take gradients of its inputs
            return made(lambda: loss(leaves, batch))
    return kept


def saved_bytes(loss: Loss, params: Params, batch: Batch) -> int:
    """Bytes that autograd keeps for the backward of one loss: the activations' share of the memory."""
    return sum(t.numel() * t.element_size() for t in saved(loss, params, batch))


def _layers(
    objective: Objective, loss: Loss, params: Params, batch: Batch, strategy: Strategy
) -> GroupGradients | None:
    """The groups' gradients from the layers, where their rule gives what a backward for each group gives."""
    buffers = any(True for _ in objective.buffers())
    if not strategy.sight.each or strategy.does("wrap") or buffers or not objective.decomposable:
        return None
    layers, first = GroupGradients(objective, set(params)), tree_map(itemgetter(slice(4)), batch)
    return layers if layers.holds(loss, params, first) else None
