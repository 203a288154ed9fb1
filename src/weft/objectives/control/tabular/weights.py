"""Linear weights that begin as one number: a table, where rows are one-hot."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from weft.core.source import Field
from weft.nets.make import NetLike, make_net

__all__ = ["Weights", "estimates"]


class Weights(nn.Module):
    """w x, without an intercept: of a one-hot row its entry in a table.

    Args:
        inputs: numbers of a row.
        outputs: of its answer.
        initial: what each weight begins as.
    """

    def __init__(self, inputs: int, outputs: int, initial: float) -> None:
        super().__init__()
        self.initial = initial
        self.weight = nn.Parameter(torch.full((inputs, outputs), initial))

    def reset_parameters(self) -> None:
        """As they begin."""
        nn.init.constant_(self.weight, self.initial)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).to(self.weight) @ self.weight


def estimates(net: NetLike, inputs: Field, outputs: int, initial: float, **settings: Any) -> nn.Module:
    """A net from observations to estimates; None for weights that begin as one number."""
    if net is None:
        return Weights(math.prod(inputs.shape), outputs, initial)
    if initial:
        raise ValueError(
            f"expected initial with the weights that a table has (net=None), got {initial:g} beside the net {net!r}, "
            "which begins as it is drawn; leave it out"
        )
    return make_net(net, inputs, outputs, **settings)
