"""A small random process in which all is known: every trajectory with its probability, and what a policy earns."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from weft.core.random import key_of, unit
from weft.data import FiniteMDP

STATES, ACTIONS, HORIZON = 4, 3, 3


def process(seed: int) -> FiniteMDP:
    """Transitions, rewards and start drawn from the seed."""
    key = key_of(seed)
    draw = unit(key, (STATES * ACTIONS * (STATES + 1) + STATES,), torch.float64)
    transition, reward, start = draw.split([STATES * ACTIONS * STATES, STATES * ACTIONS, STATES])
    transition = transition.reshape(STATES, ACTIONS, STATES)
    transition = transition / transition.sum(-1, keepdim=True)
    return FiniteMDP(transition, 4 * reward.reshape(STATES, ACTIONS) - 1, start=start / start.sum(), horizon=HORIZON)


def expected_return(mdp: FiniteMDP, policy: Tensor, discount: float) -> Tensor:
    """The discounted return that a policy (states by actions) can expect, by the backward recursion for values."""
    value = torch.zeros(STATES, dtype=torch.float64)
    for _ in range(HORIZON):
        value = (policy * (mdp.reward + discount * mdp.transition @ value)).sum(-1)
    return mdp.start @ value


def all_ways(mdp: FiniteMDP, policy: Tensor) -> dict[str, Any]:
    """Every trajectory, its probability as its weight."""
    ways = torch.tensor(list(itertools.product(*[range(STATES), range(ACTIONS)] * HORIZON)))
    s, a = ways[:, 0::2], ways[:, 1::2]
    chance = mdp.start[s[:, 0]] * policy[s, a].prod(1) * mdp.transition[s[:, :-1], a[:, :-1], s[:, 1:]].prod(1)
    return {
        "observation": one_hot(s, STATES).double(),
        "action": a,
        "reward": mdp.reward[s, a],
        "mask": torch.ones(s.shape, dtype=torch.float64),
        "weight": chance,
    }
