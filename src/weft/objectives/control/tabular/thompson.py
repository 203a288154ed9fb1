"""Thompson sampling: an arm is chosen as often as it is believed to be the best."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.legal import Choice, Number
from weft.core.random import normal
from weft.objectives.control.tabular.bandit import Bandit, Memory, evenly_among_the_best
from weft.objectives.densities.dirichlet import log_shares
from weft.objectives.densities.laws import mapped

__all__ = ["Thompson"]


class Thompson(Bandit):
    """Plays bandits by what each arm's mean may be, drawn from what is believed of it, the largest being chosen.

        normal   mean ~ N(0, spread^2), rewards ~ N(mean, noise^2): given n rewards that sum to s,
                 N(s v / noise^2, v),  v = 1 / (1 / spread^2 + n / noise^2)
        beta     mean ~ Beta(1, 1), rewards 0 or 1: Beta(1 + wins, 1 + losses)

    Args:
        belief: `normal` or `beta`.
        spread: of the means before anything is known, of `normal`.
        noise: of the rewards, of `normal`.

    References:
        Thompson, "On the likelihood that one unknown probability exceeds another in view of the evidence of two
        samples", Biometrika 25, 1933; Russo, Van Roy, Kazerouni, Osband and Wen, "A tutorial on Thompson sampling",
        Foundations and Trends in Machine Learning 11, 2018.

    Example:
        >>> from weft import Learner
        >>> from weft.data import Bandits
        >>> arms = {"arms": 2, "rewards": "bernoulli", "horizon": 100}
        >>> learner = Learner(Thompson(belief="beta"), random_state=0).fit(Thompson().plays(Bandits(**arms)))
        >>> bool(2 < learner.evaluate(Bandits(**arms, pays="regret"), 500).mean < 5)
        True
    """

    legal = {"belief": Choice("normal", "beta"), "spread": Number(0, ends="()"), "noise": Number(0, ends="()")}

    def __init__(self, *, belief: str = "normal", spread: float = 1.0, noise: float = 1.0) -> None:
        super().__init__()
        self.belief = belief
        self.spread = spread
        self.noise = noise

    def validate(self) -> None:
        super().validate()
        if self.belief == "beta" and (self.spread, self.noise) != (1.0, 1.0):
            raise ValueError(
                f"expected no spread and noise with belief='beta', which has none, got spread={self.spread:g} and "
                f"noise={self.noise:g}; leave them out"
            )

    def begins(self, count: int) -> Memory:
        nothing = self.begun.new_zeros((count, self.arms))
        return {"times": nothing, "sum": nothing}

    def learned(self, memory: Memory, arm: Tensor, reward: Tensor) -> Memory:
        if self.belief == "beta":
            odd = (reward != 0) & (reward != 1)
            if not mapped(odd) and bool(odd.any()):
                raise ValueError(
                    f"expected rewards 0 and 1 for Thompson(belief='beta'), got {reward[odd][0].item():g}; take "
                    "belief='normal'"
                )
            reward = torch.where(odd, torch.nan, reward)  # of replicas the arm is refused then
        return {"times": memory["times"] + arm, "sum": memory["sum"] + torch.where(arm > 0, reward, 0.0)}

    def scores(self, memory: Memory, context: Tensor) -> Tensor:
        times, total = memory["times"], memory["sum"]
        if self.belief == "beta":
            drawn = log_shares(torch.stack([1 + total, 1 + times - total], -1), "belief")[..., 0]
        else:
            variance = 1 / (1 / self.spread**2 + times / self.noise**2)
            noise = normal(times.shape, place="belief", dtype=times.dtype)
            drawn = total * variance / self.noise**2 + variance.sqrt() * noise
        return evenly_among_the_best(drawn)
