"""Temporal differences: the values of a policy, from the steps that it or another one plays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.core.legal import WIDTHS, Choice, Number, Whole
from weft.core.objective import Objective, Output, capability
from weft.core.optimizer import Optimizer
from weft.core.random import categorical
from weft.core.source import Batch, Source, Spec
from weft.nets.make import NET, NetLike
from weft.objectives.control.steps import actions_of
from weft.objectives.control.tabular.given import POLICY, Given, probabilities_of, refuse_table
from weft.objectives.control.tabular.returns import first_visits, returns
from weft.objectives.control.tabular.weights import estimates
from weft.sources.rollouts import Rollouts
from weft.sources.segments import Segments

__all__ = ["TD"]


class TD(Objective):
    """Learns what a given policy is worth, v(s) = E[r_0 + discount r_1 + ...], by moving towards returns.

    The loss of a step is half the squared distance to its return, which is held fixed (a semi-gradient):

        loss_t = (G_t - v(s_t))^2 / 2,    G_t = r_t + discount ((1 - trace) v(s_{t+1}) + trace G_{t+1}),

    without what comes after an end, and with v(s_{t+1}) for G_{t+1} where nothing further is known: a cut is no end.

        trace 0                   TD(0); also from single steps (`Replay`)
        trace 1, steps n          n-step TD
        trace in (0, 1)           the lambda-return; of whole episodes its gradient is that of offline TD(lambda)
        trace 1, whole episodes   Monte Carlo, of every or of the first visit

    With `target` the policy that plays is not the one that is judged: each step is weighed by rho = target / policy,
    rho_t (...) + (1 - rho_t) v(s_t), which keeps the mean right and lets v stand where nothing is learned. By default v
    is linear in what is observed: a table, where that is a one-hot row.

    Args:
        net: from observations to one value; None for linear weights that begin at `initial`.
        policy: who plays: a table (S, A), a function from observations to probabilities, or None for even draws.
        target: who is judged, likewise; None for whoever plays.
        discount: of later rewards.
        trace: lambda.
        steps: after so many a return ends in v; None for as many as there are.
        visit: `every` time that a state is seen in an episode counts, or the `first`.
        initial: what the weights begin at.
        hidden: the hidden widths of an MLP.

    References:
        Sutton, "Learning to predict by the methods of temporal differences", Machine Learning 3, 1988; with weights:
        Sutton and Barto, "Reinforcement learning: an introduction", 2018, sections 7.4 and 12.9.

    Example:
        >>> from weft import Learner
        >>> from weft.data import GridWorld
        >>> source = TD().plays(GridWorld(["S.G"]), envs=64)
        >>> learner = Learner(TD(discount=0.9), optimizer=Optimizer("sgd", lr=1.0), steps=100, random_state=0)
        >>> learner.fit(source).value(torch.eye(3)[:2]).round(1)
        array([0.4, 0.6], dtype=float32)
    """

    progress = ("loss", "min")
    optimizer = Optimizer("sgd", lr=0.1)
    legal = {
        "net": NET,
        "policy": POLICY,
        "target": POLICY,
        "discount": Number(0, 1),
        "trace": Number(0, 1),
        "steps": Whole(1) | None,
        "visit": Choice("every", "first"),
        "initial": Number(),
        "hidden": WIDTHS,
    }

    def __init__(
        self,
        net: NetLike = None,
        *,
        policy: Given = None,
        target: Given = None,
        discount: float = 0.99,
        trace: float = 0.0,
        steps: int | None = None,
        visit: str = "every",
        initial: float = 0.0,
        hidden: Sequence[int] = (64,),
    ) -> None:
        super().__init__()
        self.net: Any = net  # a module, once built
        self.policy = policy
        self.target = target
        self.discount = discount
        self.trace = trace
        self.steps = steps
        self.visit = visit
        self.initial = initial
        self.hidden = hidden

    def validate(self) -> None:
        super().validate()
        if self.steps is not None and self.trace == 0:
            raise ValueError(
                f"expected trace > 0 beside steps={self.steps}, got 0, which looks one step ahead; the n-step return "
                "has trace=1"
            )

    @property
    def fields(self) -> tuple[str, ...]:  # type: ignore[override]
        """What it reads: of a return that looks further than a step, where episodes are cut."""
        read = ("observation", "action") if self.target is not None else ("observation",)
        return (*read, "reward", "next_observation", "terminated", *(("truncated",) if self.credits else ()))

    @property
    def on_policy(self) -> bool:  # type: ignore[override]
        """Whether what it is taught is of the moment: returns that look further end in values as they are then."""
        return self.credits

    @property
    def bootstraps(self) -> float:  # type: ignore[override]
        """Where play is cut its own value counts on."""
        return self.discount

    @property
    def credits(self) -> bool:
        """Whether a return looks further than a step, or counts visits."""
        return self.trace > 0 or self.visit == "first"

    def plays(self, world: Any, **settings: Any) -> Source:
        """Stretches of 16 steps, or whole episodes where the return of all rewards is learned from."""
        if self.trace == 1 and self.steps is None:
            return Rollouts(world, **{"envs": 8, **settings})
        return Segments(world, **{"envs": 8, "length": 16, **settings})

    def build(self, spec: Spec) -> None:
        if "next_observation" not in spec:
            raise ValueError(
                f"expected steps of play for TD, got rows of {', '.join(spec)}; call "
                "fit(Rollouts(world)), or Segments, or Replay"
            )
        self.actions = actions_of(spec, "TD")
        for name in ("policy", "target"):
            given: Given = getattr(self, name)
            if given is not None and not callable(given):
                refuse_table(torch.as_tensor(given), spec["observation"].shape[-1], self.actions, f"TD's {name}")
        self.net = estimates(self.net, spec["observation"], 1, self.initial, hidden=self.hidden)

    def _law(self, given: Given, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        chance = probabilities_of(given, observation, self.actions, "TD's policy")
        return chance if legal is None else chance * legal / (chance * legal).sum(-1, keepdim=True)

    def _ratio(self, batch: Batch) -> Tensor | None:
        """rho: how much likelier each action is under the policy that is judged."""
        if self.target is None:
            return None
        action, legal = batch["action"].unsqueeze(-1), batch.get("legal")
        judged, played = (
            self._law(given, batch["observation"], legal).gather(-1, action).squeeze(-1)
            for given in (self.target, self.policy)
        )
        return judged / played

    def _given(self, batch: Batch, *, ratio: Tensor | None) -> Tensor:
        """G, of what was played together."""
        lead = batch["reward"].shape
        value, after = (self.value(batch[n].flatten(0, 1)).reshape(lead) for n in ("observation", "next_observation"))
        return returns(batch, value, after, discount=self.discount, trace=self.trace, steps=self.steps, ratio=ratio)

    def credit(self, batch: Batch) -> Batch:
        """The return from each step on, and with `visit="first"` the weights of the steps."""
        flat = {n: v.flatten(0, 1) for n, v in batch.items() if n in ("observation", "action", "legal")}
        ratio = self._ratio(flat)
        found = {"goal": self._given(batch, ratio=None if ratio is None else ratio.reshape(batch["reward"].shape))}
        if self.visit == "first":
            first = first_visits(batch).to(batch["reward"].dtype)
            found["mask" if "mask" in batch else "weight"] = first * batch.get("mask", 1.0)
        return found

    def forward(self, batch: Batch, player: str = "") -> Output:
        value = self.value(batch["observation"])
        if "goal" in batch:
            return Output(0.5 * (batch["goal"] - value) ** 2)
        after = self.value(batch["next_observation"])
        goal = batch["reward"] + self.discount * after * ~batch["terminated"]
        ratio = self._ratio(batch)
        if ratio is not None:
            goal = ratio * goal + (1 - ratio) * value
        return Output(0.5 * (goal.detach() - value) ** 2)

    @capability()
    def value(self, observation: Tensor) -> Tensor:
        """v(s) of each row."""
        told: Tensor = self.net(observation)
        return told.reshape(len(observation))

    def sample_action(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """An action for each row, drawn from the policy that plays."""
        chance = self._law(self.policy, observation, legal)
        drawn = categorical(chance.log(), place="action")
        return torch.where(chance.isnan().any(-1), -1, drawn)  # nothing legal that it would do: refused by who plays
