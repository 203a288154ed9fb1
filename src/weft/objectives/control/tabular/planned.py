"""What is solved from the tables of a finite decision process: its answers, shared by all ways of solving it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.core.objective import Objective, Output, Solution, capability
from weft.core.random import categorical
from weft.core.source import Batch, Source, Spec
from weft.objectives.control.tabular.process import Process, close
from weft.sources.tables import Tables

__all__ = ["Planned"]


class Planned(Objective):
    """A policy pi of a finite decision process with its values, exactly:

        v(s) = sum_a pi(a | s) q(s, a),    q(s, a) = r(s, a) + discount sum_s' p(s' | s, a) v(s').

    The loss of a row (s, a) is half its squared Bellman error. States are one-hot rows; of rows of probabilities of
    states the answers are means. The world's horizon does not
    enter, as what it cuts has not ended: values are those of the world without it.
    """

    solved = True
    on_policy = False
    fields = ("observation", "action", "reward", "transition", "ends")
    discount: float
    values: Tensor
    worths: Tensor
    policy_table: Tensor
    discounted_visits: Tensor
    long_run: Tensor

    def build(self, spec: Spec) -> None:
        if "transition" not in spec:
            raise ValueError(
                f"expected the tables of a finite decision process for {type(self).__name__}, got rows with "
                f"{sorted(spec)}; call fit(Tables(world))"
            )
        states, actions = spec["observation"].shape[0], spec["action"].classes or 0
        for name, shape in (("values", (states,)), ("worths", (states, actions)), ("policy_table", (states, actions))):
            self.register_buffer(name, torch.zeros(shape))
        self.register_buffer("discounted_visits", torch.zeros(states))
        self.register_buffer("long_run", torch.zeros(states))

    def plays(self, world: Any, **settings: Any) -> Source:
        """The world's tables."""
        return Tables(world, **settings)

    def concluded(self, process: Process, policy: Tensor, value: Tensor) -> Solution:
        """The solution, of a policy and its values."""
        return {
            "values": value,
            "worths": process.look(value, self.discount),
            "policy_table": policy,
            "discounted_visits": process.visits(policy, self.discount),
            "long_run": process.share(policy),
        }

    def refuse_resting(self, process: Process, value: Tensor) -> None:
        """Raises where staying for ever would be best, at discount 1: it ends no episode, and is not found."""
        if self.discount < 1:
            return
        rests = process.resting(torch.ones_like(process.ends, dtype=torch.bool)).any(-1)
        better = rests & (value < 0) & ~close(value, torch.zeros_like(value))
        if bool(better.any()):
            raise ValueError(
                f"expected a task in which it is never best to stay for ever, got the states "
                f"{better.nonzero().flatten().tolist()[:8]}, where that earns 0, and ending less; "
                f"{type(self).__name__} looks at what ends alone: take ValueIteration, or discount"
            )

    def forward(self, batch: Batch, player: str = "") -> Output:
        going = batch["transition"] / (batch["transition"].sum(-1) + batch["ends"]).unsqueeze(-1)
        here = batch["observation"].argmax(-1)
        after, worth = self._step()
        target = batch["reward"] + self.discount * (going @ after)
        return Output(0.5 * (target - worth[here, batch["action"]]) ** 2)

    def _step(self) -> tuple[Tensor, Tensor]:
        """What comes after a step is worth, (S,), and what the step is, (S, A)."""
        return self.values, self.worths

    # --- answers --------------------------------------------------------------------------------------------

    def told(self, table: Tensor, observation: Tensor) -> Tensor:
        """What a table (S, ...) says of rows: of a state its own, of probabilities of states the mean."""
        if observation.dim() != 2 or observation.shape[-1] != len(table):
            raise ValueError(
                f"expected states as one-hot rows, (n, {len(table)}), got shape {tuple(observation.shape)}; of the "
                f"numbers of states make them: np.eye({len(table)})[numbers]"
            )
        return observation.to(table) @ table

    @capability(merge="refuse")
    def value(self, observation: Tensor) -> Tensor:
        """v(s) of each state."""
        return self.told(self.values, observation)

    @capability(merge="refuse")
    def q(self, observation: Tensor) -> Tensor:
        """q(s, a) of each state and all actions, (n, A)."""
        return self.told(self.worths, observation)

    @capability(merge="refuse")
    def advantage(self, observation: Tensor) -> Tensor:
        """q(s, a) - v(s), (n, A)."""
        return self.q(observation) - self.value(observation).unsqueeze(-1)

    @capability(merge="refuse")
    def probabilities(self, observation: Tensor) -> Tensor:
        """pi(a | s), (n, A)."""
        return self.told(self.policy_table, observation)

    @capability(merge="refuse")
    def visits(self, observation: Tensor, *, average: bool = False) -> Tensor:
        """How often an episode visits each state: sum_t discount^t p(s_t = s), or the share of all steps in the long
        run, episodes beginning anew where they end."""
        table = self.long_run if average else self.discounted_visits
        endless = self.told(table.isinf().to(observation), observation) > 0
        return torch.where(endless, torch.inf, self.told(table.nan_to_num(posinf=0.0), observation))

    def among(self, observation: Tensor, legal: Tensor | None) -> Tensor:
        """The policy among the legal actions; where it would do none of them, the best of those."""
        policy = self.probabilities(observation)
        if legal is None:
            return policy
        kept = policy * legal
        best = self.q(observation).masked_fill(~legal, -torch.inf).argmax(-1)
        actions = torch.arange(policy.shape[-1], device=policy.device)
        return torch.where(kept.sum(-1, keepdim=True) > 0, kept, (best.unsqueeze(-1) == actions).to(policy))

    @capability(merge="refuse")
    def act(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """The policy's most probable (legal) action."""
        return self.among(observation, legal).argmax(-1)

    def sample_action(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """A (legal) action for each row, drawn from the policy."""
        return categorical(self.among(observation, legal).log(), place="action")
