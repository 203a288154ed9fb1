"""Experience replay: a few rows of earlier tasks are learned again with every batch."""

from __future__ import annotations

import torch

from weft.core.configured import Range
from weft.core.legal import Number
from weft.core.objective import Output
from weft.core.source import Batch, rows_of
from weft.core.strategy import Loss, StrategyState
from weft.core.trees import Params, tree_cat
from weft.strategies.continual.memory import Remembering

__all__ = ["Replay"]


class Replay(Remembering):
    """Learns each batch B together with rows M drawn from a memory of earlier tasks.

    The memory is a uniform sample of the rows of all tasks that have ended. With means over the rows, the loss is

        (1 - share) mean_B loss_i + share mean_M loss_i,

    which at share = |M| / (|B| + |M|) is that of the rows put together, as in the paper, which draws as many rows as
    the batch has: a half. In the first task the memory is empty, and it is ERM. Rows join the batch itself, so
    whatever else acts on losses acts on them too (an attack comes before or after, by the order in `weave`); with
    strategies that look at groups the same rows join each group.

    What bounds it needs no strategy: naive training is ERM with `partial_fit`, task by task; joint training is one
    `fit` on the rows of all tasks; cumulative training is `partial_fit` on the rows of all tasks so far.

    Args:
        size: rows in the memory.
        rows: rows drawn for each batch.
        share: the memory's share of the loss, in [0, 1).

    References:
        Chaudhry, Rohrbach, Elhoseiny, Ajanthan, Dokania, Torr and Ranzato, "On tiny episodic memories in continual
        learning", arXiv 1902.10486; Vitter, "Random sampling with a reservoir", ACM Transactions on Mathematical
        Software 11, 1985.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from weft import Classifier
        >>> X, y = load_digits(return_X_y=True)
        >>> clf = Classifier(strategy=Replay(size=200), epochs=10, random_state=0)
        >>> for low in (True, False):
        ...     rows = (y < 5) == low
        ...     clf = clf.partial_fit(X[rows], y[rows], classes=range(10), task="low" if low else "high")
        >>> bool(clf.score(X, y) > 0.9)
        True
    """

    neutral = {"share": 0.0}
    sweeps = ("share",)
    space = {"share": Range(0.1, 0.9)}
    legal = {"share": Number(0, 1, "[)")}

    def __init__(self, *, size: int = 1000, rows: int = 64, share: float = 0.5) -> None:
        super().__init__(size=size, rows=rows)
        self.share = share

    def wrap(self, loss: Loss, state: StrategyState) -> Loss:
        def together(params: Params, batch: Batch) -> Output:
            again = self.drawn(state)
            if again is None:
                return loss(params, batch)
            # Weights that give the memory its share, whatever part of a batch this is, keep the mean of such parts.
            weight = batch.get("weight", again["weight"].new_ones(rows_of(batch)))
            mass = again["weight"].sum()
            mass = torch.where(mass > 0, mass, 1.0)  # all of them released: they count nothing
            again["weight"] = again["weight"] * (weight.sum() / mass * self.share / (1.0 - self.share))
            now = {**batch, "weight": weight}
            if now.keys() != again.keys():
                raise ValueError(
                    f"expected batches with the fields of the rows remembered, {sorted(again)}, got {sorted(now)}; "
                    "Replay does not go with a strategy that adds fields of its own"
                )
            return loss(params, tree_cat([now, again]))

        return together
