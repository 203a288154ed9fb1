"""REINFORCE: the gradient of the expected return, from the policy's own trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import grad

from weft.core.legal import Choice, Flag, Legal, Number
from weft.core.objective import Output
from weft.core.optimizer import Optimizer
from weft.core.source import Batch, Spec
from weft.nets.make import NET, NetLike, make_net
from weft.objectives.control.policy import Policy, over_rows
from weft.sources.playing import Worlds
from weft.sources.rollouts import Rollouts

__all__ = ["REINFORCE"]


class REINFORCE(Policy):
    """Learns a policy pi(a | s) that earns much, by the score function.

    An example is a trajectory i of the policy itself. Its loss is no error, but has the right gradient:

        loss_i = - sum_t A_it log pi(a_it | s_it),    A_it = G_it - b_it,    G_it = sum_{k >= t} discount^(k-t) r_ik,

    with the advantage A held fixed, computed by `credit` when a batch is collected, so that the loss of a trajectory
    stands by itself. The baseline b must not depend on what i does from t on:

        none            0
        time            the mean of G_jt over the other trajectories j that are still going at t
        leave-one-out   the mean of the whole returns G_j0 of the others
        mean            the mean of G_jt over all, i included: the gradient of `time` times 1 - 1 / n, n going at t
        optimal         that of least variance: the mean of G_jt over the others, weighed by |d log pi(a_jt) / d told|^2
        learned         V(s_it) of a net beside the policy, which learns G: value_weight (V(s) - G)^2 is added

    With `optimal` the variance meant is that of the gradient in what the net tells of a state (its logits), each step
    by itself. A baseline may raise the variance, too: even V may.

    Args:
        policy: an `nn.Module` with one output per action (of numbers: one mean for each), a factory, a name, or None
            for an MLP.
        hidden: hidden widths of the MLPs.
        discount: of later rewards.
        exact: weigh step t by discount^t, which gives the gradient of the expected discounted return.
            Without it (the usual practice; no difference at discount 1) late steps count in full.
        baseline: one of the above.
        critic: the net of a learned baseline.
        value_weight: of its error.
        entropy_weight: of the policy's entropy, which is taken from the loss.
        deviation: of actions that are numbers, at the beginning.
        bounds: what becomes of actions beyond their bounds: `clip` or `squash`.

    References:
        Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement
        learning", Machine Learning 8, 1992; on `exact`: Nota and Thomas, "Is the policy gradient a
        gradient?", arXiv 1906.07073; on baselines: Greensmith, Bartlett and Baxter, "Variance reduction techniques for
        gradient estimates in reinforcement learning", JMLR 5, 2004.

    Example:
        >>> import torch
        >>> from weft import Learner
        >>> from weft.data import FiniteMDP
        >>> bandit = FiniteMDP(torch.ones(1, 2, 1), torch.tensor([[0.0, 1.0]]), horizon=1)
        >>> Learner(REINFORCE(), steps=50, random_state=0).fit(bandit).act([[1.0]])
        array([1])
    """

    on_policy = True
    bootstraps = None  # what was played is all that counts
    trajectories = True
    fields: tuple[str, ...] = ("observation", "action", "reward", "mask")
    optimizer = Optimizer("adam", lr=1e-2)
    default: ClassVar[NetLike] = None
    played_by = "Rollouts"
    legal: ClassVar[dict[str, Legal]] = {
        "exact": Flag(),
        "baseline": Choice("time", "none", "mean", "leave-one-out", "optimal", "learned"),
        "critic": NET,
        "value_weight": Number(0),
        "entropy_weight": Number(0),
    }

    def __init__(
        self,
        policy: NetLike = None,
        *,
        hidden: Sequence[int] = (64,),
        discount: float = 0.99,
        exact: bool = False,
        baseline: str = "time",
        critic: NetLike = None,
        value_weight: float = 0.5,
        entropy_weight: float = 0.0,
        deviation: float = 1.0,
        bounds: str = "clip",
    ) -> None:
        super().__init__()
        self.policy = policy
        self.hidden = hidden
        self.discount = discount
        self.exact = exact
        self.baseline = baseline
        self.critic: Any = critic  # a module, once built
        self.value_weight = value_weight
        self.entropy_weight = entropy_weight
        self.deviation = deviation
        self.bounds = bounds

    def validate(self) -> None:
        super().validate()
        if self.critic is not None and self.baseline != "learned":
            raise ValueError(
                f"expected baseline='learned' beside a critic, which nothing else reads, got {self.baseline!r}"
            )

    def build(self, spec: Spec) -> None:
        self.build_policy(spec, spec.get("observation", next(iter(spec.values()))), self.hidden)
        if self.baseline == "learned":
            self.critic = make_net(self.critic, spec["observation"], 1, hidden=self.hidden, what="critic")

    def plays(self, world: Worlds, *, envs: int = 16, **settings: Any) -> Rollouts:
        """Whole episodes, played anew for each update."""
        return Rollouts(world, envs=envs, **settings)

    def _decay(self, reward: Tensor, power: Tensor) -> Tensor:
        return torch.where(power >= 0, self.discount ** power.clamp_min(0).to(reward.dtype), 0.0)

    def _return(self, batch: Batch) -> Tensor:
        """G: the discounted return from each step on, (n, T)."""
        reward = batch["reward"] * batch["mask"]
        time = torch.arange(reward.shape[-1], device=reward.device)
        return reward @ self._decay(reward, time[:, None] - time)

    def _told(self, batch: Batch) -> Tensor:
        """What is told of each step, constant where nothing was played."""
        told = self.told(batch["observation"], batch.get("legal"))
        return torch.where(batch["mask"].unsqueeze(-1) > 0, told, 0.0)

    def credit(self, batch: Batch) -> Batch:
        """The advantage of each step of trajectories collected together, (n, T)."""
        gain, mask = self._return(batch), batch["mask"]
        if self.baseline == "learned":
            worth = over_rows(self.critic, batch["observation"], self.rank, 1).squeeze(-1)
            return {"advantage": (gain - worth) * mask, "goal": gain}
        return {"advantage": (gain - self._baseline(gain, batch)) * mask}

    def _baseline(self, gain: Tensor, batch: Batch) -> Tensor:
        """b, (n, T). Of the others, as a trajectory's own actions would move its baseline and bias the gradient."""
        weight = batch["mask"]
        if self.baseline == "none":
            return torch.zeros_like(gain)
        if self.baseline == "mean":
            return ((gain * weight).sum(0) / weight.sum(0).clamp_min(1.0)).expand_as(gain)
        if self.baseline == "leave-one-out":
            return (gain[:, :1].sum(0) - gain[:, :1]) / max(len(gain) - 1, 1)
        if self.baseline == "optimal":
            score = grad(lambda told: self.law.log_prob(told, batch["action"]).sum())(self._told(batch))
            weight = weight * score.square().sum(-1)
            least = torch.finfo(gain.dtype).tiny
            return ((gain * weight).sum(0) - gain * weight) / (weight.sum(0) - weight).clamp_min(least)
        others = (weight.sum(0) - weight).clamp_min(1.0)
        return ((gain * weight).sum(0) - gain * weight) / others

    def forward(self, batch: Batch, player: str = "") -> Output:
        mask, told = batch["mask"], self._told(batch)
        gain = (batch["advantage"] if "advantage" in batch else self._return(batch)) * mask
        if self.exact:
            gain = gain * self._decay(gain, torch.arange(gain.shape[-1], device=gain.device))
        loss = -gain * self.law.log_prob(told, batch["action"])
        if self.entropy_weight:
            loss = loss - self.entropy_weight * self.law.entropy(told) * mask
        if self.baseline == "learned":
            worth = over_rows(self.critic, batch["observation"], self.rank, 1).squeeze(-1)
            loss = loss + self.value_weight * (worth - batch["goal"]).square() * mask
        return Output(loss.sum(-1), logits=told)

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        mask = batch["mask"]
        entropy = (self.law.entropy(self._told(batch)) * mask).sum(-1) / mask.sum(-1).clamp_min(1.0)
        return {"loss": self(batch).losses, "entropy": entropy}
