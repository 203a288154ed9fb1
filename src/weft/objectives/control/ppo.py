"""PPO: a policy improved in several passes over what it has played, as far as a clipped ratio or a penalty lets it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from weft.core.legal import Choice, Legal, Number
from weft.core.objective import Solution
from weft.core.optimizer import Optimizer
from weft.core.source import Batch, Spec
from weft.nets.make import NetLike
from weft.nets.slow import SlowCopy
from weft.objectives.control.policy import ActorCritic
from weft.sources.playing import Worlds
from weft.sources.segments import Segments

__all__ = ["PPO"]


class PPO(ActorCritic):
    """Learns a policy in several passes over each segment that it has played, and keeps it near the one that played.

        loss = actor + value_weight (V(s) - R)^2 - entropy_weight H(pi(. | s)),    r = pi(a | s) / pi_played(a | s),

        near = clip:       actor = - min(r A, clip(r, 1 - eps, 1 + eps) A)
        near = none:       actor = - r A, for a strategy that keeps near itself (TrustRegion)
        near = penalty:    actor = - r A + beta KL(pi_played(. | s) || pi(. | s)),   the same beta throughout
        near = reverse:    actor = - r A + beta KL(pi(. | s) || pi_played(. | s)), least at pi_played exp(A / beta)
        near = adaptive:   after each segment beta is halved where the mean KL is below target / 1.5, and doubled where
                           it is above 1.5 target

    with generalized advantages A, standardized over the segment, and goals R = A + V(s) of the critic's. `REPS` learns
    the policy at which `reverse` is least by likelihoods.

    Left to itself, `Learner(PPO(), env_steps=100_000).fit("CartPole-v1")` earns 500. The learning rate, 1e-3, is one
    for small worlds; where nets or worlds are larger 3e-4 and less are usual, with `schedule="linear"` and `clip=0.5`.

    Args:
        policy, critic: nets with outputs for the actions and for one value; None for MLPs of tanh.
        hidden: hidden widths of the MLPs.
        near: `clip`, `penalty`, `reverse`, `adaptive` or `none`.
        eps: of the clipped ratio.
        beta: of a penalty; where it adapts, at the beginning.
        target: the KL that an adaptive penalty is to lead to, in nats; told on the states of the next segment.
        discount: of later rewards.
        trace: lambda of the advantages.
        value_weight, entropy_weight: of the critic's error and of the entropy.
        normalize: whether advantages are standardized.
        deviation: of actions that are numbers, at the beginning.
        bounds: what becomes of actions beyond their bounds: `clip` or `squash`.
        memory: `rnn`, `gru` or `lstm`: the first hidden layer remembers. None for none.

    References:
        Schulman, Wolski, Dhariwal, Radford and Klimov, "Proximal policy optimization algorithms", arXiv 1707.06347.
        Nets and their first weights are as in Huang et al., "The 37 implementation details of proximal policy
        optimization", 2022.

    Example:
        >>> import torch
        >>> from weft import Learner
        >>> from weft.data import FiniteMDP
        >>> bandit = FiniteMDP(torch.ones(1, 2, 1), torch.tensor([[0.0, 1.0]]), horizon=1)
        >>> objective = PPO()
        >>> learner = Learner(objective, steps=80, random_state=0).fit(objective.plays(bandit))
        >>> learner.act([[1.0]])
        array([1])
    """

    on_policy = False  # the ratio makes rows of the last segment right
    carried: tuple[str, ...] = ()
    optimizer = Optimizer("adam", lr=1e-3, eps=1e-5)
    legal: ClassVar[dict[str, Legal]] = {
        "near": Choice("clip", "penalty", "reverse", "adaptive", "none"),
        "eps": Number(0, ends="()"),
        "beta": Number(0),
        "target": Number(0, ends="()"),
    }

    before: SlowCopy
    strength: Tensor

    def __init__(
        self,
        policy: NetLike = None,
        *,
        critic: NetLike = None,
        hidden: Sequence[int] = (64, 64),
        near: str = "clip",
        eps: float = 0.2,
        beta: float = 1.0,
        target: float = 0.01,
        discount: float = 0.99,
        trace: float = 0.95,
        value_weight: float = 0.5,
        entropy_weight: float = 0.0,
        normalize: bool = True,
        deviation: float = 1.0,
        bounds: str = "clip",
        memory: str | None = None,
    ) -> None:
        super().__init__()
        self.policy = policy
        self.critic = critic
        self.hidden = hidden
        self.near = near
        self.eps = eps
        self.beta = beta
        self.target = target
        self.discount = discount
        self.trace = trace
        self.value_weight = value_weight
        self.entropy_weight = entropy_weight
        self.normalize = normalize
        self.deviation = deviation
        self.bounds = bounds
        self.memory = memory

    def validate(self) -> None:
        super().validate()
        if self.near == "adaptive" and self.memory is not None:
            raise ValueError(
                f"expected near='clip' or 'penalty' beside memory={self.memory!r}, got 'adaptive', which compares two "
                "policies on states that each would remember otherwise"
            )

    def build(self, spec: Spec) -> None:
        super().build(spec)
        if self.near == "adaptive":
            self.before = SlowCopy(self.policy)
            self.register_buffer("strength", torch.tensor(float(self.beta)))
            self.carried = ("before.*", "strength")

    @property
    def witnesses(self) -> bool:
        return self.near == "adaptive"

    def witness(self, batch: Batch) -> Solution:
        """beta after the last segment, and the policy that has played this one."""
        if self.near != "adaptive":
            return {}
        now, legal = self.told(batch["observation"], batch.get("legal")), batch.get("legal")
        then = self.law.masked(self.before(batch["observation"].flatten(0, 1)).reshape(now.shape), legal)
        mask = batch["mask"] if "mask" in batch else torch.ones_like(batch["reward"])
        kl = (self.law.kl(then, now) * mask).sum() / mask.sum()
        factor = torch.where(kl < self.target / 1.5, 0.5, torch.where(kl > self.target * 1.5, 2.0, 1.0))
        strength = torch.where(self.before.clock > 0, self.strength * factor, self.strength)
        self.before.follow(self.policy)
        return {"strength": strength, **{f"before.{name}": value for name, value in self.before.named_buffers()}}

    def actor_loss(self, batch: Batch, parts: dict[str, Tensor]) -> Tensor:
        gain, ratio = batch["advantage"], (parts["log_prob"] - batch["played"]).exp()
        if self.near == "clip":
            return -torch.minimum(ratio * gain, ratio.clamp(1 - self.eps, 1 + self.eps) * gain)
        if self.near == "none":
            return -ratio * gain
        if self.near == "reverse":
            return -ratio * gain + self.beta * self.law.kl(parts["told"], batch["told"])
        beta = self.strength if self.near == "adaptive" else self.beta
        return -ratio * gain + beta * self.law.kl(batch["told"], parts["told"])

    def plays(self, world: Worlds, **settings: Any) -> Segments:
        """Segments of 128 steps in 8 worlds side by side, in 10 passes of 16 updates; with a memory 4 passes of 4."""
        passes = {"passes": 10, "batch_size": 64} if self.memory is None else {"passes": 4, "batch_size": 2}
        return Segments(world, **{"envs": 8, "length": 128, **passes, **settings})
