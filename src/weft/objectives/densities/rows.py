"""All rows of a source at once, for what is solved on them."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.source import Batch, Source
from weft.core.state import State

__all__ = ["all_rows", "weights_of"]


def all_rows(source: Source, state: State) -> Batch:
    """Every field of every row, in one pass; of replicas that are solved together, with them on the leading axis."""
    axis = 0 if state.replicas is None else 1
    batches = list(source.once(state, 2**20))
    return {name: torch.cat([batch[name] for batch in batches], axis) for name in batches[0]}


def weights_of(rows: Batch) -> Tensor:
    """How much each row counts: its weight, or 1."""
    x = rows["x"]
    given = rows.get("weight")
    lead = x.shape[:1] if "row" not in rows else rows["row"].shape
    return x.new_ones(lead) if given is None else given.to(x.dtype)
