"""Learning without forgetting: the new task's rows are answered as the net answered them before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, distributions

from weft.core.configured import Range
from weft.core.legal import Number
from weft.core.objective import Objective, Output
from weft.core.source import Batch
from weft.core.strategy import Local, Loss, Strategy, StrategyState
from weft.core.trees import Params

__all__ = ["LwF"]


class LwF(Strategy):
    """Distills what the net answered before the task, on the new task's own rows.

    With theta* the parameters that the last task reached, p(y | x, theta) the objective's distribution and
    p^(1/T) the same at temperature T (the power, normalized), a task minimizes the mean over its rows of

        loss_i(theta) + strength KL( p^(1/T)(y | x_i, theta*)  ||  p^(1/T)(y | x_i, theta) ).

    For classes the temperature divides the logits, and the divergence is the paper's cross-entropy up to a
    constant. For a normal it multiplies the variance, and the divergence is |mean* - mean|^2 / (2 T noise^2): the
    same idea for a regression. No row of an earlier task is kept, only theta*. There is one head, so that all of
    its outputs are distilled. Both nets run in training mode under the same draws (dropout drops the same units).

    Args:
        strength: lambda_o.
        temperature: T.

    References:
        Li and Hoiem, "Learning without forgetting", arXiv 1606.09282; Hinton, Vinyals and Dean, "Distilling the
        knowledge in a neural network", arXiv 1503.02531.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from weft import Classifier
        >>> X, y = load_digits(return_X_y=True)
        >>> clf = Classifier(strategy=LwF(strength=1.0), epochs=5, random_state=0)
        >>> for part in (0, 1):
        ...     clf = clf.partial_fit(X[part::2], y[part::2], classes=range(10), task=f"half {part}")
        >>> clf.tasks_
        ['half 0', 'half 1']
    """

    reads = frozenset({"distribution"})
    neutral = {"strength": 0.0}
    sweeps = ("strength", "temperature")
    space = {"strength": Range(0.1, 10.0, log=True), "temperature": Range(1.0, 5.0)}
    legal = {"strength": Number(0), "temperature": Number(0, ends="()")}

    def __init__(self, *, strength: float = 1.0, temperature: float = 2.0) -> None:
        self.strength = strength
        self.temperature = temperature

    def refuses(self, objective: Objective) -> str | None:
        reason = super().refuses(objective)
        if reason is None and (other := self.unlawful(objective, ("categorical", "normal"))):
            return (
                f"it knows the power of a distribution of classes, and of a normal one, and {other}; keep rows instead "
                "(Replay), or hold the parameters (L2Anchor)"
            )
        return reason

    def init(self, params: Params) -> StrategyState:
        """`teacher`: theta*; empty until the first task has ended."""
        return {"teacher": {}}

    def wrap(self, loss: Loss, state: StrategyState) -> Loss:
        if not state["teacher"]:
            return loss

        def distilled(params: Params, batch: Batch) -> Output:
            output = loss(params, batch)
            with torch.no_grad():
                before = loss(state["teacher"], batch)
            apart = [divergence(p, q, self.temperature) for p, q in zip(_of(before), _of(output), strict=True)]
            return replace(output, losses=output.losses + self.strength * sum(apart[1:], apart[0]))

        return distilled

    def consolidate(self, local: Local, state: StrategyState, task: str) -> StrategyState:
        return {"teacher": {name: p.clone() for name, p in local.params.items()}}


def _of(output: Output) -> list[distributions.Distribution]:
    """What is predicted of each target: one, or several that are independent."""
    told: Any = output.distribution() if output.distribution is not None else None
    each = told if isinstance(told, tuple) else (told,)
    return [one.base_dist if isinstance(one, distributions.Independent) else one for one in each]


def divergence(p: distributions.Distribution, q: distributions.Distribution, temperature: float | Tensor) -> Tensor:
    """KL(p^(1/T) || q^(1/T)) of each row, summed over independent labels of one row; p is held fixed."""
    if isinstance(p, distributions.Categorical) and isinstance(q, distributions.Categorical):
        a, b = ((d.logits / temperature).log_softmax(-1) for d in (p, q))
        each = (a.detach().exp() * (a.detach() - b)).sum(-1)
    elif isinstance(p, distributions.Normal) and isinstance(q, distributions.Normal):
        variance = p.variance.detach() / q.variance
        each = (variance - 1.0 - variance.log()) / 2.0
        each = each + (p.mean.detach() - q.mean).square() / (2.0 * temperature * q.variance)
    else:
        raise ValueError(f"expected what LwF distills to be of the laws that it names, got {type(q).__name__}")
    return each.reshape(each.shape[0], -1).sum(1)
