"""The gradient bandit: preferences that climb the expected reward."""

from __future__ import annotations

from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Flag, Number
from weft.objectives.control.tabular.bandit import Bandit, Memory

__all__ = ["GradientBandit"]


class GradientBandit(Bandit):
    """Plays bandits by preferences H that follow the gradient of the expected reward.

    pi = softmax(H) chooses, and after each reward

        H <- H + step (r - baseline) (one-hot(a) - pi),

    the baseline being the mean of all rewards before (at the first step that reward itself).

    Args:
        step: the step size.
        baseline: whether there is one; else it is 0, and what all arms have in common counts as merit.

    References:
        Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", Machine
        Learning 8, 1992; Sutton and Barto, "Reinforcement learning: an introduction", 2018, section 2.8.

    Example:
        >>> from weft import Learner
        >>> from weft.data import Bandits
        >>> objective = GradientBandit(step=0.1)
        >>> learner = Learner(objective, random_state=0).fit(objective.plays(Bandits(horizon=200)))
        >>> bool(learner.evaluate(Bandits(pays="optimal", horizon=200), 500).mean > 60)
        True
    """

    space = {"step": Range(0.01, 1.0, log=True)}
    legal = {"step": Number(0, ends="()"), "baseline": Flag()}

    def __init__(self, *, step: float = 0.1, baseline: bool = True) -> None:
        super().__init__()
        self.step = step
        self.baseline = baseline

    def begins(self, count: int) -> Memory:
        return {"preference": self.begun.new_zeros((count, self.arms)), "mean": self.begun.new_zeros(count)}

    def learned(self, memory: Memory, arm: Tensor, reward: Tensor) -> Memory:
        gone, chosen = memory["gone"].unsqueeze(-1), arm.sum(-1, keepdim=True)  # 0 before the first choice
        mean = memory["mean"].unsqueeze(-1)
        against = (mean + (reward - mean) * (gone <= 1)) if self.baseline else 0.0
        policy = memory["preference"].softmax(-1)
        preference = memory["preference"] + self.step * (reward - against) * (arm - policy) * chosen
        mean = mean + (reward - mean) * chosen / gone.clamp_min(1.0)
        return {"preference": preference, "mean": mean.squeeze(-1)}

    def scores(self, memory: Memory, context: Tensor) -> Tensor:
        return memory["preference"]
