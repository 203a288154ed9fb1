"""Model-agnostic meta-learning: parameters from which a few gradient steps learn a task."""

from __future__ import annotations

from torch.func import grad
from torch.nn.attention import SDPBackend, sdpa_kernel

from weft.core import random
from weft.core.legal import Flag, Number, Whole
from weft.core.objective import Objective, Output, reduce
from weft.core.source import Batch
from weft.core.strategy import Loss, Strategy, StrategyState
from weft.core.trees import Params

__all__ = ["MAML"]


class MAML(Strategy):
    """Learns to learn: minimizes the loss reached after a few gradient steps on each task.

    For an episode with a support and a query part,

        theta' = theta - inner_lr grad loss(theta; support)      (inner_steps times)
        minimize over theta the mean over episodes of loss(theta'; query).

    The meta-gradient goes through the inner steps (second order); `first_order` leaves the inner
    gradient's own dependence on theta out. After training, `Learner.adapt(X, y)` makes the inner steps.

    Args:
        inner_lr: the inner learning rate alpha.
        inner_steps: inner gradient steps; 0 is ERM on the query parts.
        first_order: leave out second derivatives (FOMAML).
        acts: learn a policy: each query is played by the policy that was adapted to its support, by a source that says
            `adapts`. The gradient is that of the paper: it leaves out that the policy has played the support as well.

    References:
        Finn, Abbeel and Levine, "Model-agnostic meta-learning for fast adaptation of deep networks",
        arXiv 1703.03400.

    Example:
        >>> from weft import Learner
        >>> from weft.data import sinusoids
        >>> from weft.objectives import Regression
        >>> from weft.sources import Episodes
        >>> few = Learner(Regression(hidden=(40, 40)), strategy=MAML(inner_lr=0.01), steps=20, random_state=0)
        >>> few = few.fit(Episodes(sinusoids, tasks=25, shots=10))
        >>> few.adapt([[0.0], [1.0]], [[0.0], [0.8]]).predict([[0.5]]).shape
        (1, 1)
    """

    sees = "episodes"
    neutral = {"inner_steps": 0}
    sweeps = ("inner_lr",)
    legal = {"inner_lr": Number(0), "inner_steps": Whole(0), "first_order": Flag(), "acts": Flag()}

    def __init__(
        self, *, inner_lr: float = 0.01, inner_steps: int = 1, first_order: bool = False, acts: bool = False
    ) -> None:
        self.inner_lr = inner_lr
        self.inner_steps = inner_steps
        self.first_order = first_order
        self.acts = acts

    def refuses(self, objective: Objective) -> str | None:
        if objective.players:
            return "an inner loop descends one loss, and a game has one for each player, with no common minimum"
        if objective.on_policy and not self.acts:
            return (
                "after the inner steps the query must be drawn anew by the adapted policy; on trajectories drawn "
                "before, the meta-gradient is biased; MAML(acts=True) asks for a source that draws it so"
            )
        if objective.credits and not self.acts:
            return (
                "its rows are credited as they were played together, and the episodes of a task come without; "
                "MAML(acts=True) asks for a source that plays and credits them"
            )
        return super().refuses(objective)

    def wrap(self, loss: Loss, state: StrategyState) -> Loss:
        def after(params: Params, episode: Batch) -> Output:
            return loss(self.adapt(loss, params, episode["support"], state), episode["query"])

        return after

    def adapt(self, loss: Loss, params: Params, batch: Batch, state: StrategyState) -> Params:
        def inner(p: Params) -> tuple:
            output = loss(p, batch)
            return reduce(output.losses, output.weight), output.buffers

        for k in range(self.inner_steps):
            # The fused attention kernels have no second derivative; the plain one has.
            with random.place("inner", k), sdpa_kernel(SDPBackend.MATH):
                gradient, _ = grad(inner, has_aux=True)(params)
            if self.first_order:
                gradient = {name: g.detach() for name, g in gradient.items()}
            params = {name: p - self.inner_lr * gradient[name] for name, p in params.items()}
        return params
