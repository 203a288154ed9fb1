"""Linear contextual bandits: LinUCB and linear Thompson sampling."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Choice, Number
from weft.core.random import normal
from weft.objectives.control.tabular.bandit import Bandit, Memory, evenly_among_the_best

__all__ = ["LinearBandit", "explored"]


class LinearBandit(Bandit):
    """Plays bandits with contexts c, in which an arm gives w_arm c, by ridge regression for each arm.

        A = ridge I + sum c c^T,    w = A^-1 sum r c,    s = sqrt(c^T A^-1 c), over the steps on which it was chosen

        ucb        argmax w c + width s           (LinUCB)
        thompson   argmax of a draw from N(w c, width^2 s^2), which is that of w ~ N(w, width^2 A^-1)

    Args:
        explore: `ucb` or `thompson`.
        width: of the bound, or of the belief: for Thompson the noise of the rewards.
        ridge: of the regression; for Thompson noise^2 / spread^2 of the weights.

    References:
        Li, Chu, Langford and Schapire, "A contextual-bandit approach to personalized news article recommendation", WWW
        2010; Agrawal and Goyal, "Thompson sampling for contextual bandits with linear payoffs", ICML 2013.

    Example:
        >>> from weft import Learner
        >>> from weft.data import Bandits
        >>> world = Bandits(3, contexts=4, pays="regret", horizon=100)
        >>> learner = Learner(LinearBandit(), random_state=0).fit(LinearBandit().plays(world))
        >>> bool(15 < learner.evaluate(world, 200).mean < 35)  # about 83 by chance alone
        True
    """

    contextual = True
    space = {"width": Range(0.1, 4.0, log=True)}
    legal = {"explore": Choice("ucb", "thompson"), "width": Number(0), "ridge": Number(0, ends="()")}

    def __init__(self, *, explore: str = "ucb", width: float = 1.0, ridge: float = 1.0) -> None:
        super().__init__()
        self.explore = explore
        self.width = width
        self.ridge = ridge

    def begins(self, count: int) -> Memory:
        one = torch.eye(self.contexts).to(self.begun) / self.ridge
        return {
            "inverse": one.expand(count, self.arms, -1, -1).clone(),
            "sum": self.begun.new_zeros((count, self.arms, self.contexts)),
            "context": self.begun.new_zeros((count, self.contexts)),
        }

    def learned(self, memory: Memory, arm: Tensor, reward: Tensor) -> Memory:
        """By the formula of Sherman and Morrison, for the arm that was chosen, in the context of then."""
        inverse, context = memory["inverse"], memory["context"]
        turned = inverse @ context.unsqueeze(-2).unsqueeze(-1)  # (n, arms, contexts, 1)
        length = (context.unsqueeze(-2) * turned.squeeze(-1)).sum(-1)
        less = turned @ turned.mT / (1 + length)[..., None, None]
        total = memory["sum"] + arm.unsqueeze(-1) * (reward * context).unsqueeze(-2)
        return {"inverse": inverse - arm[..., None, None] * less, "sum": total}

    def scores(self, memory: Memory, context: Tensor) -> Tensor:
        turned = (memory["inverse"] @ context.unsqueeze(-2).unsqueeze(-1)).squeeze(-1)
        mean = (turned * memory["sum"]).sum(-1)
        return explored(self.explore, mean, self.width, (turned * context.unsqueeze(-2)).sum(-1))

    def chose(self, memory: Memory, context: Tensor) -> Memory:
        return {"context": context}


def explored(explore: str, mean: Tensor, width: float, square: Tensor) -> Tensor:
    """The logits of a choice, `ucb` or `thompson`, among arms of which mean and s^2 are known, (n, arms)."""
    spread = width * square.clamp_min(0.0).sqrt()
    if explore == "thompson":
        spread = spread * normal(spread.shape, place="belief", dtype=spread.dtype)
    return evenly_among_the_best(mean + spread)
