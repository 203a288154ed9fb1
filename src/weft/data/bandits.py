"""Bandits: arms to choose from, in every episode others, so that thousands are played side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from weft.core.legal import Choice, Number, Whole
from weft.core.random import fold, gauss, unit
from weft.core.source import Field

__all__ = ["Bandits"]

PAYS = ("reward", "mean", "regret", "optimal")


class Bandits:
    """Choose an arm, again and again; every episode is another bandit.

    The mean reward of each arm is drawn as an episode begins, and is not seen. Seen are which arm was chosen last, as a
    one-hot row (zeros at first), what it gave, and the context, where there is one: `arms + 1 + contexts` numbers.

        rewards "normal"      means ~ N(centre, spread^2), rewards ~ N(mean, noise^2)
        rewards "bernoulli"   means uniform in [0, 1], rewards 1 with that probability, else 0
        contexts d            a context c_t ~ N(0, I) for each step; the mean of an arm is w_arm c_t, where
                              w_arm ~ N(0, spread^2 I / d); with curve "square" it is (w_arm c_t)^2

    What a policy sees is always the reward. What is paid to it, so that returns count that, may be another thing that a
    policy is judged by: the mean of the arm that was chosen, the regret (the best mean less that), or whether it was
    the best arm.

    Args:
        arms: how many.
        rewards: `normal` or `bernoulli`.
        centre: of normal means; it tells apart who minds what all arms have in common.
        spread: how different the arms are.
        noise: of a normal reward.
        walk: by how much (standard deviation) each mean moves at every step.
        contexts: numbers that are seen of each step, and decide what the arms are worth.
        curve: `linear` or `square`: how they do.
        pays: `reward`, `mean`, `regret` or `optimal`.
        horizon: steps of an episode.

    References:
        Sutton and Barto, "Reinforcement learning: an introduction", 2018, section 2.3 (the 10-armed testbed).

    Example:
        >>> from weft.core.random import key_of
        >>> world = Bandits(arms=3)
        >>> keys = fold(key_of(0), torch.arange(4))
        >>> position, seen = world.reset(keys)
        >>> _, after, reward, _ = world.step(position, torch.tensor([0, 1, 2, 0]), keys)
        >>> bool((after[:, 3] == reward).all()), after[1, :3].tolist()
        (True, [0.0, 1.0, 0.0])
    """

    endless = True

    def __init__(
        self,
        arms: int = 10,
        *,
        rewards: str = "normal",
        centre: float = 0.0,
        spread: float = 1.0,
        noise: float = 1.0,
        walk: float = 0.0,
        contexts: int = 0,
        curve: str = "linear",
        pays: str = "reward",
        horizon: int = 1000,
    ) -> None:
        Whole(2).check(arms, "Bandits' arms")
        Choice("normal", "bernoulli").check(rewards, "Bandits' rewards")
        Number().check(centre, "Bandits' centre")
        for name, value in (("spread", spread), ("noise", noise), ("walk", walk)):
            Number(0).check(value, f"Bandits' {name}")
        Whole(0).check(contexts, "Bandits' contexts")
        Choice("linear", "square").check(curve, "Bandits' curve")
        Choice(*PAYS).check(pays, "Bandits' pays")
        Whole(1).check(horizon, "Bandits' horizon")
        if rewards == "bernoulli" and (walk or contexts or centre or spread != 1 or noise != 1):
            raise ValueError(
                "expected arms of rewards 0 and 1 without centre, spread, noise, walk or contexts, which belong to "
                f"rewards='normal', got centre={centre:g}, spread={spread:g}, noise={noise:g}, walk={walk:g} and "
                f"contexts={contexts}"
            )
        if contexts and (walk or centre):
            raise ValueError(
                f"expected no walk and no centre beside contexts, which decide what arms are worth, got walk={walk:g}, "
                f"centre={centre:g} and contexts={contexts}"
            )
        if curve != "linear" and not contexts:
            raise ValueError(
                f"expected contexts beside curve={curve!r}, which says how they decide what arms are worth, got none; "
                "give contexts=..."
            )
        self.arms, self.rewards, self.centre, self.spread, self.noise = arms, rewards, centre, spread, noise
        self.walk, self.contexts, self.curve, self.pays, self.horizon = walk, contexts, curve, pays, horizon
        self.observation = Field((arms + 1 + contexts,), torch.float32)
        self.action = Field((), torch.int64, classes=arms)

    def reset(self, keys: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """A bandit for each key."""
        if self.rewards == "bernoulli":
            position = {"arms": unit(fold(keys, "arms"), (self.arms,), torch.float64)}
        elif self.contexts:
            drawn = gauss(fold(keys, "arms"), (self.arms, self.contexts), torch.float64)
            position = {"arms": self.spread * drawn / self.contexts**0.5}
        else:
            position = {"arms": self.centre + self.spread * gauss(fold(keys, "arms"), (self.arms,), torch.float64)}
        position |= self._context(keys)
        nothing = torch.zeros((*keys.shape, self.arms + 1), dtype=torch.float32, device=keys.device)
        return position, self._see(position, nothing)

    def means(self, position: dict[str, Tensor]) -> Tensor:
        """What each arm is worth, (n, arms)."""
        if self.contexts:
            told = (position["arms"] @ position["context"].unsqueeze(-1)).squeeze(-1)
            return told.square() if self.curve == "square" else told
        return position["arms"]

    def step(
        self, position: dict[str, Tensor], action: Tensor, keys: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        """The position, observation, pay and end after an arm was chosen; nothing but the horizon ends it."""
        means = self.means(position)
        mean, best = means.gather(-1, action.unsqueeze(-1)).squeeze(-1), means.amax(-1)
        if self.rewards == "bernoulli":
            reward = (unit(fold(keys, "reward"), (), torch.float64) < mean).double()
        else:
            reward = mean + self.noise * gauss(fold(keys, "reward"), (), torch.float64)
        paid = {"reward": reward, "mean": mean, "regret": best - mean, "optimal": (mean == best).double()}[self.pays]
        after = {**position, **self._context(keys)}
        if self.walk:
            after["arms"] = position["arms"] + self.walk * gauss(fold(keys, "walk"), (self.arms,), torch.float64)
        told = torch.cat([one_hot(action, self.arms).float(), reward.float().unsqueeze(-1)], -1)
        return after, self._see(after, told), paid.float(), torch.zeros_like(action, dtype=torch.bool)

    def _context(self, keys: Tensor) -> dict[str, Tensor]:
        return {"context": gauss(fold(keys, "context"), (self.contexts,), torch.float64)} if self.contexts else {}

    def _see(self, position: dict[str, Any], told: Tensor) -> Tensor:
        return torch.cat([told, position["context"].float()], -1) if self.contexts else told
