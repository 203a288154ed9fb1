"""The step that a strategy takes in place of the one that the optimizer proposes, of one run's tensors."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from weft.core.random import keyed
from weft.core.source import Batch
from weft.core.strategy import Move, Strategy, StrategyState
from weft.core.trees import Params
from weft.engine import verbs
from weft.engine.gradients.gradient import own_loss
from weft.engine.gradients.loss import Place
from weft.engine.gradients.route import Route

__all__ = ["updated"]


def updated(
    route: Route,
    at: Place,
    batch: Batch,
    step: Params,
    lr: Tensor,
    key: Tensor,
    strategy: Strategy,
    state: StrategyState,
    data_rows: int | None,
) -> tuple[Params, StrategyState]:
    """The step to take and the strategy's state after it.

    Args:
        route: by which the gradient was computed.
        at: the place before the step.
        batch: all of it, numbered.
        step, lr: as proposed, and the learning rate.
        key: of what is drawn.
        strategy, state: whose `update` is asked, part by part.
        data_rows: rows in the data, where it has an end.
    """
    seen = batch.get("query", batch)
    rows = (seen["weight"] > 0).sum() if "weight" in seen else seen["row"].numel()
    move = Move(step, at.params, lr, rows, data_rows, own_loss(route, at, batch, strategy))
    with keyed(key):
        for name, part, own in verbs.each(strategy, state):
            if part.does("update"):
                step, after = part.update(move, own)
                move, state = replace(move, step=step), verbs.replaced(state, name, after)
    return move.step, state
