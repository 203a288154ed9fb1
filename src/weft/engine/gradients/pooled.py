"""The gradient of the mean loss: one backward, several over pieces of the rows, or one with all groups side by side."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from operator import itemgetter

import torch
from torch import Tensor

from weft.core.objective import Output, reduce
from weft.core.source import Batch, flatten_groups, rows_of
from weft.core.strategy import Loss, StrategyState
from weft.core.trees import Params, tree_add, tree_map
from weft.engine.gradients.loss import Parts, Wrapped, differentiate, mass_of, masses
from weft.engine.gradients.route import Route

__all__ = ["pooled", "side_by_side", "split"]

Observe = Callable[[Output, Batch], StrategyState]


def pooled(
    route: Route, wrapped: Wrapped, params: Params, buffers: Params, batch: Batch, observe: Observe | None = None
) -> Parts:
    """The gradient of the mean loss: one backward, or several over parts of the rows.

    With `observe` there is one part, and what that makes of its output is the strategy's `state`.
    """
    flat = flatten_groups(batch) if route.grouped else batch
    pieces = split(flat, route.pieces)
    total: Tensor | int = 0
    for piece in pieces:
        total = total + mass_of(piece)
    least = total.clamp_min(torch.finfo(total.dtype).tiny) if isinstance(total, Tensor) else total
    whole: Parts = {}
    after: Parts = {}
    for piece in pieces:
        loss, share = wrapped(buffers), mass_of(piece) / least

        def scalar(
            p: Params, loss: Loss = loss, piece: Batch = piece, share: Tensor | float = share
        ) -> tuple[Tensor, Parts]:
            output = loss(p, piece)
            mean = reduce(output.losses, output.weight)
            seen: Parts = {"buffers": output.buffers}
            if observe is not None:
                seen["state"] = observe(output, piece)
            return (mean if len(pieces) == 1 else mean * share), seen

        gradient, (value, after) = differentiate(scalar, params, route.transform)
        buffers = after["buffers"]
        part: Parts = {"gradient": gradient, "loss": value}
        whole = tree_add(whole, part) if whole else part
    mass: Parts = {"mass": total} if isinstance(total, Tensor) else {"rows": total}
    return {**whole, **mass, **after}


def side_by_side(batch: Batch, weighting: str, dtype: torch.dtype) -> Batch:
    """Stacked groups with the field `group`, and weights by which all of them together count as they should."""
    groups, rows = batch["row"].shape
    same = torch.eye(groups, dtype=torch.bool, device=batch["row"].device)
    batch = {**batch, "group": same.unsqueeze(1).expand(groups, rows, groups)}
    if weighting == "group":
        mass = masses(batch, dtype)
        weight = batch.get("weight", torch.ones_like(batch["row"], dtype=mass.dtype))
        batch["weight"] = weight / mass.clamp_min(torch.finfo(mass.dtype).tiny).unsqueeze(1)
    return batch


def split(batch: Batch, pieces: int) -> list[Batch]:
    """The rows in so many parts, as near to equal as can be."""
    if pieces == 1:
        return [batch]
    rows = rows_of(batch)
    edges = [i * rows // pieces for i in range(pieces + 1)]
    return [tree_map(itemgetter(slice(a, b)), batch) for a, b in pairwise(edges) if b > a]
