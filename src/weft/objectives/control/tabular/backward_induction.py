"""Backward induction: the best policy for so many steps, which knows how many are left."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.core.legal import Number, Whole
from weft.core.objective import Iterations, capability
from weft.core.source import Source, Spec
from weft.core.state import State
from weft.objectives.control.tabular.planned import Planned
from weft.objectives.control.tabular.process import process_of

__all__ = ["BackwardInduction"]


class BackwardInduction(Planned):
    """Finds the best policy of a finite decision process for so many steps, from the last one back.

        q_t(s, a) = r(s, a) + discount sum_s' p(s' | s, a) v_{t+1}(s'),    v_t(s) = max_a q_t(s, a),    v_H = 0

    The best action depends on how many steps are left, which the policy counts. Nothing is infinite, whatever the
    discount. `value`, `q`, `advantage` and `probabilities` answer for an episode at its beginning, or after `gone`
    steps; `visits` are those of the H steps. The horizon given here is the one that counts: give it the world's where
    what is cut there is over.

    Args:
        horizon: H, the steps of an episode.
        discount: of later rewards.

    References:
        Puterman, "Markov decision processes", 1994, section 4.5.

    Example:
        >>> from weft import Learner
        >>> from weft.data import FrozenLake
        >>> from weft.sources import Tables
        >>> learner = Learner(BackwardInduction(horizon=100)).fit(Tables(FrozenLake()))
        >>> learner.value(torch.eye(16)[:1]).round(3), learner.value(torch.eye(16)[:1], gone=90).round(3)
        (array([0.744], dtype=float32), array([0.041], dtype=float32))
    """

    legal = {"horizon": Whole(1), "discount": Number(0, 1)}

    def __init__(self, *, horizon: int = 100, discount: float = 1.0) -> None:
        super().__init__()
        self.horizon = horizon
        self.discount = discount

    def build(self, spec: Spec) -> None:
        super().build(spec)
        for name in ("values", "worths", "policy_table"):
            shape = getattr(self, name).shape
            self.register_buffer(name, torch.zeros(self.horizon, *shape))

    def solve(self, source: Source, state: State) -> Iterations:
        """A record of each step back, and the best policies with their values."""
        process = process_of(source, state)
        shape = (self.horizon, *process.reward.shape)
        q, policy = torch.zeros(shape).to(process.reward), torch.zeros(shape).to(process.reward)
        value = torch.zeros(self.horizon + 1, shape[1]).to(process.reward)
        for t in reversed(range(self.horizon)):
            q[t] = process.look(value[t + 1], self.discount)
            policy[t], value[t] = process.greedy(q[t], 0.0), q[t].amax(-1)
            yield {"worth": process.start @ value[t]}
        at, visits = process.start, torch.zeros_like(process.start)
        share = torch.zeros_like(at)
        for t in range(self.horizon):
            visits, share = visits + self.discount**t * at, share + at
            at = at @ process.following(policy[t])[0]
        found = {"values": value[:-1], "worths": q, "policy_table": policy}
        return {**found, "discounted_visits": visits, "long_run": share / share.sum()}

    def _step(self) -> tuple[Tensor, Tensor]:
        after = self.values[1] if self.horizon > 1 else torch.zeros_like(self.values[0])
        return after, self.worths[0]

    # --- answers --------------------------------------------------------------------------------------------

    def _after(self, gone: int) -> int:
        Whole(0).check(gone, "gone")
        if gone >= self.horizon:
            raise ValueError(f"expected gone below the horizon, {self.horizon}, got {gone}")
        return gone

    @capability(merge="refuse")
    def value(self, observation: Tensor, *, gone: int = 0) -> Tensor:
        """v(s) of each state."""
        return self.told(self.values[self._after(gone)], observation)

    @capability(merge="refuse")
    def q(self, observation: Tensor, *, gone: int = 0) -> Tensor:
        """q(s, a) of each state and all actions, (n, A)."""
        return self.told(self.worths[self._after(gone)], observation)

    @capability(merge="refuse")
    def advantage(self, observation: Tensor, *, gone: int = 0) -> Tensor:
        """q(s, a) - v(s), (n, A)."""
        return self.q(observation, gone=gone) - self.value(observation, gone=gone).unsqueeze(-1)

    @capability(merge="refuse")
    def probabilities(self, observation: Tensor, *, gone: int = 0) -> Tensor:
        """pi(a | s), (n, A)."""
        return self.told(self.policy_table[self._after(gone)], observation)

    def start(self, count: int) -> dict[str, Tensor]:
        """No step is gone."""
        return {"gone": torch.zeros(count, dtype=torch.int64, device=self.values.device)}

    @capability(merge="refuse")
    def act(self, observation: Tensor, legal: Tensor | None = None, memory: dict[str, Tensor] | None = None) -> Any:
        """The best (legal) action; without a memory that of the beginning, with one also what it remembers then."""
        worth = self.q(observation)
        if memory is not None:
            now = self.worths[memory["gone"].clamp_max(self.horizon - 1)]  # one beyond it stays at the last
            worth = (observation.to(now).unsqueeze(-2) @ now).squeeze(-2)
        action = (worth if legal is None else worth.masked_fill(~legal, -torch.inf)).argmax(-1)
        return action if memory is None else (action, {"gone": memory["gone"] + 1})

    def sample_action(
        self, observation: Tensor, legal: Tensor | None = None, memory: dict[str, Tensor] | None = None
    ) -> Any:
        """The best action: nothing is drawn."""
        return self.act(observation, legal, memory)
