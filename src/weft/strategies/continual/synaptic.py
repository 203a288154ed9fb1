"""Synaptic intelligence: a parameter matters as much as it has lowered the loss on its way."""

from __future__ import annotations

import torch

from weft.core.legal import Number
from weft.core.strategy import GradientAt, Local, Move, OwnLoss, StrategyState
from weft.core.trees import Params
from weft.strategies.continual.importance import Importance

__all__ = ["SynapticIntelligence"]


class SynapticIntelligence(Importance):
    """Holds parameters by how much of the fall of earlier tasks' losses is owed to them.

    While a task is learned, each parameter's share of the fall of its loss is the path integral of the
    gradient along the steps taken,

        omega_i = - sum_s g_i(s) u_i(s),

    with g the gradient of the task's own loss (without this penalty) and u the step. When task t ends, having
    moved the parameters from theta_(t-1) to theta_t, the importances become

        Omega_i <- max( 0, Omega_i + omega_i / ( (theta_t,i - theta_(t-1),i)^2 + damping ) ),

    and the next task minimizes

        loss(theta) + strength sum_i Omega_i (theta_i - theta_t,i)^2.

    On a quadratic loss descended by small steps to its minimum, a task adds half the curvature. The positive part
    is of the authors' code: a parameter along which losses have risen is free, and not driven away. g is what the
    groups' gradients are combined to, so it comes after a strategy that combines them: weave(ANDMask(), ...).

    Args:
        strength: c.
        damping: xi, which bounds the importance of parameters that have hardly moved.

    References:
        Zenke, Poole and Ganguli, "Continual learning through synaptic intelligence", arXiv 1703.04200.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from weft import Classifier
        >>> X, y = load_digits(return_X_y=True)
        >>> clf = Classifier(strategy=SynapticIntelligence(strength=0.1), epochs=5, random_state=0)
        >>> for part in (0, 1):
        ...     clf = clf.partial_fit(X[part::2], y[part::2], classes=range(10), task=f"half {part}")
        >>> clf.tasks_
        ['half 0', 'half 1']
    """

    legal = {"damping": Number(0, ends="()")}

    def __init__(self, *, strength: float = 0.1, damping: float = 0.1) -> None:
        super().__init__(strength=strength)
        self.damping = damping

    def init(self, params: Params) -> StrategyState:
        """As `Importance`, and `path`: omega; `gradient`: g, between the gradient and the step."""
        zeros = {name: torch.zeros_like(p) for name, p in params.items()}
        return {**super().init(params), "path": zeros, "gradient": {name: z.clone() for name, z in zeros.items()}}

    def steer(
        self, gradient: Params, params: Params, loss: OwnLoss, gradient_at: GradientAt, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        return gradient, {**state, "gradient": gradient}

    def update(self, move: Move, state: StrategyState) -> tuple[Params, StrategyState]:
        path = {name: p - state["gradient"][name] * move.step[name] for name, p in state["path"].items()}
        return move.step, {**state, "path": path}

    def consolidate(self, local: Local, state: StrategyState, task: str) -> StrategyState:
        importance = {}
        for name, p in local.params.items():
            moved = p - state["anchor"][name]  # the anchor is where the last task ended, so where this one began
            added = state["path"][name] / (moved.square() + self.damping)
            importance[name] = (state["importance"][name] + added).clamp_min(0.0)
        path = {name: torch.zeros_like(p) for name, p in state["path"].items()}
        return {**self.held(importance, local.params, state, task), "path": path}
