"""Where EM begins: which component each row is given to at first, for all replicas at once."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.random import fold, unit

__all__ = ["STARTS", "clusters"]

STARTS = ("k-means", "k-means++", "rows")
"""By Lloyd's iterations from k-means++, by k-means++ alone, or around rows that are drawn."""
_LLOYD = 30


def clusters(x: Tensor, weight: Tensor, count: int, how: str, key: Tensor) -> Tensor:
    """The cluster of each row, `(R, n)`.

    Centres are rows drawn with probability in proportion to weight, and to the squared distance from the nearest centre
    so far for k-means++; then, for k-means, each becomes the mean of the rows that are nearest to it, until none moves.

    Args:
        x: rows, `(R, n, d)` or `(1, n, d)` where all replicas have the same.
        weight: `(R, n)` or `(1, n)`.
        count: how many clusters.
        how: one of `STARTS`.
        key: one for each replica, `(R,)`.

    References:
        Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", SODA 2007.
    """
    scale = (weight.unsqueeze(-1) * (x - x.mean(-2, keepdim=True)) ** 2).sum(-2, keepdim=True)
    x = (x - x.mean(-2, keepdim=True)) / (scale / weight.sum(-1)[:, None, None]).sqrt().clamp_min(1e-12)
    square = (x * x).sum(-1)
    nearest = torch.ones_like(square).expand(len(key), -1)
    centres: list[Tensor] = []
    for k in range(count):
        chance = weight * (nearest > 0) if how == "rows" else weight * nearest
        total = chance.cumsum(-1)
        if bool((total[:, -1] <= 0).any()):
            raise ValueError(
                f"expected at least {count} different rows for {count} components, got {k}; take fewer components, or "
                "more rows"
            )
        u = unit(fold(key, "centre", k), (1,), torch.float64) * total[:, -1:]
        chosen = torch.searchsorted(total, u.to(total.dtype), right=True).clamp_max(total.shape[-1] - 1)
        own = x.expand(len(key), -1, -1)
        centres.append(own.gather(1, chosen[..., None].expand(-1, -1, x.shape[-1])))
        away = ((x - centres[-1]) ** 2).sum(-1)
        nearest = away if k == 0 else torch.minimum(nearest, away)
    centre = torch.cat(centres, 1)  # (R, K, d)
    found = _nearest(x, centre)
    for _ in range(_LLOYD if how == "k-means" else 0):
        part = torch.nn.functional.one_hot(found, count).to(x.dtype) * weight.unsqueeze(-1)
        mass = part.sum(1)
        moved = (part.mT @ x) / mass.clamp_min(torch.finfo(x.dtype).tiny).unsqueeze(-1)
        centre = torch.where(mass.unsqueeze(-1) > 0, moved, centre)
        before, found = found, _nearest(x, centre)
        if torch.equal(before, found):
            break
    return found


def _nearest(x: Tensor, centre: Tensor) -> Tensor:
    """The number of the nearest centre, `(R, n)`."""
    distance = (centre * centre).sum(-1).unsqueeze(1) - 2 * x @ centre.mT
    return distance.argmin(-1)
