"""Policy iteration: evaluate, improve, again."""

from __future__ import annotations

import torch

from weft.core.configured import Range
from weft.core.legal import Number
from weft.core.objective import Iterations
from weft.core.source import Source
from weft.core.state import State
from weft.objectives.control.tabular.planned import Planned
from weft.objectives.control.tabular.process import close, process_of

__all__ = ["PolicyIteration"]


class PolicyIteration(Planned):
    """Finds the best policy of a finite decision process, by values of policies that only get better.

    Beginning with actions drawn evenly, each iteration solves v = r_pi + discount P_pi v and then, in every state where
    another action is better than what the policy does, takes the best one:

        pi(s) <- argmax_a q(s, a)    where max_a q(s, a) > v(s).

    It ends when there is no such state, after finitely many iterations, at v* = max over all policies. A record tells
    how many states have `changed`, and what the policy is `worth` from the start.

    Args:
        discount: of later rewards. At 1 episodes must be able to end, and to stay for ever must not be best.

    References:
        Howard, "Dynamic programming and Markov processes", 1960; Sutton and Barto, "Reinforcement learning: an
        introduction", 2018, section 4.3.

    Example:
        >>> import torch
        >>> from weft import Learner
        >>> from weft.data import GridWorld
        >>> from weft.sources import Tables
        >>> world = GridWorld(["...G", ".#.P", "S..."], step=-0.04, slip=0.2)
        >>> learner = Learner(PolicyIteration(discount=1.0)).fit(Tables(world))
        >>> learner.value(torch.eye(11)[[0, 7]]).round(3), learner.act(torch.eye(11)[[0, 7]])
        (array([0.812, 0.705], dtype=float32), array([1, 0]))
    """

    space = {"discount": Range(0.9, 0.999)}
    legal = {"discount": Number(0, 1)}

    def __init__(self, *, discount: float = 0.99) -> None:
        super().__init__()
        self.discount = discount

    def solve(self, source: Source, state: State) -> Iterations:
        """A record of each iteration, and the best policy with its values."""
        process = process_of(source, state)
        process.refuse_endless(self.discount)
        policy = torch.full_like(process.reward, 1.0 / process.reward.shape[1])
        while True:
            value = process.evaluate(policy, self.discount)
            q = process.look(value, self.discount)
            best = q.amax(-1)
            better = (best > value) & ~close(best, value)
            yield {"changed": better.sum().double(), "worth": process.start @ value}
            if not bool(better.any()):
                break
            policy = torch.where(better[:, None], process.greedy(q, 0.0), policy)
        self.refuse_resting(process, value)
        policy = process.greedy(q, self.discount)
        return self.concluded(process, policy, process.evaluate(policy, self.discount))
