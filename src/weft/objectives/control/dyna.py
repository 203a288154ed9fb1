"""Dyna: any off-policy learner, given steps that a learned model imagines beside those that were taken."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.legal import Number, Such
from weft.core.objective import Objective, Output
from weft.core.random import uniform
from weft.core.source import Batch, Spec
from weft.objectives.control.dqn import DQN
from weft.objectives.control.dynamics import Dynamics

__all__ = ["Dyna"]


class Dyna(Dynamics):
    """Learns a policy and a model of the world from the same steps, and the policy from steps of the model as well.

        loss = loss of the policy at (s, a, r, s') or, with probability `imagined`, at (s, a~, r~, s~)
             + loss of the model at (s, a, r, s'),

    where a~ is an action drawn evenly, tried in the state s that was really seen, and (r~, s~) and whether it ends are
    what the model expects (or draws). The two share no parameters, so that each learns by its own loss. What the model
    has wrong the policy believes: with fewer true steps that pays, with many it may cost.

    Args:
        policy: an objective that learns from single steps of any policy; None for `DQN()`.
        model: a regression; None for `Regression()`.
        imagined: the share of rows that are imagined.
        draws: draw what happens from the model's law; see `Dynamics`.

    References:
        Sutton, "Integrated architectures for learning, planning, and reacting based on approximating dynamic
        programming", ICML 1990; Janner, Fu, Zhang and Levine, "When to trust your model: model-based policy
        optimization", arXiv 1906.08253 (steps that branch from true ones).

    Example:
        >>> from weft import Learner
        >>> from weft.data import CartPole
        >>> from weft.sources import Replay
        >>> source = Replay(CartPole(), start=64, every=8, updates_each=8)
        >>> learner = Learner(Dyna(), env_steps=80, random_state=0).fit(source)
        >>> learner.act([[0.0, 0.0, 0.1, 0.5]]).shape
        (1,)
    """

    composes = ("policy", "model")
    wraps = "policy"
    surveys = False
    witnesses = True
    legal = {
        **Dynamics.legal,
        "policy": Such("an objective that acts, such as a DQN", lambda v: v is None or isinstance(v, Objective)),
        "imagined": Number(0, 1),
    }

    def __init__(
        self,
        policy: Objective | None = None,
        *,
        model: Objective | None = None,
        imagined: float = 0.5,
        draws: bool = False,
    ) -> None:
        super().__init__(model, draws=draws)
        self.policy = policy
        self.imagined = imagined

    def given(self, name: str) -> object:
        held = super().given(name)
        return DQN() if held is None and name == "policy" else held

    @property
    def fields(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys([*self.parts()["policy"].fields, *Dynamics.fields]))

    def validate(self) -> None:
        super().validate()
        part = self.parts()["policy"]
        if part.on_policy or part.trajectories or part.credits or not hasattr(part, "sample_action"):
            raise ValueError(
                "expected a policy that learns from single steps of any policy, such as a DQN, got "
                f"{type(part).__name__}, which imagined steps would mislead"
            )

    def build(self, spec: Spec) -> None:
        if "legal" in spec:
            raise ValueError(
                "expected a world where all actions are legal, got one that says which are: of imagined states nobody "
                "says; learn by the policy alone"
            )
        super().build(spec)
        if self._action.classes is None and not self._action.low:
            raise ValueError(f"expected actions with bounds to try, got {self._action}")

    def witness(self, batch: Batch) -> dict[str, Tensor]:
        part = self.parts()["policy"]
        seen = part.witness(batch) if part.witnesses else {}
        return {**{f"policy.{name}": value for name, value in seen.items()}, **self.scales(batch)}

    def forward(self, batch: Batch, player: str = "") -> Output:
        policy = self.ask("policy", self.mixed(batch))
        return Output(policy.losses + super().forward(batch).losses)

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self.forward(batch).losses, "model_loss": super().forward(batch).losses}

    def mixed(self, batch: Batch) -> Batch:
        """The steps, a share of them imagined."""
        observation, reward = batch["observation"], batch["reward"]
        action = self._tried(observation)
        with torch.no_grad():
            told = self.imagine(observation, action=action)
        chosen = uniform(reward.shape, place="imagined", dtype=reward.dtype) < self.imagined
        ends = told["terminated"] > 0.5
        new = {"action": action, "reward": told["reward"], "next_observation": told["observation"], "terminated": ends}
        new["truncated"] = torch.zeros_like(ends)
        return {**batch, **{name: _where(chosen, new[name], batch[name]) for name in new if name in batch}}

    def _tried(self, observation: Tensor) -> Tensor:
        """An action for each row, drawn evenly."""
        n, action = len(observation), self._action
        share = uniform((n, *action.shape), place="tried", dtype=observation.dtype)
        if action.classes is not None:
            return (share * action.classes).long().clamp_max(action.classes - 1)
        low, high = (observation.new_tensor(ends).reshape(action.shape) for ends in (action.low, action.high))
        return (low + share * (high - low)).to(action.dtype)


def _where(rows: Tensor, now: Tensor, before: Tensor) -> Tensor:
    return torch.where(rows.reshape(-1, *(1,) * (now.dim() - 1)), now.to(before.dtype), before)
