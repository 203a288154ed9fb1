"""All rows of a source at once, for what is solved on them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from weft.core.objective import Objective
from weft.core.source import Batch, Source
from weft.core.state import State

__all__ = ["all_rows", "of_part", "refuse_rows", "shared", "weights_of"]


def all_rows(source: Source, state: State) -> Batch:
    """Every field of every row, in one pass; of replicas that are solved together, with them on the leading axis."""
    axis = 0 if state.replicas is None else 1
    batches = list(source.once(state, 2**20))
    if len(batches) == 1:  # as it is: what replicas share stays shared
        return batches[0]
    return {name: torch.cat([batch[name] for batch in batches], axis) for name in batches[0]}


def shared(rows: Tensor) -> Tensor:
    """Stacked rows of replicas; where all of them have the same, once: `(1, n, ...)`."""
    return rows[:1] if rows.shape[0] == 1 or rows.stride(0) == 0 else rows


def weights_of(rows: Batch, axes: int = 1) -> Tensor:
    """How much each row counts: its weight, or 1; of rows that replicas have stacked, `axes` is 2."""
    x, given = rows["x"], rows.get("weight")
    return x.new_ones(()).expand(x.shape[:axes]) if given is None else given.to(x.dtype)


def refuse_rows(
    whose: str, x: Tensor, observed: Tensor, weight: Tensor, varying: list[int], names: tuple[str, ...]
) -> None:
    """Raises where a column has no value at all, or where one that must vary does not.

    Args:
        whose: the model, for messages.
        x, observed: stacked rows, `(..., n, d)`.
        weight: `(..., n)`; what counts nothing is not there.
        varying: the columns whose density would have no bound.
        names: of the columns.
    """
    there = observed & (weight > 0).unsqueeze(-1)
    empty = (~there.any(-2)).reshape(-1, x.shape[-1]).any(0)
    if bool(empty.any()):
        j = int(torch.nonzero(empty)[0, 0])
        raise ValueError(
            f"expected some value in each column for {whose}, got gaps in every row of {names[j]}, about which nothing "
            "can be learned; leave the column out"
        )
    low = torch.where(there, x, torch.inf).amin(-2)
    high = torch.where(there, x, -torch.inf).amax(-2)
    same = (low == high).reshape(-1, x.shape[-1]).any(0)
    for j in varying:
        if bool(same[j]):
            raise ValueError(
                f"expected numbers that vary for {whose}, got {low.reshape(-1, x.shape[-1])[0, j].item():g} in every "
                f"row of {names[j]}, whose density would have no bound; leave the column out, or model it as a category"
            )


def of_part(state: State, prefix: str, part: Objective) -> State:
    """The state as a part sees it, whose parameters and buffers are named so within the whole."""
    held = [
        {name.removeprefix(prefix): value for name, value in tree.items() if name.startswith(prefix)}
        for tree in (state.params, state.buffers)
    ]
    return replace(state, objective=part, params=held[0], buffers=held[1], _roots={})
