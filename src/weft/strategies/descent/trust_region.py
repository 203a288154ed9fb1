"""Trust regions: the best step of those after which what is predicted is hardly another (TRPO)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad

from weft.core.legal import Number, Whole
from weft.core.objective import Objective
from weft.core.strategy import Move, Strategy, StrategyState
from weft.core.trees import Params
from weft.strategies.descent.fisher import conjugate_gradients, divergence, dot, information, predicting
from weft.strategies.descent.natural_gradient import refused

__all__ = ["TrustRegion"]


class TrustRegion(Strategy):
    """Steps as far along the natural gradient as a bound on the KL lets it: trust region policy optimization.

        x = (F + damping I)^-1 g,    s = - sqrt(2 radius / x^T (F + damping I) x) x,

    and the step is the first of s, backtrack s, backtrack^2 s, ... after which

        mean over the rows of KL(p_before || p_after) <= radius,

    and the loss on the batch is lower than before; or none, where no trial is. So the KL of a step is never above the
    radius, whatever the gradient. g is the gradient that all other strategies leave; what they add to that of the
    objective's own loss counts as a linear term in the comparison. The loss must be right for actions that were drawn
    before the step: PPO(near="none") has the ratio of probabilities that the paper maximizes.

    The learning rate does not matter for it, unless it is so small that float32 loses the step. Parameters that do not
    move what is predicted (those of a critic) step along g by the learning rate.

    Args:
        radius: delta, in nats; 0 moves nothing.
        damping: added to F's diagonal.
        iterations: of the conjugate gradients, two backward passes each; with 0 it is plain gradient descent.
        trials: how many steps are tried, one forward each.
        backtrack: from one trial to the next.

    References:
        Schulman, Levine, Moritz, Jordan and Abbeel, "Trust region policy optimization", arXiv 1502.05477, appendix C.
        Its critic is fitted apart, here it is descended beside.

    Example:
        >>> from weft import Learner, Optimizer
        >>> from weft.data import CartPole
        >>> from weft.objectives import PPO
        >>> source = PPO().plays(CartPole(), envs=16, passes=1, batch_size=None)
        >>> learner = Learner(
        ...     PPO(near="none"), strategy=TrustRegion(), optimizer=Optimizer("sgd", lr=0.01), steps=12, random_state=0
        ... ).fit(source)
        >>> bool(learner.history_["return"][-1] > 2 * learner.history_["return"][0])
        True
    """

    own_step = True
    reads = frozenset({"distribution"})
    legal = {
        "radius": Number(0),
        "damping": Number(0, ends="()"),
        "iterations": Whole(0),
        "trials": Whole(1, 60),
        "backtrack": Number(0, 1, "()"),
    }
    neutral = {"iterations": 0}

    def __init__(
        self,
        *,
        radius: float = 0.01,
        damping: float = 0.1,
        iterations: int = 10,
        trials: int = 10,
        backtrack: float = 0.5,
    ) -> None:
        self.radius = radius
        self.damping = damping
        self.iterations = iterations
        self.trials = trials
        self.backtrack = backtrack

    def refuses(self, objective: Objective) -> str | None:
        if objective.on_policy:
            return (
                "it compares losses at several parameters, and the trajectories that one policy drew tell only its "
                "own, unless they are weighed by a ratio, as those of PPO(near='none') are"
            )
        return refused(self, objective) or super().refuses(objective)

    def update(self, move: Move, state: StrategyState) -> tuple[Params, StrategyState]:
        if not self.iterations:
            return move.step, state
        moves, rate = predicting(move), move.lr.clamp_min(torch.finfo(move.lr.dtype).tiny)  # which may end at zero
        g = {name: -s / rate * moves[name] for name, s in move.step.items()}
        product = information(move, self.damping)
        x = conjugate_gradients(product, g, self.iterations)
        size = dot(x, product(x)).clamp_min(torch.finfo(rate.dtype).tiny)
        longest = {name: -(2.0 * self.radius / size).sqrt() * part for name, part in x.items()}
        share = self._tried(move, longest, g, moves)
        step = {n: torch.where(moves[n] > 0, share * longest[n], s) for n, s in move.step.items()}
        return step, state

    def _tried(self, move: Move, step: Params, g: Params, moves: Params) -> Tensor:
        """The first share of the step that keeps within the radius and lowers the loss; 0 where none does."""
        here, own = move.loss(move.params), grad(move.loss)(move.params)
        added = dot(step, {name: part - own[name] * moves[name] for name, part in g.items()})
        share, found = torch.zeros_like(here), torch.zeros_like(here, dtype=torch.bool)
        for k in range(self.trials):
            t = self.backtrack**k
            there = {name: p + t * step[name] for name, p in move.params.items()}
            near = move.mean(divergence, move.params, there) <= self.radius
            good = near & (move.loss(there) + t * added < here)
            share = torch.where(good & ~found, t, share)
            found = found | good
        return share
