"""Features in groups, and what a strategy's penalty makes of them."""

import torch

from weft.core.objective import Output

draws = torch.Generator().manual_seed(0)


def groups_of(groups, rows, features):
    """Features of every row, and a batch that tells the groups."""
    batch = {"group": torch.eye(groups, dtype=torch.bool).repeat_interleave(rows, 0)}
    return torch.randn(groups * rows, features, generator=draws, dtype=torch.float64), batch


def penalty(strategy, features, batch, weight=None):
    """What the strategy adds to losses of zero."""
    zero = torch.zeros(len(features), dtype=torch.float64)
    loss = strategy.wrap(lambda params, batch: Output(zero, features=params["f"], weight=weight), {})
    added = loss({"f": features}, batch).losses
    assert added.shape == zero.shape
    return added[0]
