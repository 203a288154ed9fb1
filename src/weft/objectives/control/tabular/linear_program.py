"""The linear program of a finite decision process, whose dual are the visits."""

from __future__ import annotations

import numpy as np
import torch

from weft.core.configured import Range
from weft.core.legal import Number
from weft.core.objective import Solution
from weft.core.source import Source
from weft.core.state import State
from weft.objectives.control.tabular.planned import Planned
from weft.objectives.control.tabular.process import process_of

__all__ = ["LinearProgram"]


class LinearProgram(Planned):
    """Finds the best policy of a finite decision process, by the smallest values that no action exceeds.

        min_v sum_s v(s)    such that    v(s) >= r(s, a) + discount sum_s' p(s' | s, a) v(s')    for all s and a

    The multipliers of the inequalities are the discounted visits of (s, a) by a best policy that begins everywhere.
    It is solved by scipy's HiGHS.

    Args:
        discount: of later rewards. At 1 episodes must be able to end, and to stay for ever must not be best.

    References:
        d'Epenoux, "A probabilistic production and inventory problem", Management Science 10, 1963; Puterman, "Markov
        decision processes", 1994, section 6.9.

    Example:
        >>> from weft import Learner
        >>> from weft.data import Taxi
        >>> from weft.sources import Tables
        >>> learner = Learner(LinearProgram(discount=0.9)).fit(Tables(Taxi()))
        >>> bool(learner.evaluate(Taxi(), 50).returns.min() > 0)
        True
    """

    space = {"discount": Range(0.9, 0.999)}
    legal = {"discount": Number(0, 1)}

    def __init__(self, *, discount: float = 0.99) -> None:
        super().__init__()
        self.discount = discount

    def solve(self, source: Source, state: State) -> Solution:
        """The best policy with its values."""
        from scipy.optimize import linprog
        from scipy.sparse import csr_array

        process = process_of(source, state)
        idle = process.refuse_endless(self.discount)
        states, actions = process.reward.shape
        here = torch.eye(states).to(process.reward).repeat_interleave(actions, 0)
        exceeds = self.discount * process.transition.flatten(0, 1) - here
        free = (None, None)
        found = linprog(
            np.ones(states),
            A_ub=csr_array(exceeds.cpu().numpy()),
            b_ub=-process.reward.flatten().cpu().numpy(),
            bounds=[(0, 0) if self.discount == 1 and still else free for still in idle.tolist()],
            method="highs",
        )
        if found.status != 0:
            raise ValueError(
                f"expected a linear program with a solution, got none: {found.message}; at discount 1 rewards may go "
                "on for ever: discount"
            )
        value = torch.as_tensor(found.x).to(process.reward)
        policy = process.greedy(process.look(value, self.discount), self.discount)
        self.refuse_resting(process, value)
        return self.concluded(process, policy, process.evaluate(policy, self.discount))
