"""TD3: a policy without chance that follows its critics' slope, learned from a memory of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.core.configured import closest
from weft.core.legal import WIDTHS, Number, Whole
from weft.core.objective import Objective, Output, capability
from weft.core.optimizer import Optimizer
from weft.core.random import normal
from weft.core.source import Batch, Spec
from weft.nets import SlowCopy
from weft.nets.make import NET, NetLike, make_net
from weft.objectives.control.critics import Critics
from weft.objectives.control.steps import earned, step_fields
from weft.sources.playing import Worlds
from weft.sources.replay import Replay

__all__ = ["TD3"]


class TD3(Objective):
    """Learns the best action between bounds, mu(s), by the slope of what it is worth.

    An example is a step (s, a, r, s') that any policy has played. With two critics Q_j, slow copies of them and of mu,
    and actions in units of half the width between their bounds, the players' losses are

        critics:  sum_j (Q_j(s, a) - y)^2,   y = r + discount (1 - terminated) min_j Q_slow_j(s', a'),
                  a' = clip(mu_slow(s') + clip(jitter z, -most, most), -1, 1),   z ~ N(0, I),
        actor:    - Q_1(s, mu(s)),

    the actor and the slow copies moving at every `actor_every`-th step alone. What is played is clip(mu(s) + noise z,
    -1, 1).

    Args:
        actor: an `nn.Module` with an output for each number of an action, which is squashed by tanh; a factory, a name,
            or None for an MLP.
        critic: a factory of critics, a name, or None for MLPs, of observation and action as one row.
        hidden: hidden widths of the MLPs.
        discount: of later rewards.
        rate: at which the slow copies follow.
        jitter, most: noise of the action that the target asks about, and where it is cut.
        noise: of the actions that are played.
        actor_every: the critics' moves for each of the actor's.

    References:
        Fujimoto, van Hoof and Meger, "Addressing function approximation error in actor-critic methods", arXiv
        1802.09477.

    Example:
        >>> from weft import Learner
        >>> from weft.data import Pendulum
        >>> objective = TD3(hidden=(16,))
        >>> source = objective.plays(Pendulum(), start=64, batch_size=32)
        >>> Learner(objective, steps=20, random_state=0).fit(source).act([1.0, 0.0, 0.0]).shape
        (1,)
    """

    players = ("critics", "actor")
    on_policy = False
    progress = ("return", "max")
    carried = ("slow.*", "slow_actor.*")
    optimizer = Optimizer("adam", lr=3e-4)
    legal = {
        "actor": NET,
        "critic": NET,
        "hidden": WIDTHS,
        "discount": Number(0, 1),
        "rate": Number(0, 1, "(]"),
        "jitter": Number(0),
        "most": Number(0),
        "noise": Number(0),
        "actor_every": Whole(1),
    }
    fields = step_fields()

    def __init__(
        self,
        actor: NetLike = None,
        *,
        critic: NetLike = None,
        hidden: Sequence[int] = (256, 256),
        discount: float = 0.99,
        rate: float = 0.005,
        jitter: float = 0.2,
        most: float = 0.5,
        noise: float = 0.1,
        actor_every: int = 2,
    ) -> None:
        super().__init__()
        self.actor: Any = actor  # a module, once built
        self.critic = critic
        self.hidden = hidden
        self.discount = discount
        self.rate = rate
        self.jitter = jitter
        self.most = most
        self.noise = noise
        self.actor_every = actor_every

    @property
    def bootstraps(self) -> float:  # type: ignore[override]
        """Where play is cut its own value counts on."""
        return self.discount

    def plays(
        self,
        world: Worlds,
        *,
        capacity: int = 1_000_000,
        batch_size: int = 256,
        explore: float | tuple[float, float, float] = 0.0,
        **settings: Any,
    ) -> Replay:
        """A memory of steps, from which an update is made for each that is played."""
        return Replay(world, capacity=capacity, batch_size=batch_size, explore=explore, **settings)

    def build(self, spec: Spec) -> None:
        if "next_observation" not in spec or "action" not in spec:
            raise ValueError(
                f"expected steps of play for TD3, got rows of {', '.join(spec)}; call fit(world), such as "
                "fit('Pendulum-v1'), or fit(Replay(world))"
            )
        action = spec["action"]
        if not action.low or not all(map(math.isfinite, (*action.low, *action.high))):
            finite = action.classes is not None or action.choices
            got = "finitely many" if finite else "numbers without bounds"
            fix = "DQN and PPO take those" if finite else "let the world say low and high of each"
            raise ValueError(f"expected actions between finite bounds for TD3, got {got}; {fix}")
        self.fields, self._action = step_fields(spec), action
        self.actor = make_net(self.actor, spec["observation"], action.shape, hidden=self.hidden, what="actor")
        self.critics = Critics(self.critic, spec["observation"], action, hidden=self.hidden)
        self.slow = SlowCopy(self.critics, rate=self.rate, every=self.actor_every)
        self.slow_actor = SlowCopy(self.actor, rate=self.rate, every=self.actor_every)

    def every(self, player: str) -> int:
        return self.actor_every if player == "actor" else 1

    # --- units ----------------------------------------------------------------------------------------------

    def _bounds(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The middle of each number, and half the width between its bounds."""
        ends = (self._action.low, self._action.high)
        low, high = (torch.tensor(e, dtype=like.dtype, device=like.device).reshape(self._action.shape) for e in ends)
        return (low + high) / 2, (high - low) / 2

    def _best(self, actor: Any, observation: Tensor) -> Tensor:
        """mu, in units of half the width."""
        told: Tensor = actor(observation)
        return told.reshape(len(observation), *self._action.shape).tanh()

    def _put(self, unit: Tensor) -> Tensor:
        """An action in the world's units."""
        middle, half = self._bounds(unit)
        return middle + half * unit.clamp(-1.0, 1.0)

    # --- the game -------------------------------------------------------------------------------------------

    def forward(self, batch: Batch, player: str = "") -> Output:
        if player not in self.players:
            raise closest(player, self.players, "a player of TD3")
        if player == "critics":
            return Output(self._surprise(batch))
        observation = batch["observation"]
        return Output(-self.critics(observation, self._best(self.actor, observation))[0])

    def _surprise(self, batch: Batch) -> Tensor:
        """The critics' losses together."""
        if self.training:
            self.slow.follow(self.critics)
            self.slow_actor.follow(self.actor)
        with torch.no_grad():
            after = batch["next_observation"]
            best = self._best(self.slow_actor, after)
            jitter = self.jitter * normal(best.shape, place="jitter", dtype=best.dtype)
            unit = (best + jitter.clamp(-self.most, self.most)).clamp(-1.0, 1.0)
            gain, counts = earned(batch, self.discount)
            goal = gain + counts * self.slow(after, unit).amin(0)
        return (self._worth(batch["observation"], batch["action"]) - goal).square().sum(0)

    def _worth(self, observation: Tensor, action: Tensor) -> Tensor:
        """What each critic says of an action of the world, `(critics, n)`."""
        middle, half = self._bounds(observation)
        found: Tensor = self.critics(observation, (action.to(observation.dtype) - middle) / half)
        return found

    def priority(self, batch: Batch) -> Tensor:
        """How wrong the critics are about each step."""
        return self._surprise(batch).sqrt()

    def measure(self, batch: Batch) -> dict[str, Any]:
        """The players' losses, and what the actions that were done are thought to be worth."""
        return {**super().measure(batch), "q": self._worth(batch["observation"], batch["action"]).amin(0)}

    # --- what it does ---------------------------------------------------------------------------------------

    def sample_action(self, observation: Tensor) -> Tensor:
        """The best action for each row, and noise."""
        best = self._best(self.actor, observation)
        return self._put(best + self.noise * normal(best.shape, place="action", dtype=best.dtype))

    @capability(merge="refuse")
    def act(self, observation: Tensor) -> Tensor:
        """The best action for each row."""
        return self._put(self._best(self.actor, observation))

    @capability(rows=("action",))
    def q(self, observation: Tensor, action: Tensor) -> Tensor:
        """What an action is worth, by the least critic's word."""
        return self._worth(observation, action).amin(0)

    @capability()
    def value(self, observation: Tensor) -> Tensor:
        """What it is worth to be there and do the best."""
        return self.critics(observation, self._best(self.actor, observation)).amin(0)
