"""Deep Q-learning: what each action is worth, learned from a memory of steps towards the word of a slow copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from weft.core.legal import WIDTHS, Flag, Number, Whole
from weft.core.objective import Objective, Output, capability
from weft.core.optimizer import Optimizer
from weft.core.random import categorical
from weft.core.source import Batch, Spec
from weft.nets import SlowCopy
from weft.nets.make import NET, NetLike, make_net
from weft.objectives.control.steps import actions_of, earned, step_fields
from weft.sources.playing import Worlds
from weft.sources.replay import Replay

__all__ = ["DQN"]


class DQN(Objective):
    """Learns q(s, a), what each action earns where the best follow, from steps that any policy has played.

    An example is a step (s, a, r, s'). With Huber's loss h and a copy of Q that is renewed now and then,

        loss = h(Q(s, a) - y),    y = r + discount (1 - terminated) V_slow(s'),    V_slow(s') = max_a Q_slow(s', a),

    y held fixed. Of n steps that `Replay(steps=n)` gives together, r is sum_{k < n} discount^k r_k, and the discount
    counts n times. Further,

        double_q:     V_slow(s') = Q_slow(s', argmax_a Q(s', a)),
        dueling:      Q(s, a) = V(s) + A(s, a) - mean_b A(s, b),
        temperature:  V_slow(s') = sum_a pi(a) (Q_slow(s', a) - temperature log pi(a)),
                      pi = softmax(Q_slow(s', .) / temperature),

    the last being temperature log sum_a exp(Q_slow / temperature), with pi that of Q beside `double_q`: what is learned
    then is to earn and to keep one's entropy, and actions are drawn from softmax(Q / temperature). Else it is the
    source that explores. What is not legal is never best, where the world says what is.

    The paper's Q is of images, renewed every 10,000 updates, at a learning rate of 2.5e-4 (RMSProp). The defaults here
    are for small worlds, that are learned in minutes, after RL Baselines3 Zoo's: with `clip=10.0`
    they solve CartPole in 50,000 steps. The policy swings while Q grows, so let evaluations say which one is kept:
    `validation=world`.

    Args:
        net: an `nn.Module` with one output for each action (`dueling`: and one more, the first), a factory, a name, or
            None for an MLP.
        hidden: hidden widths of the MLP.
        discount: of later rewards.
        renew: updates after which the slow copy moves.
        rate: how far it moves then, 1 being all the way.
        double_q: let Q choose the action, and the slow copy tell what it is worth.
        dueling: learn apart what it is worth to be somewhere, and what each action adds.
        temperature: what a nat of entropy is worth; at 0 the best action counts alone.

    References:
        Mnih et al., "Human-level control through deep reinforcement learning", Nature 518, 2015; van Hasselt, Guez and
        Silver, "Deep reinforcement learning with double Q-learning", arXiv 1509.06461; Wang et al., "Dueling network
        architectures for deep reinforcement learning", arXiv 1511.06581 (there the two streams part earlier than at the
        last layer); Haarnoja, Tang, Abbeel and Levine, "Reinforcement learning with deep energy-based policies", arXiv
        1702.08165 (temperature).

    Example:
        >>> from weft import Learner
        >>> from weft.data import FiniteMDP
        >>> from weft.sources import Replay
        >>> bandit = FiniteMDP(torch.ones(1, 2, 1), torch.tensor([[0.0, 1.0]]), horizon=1)
        >>> learner = Learner(DQN(hidden=(8,)), steps=200, random_state=0)
        >>> learner.fit(Replay(bandit, start=64, batch_size=32, horizon=1)).act([[1.0]])
        array([1])
    """

    on_policy = False
    progress = ("return", "max")
    carried = ("target.*",)
    optimizer = Optimizer("adam", lr=1e-3)
    legal = {
        "net": NET,
        "hidden": WIDTHS,
        "discount": Number(0, 1),
        "renew": Whole(1),
        "rate": Number(0, 1, "(]"),
        "double_q": Flag(),
        "dueling": Flag(),
        "temperature": Number(0),
    }
    fields = step_fields()

    def __init__(
        self,
        net: NetLike = None,
        *,
        hidden: Sequence[int] = (64, 64),
        discount: float = 0.99,
        renew: int = 128,
        rate: float = 1.0,
        double_q: bool = False,
        dueling: bool = False,
        temperature: float = 0.0,
    ) -> None:
        super().__init__()
        self.net: Any = net  # a module, once built
        self.hidden = hidden
        self.discount = discount
        self.renew = renew
        self.rate = rate
        self.double_q = double_q
        self.dueling = dueling
        self.temperature = temperature

    @property
    def bootstraps(self) -> float:  # type: ignore[override]
        """Where play is cut its own value counts on."""
        return self.discount

    def plays(
        self,
        world: Worlds,
        *,
        every: int = 256,
        updates_each: int = 128,
        explore: float | tuple[float, float, float] = (1.0, 0.04, 0.16),
        **settings: Any,
    ) -> Replay:
        """A memory of steps: 256 are played, then 128 updates are made."""
        return Replay(world, every=every, updates_each=updates_each, explore=explore, **settings)

    def build(self, spec: Spec) -> None:
        if "next_observation" not in spec or "action" not in spec:
            raise ValueError(
                f"expected steps of play for DQN, got rows of {', '.join(spec)}; call fit(world), such as "
                "fit('CartPole-v1'), or fit(Replay(world))"
            )
        self.fields = step_fields(spec)
        self._masked = "legal" in spec
        actions = actions_of(spec, "DQN")
        self.net = make_net(self.net, spec["observation"], actions + self.dueling, hidden=self.hidden)
        self.target = SlowCopy(self.net, rate=self.rate, every=self.renew)

    def _worth(self, net: Any, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """Q of each action; of what is not legal the least number that there is."""
        told: Tensor = net(observation)
        if self.dueling:
            told = told[:, :1] + told[:, 1:] - told[:, 1:].mean(-1, keepdim=True)
        return told if legal is None else told.masked_fill(~legal, torch.finfo(told.dtype).min)

    def _valued(self, worth: Tensor, choosing: Tensor) -> Tensor:
        """V: what Q is worth to who chooses by another Q."""
        if not self.temperature:
            return worth.gather(-1, choosing.argmax(-1, keepdim=True)).squeeze(-1)
        log = (choosing / self.temperature).log_softmax(-1)
        chance = log.exp()
        return torch.where(chance > 0, chance * (worth - self.temperature * log), 0.0).sum(-1)

    def _errors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Q(s, a) and y."""
        if self.training:
            self.target.follow(self.net)
        worth = self._worth(self.net, batch["observation"]).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            after = batch["next_observation"], batch.get("next_legal")
            slow = self._worth(self.target, *after)
            value = self._valued(slow, self._worth(self.net, *after) if self.double_q else slow)
        gain, counts = earned(batch, self.discount)
        return worth, gain + counts * value

    def forward(self, batch: Batch, player: str = "") -> Output:
        return Output(huber_loss(*self._errors(batch), reduction="none"))

    def priority(self, batch: Batch) -> Tensor:
        """How wrong it is about each step: |Q(s, a) - y|."""
        worth, goal = self._errors(batch)
        return (worth - goal).abs()

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        """The loss, and what the actions that were done are thought to be worth."""
        worth, goal = self._errors(batch)
        return {"loss": huber_loss(worth, goal, reduction="none"), "q": worth}

    def sample_action(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """An action for each row: the best one, or drawn from softmax(Q / temperature)."""
        if not self.temperature:
            return self.act(observation, legal)
        return categorical(self._worth(self.net, observation, legal) / self.temperature, place="action")

    @capability(merge="refuse", rows=("legal",))
    def act(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """The best (legal) action for each row."""
        if self._masked and legal is None:
            raise ValueError(
                "expected legal beside what is observed, as DQN has learned where not every action is; give "
                "act(observation, legal=...), a truth for each action of each row"
            )
        return self._worth(self.net, observation, legal).argmax(-1)

    @capability(rows=("legal",))
    def q(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """What each action is worth, `(n, actions)`; minus infinity where it is not legal."""
        worth = self._worth(self.net, observation)
        return worth if legal is None else worth.masked_fill(~legal, -math.inf)

    @capability(rows=("legal",))
    def value(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """What it is worth to be there: max_a q(s, a), or with a temperature the soft maximum."""
        worth = self._worth(self.net, observation, legal)
        return self._valued(worth, worth)
