"""Finite Markov decision processes: small enough for exact answers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from weft.core.random import fold, unit
from weft.core.source import Field

__all__ = ["FiniteMDP"]


class FiniteMDP:
    """An environment given by its tables, in which everything can also be computed exactly.

    s_0 ~ start, then s_{t+1} ~ transition[s_t, a_t] and r_t = reward[s_t, a_t]. The state is observed
    as a one-hot row. It is an environment for `weft.sources.Rollouts`.

    Args:
        transition: p(s' | s, a), shape (S, A, S).
        reward: r(s, a), shape (S, A).
        start: p(s_0), shape (S,); default: uniform.
        horizon: steps of an episode.

    References:
        Puterman, "Markov decision processes", 1994, section 2.1.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> stay, go = torch.eye(2), torch.eye(2).flip(0)
        >>> flip = FiniteMDP(torch.stack([stay, go], 1), torch.tensor([[0.0, 1.0], [0.0, 1.0]]), horizon=4)
        >>> state, observation = flip.reset(fold(key_of(0), torch.arange(5)))
        >>> after, _, reward, _ = flip.step(state, torch.ones(5, dtype=torch.int64), fold(key_of(1), torch.arange(5)))
        >>> bool((after == 1 - state).all()), reward
        (True, tensor([1., 1., 1., 1., 1.]))
    """

    def __init__(self, transition: Tensor, reward: Tensor, *, start: Tensor | None = None, horizon: int = 10) -> None:
        states, actions = reward.shape
        start = torch.full((states,), 1.0 / states) if start is None else start
        if transition.shape != (states, actions, states) or start.shape != (states,):
            raise ValueError(
                f"expected transition of shape {(states, actions, states)} and start of shape {(states,)}, as reward "
                f"has {states} states and {actions} actions, got {tuple(transition.shape)} and {tuple(start.shape)}"
            )
        for name, table in (("transition", transition), ("start", start)):
            if bool((table < 0).any()) or not torch.allclose(table.sum(-1), torch.ones_like(table.sum(-1))):
                raise ValueError(f"expected {name} to hold probabilities that sum to 1 over the last axis, got {table}")
        self.transition, self.reward, self.start, self.horizon = transition, reward, start, horizon
        self.observation = Field((states,), torch.float32)
        self.action = Field((), torch.int64, classes=actions)

    def _draw(self, probability: Tensor, keys: Tensor) -> Tensor:
        """A state for each row of probabilities, by inverting their distribution function."""
        edges = probability.to(keys.device, torch.float64).cumsum(-1)[..., :-1]
        return (unit(keys, (1,), torch.float64) >= edges).sum(-1)

    def _see(self, state: Tensor) -> Tensor:
        return one_hot(state, len(self.start)).float()

    def reset(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """One episode's first state for each key, and what is observed of it."""
        state = self._draw(self.start, fold(keys, "start"))
        return state, self._see(state)

    def step(self, state: Tensor, action: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The next state, its observation, the reward and whether it ended (only by the horizon)."""
        where = (state.to(self.reward.device), action.to(self.reward.device))
        after = self._draw(self.transition[where], keys)
        reward = self.reward[where].to(keys.device, torch.float32)
        return after, self._see(after), reward, torch.zeros_like(after, dtype=torch.bool)
