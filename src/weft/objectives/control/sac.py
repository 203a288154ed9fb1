"""Soft actor-critic: a policy that earns and keeps its entropy, learned from a memory of steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from weft.core.configured import closest
from weft.core.legal import WIDTHS, Number
from weft.core.objective import Objective, Output, capability
from weft.core.optimizer import Optimizer
from weft.core.source import Batch, Field, Spec
from weft.nets import SlowCopy
from weft.nets.make import NET, NetLike, make_net
from weft.objectives.control.actions import Classes, Squashed, law_of
from weft.objectives.control.critics import Critics
from weft.objectives.control.steps import earned, step_fields
from weft.sources.playing import Worlds
from weft.sources.replay import Replay

__all__ = ["SAC"]

NARROWEST, WIDEST = -20.0, 2.0  # log deviations, as in the authors' code
HOT, MOST = 100.0, 1e5  # a temperature that stays above the first without effect, or reaches the other, has run away
MEND = "set a lower entropy (entropy=...), or the temperature itself (temperature=0.2)"
DRAWS = 32


class SAC(Objective):
    """Learns a policy that earns much and stays undecided where it may: the most of return + alpha entropy.

    An example is a step (s, a, r, s') that any policy has played. With two critics Q_j, slow copies of them and actions
    a ~ pi(s), a' ~ pi(s') drawn anew, the players' losses are

        critics:      sum_j (Q_j(s, a) - y)^2 / 2,   y = r + discount (1 - terminated) (min_j Q_slow_j(s', a')
                                                                                     - alpha log pi(a' | s'))
        actor:        alpha log pi(a | s) - min_j Q_j(s, a)
        temperature:  - alpha (log pi(a | s) + entropy),

    so that alpha falls while there is more than that. Actions that are numbers are normal, squashed by tanh between
    their bounds; the actor's gradient goes through the draw. Of finitely many actions the critics tell what each is
    worth, and expectations over a and a' are sums.

    Args:
        actor: an `nn.Module` with two outputs for each number of an action, or one for each of finitely many actions; a
            factory, a name, or None for an MLP.
        critic: a factory of critics, a name, or None for MLPs; of numbers, they read observation and action as one row.
        hidden: hidden widths of the MLPs.
        discount: of later rewards.
        rate: at which the slow copies follow.
        temperature: alpha, if it is not to be learned; at first else 1.
        entropy: how much is to be kept, in nats; default: -1 for each number of an action; .98 log n of n actions.

    References:
        Haarnoja, Zhou, Hartikainen, Tucker et al., "Soft actor-critic algorithms and applications", arXiv 1812.05905;
        of finitely many actions: Christodoulou, arXiv 1910.07207.

    Example:
        >>> from weft import Learner
        >>> from weft.data import Pendulum
        >>> world, objective = Pendulum(), SAC(hidden=(16,))
        >>> learner = Learner(objective, steps=20, random_state=0).fit(objective.plays(world, start=64, batch_size=32))
        >>> learner.act([1.0, 0.0, 0.0]).shape
        (1,)
    """

    on_policy = False
    progress = ("return", "max")
    carried = ("slow.*",)
    optimizer = Optimizer("adam", lr=3e-4)
    remedies = MappingProxyType(
        {
            "temperature": f"the temperature has run away, as the policy cannot keep so much entropy: {MEND}",
        }
    )
    legal = {
        "actor": NET,
        "critic": NET,
        "hidden": WIDTHS,
        "discount": Number(0, 1),
        "rate": Number(0, 1, "(]"),
        "temperature": Number(0) | None,
        "entropy": Number() | None,
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
        temperature: float | None = None,
        entropy: float | None = None,
    ) -> None:
        super().__init__()
        self.actor: Any = actor  # a module, once built
        self.critic = critic
        self.hidden = hidden
        self.discount = discount
        self.rate = rate
        self.temperature: Any = temperature  # a module, once built, where it is learned
        self.entropy = entropy

    @property
    def players(self) -> tuple[str, ...]:  # type: ignore[override]
        fixed = self.temperature is not None and not isinstance(self.temperature, nn.Module)
        return ("critics", "actor") if fixed else ("critics", "actor", "temperature")

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

    # --- its nets -----------------------------------------------------------------------------------------

    def build(self, spec: Spec) -> None:
        if "next_observation" not in spec or "action" not in spec:
            raise ValueError(
                f"expected steps of play for SAC, got rows of {', '.join(spec)}; call fit(world), such as "
                "fit('Pendulum-v1'), or fit(Replay(world))"
            )
        self.law = _law(spec["action"])
        finite = isinstance(self.law, Classes)
        self.fields = (*step_fields(spec), *(("legal",) if "legal" in spec else ()))
        self._kept = self._entropy(spec["action"])
        self.actor = make_net(self.actor, spec["observation"], self.law.size, hidden=self.hidden, what="actor")
        told = (spec["observation"], Field((), torch.int64, classes=self.law.size) if finite else spec["action"])
        self.critics = Critics(self.critic, *told, hidden=self.hidden)
        self.slow = SlowCopy(self.critics, rate=self.rate)
        if self.temperature is None:
            self.temperature = _Temperature()

    def _entropy(self, action: Field) -> float:
        """What is to be kept, which must be less than the most that there is."""
        if action.classes is not None:
            most, usual = math.log(action.classes), 0.98 * math.log(action.classes)
        else:
            most = sum(math.log(high - low) for low, high in zip(action.low, action.high, strict=True))
            usual = -float(math.prod(action.shape))
        kept = usual if self.entropy is None else self.entropy
        if "temperature" in self.players and kept >= most and (action.classes or 2) > 1:
            raise ValueError(
                f"expected an entropy below {most:g} nats, the most that there is over these actions, got {kept:g}: "
                "the temperature would rise without end; set a lower one, such as "
                f"entropy={min(usual, most - 1.0):g}, or the temperature itself"
            )
        return kept

    # --- the game -----------------------------------------------------------------------------------------

    def _alpha(self) -> Tensor | float:
        """The temperature."""
        return self.temperature() if "temperature" in self.players else self.temperature

    def _told(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """The numbers of the policy's law; deviations within what can be reckoned with."""
        told: Tensor = self.actor(observation).reshape(len(observation), -1)
        if isinstance(self.law, Classes):
            return self.law.masked(told, legal)
        mean, log = told.chunk(2, -1)
        return torch.cat([mean, log.clamp(NARROWEST, WIDEST)], -1)

    def _soft(self, critics: Any, observation: Tensor, legal: Tensor | None, place: str) -> tuple[Tensor, Tensor]:
        """min_j Q_j(s, a) and log pi(a | s): of a draw, or their means over all actions."""
        told = self._told(observation, legal)
        if isinstance(self.law, Squashed):
            action, log = self.law.drawn(told, place=place)
            return critics(observation, action).amin(0), log
        each = told.log_softmax(-1)
        chance = each.exp()
        return (chance * critics(observation).amin(0)).sum(-1), (chance * each).sum(-1)

    def _says(self, critics: Any, observation: Tensor, action: Tensor) -> Tensor:
        """What each critic says of an action, `(critics, n)`."""
        if isinstance(self.law, Squashed):
            found: Tensor = critics(observation, action)
            return found
        index = action.reshape(1, -1, 1).expand(len(critics.nets), -1, 1)
        return critics(observation).gather(-1, index).squeeze(-1)

    def forward(self, batch: Batch, player: str = "") -> Output:
        if player not in self.players:
            raise closest(player, self.players, "a player of SAC")
        observation, legal = batch["observation"], batch.get("legal")
        if player == "critics":
            return Output(self._surprise(batch))
        if player == "actor":
            worth, log = self._soft(self.critics, observation, legal, "action")
            alpha = self._alpha()
            return Output((alpha.detach() if isinstance(alpha, Tensor) else alpha) * log - worth)
        with torch.no_grad():
            _, log = self._soft(self.critics, observation, legal, "action")
        alpha = self.temperature()
        losses = -alpha * (log + self._kept)
        return Output(torch.where(alpha < MOST, losses, torch.inf))

    def _surprise(self, batch: Batch) -> Tensor:
        """The critics' losses together."""
        if self.training:
            self.slow.follow(self.critics)
        with torch.no_grad():
            worth, log = self._soft(self.slow, batch["next_observation"], batch.get("next_legal"), "next action")
            gain, counts = earned(batch, self.discount)
            goal = gain + counts * (worth - self._alpha() * log)
        return 0.5 * (self._says(self.critics, batch["observation"], batch["action"]) - goal).square().sum(0)

    def priority(self, batch: Batch) -> Tensor:
        """How wrong the critics are about each step."""
        return (2.0 * self._surprise(batch)).sqrt()

    def measure(self, batch: Batch) -> dict[str, Any]:
        """The players' losses, the entropy that is kept, the temperature, and what the actions done are worth."""
        worth = self._says(self.critics, batch["observation"], batch["action"]).amin(0)
        _, log = self._soft(self.critics, batch["observation"], batch.get("legal"), "action")
        alpha = torch.as_tensor(self._alpha(), dtype=worth.dtype, device=worth.device)
        return {**super().measure(batch), "entropy": -log, "temperature": alpha, "q": worth}

    def warns(self, records: Sequence[Mapping[str, Any]]) -> str | None:
        """That the temperature rises and rises, and the policy does not keep what it is to keep."""
        since: tuple[int, int] | None = None
        for record in records if "temperature" in self.players else ():
            alpha, entropy = (np.atleast_1d(record[name]) for name in ("temperature", "entropy"))
            hot = (alpha > HOT) & (entropy < self._kept)
            since = (since or (record["step"], int(hot.argmax()))) if hot.any() else None
        if since is None:
            return None
        alpha, entropy = (np.atleast_1d(records[-1][name])[since[1]] for name in ("temperature", "entropy"))
        return (
            f"expected a policy that keeps {self._kept:g} nats of entropy, got {entropy:.3g} at a temperature of "
            f"{alpha:.3g}, which is above {HOT:g} since step {since[0]} and runs away: {MEND}"
        )

    # --- what it does ---------------------------------------------------------------------------------------

    def sample_action(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """An action for each row, drawn from the policy."""
        return self.law.sample(self._told(observation, legal))

    @capability(merge="refuse", rows=("legal",))
    def act(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """The action of the policy's mean, or the most probable one."""
        if "legal" in self.fields and legal is None:
            raise ValueError(
                "expected legal beside what is observed, as SAC has learned where not every action is; give "
                "act(observation, legal=...), a truth for each action of each row"
            )
        return self.law.best(self._told(observation, legal))

    @capability(rows=("action",))
    def q(self, observation: Tensor, action: Tensor | None = None, legal: Tensor | None = None) -> Tensor:
        """What an action is worth by the least critic's word; of finitely many all of them, where none is given."""
        if action is not None:
            return self._says(self.critics, observation, action).amin(0)
        if isinstance(self.law, Squashed):
            raise ValueError(
                "expected an action beside what is observed, as there are no end of them; give q(x, action=...)"
            )
        worth: Tensor = self.critics(observation).amin(0)
        return worth if legal is None else worth.masked_fill(~legal, -math.inf)

    @capability(kind="estimate", rows=("legal",))
    def value(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """What it is worth to be there, entropy included: of numbers, the mean over 32 draws."""
        if not isinstance(self.law, Squashed):
            worth, log = self._soft(self.critics, observation, legal, "action")
            return worth - self._alpha() * log
        told = self._told(observation).unsqueeze(1).expand(-1, DRAWS, -1)
        action, log = self.law.drawn(told)
        rows = observation.unsqueeze(1).expand(-1, DRAWS, *observation.shape[1:]).flatten(0, 1)
        worth = self.critics(rows, action.flatten(0, 1)).amin(0).unflatten(0, log.shape)
        return (worth - self._alpha() * log).mean(1)


class _Temperature(nn.Module):
    """exp of a number that is learned, 1 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.zeros(()))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.log)

    def forward(self) -> Tensor:
        return self.log.exp()


def _law(action: Field) -> Squashed | Classes:
    """The policy's law, where it is one that SAC knows."""
    law = None if action.choices else law_of(action)
    if isinstance(law, Squashed | Classes):
        return law
    kind = "rows of choices" if action.choices else "numbers without bounds"
    fix = "PPO takes rows of choices" if action.choices else "let the world say low and high of each"
    raise ValueError(f"expected actions between finite bounds, or finitely many, for SAC, got {kind}; {fix}")
