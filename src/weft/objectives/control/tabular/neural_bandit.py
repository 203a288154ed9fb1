"""Neural contextual bandits: upper bounds and Thompson sampling over a net whose weights are believed, not fitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import WIDTHS, Choice, Number
from weft.core.source import Field, Spec
from weft.nets.make import NET, NetLike, make_net
from weft.objectives.control.tabular.bandit import Bandit, Memory
from weft.objectives.control.tabular.linear_bandit import explored

__all__ = ["NeuralBandit"]


class NeuralBandit(Bandit):
    """Plays bandits with contexts c, in which arm a gives f_a(c; w), of a net's weights w, and noise.

    f is the net's answer with weights w less that with its first ones, so that at first no arm is thought better than
    another. Each bandit has weights of its own, believed to be N(w, width^2 B), at first with B = I / ridge about the
    net's. Of the arm that was chosen, with what it gave, r, and the slope g = d f_a(c; w) / d w there,

        k = B g / (1 + g^T B g),    w <- w + k (r - f_a(c; w)),    B <- B - k g^T B    (extended Kalman filter)

        ucb        argmax f_a(c; w) + width s_a,    s_a^2 = g_a^T B g_a
        thompson   argmax of a draw from N(f_a(c; w), width^2 s_a^2), of each arm by itself

    Nothing of the past is kept but w and B. Where the net is linear so is all of this, and it is `LinearBandit` of the
    net's inputs (a constant 1 among them for an intercept), exactly. B has as many entries as there are weights,
    squared: it is for small nets.

    Args:
        net: an `nn.Module` with an output for each arm, a factory, a name, or None for an MLP.
        hidden: hidden widths of the MLP.
        explore: `ucb` or `thompson`.
        width: of the bound, or of the belief: for Thompson the noise of the rewards.
        ridge: how near the weights are held to those at first: for Thompson noise^2 / spread^2 of them.

    References:
        Duran-Martin, Kara and Murphy, "Efficient online Bayesian inference for neural bandits", AISTATS 2022 (there in
        a subspace of the weights); bounds by the slopes: Zhou, Li and Gu, "Neural contextual bandits with UCB-based
        exploration", ICML 2020.

    Example:
        >>> from weft import Learner
        >>> from weft.data import Bandits
        >>> world = Bandits(2, contexts=2, curve="square", noise=0.1, pays="regret", horizon=150)
        >>> objective = NeuralBandit(width=0.3)
        >>> learner = Learner(objective, random_state=0).fit(objective.plays(world, envs=4))
        >>> bool(learner.evaluate(world, 50).mean < 45)  # about 85 by chance alone
        True
    """

    contextual = True
    space = {"width": Range(0.1, 4.0, log=True)}
    legal = {
        "net": NET,
        "hidden": WIDTHS,
        "explore": Choice("ucb", "thompson"),
        "width": Number(0),
        "ridge": Number(0, ends="()"),
    }

    def __init__(
        self,
        net: NetLike = None,
        *,
        hidden: Sequence[int] = (16,),
        explore: str = "ucb",
        width: float = 1.0,
        ridge: float = 0.1,
    ) -> None:
        super().__init__()
        self.net: Any = net  # a module, once built
        self.hidden = hidden
        self.explore = explore
        self.width = width
        self.ridge = ridge

    def build(self, spec: Spec) -> None:
        super().build(spec)
        seen = Field((self.contexts,), torch.float32)
        self.net = make_net(self.net, seen, self.arms, hidden=self.hidden)

    def begins(self, count: int) -> Memory:
        flat = torch.cat([value.detach().flatten() for value in self.net.parameters()])
        believed = torch.eye(len(flat)).to(flat) / self.ridge
        return {
            "weights": flat.expand(count, -1).clone(),
            "belief": believed.expand(count, -1, -1).clone(),
            "context": flat.new_zeros((count, self.contexts)),
        }

    def _told(self, weights: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """f and its slopes, (n, arms) and (n, arms, weights)."""
        shapes = {name: value.shape for name, value in self.net.named_parameters()}

        def answer(flat: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            parts = flat.split([shape.numel() for shape in shapes.values()])
            params = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
            told: Tensor = torch.func.functional_call(self.net, params, (row.unsqueeze(0),)).reshape(self.arms)
            return told, told

        slopes, values = torch.func.vmap(torch.func.jacrev(answer, has_aux=True))(weights, context)
        return values - self.net(context).detach().reshape(values.shape), slopes

    def learned(self, memory: Memory, arm: Tensor, reward: Tensor) -> Memory:
        """By what the arm that was chosen gave, in the context of then; before the first one nothing was."""
        values, slopes = self._told(memory["weights"], memory["context"])
        slope = (arm.unsqueeze(-2) @ slopes).squeeze(-2)
        turned = (memory["belief"] @ slope.unsqueeze(-1)).squeeze(-1)
        gain = turned / (1 + (slope * turned).sum(-1, keepdim=True))
        error = reward - (arm * values).sum(-1, keepdim=True)
        less = gain.unsqueeze(-1) * turned.unsqueeze(-2)
        return {"weights": memory["weights"] + gain * error, "belief": memory["belief"] - less}

    def scores(self, memory: Memory, context: Tensor) -> Tensor:
        values, slopes = self._told(memory["weights"], context)
        return explored(self.explore, values, self.width, ((slopes @ memory["belief"]) * slopes).sum(-1))

    def chose(self, memory: Memory, context: Tensor) -> Memory:
        return {"context": context}
