"""The gradient of the mean loss: one backward, several over pieces of the rows, or one with all groups side by side."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from operator import itemgetter

import torch
from torch import Tensor

from weft.core.objective import reduce
from weft.core.source import Batch, flatten_groups, rows_of
from weft.core.strategy import Loss
from weft.core.trees import Params, tree_add, tree_map
from weft.engine.gradients.loss import Parts, Wrapped, differentiate, mass_of, masses
from weft.engine.gradients.route import Route

__all__ = ["mean_loss", "mean_over", "pooled", "side_by_side", "split", "weighed"]


def pooled(route: Route, wrapped: Wrapped, params: Params, buffers: Params, batch: Batch) -> Parts:
    """The gradient of the mean loss: one backward, or several over parts of the rows."""
    pieces, total = _pieces(route, batch)
    whole: Parts = {}
    after: Parts = {}
    for piece, share in pieces:
        loss = wrapped(buffers)

        def scalar(
            p: Params, loss: Loss = loss, piece: Batch = piece, share: Tensor | float | None = share
        ) -> tuple[Tensor, Parts]:
            output = loss(p, piece)
            mean = reduce(output.losses, output.weight)
            left = {str(i): tree for i, tree in enumerate(output.left)}
            return (mean if share is None else mean * share), {"buffers": output.buffers, "left": left}

        gradient, (value, after) = differentiate(scalar, params, route.transform)
        buffers = {n: buffers[n] if n in route.carried else b for n, b in after["buffers"].items()}
        part: Parts = {"gradient": gradient, "loss": value}
        whole = tree_add(whole, part) if whole else part
    mass: Parts = {"mass": total} if isinstance(total, Tensor) else {"rows": total}
    return {**whole, **mass, **after}


def _pieces(route: Route, batch: Batch) -> tuple[list[tuple[Batch, Tensor | float | None]], Tensor | int]:
    """The rows in as many parts as they are run through, each with its share of the mass (None of all); and that."""
    pieces = split(flatten_groups(batch) if route.grouped else batch, route.pieces)
    total: Tensor | int = 0
    for piece in pieces:
        total = total + mass_of(piece)
    least = total.clamp_min(torch.finfo(total.dtype).tiny) if isinstance(total, Tensor) else total
    return [(piece, None if len(pieces) == 1 else mass_of(piece) / least) for piece in pieces], total


def mean_loss(route: Route, loss: Loss, params: Params, batch: Batch) -> Tensor:
    """The mean loss that `pooled` differentiates, with the buffers that `loss` has."""
    return mean_over(route, loss, lambda output: output.losses, (params,), batch)


def mean_over(
    route: Route, loss: Loss, read: Callable[..., Tensor], places: tuple[Params, ...], batch: Batch
) -> Tensor:
    """The mean over the rows, taken as that of the losses, of what is read of the outputs at some parameters."""
    value: Tensor | float = 0.0
    for piece, share in _pieces(route, batch)[0]:
        outputs = [loss(params, piece) for params in places]
        mean = reduce(read(*outputs), outputs[0].weight)
        value = value + (mean if share is None else mean * share)
    return torch.as_tensor(value)


def side_by_side(batch: Batch, weighting: str, dtype: torch.dtype) -> Batch:
    """Stacked groups with the field `group`, and weights by which all of them together count as they should."""
    groups, rows = batch["row"].shape
    same = torch.eye(groups, dtype=torch.bool, device=batch["row"].device)
    return weighed({**batch, "group": same.unsqueeze(1).expand(groups, rows, groups)}, weighting, dtype)


def weighed(batch: Batch, weighting: str, dtype: torch.dtype) -> Batch:
    """Stacked groups with weights by which all of their rows together count as the groups should."""
    if weighting == "example":
        return batch
    mass = masses(batch, dtype)
    weight = batch.get("weight", torch.ones_like(batch["row"], dtype=mass.dtype))
    return {**batch, "weight": weight / mass.clamp_min(torch.finfo(mass.dtype).tiny).unsqueeze(1)}


def split(batch: Batch, pieces: int) -> list[Batch]:
    """The rows in so many parts, as near to equal as can be."""
    if pieces == 1:
        return [batch]
    rows = rows_of(batch)
    edges = [i * rows // pieces for i in range(pieces + 1)]
    return [tree_map(itemgetter(slice(a, b)), batch) for a, b in pairwise(edges) if b > a]
