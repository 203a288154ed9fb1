"""Temporal differences for control: SARSA, expected SARSA, Q-learning and double Q-learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.core.legal import WIDTHS, Choice, Number, Whole
from weft.core.objective import Objective, Output, capability
from weft.core.optimizer import Optimizer
from weft.core.random import bernoulli, categorical
from weft.core.source import Batch, Source, Spec
from weft.nets.make import NET, NetLike
from weft.objectives.control.steps import actions_of
from weft.objectives.control.tabular.returns import returns
from weft.objectives.control.tabular.weights import estimates
from weft.sources.segments import Segments

__all__ = ["TDControl"]


class TDControl(Objective):
    """Learns what each action is worth, q(s, a), by moving towards what follows, and acts by it.

    The loss of a step is (G - q(s, a))^2 / 2 with the target held fixed (a semi-gradient):

        sarsa       G = r + discount q(s', a'),    a' as it was played
        expected    G = r + discount sum_a' pi(a' | s') q(s', a')
        q           G = r + discount max_a' q(s', a')
        double      G = r + discount q_2(s', argmax_a' q_1(s', a')) for q_1, or with both exchanged, by a fair coin

    without what comes after an end; what was cut has not ended. pi is epsilon-greedy: with probability epsilon any
    action, else one of the best. `sarsa` and `expected` may look further, by `steps` (n-step) and `trace` (lambda); at
    the last step of what was played, where a' is not known, `sarsa` takes the mean over it. By default q is linear in
    what is observed: a table, where that is a one-hot row.

    Args:
        net: from observations to a value of each action (with `double` to two); None for linear weights.
        target: `sarsa`, `expected`, `q` or `double`.
        discount: of later rewards.
        epsilon: how often the policy draws any action.
        trace: lambda, of `sarsa` and `expected`: 0 looks one step ahead.
        steps: with a trace of 1 the n of the n-step return; None for as many as there are.
        initial: what the weights begin at; above all that can be earned, every action is tried.
        hidden: the hidden widths of an MLP.

    References:
        Watkins, "Learning from delayed rewards", 1989; Rummery and Niranjan, "On-line Q-learning using connectionist
        systems", 1994; van Seijen, van Hasselt, Whiteson and Wiering, "A theoretical and empirical analysis of expected
        Sarsa", 2009; van Hasselt, "Double Q-learning", NIPS 2010.

    Example:
        >>> from weft import Learner
        >>> from weft.data import CliffWalking
        >>> sgd = Optimizer("sgd", lr=8.0)  # times one of 16 rows: .5 for each
        >>> objective = TDControl(target="q", discount=1.0)
        >>> learner = Learner(objective, optimizer=sgd, env_steps=40_000, random_state=0)
        >>> learner.fit(objective.plays(CliffWalking(), horizon=200)).evaluate(CliffWalking(), 1, horizon=50).mean
        -13.0
    """

    progress = ("return", "max")
    optimizer = Optimizer("sgd", lr=0.1)
    legal = {
        "net": NET,
        "target": Choice("sarsa", "expected", "q", "double"),
        "discount": Number(0, 1),
        "epsilon": Number(0, 1),
        "trace": Number(0, 1),
        "steps": Whole(1) | None,
        "initial": Number(),
        "hidden": WIDTHS,
    }

    def __init__(
        self,
        net: NetLike = None,
        *,
        target: str = "q",
        discount: float = 0.99,
        epsilon: float = 0.1,
        trace: float = 0.0,
        steps: int | None = None,
        initial: float = 0.0,
        hidden: Sequence[int] = (64,),
    ) -> None:
        super().__init__()
        self.net: Any = net  # a module, once built
        self.target = target
        self.discount = discount
        self.epsilon = epsilon
        self.trace = trace
        self.steps = steps
        self.initial = initial
        self.hidden = hidden

    def validate(self) -> None:
        super().validate()
        if self.target in ("q", "double") and (self.trace or self.steps is not None):
            raise ValueError(
                f"expected trace=0 and no steps with target={self.target!r}, whose returns are of another policy after "
                f"the first step, got trace={self.trace:g} and steps={self.steps}; look further by 'sarsa' or "
                "'expected'"
            )
        if self.steps is not None and self.trace == 0:
            raise ValueError(
                f"expected trace > 0 beside steps={self.steps}, got 0, which looks one step ahead; the n-step return "
                "has trace=1"
            )

    @property
    def bootstraps(self) -> float:  # type: ignore[override]
        """Where play is cut its own value counts on."""
        return self.discount

    @property
    def credits(self) -> bool:
        """Whether it reads what follows a step."""
        return self.target == "sarsa" or self.trace > 0

    @property
    def on_policy(self) -> bool:  # type: ignore[override]
        """Whether it learns from actions after the first, which must be the current policy's."""
        return self.credits

    @property
    def fields(self) -> tuple[str, ...]:  # type: ignore[override]
        """What it reads; of a return that looks further than a step, where episodes are cut."""
        cut = ("truncated",) if self.credits else ()
        return ("observation", "action", "reward", "next_observation", "terminated", *cut)

    def plays(self, world: Any, **settings: Any) -> Source:
        """One step of each of 16 episodes for each update; of what looks further, 16."""
        return Segments(world, **{"envs": 16, "length": 16 if self.credits else 1, **settings})

    def build(self, spec: Spec) -> None:
        if "next_observation" not in spec:
            raise ValueError(
                f"expected steps of play for TDControl, got rows of {', '.join(spec)}; call "
                "fit(Segments(world)), or Rollouts, or Replay"
            )
        self.actions = actions_of(spec, "TDControl")
        size = self.actions * (1 + (self.target == "double"))
        self.net = estimates(self.net, spec["observation"], size, self.initial, hidden=self.hidden)

    def _both(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """q_1 and q_2; without `double` one is the other."""
        told: Tensor = self.net(observation)
        halves = told.split(self.actions, -1)
        return halves[0], halves[-1]

    def _mean(self, observation: Tensor, legal: Tensor | None) -> Tensor:
        """sum_a pi(a | s) q(s, a)."""
        q = self.q(observation)
        return (self._law(q, legal) * q).sum(-1)

    def _law(self, q: Tensor, legal: Tensor | None) -> Tensor:
        """pi(a | s): epsilon-greedy, evenly among the best."""
        may = torch.ones_like(q) if legal is None else legal.to(q)
        worth = q if legal is None else q.masked_fill(~legal, -torch.inf)
        best = (worth == worth.amax(-1, keepdim=True)).to(q)
        even = may / may.sum(-1, keepdim=True)
        return self.epsilon * even + (1 - self.epsilon) * best / best.sum(-1, keepdim=True)

    def credit(self, batch: Batch) -> Batch:
        """The return from each step on."""
        lead, action = batch["reward"].shape, batch["action"].flatten()
        flat = {name: value.flatten(0, 1) for name, value in batch.items()}
        q = self.q(flat["observation"]).gather(-1, action.unsqueeze(-1)).reshape(lead)
        after = self._mean(flat["next_observation"], flat.get("next_legal")).reshape(lead)
        if self.target == "sarsa":
            known = ~(batch["terminated"] | batch["truncated"])[:, :-1]
            after = torch.cat([torch.where(known, q[:, 1:], after[:, :-1]), after[:, -1:]], 1)
        return {"goal": returns(batch, q, after, discount=self.discount, trace=self.trace, steps=self.steps)}

    def _goal(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What is learned and towards what, of single steps."""
        one, two = self._both(batch["observation"])
        if "goal" in batch:
            return one, batch["goal"]
        seen, legal, first = batch["next_observation"], batch.get("next_legal"), one
        if self.target == "expected":
            after = self._mean(seen, legal)
        else:
            chooser, judge = self._both(seen)
            if self.target == "double":
                coin = bernoulli(torch.full_like(batch["reward"], 0.5), place="which").bool().unsqueeze(-1)
                chooser, judge = torch.where(coin, chooser, judge), torch.where(coin, judge, chooser)
                first = torch.where(coin, one, two)
            worth = chooser if legal is None else chooser.masked_fill(~legal, -torch.inf)
            after = judge.gather(-1, worth.argmax(-1, keepdim=True)).squeeze(-1)
        return first, (batch["reward"] + self.discount * after * ~batch["terminated"]).detach()

    def forward(self, batch: Batch, player: str = "") -> Output:
        q, goal = self._goal(batch)
        return Output(0.5 * (goal - q.gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)) ** 2)

    def priority(self, batch: Batch) -> Tensor:
        """How wrong it is about each step."""
        return (2 * self.forward(batch).losses).sqrt()

    # --- acting and answers ---------------------------------------------------------------------------------

    @capability()
    def q(self, observation: Tensor) -> Tensor:
        """q(s, a) of each row and all actions, (n, A)."""
        one, two = self._both(observation)
        return (one + two) / 2

    @capability()
    def value(self, observation: Tensor) -> Tensor:
        """max_a q(s, a) of each row."""
        return self.q(observation).amax(-1)

    @capability(merge="refuse")
    def act(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """The best (legal) action for each row."""
        q = self.q(observation)
        return (q if legal is None else q.masked_fill(~legal, -torch.inf)).argmax(-1)

    def sample_action(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """An action for each row, drawn from the epsilon-greedy policy."""
        return categorical(self._law(self.q(observation), legal).log(), place="action")
