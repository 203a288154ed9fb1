"""REINFORCE: the gradient of the expected return, from the policy's own trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributions

from weft.core.legal import WIDTHS, Choice, Flag, Number
from weft.core.objective import Objective, Output, capability
from weft.core.optimizer import Optimizer
from weft.core.random import categorical
from weft.core.source import Batch, Spec
from weft.nets.make import NET, NetLike, make_net
from weft.sources.playing import Worlds
from weft.sources.rollouts import Rollouts

__all__ = ["REINFORCE"]


class REINFORCE(Objective):
    """Learns a policy pi(a | s) = softmax(policy(s))_a that earns much, by the score function.

    An example is a trajectory i of the policy itself. Its loss is no error, but has the right gradient:

        loss_i = - sum_t A_it log pi(a_it | s_it),    A_it = G_it - b_it,    G_it = sum_{k >= t} discount^(k-t) r_ik,

    with the advantage A held fixed. The baseline b_it must not depend on what i does from t on; `time`
    takes the mean return-to-go at t of the other trajectories still going in the batch. `credit`
    computes A when a batch is collected, so that the loss of a trajectory stands by itself.

    Args:
        policy: an `nn.Module` with one output per action, a factory, a name, or None for an MLP.
        hidden: hidden widths of the MLP.
        discount: of later rewards.
        exact: weigh step t by discount^t, which gives the gradient of the expected discounted return.
            Without it (the usual practice; no difference at discount 1) late steps count in full.
        baseline: `time` or `none`.

    References:
        Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement
        learning", Machine Learning 8, 1992; on `exact`: Nota and Thomas, "Is the policy gradient a
        gradient?", arXiv 1906.07073.

    Example:
        >>> import torch
        >>> from weft import Learner
        >>> from weft.data import FiniteMDP
        >>> bandit = FiniteMDP(torch.ones(1, 2, 1), torch.tensor([[0.0, 1.0]]), horizon=1)
        >>> Learner(REINFORCE(), steps=50, random_state=0).fit(bandit).act([[1.0]])
        array([1])
    """

    on_policy = True
    trajectories = True
    provides = frozenset({"logits", "distribution"})
    laws = frozenset({"categorical"})
    fields = ("observation", "action", "reward", "mask")
    progress = ("return", "max")
    optimizer = Optimizer("adam", lr=1e-2)
    legal = {
        "policy": NET,
        "hidden": WIDTHS,
        "discount": Number(0, 1),
        "exact": Flag(),
        "baseline": Choice("time", "none"),
    }

    def __init__(
        self,
        policy: NetLike = None,
        *,
        hidden: Sequence[int] = (64,),
        discount: float = 0.99,
        exact: bool = False,
        baseline: str = "time",
    ) -> None:
        super().__init__()
        self.policy: Any = policy  # a module, once built
        self.hidden = hidden
        self.discount = discount
        self.exact = exact
        self.baseline = baseline

    def build(self, spec: Spec) -> None:
        if "observation" not in spec or "action" not in spec:
            raise ValueError(
                "expected a world that REINFORCE acts in, got arrays; call fit(world), such as fit('CartPole-v1')"
            )
        if spec["action"].classes is None:
            raise ValueError(f"expected finitely many actions for REINFORCE, got actions {spec['action']}")
        self.observed = spec["observation"]
        self.policy = make_net(self.policy, self.observed, spec["action"].classes, hidden=self.hidden, what="policy")

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

    def credit(self, batch: Batch) -> Batch:
        """The advantage of each step of trajectories collected together, (n, T)."""
        gain, mask = self._return(batch), batch["mask"]
        if self.baseline == "time":
            # Without trajectory i itself, or its own actions would move its baseline and bias the gradient.
            others = (mask.sum(0) - mask).clamp_min(1.0)
            gain = gain - ((gain * mask).sum(0) - gain * mask) / others
        return {"advantage": gain * mask}

    def forward(self, batch: Batch, player: str = "") -> Output:
        observation, action, mask = batch["observation"], batch["action"], batch["mask"]
        logits = self.policy(observation.flatten(0, 1)).unflatten(0, action.shape)
        logits = torch.where(mask.unsqueeze(-1) > 0, logits, 0.0)  # constant where nothing was played
        score = logits.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)
        gain = (batch["advantage"] if "advantage" in batch else self._return(batch)) * mask
        if self.exact:
            gain = gain * self._decay(gain, torch.arange(gain.shape[-1], device=gain.device))
        return Output(-(gain * score).sum(-1), logits=logits)

    def distribution(self, output: Output) -> distributions.Distribution:
        """p(actions | observations) of a trajectory; steps after its end have a fixed distribution."""
        return distributions.Independent(distributions.Categorical(logits=output.logits, validate_args=False), 1)

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self(batch).losses}

    def sample_action(self, observation: Tensor) -> Tensor:
        """An action for each row, drawn from the policy."""
        return categorical(self.policy(observation), place="action")

    @capability(merge="refuse")
    def act(self, observation: Tensor) -> Tensor:
        """The policy's most probable action for each row."""
        return self.policy(observation).argmax(-1)
