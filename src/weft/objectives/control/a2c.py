"""A2C: an actor and a critic that learn together, from short stretches of play in several worlds side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from weft.core.optimizer import Optimizer
from weft.core.source import Batch
from weft.nets.make import NetLike
from weft.objectives.control.policy import ActorCritic
from weft.sources.playing import Worlds
from weft.sources.segments import Segments

__all__ = ["A2C"]


class A2C(ActorCritic):
    """Learns a policy by its advantages over what a critic, learned beside it, expects: the advantage actor-critic.

        loss = - A log pi(a | s) + value_weight (V(s) - R)^2 - entropy_weight H(pi(. | s)),    R = A + V(s) held fixed,

    with generalized advantages A (at `trace` 1 the return within a segment, and what the critic says of the rest, minus
    V). Rows must be of the policy as it is: one update for each segment.

    Args:
        policy, critic: nets with outputs for the actions and for one value; None for MLPs of tanh.
        hidden: hidden widths of the MLPs.
        discount: of later rewards.
        trace: lambda of the advantages.
        value_weight, entropy_weight: of the critic's error and of the entropy.
        normalize: whether advantages are standardized over a segment.
        deviation: of actions that are numbers, at the beginning.
        bounds: what becomes of actions beyond their bounds: `clip` or `squash`.
        memory: `rnn`, `gru` or `lstm`: the first hidden layer remembers. None for none.

    References:
        Mnih et al., "Asynchronous methods for deep reinforcement learning", arXiv 1602.01783; Sutton and Barto,
        "Reinforcement learning: an introduction", 2018, section 13.5. The defaults are stable-baselines3's.

    Example:
        >>> import torch
        >>> from weft import Learner
        >>> from weft.data import FiniteMDP
        >>> once = torch.ones(1, 2, 1)  # an episode ends with each step
        >>> bandit = FiniteMDP(once, torch.tensor([[0.0, 1.0]]), ends=once.bool())
        >>> objective = A2C()
        >>> learner = Learner(objective, steps=300, random_state=0).fit(objective.plays(bandit))
        >>> learner.act([[1.0]]), bool(abs(learner.value([[1.0]])[0] - 1.0) < 0.2)
        (array([1]), True)
    """

    on_policy = True
    optimizer = Optimizer("rmsprop", lr=7e-4, alpha=0.99, eps=1e-5)

    def __init__(
        self,
        policy: NetLike = None,
        *,
        critic: NetLike = None,
        hidden: Sequence[int] = (64, 64),
        discount: float = 0.99,
        trace: float = 1.0,
        value_weight: float = 0.5,
        entropy_weight: float = 0.0,
        normalize: bool = False,
        deviation: float = 1.0,
        bounds: str = "clip",
        memory: str | None = None,
    ) -> None:
        super().__init__()
        self.policy = policy
        self.critic = critic
        self.hidden = hidden
        self.discount = discount
        self.trace = trace
        self.value_weight = value_weight
        self.entropy_weight = entropy_weight
        self.normalize = normalize
        self.deviation = deviation
        self.bounds = bounds
        self.memory = memory

    def actor_loss(self, batch: Batch, parts: dict[str, Tensor]) -> Tensor:
        return -batch["advantage"] * parts["log_prob"]

    def plays(self, world: Worlds, **settings: Any) -> Segments:
        """Segments of 5 steps in 8 worlds side by side."""
        return Segments(world, **{"envs": 8, "length": 5, **settings})
