"""A policy for tests: it acts in any world, by what it sees and by chance."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from weft.core.objective import Objective, Output, capability
from weft.core.random import categorical, normal
from weft.core.source import Batch, Spec

__all__ = ["Player"]


class Player(Objective):
    """Acts by a linear function of what it sees and by keyed draws, in worlds of every kind of action.

    Example:
        >>> from weft import Learner
        >>> from weft.data import CartPole
        >>> from weft.sources import Segments
        >>> source = Segments(CartPole(), envs=2, length=5)
        >>> Learner(Player(), env_steps=30).fit(source).history_[-1]["env_steps"]
        30.0
    """

    on_policy = False
    fields = ("observation",)

    def build(self, spec: Spec) -> None:
        self.action = spec["action"]
        outputs = self.action.classes or sum(self.action.choices or ()) or math.prod(self.action.shape)
        self.policy = nn.Linear(math.prod(spec["observation"].shape), outputs)

    def forward(self, batch: Batch, player: str = "") -> Output:
        scores = self.policy(batch["observation"].flatten(1))
        return Output(scores.square().mean(-1))

    def _acts(self, observation: Tensor, legal: Tensor | None, *, drawn: bool) -> Tensor:
        scores, space = self.policy(observation.flatten(1)), self.action
        if space.classes is not None:
            scores = scores if legal is None else scores.masked_fill(~legal, -math.inf)
            return categorical(scores, place="action") if drawn else scores.argmax(-1)
        if space.choices:
            each = scores.split(list(space.choices), -1)
            chosen = [categorical(s, place=f"action {i}") if drawn else s.argmax(-1) for i, s in enumerate(each)]
            return torch.stack(chosen, -1).reshape(-1, *space.shape)
        scores = scores + normal(scores.shape, place="action") if drawn else scores
        ends = (space.low, space.high) if space.low else ((-1.0,), (1.0,))
        low, high = (torch.tensor(end, dtype=scores.dtype, device=scores.device) for end in ends)
        return (low + (high - low) * scores.sigmoid()).reshape(-1, *space.shape)

    def sample_action(self, observation: Tensor, legal: Tensor | None = None) -> Tensor:
        """An action for each row, drawn."""
        return self._acts(observation, legal, drawn=True)

    @capability(merge="refuse")
    def act(self, observation: Tensor, legal: Tensor | None = None) -> Any:
        """The action that it finds best for each row."""
        return self._acts(observation, legal, drawn=False)
