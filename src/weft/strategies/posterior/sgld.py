"""Stochastic gradient Langevin dynamics: noise makes descent a walk through the posterior."""

from __future__ import annotations

import torch

from weft.core import random
from weft.core.configured import Range
from weft.core.legal import Number, Whole
from weft.core.objective import Objective
from weft.core.strategy import Known, Move, Strategy, StrategyState
from weft.core.trees import Params

__all__ = ["SGLD"]


class SGLD(Strategy):
    """Draws parameters from their posterior, by gradient steps with noise.

    With n rows of data and the mean loss L (penalties included), n L is the negative log-posterior up to a constant
    where losses are negative log-likelihoods and penalties n-th parts of a prior's. The step is

        theta <- theta - lr grad L(theta) + sqrt(2 lr temperature / n) noise,

    whose stationary distribution, for small lr, is proportional to exp(-n L(theta) / temperature). For a quadratic
    loss with curvature c its variance is temperature / (n c (1 - lr c / 2)). Gradients of batches add noise of their
    own, which is small beside this one as lr becomes small; a `schedule` may lower it.

    The last `draws` parameters, taken each `every` steps after `start`, answer together as an ensemble does; without
    draws the last parameters answer. The optimizer must be plain SGD, whose step is - lr grad L.

    Args:
        temperature: 1 for the posterior, 0 for descent.
        draws: parameters kept to answer.
        start: steps before the first of them.
        every: steps between two of them.

    References:
        Welling and Teh, "Bayesian learning via stochastic gradient Langevin dynamics", ICML 2011.

    Example:
        >>> import torch
        >>> from weft import Optimizer, Regressor
        >>> X, y = torch.ones(100, 1), torch.zeros(100)
        >>> walk = SGLD(draws=20, start=50, every=10)
        >>> line = Regressor("linear", strategy=walk, optimizer=Optimizer("sgd", lr=0.1), steps=250, random_state=0)
        >>> bool(abs(line.fit(X, y).predict(X)[0]) < 0.3)
        True
    """

    own_step = True
    legal = {"temperature": Number(0), "draws": Whole(0), "start": Whole(0), "every": Whole(1)}
    neutral = {"temperature": 0.0, "draws": 0}
    sweeps = ("temperature",)
    space = {"temperature": Range(1e-3, 1.0, log=True)}

    def __init__(self, *, temperature: float = 1.0, draws: int = 0, start: int = 0, every: int = 1) -> None:
        self.temperature = temperature
        self.draws = draws
        self.start = start
        self.every = every

    def refuses(self, objective: Objective) -> str | None:
        if objective.players:
            return "a game has a loss for each player, and no one density of which they are the logarithm"
        if objective.on_policy or objective.credits:
            return "its rows are drawn anew by the policy itself, and are no data that a posterior would be given"
        return super().refuses(objective)

    def warns(self, known: Known) -> str | None:
        needed = self.start + self.draws * self.every
        if self.draws and known.steps < needed and not known.open:
            return (
                f"expected at least {needed} steps for the draws of {self!r}, got {known.steps}: the last parameters "
                "stand in for those missing; train longer, or take fewer"
            )
        return super().warns(known)

    def does(self, verb: str) -> bool:
        """Others answer than the last parameters only where draws are kept."""
        return super().does(verb) and (verb != "answer" or self.draws > 0)

    def init(self, params: Params) -> StrategyState:
        """`draws`: those kept, by parameter, latest first; `count`: how many were taken; `step`: steps made."""
        kept = {name: p.new_zeros(self.draws, *p.shape) for name, p in params.items()}
        count = torch.zeros((), dtype=torch.int64)
        return {"draws": kept if self.draws else {}, "count": count, "step": count.clone()}

    def update(self, move: Move, state: StrategyState) -> tuple[Params, StrategyState]:
        if move.data_rows is None:
            raise ValueError(
                "expected data of a known number of rows for SGLD, whose noise depends on it, got a source without an "
                "end; train on arrays"
            )
        size = (2.0 * move.lr * self.temperature / move.data_rows).sqrt()
        step = {
            name: s + size.to(s.dtype) * random.normal(s.shape, place=name, dtype=s.dtype)
            for name, s in move.step.items()
        }
        since = state["step"] - self.start
        taken = (since > 0) & (since % self.every == 0)
        kept = {
            name: torch.where(taken, torch.cat([move.params[name].unsqueeze(0), drawn[:-1]]), drawn)
            for name, drawn in state["draws"].items()
        }
        return step, {"draws": kept, "count": state["count"] + taken, "step": state["step"] + 1}

    def answer(self, params: Params, state: StrategyState) -> list[Params]:
        # Where fewer were taken than are kept, the last parameters stand in for those to come.
        if not self.draws:
            return [params]
        return [
            {name: torch.where(k < state["count"], state["draws"][name][k], p) for name, p in params.items()}
            for k in range(self.draws)
        ]
