"""Upper confidence bounds: an arm is worth what it may be worth."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Number
from weft.objectives.control.tabular.bandit import Memory, evenly_among_the_best
from weft.objectives.control.tabular.epsilon_greedy import Estimating

__all__ = ["UCB"]


class UCB(Estimating):
    """Plays bandits by the arm whose mean may be the largest.

        argmax_a Q_a + confidence sqrt(ln t / n_a),

    where arm a was chosen n_a times in the t - 1 steps that are gone; each is tried once first. A confidence of sqrt 2
    is UCB1, for rewards in [0, 1].

    Args:
        confidence: c.
        step: of a mean in which the past is forgotten; None for the mean.

    References:
        Auer, Cesa-Bianchi and Fischer, "Finite-time analysis of the multiarmed bandit problem", Machine Learning 47,
        2002; Sutton and Barto, "Reinforcement learning: an introduction", 2018, section 2.7.

    Example:
        >>> from weft import Learner
        >>> from weft.data import Bandits
        >>> learner = Learner(UCB(), random_state=0).fit(UCB().plays(Bandits(2, rewards="bernoulli", horizon=100)))
        >>> regret = learner.evaluate(Bandits(2, rewards="bernoulli", pays="regret", horizon=100), 500)
        >>> bool(3 < regret.mean < 9)  # a third of 100 by chance alone would be 16.7
        True
    """

    initial = 0.0
    space = {"confidence": Range(0.1, 4.0, log=True)}
    legal = {"confidence": Number(0), "step": Number(0, 1, "(]") | None}

    def __init__(self, *, confidence: float = 2**0.5, step: float | None = None) -> None:
        super().__init__()
        self.confidence = confidence
        self.step = step

    def scores(self, memory: Memory, context: Tensor) -> Tensor:
        times = memory["times"]
        bound = self.confidence * ((memory["gone"] + 1).log().unsqueeze(-1) / times.clamp_min(1.0)).sqrt()
        return evenly_among_the_best(torch.where(times > 0, memory["worth"] + bound, torch.inf))
