"""A gradient for every example where the examples of a batch are coupled, as by batch normalization.

There the loss of example i depends on all rows, through their mean and variance. Its gradient is that of one forward
which all rows share,

    g_i = d loss_i(theta; x_1, ..., x_n) / d theta,

a row of a Jacobian: a backward through the whole batch for each i, several of them at a time.
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp

from weft.core.objective import Objective, reduce
from weft.core.source import Batch, rows_of
from weft.core.trees import Params, tree_leaves, tree_map
from weft.engine.gradients.loss import Place, Wrapped, base_loss
from weft.engine.vectorize import Mapper

__all__ = ["Jacobian", "fitting", "mixes"]

_ROWS = 32  # so many tell whether a net mixes them
_CACHE = 2**25  # on a CPU backwards that take more than this, in bytes, are no quicker together


class Jacobian:
    """One forward of all rows; called with places in the batch, it gives the gradients of those examples' losses.

    Args:
        mapper: maps a backward over examples, and remembers what cannot be vectorized.
        wrapped: the strategy's loss.
        params, buffers: those to differentiate by, and those before the forward.
        pieces: the rows. Those of one piece are coupled, and the buffers go from piece to piece.
        carried: but for these, with which every piece begins anew.

    Attributes:
        losses: of every example; zero where its weight is.
        buffers: after the forward.
    """

    def __init__(
        self,
        mapper: Mapper,
        wrapped: Wrapped,
        params: Params,
        buffers: Params,
        pieces: list[Batch],
        carried: frozenset[str] = frozenset(),
    ) -> None:
        def forward(p: Params) -> tuple[Tensor, Params]:
            losses, held, after = [], buffers, buffers
            for piece in pieces:
                output = wrapped(held)(p, piece)
                _refuse_other_rows(output.losses, rows_of(piece))
                weight = None if output.weight is None else output.weight.unsqueeze(1)
                losses.append(reduce(output.losses.unsqueeze(1), weight))
                after = output.buffers
                held = {n: buffers[n] if n in carried else b for n, b in after.items()}
            return torch.cat(losses), after

        self.mapper = mapper
        pulled: Any = vjp(forward, params, has_aux=True)  # its annotation says two, without the third
        self.losses, self.back, self.buffers = pulled
        self.places = torch.arange(len(self.losses), device=self.losses.device)

    def __call__(self, places: Tensor) -> tuple[Params, Tensor]:
        if len(places) == 1:  # torch's own backwards are quicker than mapped ones
            return tree_map(partial(torch.unsqueeze, dim=0), self._backward(places[0])), self.losses[places]
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


def fitting(kept: list[Tensor], params: Params, batch: Batch, passes: int, memory: int) -> tuple[int, int]:
    """What one example's gradient takes, and how many of them fit the memory beside the forward that all rows share.

    A backward goes through all rows, and some of its steps have several tensors of the largest layer's size at once:
    up to seven, in ten nets of different kinds, where batch normalization is mapped.

    Args:
        kept: what autograd keeps of the forward.
        params, batch: of the forward; neither is made by it.
        passes: how often a wrapped loss runs the forward.
        memory: bytes that may be taken.
    """
    given = {t.untyped_storage().data_ptr() for t in (*params.values(), *tree_leaves(batch))}
    sizes = [t.numel() * t.element_size() for t in kept if t.untyped_storage().data_ptr() not in given]
    largest = passes * max(sizes, default=0)
    one = 8 * largest + 2 * sum(p.numel() * p.element_size() for p in params.values())
    free = memory - passes * sum(sizes) - 2 * largest
    if next(iter(params.values())).device.type == "cpu":
        free = min(free, _CACHE)
    return one, max(1, free // one)


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
