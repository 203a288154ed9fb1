"""A penalty on how environments differ, over the rows of all of them: what CORAL, MMD and Fishr share."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Number
from weft.core.objective import Output
from weft.core.source import Batch
from weft.core.strategy import Strategy, by_group

__all__ = ["Aligning", "shares_by_group"]


class Aligning(Strategy):
    """A strategy that adds to the loss a penalty on features, of some `strength`, which couples all groups."""

    sees = "all groups"
    reads = frozenset({"features"})
    neutral = {"strength": 0.0}
    sweeps = ("strength",)
    space = {"strength": Range(0.1, 10.0, log=True)}  # DomainBed's, for CORAL and MMD
    legal = {"strength": Number(0)}

    def __init__(self, *, strength: float) -> None:
        self.strength = strength


def shares_by_group(output: Output, batch: Batch) -> tuple[Tensor, Tensor]:
    """Each row's share of its group's weight, (groups, rows), and 1 for groups that have any, else 0."""
    weight = torch.ones_like(output.losses) if output.weight is None else output.weight.to(output.losses.dtype)
    weight = by_group(weight, batch)
    mass = weight.sum(1, keepdim=True)
    return weight / mass.clamp_min(torch.finfo(mass.dtype).tiny), (mass.squeeze(1) > 0).to(mass.dtype)
