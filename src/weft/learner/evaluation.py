"""What a policy earns: the returns of episodes, their mean and its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.learner.questions import student

__all__ = ["Evaluation"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a policy earns in fresh episodes, with the interval of the mean.

    The interval is Student's t: of one trained policy over its episodes, and it says what other episodes of the same
    policy have on the average; of several replicas over their means, and it says what other trainings of the same kind
    have. It is as good as the mean of so many is normal.

    Attributes:
        mean: of the returns.
        interval: of the mean; None where there is only one to tell from.
        level: of the interval.
        returns: of each episode, `(episodes,)`, or `(replicas, episodes)`.
        lengths: steps of each.
        truncated: whether each was cut, and not ended by itself.
        bound: a return that is asked for, or None.
        replicas: the numbers of those that played, one for each row of the returns; empty where there are no rows.

    Example:
        >>> returns = np.array([1.0, 3.0, 2.0, 2.0])
        >>> Evaluation.of(returns, np.array([5, 5, 4, 4]), returns > 2.5, bound=2.0)
        2 (95% interval 0.7008 to 3.299 over 4 episodes; 75% at or above 2; 1 cut)
    """

    mean: float
    interval: tuple[float, float] | None
    level: float
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    bound: float | None
    replicas: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        returns: NDArray[np.float64],
        lengths: NDArray[np.int64],
        truncated: NDArray[np.bool_],
        bound: float | None = None,
        level: float = 0.95,
        replicas: tuple[int, ...] = (),
    ) -> Evaluation:
        """From what was played."""
        several = returns.ndim == 2 and len(returns) > 1
        each = returns.mean(1) if several else returns.reshape(-1)
        mean, interval = float(returns.mean()), None
        if len(each) > 1:
            wide = student(level, len(each) - 1) * float(each.std(ddof=1)) / math.sqrt(len(each))
            interval = (mean - wide, mean + wide)
        return cls(mean, interval, level, returns, lengths, truncated, bound, replicas)

    @property
    def means(self) -> NDArray[np.float64]:
        """The mean return of each replica."""
        return np.asarray(self.returns.reshape(-1, self.returns.shape[-1]).mean(1))

    @property
    def share(self) -> float | None:
        """The share of episodes at or above the bound, where there is one."""
        return None if self.bound is None else float((self.returns >= self.bound).mean())

    @property
    def cut(self) -> int:
        """How many episodes were cut."""
        return int(self.truncated.sum())

    def __float__(self) -> float:
        return self.mean

    def __repr__(self) -> str:
        count = self.returns.shape[-1]
        among = f"{count:,} episode{'s' if count > 1 else ''}"
        if len(self.means) > 1:
            among = f"{len(self.means)} replicas of {among}"
        span = ""
        if self.interval is not None:
            span = f"{100 * self.level:g}% interval {self.interval[0]:.4g} to {self.interval[1]:.4g} over "
        share = "" if self.share is None else f"; {100 * self.share:.4g}% at or above {self.bound:g}"
        return f"{self.mean:.4g} ({span}{among}{share}{f'; {self.cut:,} cut' if self.cut else ''})"
