"""Epsilon-greedy bandits, with optimistic starts, and the estimates that UCB shares with them."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Number
from weft.objectives.control.tabular.bandit import Bandit, Memory, evenly_among_the_best

__all__ = ["EpsilonGreedy", "Estimating"]


class Estimating(Bandit):
    """Keeps an estimate of what each arm gives: Q <- Q + (r - Q) / n, or with a step, Q <- Q + step (r - Q)."""

    step: float | None
    initial: float

    def begins(self, count: int) -> Memory:
        nothing = self.begun.new_zeros((count, self.arms))
        return {"worth": nothing + self.initial, "times": nothing}

    def learned(self, memory: Memory, arm: Tensor, reward: Tensor) -> Memory:
        times = memory["times"] + arm
        step = arm / times.clamp_min(1.0) if self.step is None else self.step * arm
        return {"worth": memory["worth"] + step * (reward - memory["worth"]), "times": times}


class EpsilonGreedy(Estimating):
    """Plays bandits by the arm that has given most so far, and with probability epsilon by any.

    Q_a is the mean of what arm a has given, or with a constant `step`, which suits arms that change, a mean in which
    the past is forgotten; the best arms share the choice evenly. With `initial` above all that an arm can give each is
    tried before long (an optimistic start), which lasts with a constant step. With `decay` epsilon falls with the
    steps t that are gone, as epsilon decay / (decay + t).

    Args:
        epsilon: how often any arm is chosen.
        decay: after so many steps epsilon is half of what it was; None where it stays.
        step: the constant step size; None for the mean.
        initial: what is thought of an arm before it is tried; with step None it is forgotten at the first try.

    References:
        Sutton and Barto, "Reinforcement learning: an introduction", 2018, sections 2.2 to 2.6; decaying: Auer,
        Cesa-Bianchi and Fischer, "Finite-time analysis of the multiarmed bandit problem", Machine Learning 47, 2002.

    Example:
        >>> from weft import Learner
        >>> from weft.data import Bandits
        >>> objective = EpsilonGreedy(epsilon=0.1)
        >>> learner = Learner(objective, random_state=0).fit(objective.plays(Bandits(horizon=200)))
        >>> played = learner.evaluate(Bandits(pays="optimal", horizon=200), 500)
        >>> bool(90 < played.mean < 125)  # steps of 200 on which the best of 10 arms was chosen
        True
    """

    space = {"epsilon": Range(0.001, 0.3, log=True)}
    legal = {
        "epsilon": Number(0, 1),
        "decay": Number(0, ends="()") | None,
        "step": Number(0, 1, "(]") | None,
        "initial": Number(),
    }

    def __init__(
        self,
        *,
        epsilon: float = 0.1,
        decay: float | None = None,
        step: float | None = None,
        initial: float = 0.0,
    ) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.decay = decay
        self.step = step
        self.initial = initial

    def scores(self, memory: Memory, context: Tensor) -> Tensor:
        epsilon = torch.full_like(memory["gone"], self.epsilon)
        if self.decay is not None:
            epsilon = epsilon * self.decay / (self.decay + memory["gone"])
        best = evenly_among_the_best(memory["worth"]).softmax(-1)
        epsilon = epsilon.unsqueeze(-1)
        return (epsilon / self.arms + (1 - epsilon) * best).log()
