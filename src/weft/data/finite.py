"""Finite Markov decision processes: small enough for exact answers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from weft.core.legal import Whole
from weft.core.random import fold, unit
from weft.core.source import Field

__all__ = ["FiniteMDP", "reached"]


class FiniteMDP:
    """An environment given by its tables, in which everything can also be computed exactly.

    s_0 ~ start, then s_{t+1} ~ transition[s_t, a_t] and r_t = reward[s_t, a_t] or reward[s_t, a_t, s_{t+1}]; then the
    episode ends with probability ends[s_{t+1}] or ends[s_t, a_t, s_{t+1}]. The state is observed as a one-hot row. It
    is an environment for `weft.sources.Rollouts`.

    Args:
        transition: p(s' | s, a), shape (S, A, S).
        reward: r(s, a), shape (S, A), or r(s, a, s'), shape (S, A, S).
        start: p(s_0), shape (S,); default: uniform.
        ends: whether an episode ends (truths) or with which probability: on reaching s', shape (S,), or on getting from
            s to s' by a, shape (S, A, S); default: none does. What such a state's own rows say is not played.
        horizon: steps after which an episode is cut; None where there is no limit, but then it must be able to end.

    References:
        Puterman, "Markov decision processes", 1994, section 2.1; with ends: Sutton and Barto, "Reinforcement learning:
        an introduction", 2018, section 3.3.

    Example:
        >>> from weft.core.random import fold, key_of
        >>> stay, go = torch.eye(2), torch.eye(2).flip(0)
        >>> flip = FiniteMDP(torch.stack([stay, go], 1), torch.tensor([[0.0, 1.0], [0.0, 1.0]]), horizon=4)
        >>> state, observation = flip.reset(fold(key_of(0), torch.arange(5)))
        >>> after, _, reward, _ = flip.step(state, torch.ones(5, dtype=torch.int64), fold(key_of(1), torch.arange(5)))
        >>> bool((after == 1 - state).all()), reward
        (True, tensor([1., 1., 1., 1., 1.]))
    """

    def __init__(
        self,
        transition: Tensor,
        reward: Tensor,
        *,
        start: Tensor | None = None,
        ends: Tensor | None = None,
        horizon: int | None = 10,
    ) -> None:
        if reward.dim() not in (2, 3):
            raise ValueError(f"expected reward of shape (S, A) or (S, A, S), got {tuple(reward.shape)}")
        states, actions = int(reward.shape[0]), int(reward.shape[1])
        whole = (states, actions, states)
        start = torch.full((states,), 1.0 / states) if start is None else start
        if transition.shape != whole or start.shape != (states,):
            raise ValueError(
                f"expected transition of shape {whole} and start of shape {(states,)}, as reward "
                f"has {states} states and {actions} actions, got {tuple(transition.shape)} and {tuple(start.shape)}"
            )
        if reward.dim() == 3 and reward.shape != whole:
            raise ValueError(f"expected reward of shape {whole[:2]} or {whole}, got {tuple(reward.shape)}")
        if not bool(reward.isfinite().all()):
            at = (~reward.isfinite()).nonzero()[0].tolist()
            raise ValueError(
                f"expected finite rewards, got {reward[tuple(at)].item()} at {at}; pay 0 for what never is"
            )
        for name, table in (("transition", transition), ("start", start)):
            if bool((table < 0).any()) or not torch.allclose(table.sum(-1), torch.ones_like(table.sum(-1))):
                raise ValueError(f"expected {name} to hold probabilities that sum to 1 over the last axis, got {table}")
        (Whole(1) | None).check(horizon, "FiniteMDP's horizon")
        if ends is not None:
            _check_ends(ends, (states, actions, states), start)
        self.transition, self.reward, self.start, self.ends, self.horizon = transition, reward, start, ends, horizon
        self.observation = Field((states,), torch.float32)
        self.action = Field((), torch.int64, classes=actions)
        self._copies: dict[tuple[str, torch.device], tuple[Tensor, int, Tensor]] = {}
        if horizon is None:
            self._check_endless()

    def _check_endless(self) -> None:
        """Raises where an episode can get to where it can never end, and nothing cuts it."""
        never = torch.zeros_like(self.transition) if self.ends is None else self.ends.to(self.transition)
        goes_on = (self.transition * (1 - never) > 0).any(1)
        last = (self.transition * never > 0).any(1).any(-1)
        caught = reached(goes_on, self.start > 0) & ~reached(goes_on.T, last)
        if bool(caught.any()):
            raise ValueError(
                "expected a horizon, or that an episode can end from wherever it gets to, got horizon=None and states "
                f"{caught.nonzero().flatten().tolist()[:8]} from which none can; give horizon=..., or ends"
            )

    @property
    def endless(self) -> bool:
        """Whether an episode can get to where it never ends, whatever is done, though rewards go on.

        >>> always = torch.ones(1, 1, 1)
        >>> FiniteMDP(always, torch.ones(1, 1)).endless, FiniteMDP(always, torch.zeros(1, 1)).endless
        (True, False)
        """
        never = torch.zeros_like(self.transition) if self.ends is None else self.ends.to(self.transition)
        way = (self.transition * (1 - never) > 0).any(1)
        ends = (self.transition * never > 0).any(1).any(-1)
        pays = self.reward if self.reward.dim() == 3 else self.reward.unsqueeze(-1)
        earns = ((pays != 0) & (self.transition > 0)).any(1).any(-1)
        idle = ~reached(way.T, ends | earns)  # nothing is earned there any more: as good as an end
        return bool((reached(way, self.start > 0) & ~reached(way.T, ends | idle)).any())

    def _there(self, name: str, device: torch.device) -> Tensor:
        """A table on a device: copied there once, as a step that is recorded as a graph can copy nothing."""
        table: Tensor = getattr(self, name)
        if table.device == device:
            return table
        version = 0 if table.is_inference() else table._version
        known = self._copies.get((name, device))
        if known is None or known[0] is not table or known[1] != version:
            known = self._copies[name, device] = (table, version, table.to(device))
        return known[2]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_copies": {}}

    def _draw(self, probability: Tensor, keys: Tensor) -> Tensor:
        """A state for each row of probabilities, by inverting their distribution function."""
        edges = probability.to(torch.float64).cumsum(-1)
        return (unit(keys, (1,), torch.float64) * edges[..., -1:] >= edges[..., :-1]).sum(-1)

    def _see(self, state: Tensor) -> Tensor:
        return one_hot(state, len(self.start)).float()

    def reset(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """One episode's first state for each key, and what is observed of it."""
        state = self._draw(self._there("start", keys.device), fold(keys, "start"))
        return state, self._see(state)

    def step(self, state: Tensor, action: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The next state, its observation, the reward and whether the episode has ended by itself."""
        if action.shape != state.shape:
            raise ValueError(f"expected actions of shape {tuple(state.shape)}, got {tuple(action.shape)}")
        after = self._draw(self._there("transition", keys.device)[state, action], keys)
        reward = self._there("reward", keys.device)
        paid = reward[state, action] if reward.dim() == 2 else reward[state, action, after]
        ended = torch.zeros_like(after, dtype=torch.bool)
        if self.ends is not None:
            ends = self._there("ends", keys.device)
            ended = ends[after] if ends.dim() == 1 else ends[state, action, after]
            if ended.dtype != torch.bool:
                ended = unit(fold(keys, "ends"), (), torch.float64) < ended
        return after, self._see(after), paid.to(torch.float32), ended


def _check_ends(ends: Tensor, whole: tuple[int, int, int], start: Tensor) -> None:
    """Raises where `ends` does not say of each state, or of each step, whether it ends an episode."""
    if ends.shape not in (whole[:1], whole):
        raise ValueError(f"expected ends of shape {whole[:1]} or {whole}, got {tuple(ends.shape)}")
    if ends.dtype != torch.bool and not ends.is_floating_point():
        raise TypeError(
            f"expected ends as truths (torch.bool) or probabilities, got {ends.dtype}; of the numbers of states that "
            "end an episode make truths: torch.isin(torch.arange(states), numbers)"
        )
    if not bool(((ends >= 0) & (ends <= 1)).all()):
        raise ValueError(f"expected ends to hold probabilities in [0, 1], got {ends}")
    if ends.dim() == 1 and bool(((ends == 1) & (start > 0)).any()):
        which = ((ends == 1) & (start > 0)).nonzero().flatten().tolist()
        raise ValueError(
            f"expected episodes to begin where they have not ended, got a start in states {which[:8]}, which end them; "
            "give start=... without those"
        )


def reached(way: Tensor, first: Tensor) -> Tensor:
    """Which states one can get to from any of the `first`, themselves included.

    Args:
        way: whether there is a way from one state (row) to another (column) in one step.
        first: truths.

    Example:
        >>> way = torch.tensor([[False, True, False], [False, False, False], [True, False, False]])
        >>> reached(way, torch.tensor([True, False, False]))
        tensor([ True,  True, False])
    """
    while True:
        more = first | (way & first[:, None]).any(0)
        if torch.equal(more, first):
            return first
        first = more
