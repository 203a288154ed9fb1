"""Averaged gradient episodic memory: no step that raises the loss on rows of earlier tasks."""

from __future__ import annotations

import torch
from torch.func import grad

from weft.core.strategy import GradientAt, OwnLoss, StrategyState
from weft.core.trees import Params
from weft.strategies.continual.memory import Remembering

__all__ = ["AGEM", "projected"]


class AGEM(Remembering):
    """Follows the new task's gradient where that does not raise the loss on rows of earlier tasks.

    With g the gradient on the batch and r the gradient of the mean loss on rows drawn from a memory of earlier
    tasks, the gradient followed is

        g - (g . r) / (r . r) r    where g . r < 0,

    and g elsewhere: the nearest to g that does not oppose r. Inner products run over all parameters together. The
    memory is a uniform sample of the rows of all tasks that have ended; in the first one it is empty, and this is
    ERM. g is what the groups' gradients are combined to, and r that of the objective's own loss.

    Args:
        size: rows in the memory.
        rows: rows drawn for each batch.

    References:
        Chaudhry, Ranzato, Rohrbach and Elhoseiny, "Efficient lifelong learning with A-GEM", arXiv 1812.00420.

    Example:
        >>> import torch
        >>> projected({"w": torch.tensor([1.0, -1.0])}, {"w": torch.tensor([0.0, 2.0])})
        {'w': tensor([1., 0.])}
    """

    def steer(
        self, gradient: Params, params: Params, loss: OwnLoss, gradient_at: GradientAt, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        rows = self.drawn(state)
        return (gradient if rows is None else projected(gradient, grad(loss)(params, rows))), state


def projected(g: Params, r: Params) -> Params:
    """The nearest to g that does not oppose r."""
    along = torch.stack([(value * r[name]).sum() for name, value in g.items()]).sum()
    square = torch.stack([value.square().sum() for value in r.values()]).sum()
    opposed = along.clamp_max(0.0) / square.clamp_min(torch.finfo(square.dtype).tiny)
    return {name: value - opposed * r[name] for name, value in g.items()}
