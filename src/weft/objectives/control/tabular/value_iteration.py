"""Value iteration: the optimality equation, applied again and again."""

from __future__ import annotations

import torch

from weft.core.configured import Range
from weft.core.legal import Number, Whole
from weft.core.objective import Iterations
from weft.core.source import Source
from weft.core.state import State
from weft.objectives.control.tabular.planned import Planned
from weft.objectives.control.tabular.process import process_of

__all__ = ["ValueIteration"]


class ValueIteration(Planned):
    """Finds the best policy of a finite decision process, by sweeps of the optimality equation.

        v <- T v,    (T v)(s) = max_a r(s, a) + discount sum_s' p(s' | s, a) v(s'),    from v = 0.

    T is a contraction, max |T v - T w| <= discount max |v - w|, so that the largest `change` of a sweep, which a record
    tells, falls by that factor or faster, and there is one fixed point, v*. It ends when v* is known to `tolerance`:
    when the change is at most tolerance (1 - discount) / (2 discount); at discount 1, at most the tolerance. Of the
    best policies, of which there may be several, one answers: in every state the first of the best actions.

    Args:
        discount: of later rewards. At 1 episodes must be able to end.
        tolerance: how far the values may be from the best ones.
        sweeps: after so many it is given up, with an error that names the states whose values still move.

    References:
        Bellman, "A Markovian decision process", Journal of Mathematics and Mechanics 6, 1957; Puterman, "Markov
        decision processes", 1994, section 6.3.

    Example:
        >>> import torch
        >>> from weft import Learner
        >>> from weft.data import FrozenLake
        >>> from weft.sources import Tables
        >>> learner = Learner(ValueIteration(discount=0.99)).fit(Tables(FrozenLake()))
        >>> learner.value(torch.eye(16)[:1]).round(3)
        array([0.542], dtype=float32)
    """

    space = {"discount": Range(0.9, 0.999)}
    legal = {"discount": Number(0, 1), "tolerance": Number(0, ends="()"), "sweeps": Whole(1)}

    def __init__(self, *, discount: float = 0.99, tolerance: float = 1e-8, sweeps: int = 100_000) -> None:
        super().__init__()
        self.discount = discount
        self.tolerance = tolerance
        self.sweeps = sweeps

    def solve(self, source: Source, state: State) -> Iterations:
        """A record of each sweep, and the best policy with its values."""
        process, discount = process_of(source, state), self.discount
        process.refuse_endless(discount)
        small = self.tolerance * (1 - discount) / (2 * discount) if 0 < discount < 1 else self.tolerance
        value = torch.zeros_like(process.start)
        for _ in range(self.sweeps):
            before, value = value, process.look(value, discount).amax(-1)
            change = (value - before).abs()
            yield {"change": change.max(), "worth": process.start @ value}
            if bool(change.max() <= max(small, 4e-16 * float(value.abs().max()))):
                break
        else:
            moving = (change > small).nonzero().flatten().tolist()
            raise ValueError(
                f"expected values that settle within {self.sweeps} sweeps, got states {moving[:8]} that still change "
                f"by {float(change.max()):.2g}; {'discount: ' if discount == 1 else ''}rewards may go on for ever "
                "there, or give sweeps=..."
            )
        return self.concluded(process, process.greedy(process.look(value, discount), discount), value)
