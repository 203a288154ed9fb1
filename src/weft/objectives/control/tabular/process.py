"""A finite decision process as tensors, and what follows from it exactly: values, greedy policies, visits."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from weft.core.source import Source
from weft.core.state import State

__all__ = ["Process", "close", "leading_to", "process_of"]


class Process(NamedTuple):
    """What an episode may do, in double precision.

    Attributes:
        transition: p(s' and it goes on | s, a), (S, A, S); what is missing to 1 is the probability that it ends.
        reward: the mean reward of a in s, (S, A).
        start: p(s_0), (S,).
        ends: p(it ends | s, a), (S, A).
    """

    transition: Tensor
    reward: Tensor
    start: Tensor
    ends: Tensor

    def look(self, value: Tensor, discount: float) -> Tensor:
        """q(s, a) = r(s, a) + discount sum_s' p(s' | s, a) v(s'), for what comes after."""
        return self.reward + discount * (self.transition @ value)

    def following(self, policy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Where a policy (S, A) leads, (S, S), what it earns, (S,), and with which probability it ends, (S,)."""
        return torch.einsum("sa,sat->st", policy, self.transition), (policy * self.reward).sum(-1), self._out(policy)

    def _out(self, policy: Tensor) -> Tensor:
        return (policy * self.ends).sum(-1)

    # --- where nothing is discounted ----------------------------------------------------------------------

    def refuse_endless(self, discount: float, policy: Tensor | None = None) -> Tensor:
        """The states that earn nothing for ever; raises where discount is 1 and the values of others are infinite.

        Of a policy, or of all: then where none can end it.
        """
        way = (self.transition if policy is None else self.transition * policy[..., None]).sum(1) > 0
        out = self.ends if policy is None else self.ends * policy
        earns = (self.reward != 0 if policy is None else (self.reward != 0) & (policy > 0)).any(-1)
        stuck = ~leading_to(way, (out > 0).any(-1))
        idle = stuck & ~leading_to(way, earns)
        lost = ~leading_to(way, (out > 0).any(-1) | idle)
        if discount == 1 and bool(lost.any()):
            raise ValueError(
                f"expected discount < 1 for a task that goes on for ever, got 1, at which the values of the states "
                f"{_some(lost)} are infinite{'' if policy is None else ' under this policy'}: no end can be reached "
                "from there, and rewards go on; discount, say where episodes end (FiniteMDP's ends), or plan for a "
                "number of steps by BackwardInduction(horizon=...)"
            )
        return idle

    def resting(self, allowed: Tensor) -> Tensor:
        """Of the allowed actions, (S, A), those by which one can stay for ever where nothing is earned or lost."""
        stays = allowed & (self.reward == 0) & (self.ends == 0)
        while True:
            leaves = (self.transition * ~stays.any(-1)).sum(-1) > 0
            if not bool((stays & leaves).any()):
                return stays
            stays = stays & ~leaves

    def evaluate(self, policy: Tensor, discount: float) -> Tensor:
        """v = r_pi + discount P_pi v, by solving the linear system."""
        way, reward, _ = self.following(policy)
        counts = torch.ones_like(reward)
        if discount == 1:
            counts = (~self.refuse_endless(discount, policy)).to(reward)
        system = torch.eye(len(reward), dtype=reward.dtype, device=reward.device) - discount * way * counts[:, None]
        return torch.linalg.solve(system, reward * counts)

    def greedy(self, q: Tensor, discount: float) -> Tensor:
        """A best policy, (S, A); of equally good actions the first, or at discount 1 the first on a way to an end.

        Without that, actions that are all best may lead around in a circle for ever.
        """
        value = q.amax(-1, keepdim=True)
        best = close(q, value)
        action = best.long().argmax(-1)
        if discount == 1:
            stays = self.resting(best & close(value, torch.zeros_like(value)))
            there = stays.any(-1)
            action = torch.where(there, stays.long().argmax(-1), action)
            while True:
                leads = best & ((self.ends > 0) | ((self.transition * there).sum(-1) > 0))
                new = leads.any(-1) & ~there
                if not bool(new.any()):
                    break
                action = torch.where(new, leads.long().argmax(-1), action)
                there = there | new
        return torch.nn.functional.one_hot(action, q.shape[-1]).to(q)

    # --- the on-policy distribution -------------------------------------------------------------------------

    def visits(self, policy: Tensor, discount: float) -> Tensor:
        """sum_t discount^t p(s_t = s): a state that is held three steps counts three. Infinite where it stays."""
        way = self.following(policy)[0]
        if discount < 1:
            return torch.linalg.solve(torch.eye(len(way)).to(way) - discount * way.T, self.start)
        idle = self.refuse_endless(discount, policy)
        counts = (~idle).to(way)
        found = torch.linalg.solve(torch.eye(len(way)).to(way) - way.T * counts, self.start)
        return torch.where(idle & (found > 0), torch.inf, found * counts)

    def share(self, policy: Tensor) -> Tensor:
        """The share of all steps that is spent in each state in the long run, an episode beginning where one ends."""
        way, _, out = self.following(policy)
        way = way + out[:, None] * self.start
        way = (way + torch.eye(len(way)).to(way)) / 2  # which has the same long run, and no period
        for _ in range(64):
            before, way = way, way @ way
            way = way / way.sum(-1, keepdim=True)
            if bool((way - before).abs().max() <= 1e-15):
                break
        return self.start @ way


def process_of(source: Source, state: State) -> Process:
    """The process that a source's rows are the tables of."""
    if "transition" not in source.spec or "start" not in source.spec:
        raise ValueError(
            f"expected the tables of a finite decision process for {type(state.objective).__name__}, got "
            f"{type(source).__name__}; call fit(Tables(world))"
        )
    batches = list(source.once(state, 2**20))
    rows = {name: torch.cat([batch[name] for batch in batches]) for name in source.spec}
    states = rows["transition"].shape[-1]
    whole = {name: rows[name].double().unflatten(0, (states, -1)) for name in ("transition", "reward", "start", "ends")}
    if not bool((whole["reward"] != 0).any()):
        warnings.warn(
            f"expected rewards for {type(state.objective).__name__}, got a world that pays 0 everywhere, in which all "
            "values are 0 and every policy is best",
            stacklevel=2,
        )
    mass = whole["transition"].sum(-1) + whole["ends"]  # 1, but for rounding in single precision
    return Process(
        whole["transition"] / mass[..., None],
        whole["reward"],
        whole["start"][:, 0] / whole["start"][:, 0].sum(),
        whole["ends"] / mass,
    )


def leading_to(way: Tensor, last: Tensor) -> Tensor:
    """From which states one can get to any of the `last`, themselves included.

    >>> way = torch.tensor([[False, True, False], [False, False, False], [True, False, False]])
    >>> leading_to(way, torch.tensor([True, False, False]))
    tensor([ True, False,  True])
    """
    while True:
        more = last | (way & last).any(-1)
        if torch.equal(more, last):
            return last
        last = more


def close(one: Tensor, other: Tensor) -> Tensor:
    """Where two values are equal to rounding."""
    return (one - other).abs() <= 1e-9 * (1 + other.abs())


def _some(which: Tensor) -> str:
    numbers = which.nonzero().flatten().tolist()
    return f"{numbers[:8]}{'' if len(numbers) <= 8 else f' and {len(numbers) - 8} more'}"
