"""Critics: several nets that tell what an action is worth, of which the least word is believed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from weft.core.source import Field
from weft.nets.make import NetLike, make_net

__all__ = ["Critics"]


class Critics(nn.Module):
    """Nets Q_j, each with parameters of its own: of a row's entries and an action's, or of all finitely many actions.

    Args:
        net: a factory, a name, or None for an MLP; no module, of which there is one.
        observation, action: of a row.
        hidden: hidden widths of the MLPs.
        count: how many.

    References:
        Fujimoto, van Hoof and Meger, "Addressing function approximation error in actor-critic methods", arXiv
        1802.09477.

    Example:
        >>> critics = Critics(None, Field((3,), torch.float32), Field((2,), torch.float32), hidden=(4,))
        >>> critics(torch.zeros(5, 3), torch.zeros(5, 2)).shape
        torch.Size([2, 5])
    """

    def __init__(
        self, net: NetLike, observation: Field, action: Field, *, hidden: Sequence[int] = (256, 256), count: int = 2
    ) -> None:
        super().__init__()
        if isinstance(net, nn.Module):
            raise TypeError(
                f"expected critic as something that makes nets, of which there are {count}, got the one module "
                f"{type(net).__name__}; give a factory such as lambda inputs, outputs: nn.Linear(inputs, outputs), or "
                "a name"
            )
        row, outputs = observation, action.classes
        if outputs is None:
            row = Field((math.prod(observation.shape) + math.prod(action.shape),), torch.get_default_dtype())
        self.nets = nn.ModuleList(make_net(net, row, outputs or 1, hidden=hidden, what="critic") for _ in range(count))

    def forward(self, observation: Tensor, action: Tensor | None = None) -> Tensor:
        """What each critic says: `(critics, n)` of an action, `(critics, n, actions)` of all."""
        if action is None:
            return torch.stack([net(observation) for net in self.nets])
        row = torch.cat([observation.flatten(1), action.flatten(1).to(observation.dtype)], -1)
        return torch.stack([net(row).reshape(len(row)) for net in self.nets])
