"""Policy evaluation: what a given policy is worth."""

from __future__ import annotations

import torch

from weft.core.legal import Number
from weft.core.objective import Solution
from weft.core.source import Source
from weft.core.state import State
from weft.objectives.control.tabular.given import POLICY, Given, probabilities_of, refuse_table
from weft.objectives.control.tabular.planned import Planned
from weft.objectives.control.tabular.process import process_of

__all__ = ["PolicyEvaluation"]


class PolicyEvaluation(Planned):
    """Finds what a given policy is worth in a finite decision process, by a linear system.

        v = r_pi + discount P_pi v,    r_pi(s) = sum_a pi(a | s) r(s, a),    P_pi(s, s') = sum_a pi(a | s) p(s' | s, a)

    Answers are `value`, `q`, `advantage`, `probabilities` and `visits`, about states as one-hot rows. At discount 1 an
    episode must be able to end, or to come to where nothing is earned any more; else the values are infinite, and the
    states are named.

    Args:
        policy: probabilities (S, A), a function from one-hot rows to such, or None for actions drawn evenly.
        discount: of later rewards.

    References:
        Sutton and Barto, "Reinforcement learning: an introduction", 2018, section 4.1.

    Example:
        >>> from weft import Learner
        >>> from weft.data import ShortCorridor
        >>> from weft.sources import Tables
        >>> right = 2 - 2**0.5
        >>> learner = Learner(PolicyEvaluation([[1 - right, right]] * 4)).fit(Tables(ShortCorridor()))
        >>> learner.value(torch.eye(4)[:1]).round(2)
        array([-11.66], dtype=float32)
    """

    legal = {"policy": POLICY, "discount": Number(0, 1)}

    def __init__(self, policy: Given = None, *, discount: float = 1.0) -> None:
        super().__init__()
        self.policy = policy
        self.discount = discount

    def solve(self, source: Source, state: State) -> Solution:
        """The policy's values, in double precision."""
        process = process_of(source, state)
        states, actions = process.reward.shape
        every = torch.eye(states).to(process.reward)
        policy = probabilities_of(self.policy, every, actions, "PolicyEvaluation's policy")
        refuse_table(policy, states, actions, "PolicyEvaluation's policy")
        return self.concluded(process, policy, process.evaluate(policy, self.discount))
