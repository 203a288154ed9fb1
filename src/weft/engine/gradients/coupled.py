"""A gradient for every example where the examples of a batch are coupled, as by batch normalization.

There the loss of example i depends on all rows, through their mean and variance. Its gradient is that of one forward
which all rows share,

    g_i = d loss_i(theta; x_1, ..., x_n) / d theta,

a row of a Jacobian: a backward through the whole batch for each i, several of them at a time.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp

from weft.core.objective import Objective, reduce
from weft.core.source import Batch, rows_of
from weft.core.trees import Params, tree_map
from weft.engine.gradients.loss import Place, Wrapped, base_loss
from weft.engine.vectorize import Mapper

__all__ = ["Jacobian", "mixes", "shared_bytes"]

_ROWS = 32  # so many tell whether a net mixes them


class Jacobian:
    """One forward of all rows; called with places in the batch, it gives the gradients of those examples' losses.

    Args:
        mapper: maps a backward over examples, and remembers what cannot be vectorized.
        wrapped: the strategy's loss.
        params, buffers: those to differentiate by, and those before the forward.
        pieces: the rows. Those of one piece are coupled, and the buffers go from piece to piece.

    Attributes:
        losses: of every example; zero where its weight is.
        buffers: after the forward.
    """

    def __init__(self, mapper: Mapper, wrapped: Wrapped, params: Params, buffers: Params, pieces: list[Batch]) -> None:
        def forward(p: Params) -> tuple[Tensor, Params]:
            losses, held = [], buffers
            for piece in pieces:
                output = wrapped(held)(p, piece)
                _refuse_other_rows(output.losses, rows_of(piece))
                weight = None if output.weight is None else output.weight.unsqueeze(1)
                losses.append(reduce(output.losses.unsqueeze(1), weight))
                held = output.buffers
            return torch.cat(losses), held

        self.mapper = mapper
        pulled: Any = vjp(forward, params, has_aux=True)  # its annotation says two, without the third
        self.losses, self.back, self.buffers = pulled
        self.places = torch.arange(len(self.losses), device=self.losses.device)

    def __call__(self, places: Tensor) -> tuple[Params, Tensor]:
        return self.mapper(self._backward, (0,), places), self.losses[places]

    def _backward(self, place: Tensor) -> Params:
        return self.back((self.places == place).to(self.losses.dtype), create_graph=False)[0]


def _refuse_other_rows(losses: Tensor, rows: int) -> None:
    if losses.shape != (rows,):
        raise ValueError(
            f"expected one loss for each of {rows} examples, which the net couples (by batch normalization or the "
            f"like), got losses of shape {tuple(losses.shape)}: a strategy of the weave adds rows of its own; leave it "
            "out, or take a net whose rows do not mix (LayerNorm, GroupNorm)"
        )


def shared_bytes(kept: list[Tensor], params: Params) -> tuple[int, int]:
    """What the forward that all rows share takes, and beside the gradients a backward of one example.

    A backward goes through all rows, and some of its steps have several tensors of the largest layer's size at once:
    up to seven, in ten nets of different kinds, where batch normalization is vectorized.

    Args:
        kept: what autograd keeps of the forward.
        params: not counted among the layers' outputs.
    """
    own = {p.untyped_storage().data_ptr() for p in params.values()}
    sizes = [t.numel() * t.element_size() for t in kept if t.untyped_storage().data_ptr() not in own]
    largest = max(sizes, default=0)
    return sum(sizes) + 2 * largest, 8 * largest


def mixes(objective: Objective, player: str, at: Place, batch: Batch) -> bool:
    """Whether a row's loss depends on the rows beside it, as it does through batch normalization in training mode.

    Half of some rows stay and the first of them takes the place of the others: with the same draws, losses of those
    that stay may differ by rounding only. A last layer of zeros would hide it, so other parameters are tried too.

    Args:
        objective, player: whose loss.
        at: one run's tensors.
        batch: numbered, without groups.
    """
    some = tree_map(itemgetter(slice(None, None, -(-rows_of(batch) // _ROWS))), batch)
    stays = rows_of(some) // 2
    index = torch.arange(rows_of(some), device=some["row"].device)
    index = torch.where(index < stays, index, 0)
    others = {**tree_map(itemgetter(index), some), "row": some["row"]}
    return any(_differ(objective, player, place, some, others, stays) for place in (at, _elsewhere(at)))


def _differ(objective: Objective, player: str, at: Place, one: Batch, other: Batch, stays: int) -> bool:
    loss = base_loss(objective, at.others, at.buffers, at.key, player)
    with torch.no_grad():
        a, b = (loss(at.params, batch).losses[:stays] for batch in (one, other))
    known = torch.isfinite(a) & torch.isfinite(b)  # what has diverged tells nothing
    a, b = a[known], b[known]
    return bool(((a - b).abs() > torch.finfo(a.dtype).eps ** 0.75 * a.abs().max()).any()) if len(a) else False


def _elsewhere(at: Place) -> Place:
    """Other parameters of the same size, none of them all zero."""

    def moved(p: Tensor) -> Tensor:
        if not p.is_floating_point():
            return p
        size = p.square().mean().sqrt()
        wave = torch.arange(1, p.numel() + 1, device=p.device, dtype=torch.float32).cos().reshape(p.shape)
        return p + wave.to(p.dtype) * torch.where(size > 0, 0.5 * size, 0.1)

    return at._replace(params=tree_map(moved, at.params), others=tree_map(moved, at.others))
