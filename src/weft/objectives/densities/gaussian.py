"""The Gaussian: one normal law for whole rows, in closed form."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.core.configured import Range
from weft.core.legal import Choice, Number, Whole
from weft.core.objective import Iterations, Solution, capability
from weft.core.random import normal
from weft.core.source import Source, Spec
from weft.core.state import State
from weft.objectives.densities.density import Density
from weft.objectives.densities.laws import Laws, laws_of
from weft.objectives.densities.normals import (
    Patterns,
    collapsed,
    covariance_of,
    factor_of,
    filled,
    gathered,
    log_normal,
    packed,
)
from weft.objectives.densities.rows import all_rows, refuse_rows, weights_of

__all__ = ["Gaussian"]


class Gaussian(Density):
    """A normal law N(mean, C) for rows of numbers, by maximum likelihood.

    In closed form where nothing is missing:

        mean = sum_i w_i x_i / W,    C = (sum_i w_i (x_i - mean)(x_i - mean)' + prior I) / (W + prior) + floor I

    with the rows' weights w_i and their sum W. Where values are missing, by EM over them: each row counts by what is
    expected of it given its observed entries. Densities of rows with gaps are marginals, `impute` draws from the
    conditional, both exact. An anomaly score is `-log_prob`.

    Args:
        covariance: `full`, or `diagonal` for independent columns.
        floor: is added to every variance.
        prior: so many imagined rows of unit covariance: the mode under an inverse Wishart prior in place of maximum
            likelihood (maximum a posteriori).
        tolerance: with gaps, the gain in mean log-likelihood at which EM ends.
        iterations: with gaps, the most iterations of EM.

    References:
        Dempster, Laird and Rubin, "Maximum likelihood from incomplete data via the EM algorithm", JRSS B 39, 1977.

    Example:
        >>> import numpy as np
        >>> from weft import Learner
        >>> x = np.random.default_rng(0).normal(size=(500, 1)) * [1.0, 2.0] + [0.0, 1.0]
        >>> learner = Learner(Gaussian(), dtype="float64").fit(x)  # the columns are one number and twice it
        Traceback (most recent call last):
            ...
        ValueError: expected columns that do not follow from one another for Gaussian, got column 1 as a linear ...
        >>> learner = Learner(Gaussian(floor=0.1), dtype="float64", random_state=0).fit(x)
        >>> learner.impute(np.array([[1.0, np.nan]]), random_state=0).shape
        (1, 2)
    """

    solved = True
    gaps = True
    entries: Laws
    space = {"floor": Range(1e-6, 1e-1, log=True)}
    legal = {
        "covariance": Choice("full", "diagonal"),
        "floor": Number(0),
        "prior": Number(0),
        "tolerance": Number(0),
        "iterations": Whole(1),
    }

    def __init__(
        self,
        *,
        covariance: str = "full",
        floor: float = 0.0,
        prior: float = 0.0,
        tolerance: float = 1e-9,
        iterations: int = 1000,
    ) -> None:
        super().__init__()
        self.covariance = covariance
        self.floor = floor
        self.prior = prior
        self.tolerance = tolerance
        self.iterations = iterations

    @property
    def full(self) -> bool:
        """Whether columns may depend on each other."""
        return self.covariance == "full"

    def build(self, spec: Spec) -> None:
        self.entries = laws_of(spec["x"], "normal" if not spec["x"].columns else "auto")
        self.entries.refuse_others("normal", type(self).__name__)
        (d,) = spec["x"].shape
        self.mean = nn.Parameter(torch.zeros(d))
        self.scale = nn.Parameter(torch.zeros(d, d) if self.full else torch.zeros(d))

    def solve(self, source: Source, state: State) -> Solution | Iterations:
        """Mean and covariance, in double precision."""
        rows = all_rows(source, state)
        x, weight, seen = rows["x"].double(), weights_of(rows).double(), rows["observed"]
        refuse_rows(type(self).__name__, x, seen, weight, list(range(x.shape[1])), self.entries.names)
        count = (weight[:, None] * seen).sum(0)
        mean = (weight[:, None] * x).sum(0) / count
        variance = (weight[:, None] * seen * (x - mean) ** 2).sum(0)
        if not self.full:
            spread = self._regular(variance, count)
            return {"mean": mean, "scale": 0.5 * spread.log()}
        if bool(seen.all()):
            away = x - mean
            return self._solution(mean, (weight[:, None] * away).mT @ away, weight.sum())
        return self._by_em(x, seen, weight, mean, variance / count)

    def _by_em(self, x: Tensor, seen: Tensor, weight: Tensor, mean: Tensor, variance: Tensor) -> Iterations:
        """From the columns' own means and variances."""
        patterns, total, last = Patterns(x, seen), weight.sum(), -torch.inf
        found = {"mean": mean, "scale": torch.diag_embed(0.5 * variance.log())}
        for _ in range(self.iterations):
            centre, covariance = found["mean"], covariance_of(found["scale"], True)
            moments = gathered(
                patterns, weight, x.new_zeros(1, 1), centre[None, None], covariance[None, None]
            )  # one component of one replica
            moved = moments.first[0, 0] / total
            found = self._solution(centre + moved, moments.second[0, 0] - total * torch.outer(moved, moved), total)
            now = float((weight * moments.evidence[0]).sum() / total)
            yield {"log_likelihood": now}
            if abs(now - last) <= self.tolerance:
                break
            last = now
        return found

    def _regular(self, squares: Tensor, total: Tensor) -> Tensor:
        """Variances of sums of squares."""
        return (squares + self.prior) / (total + self.prior) + self.floor

    def _solution(self, mean: Tensor, squares: Tensor, total: Tensor) -> Solution:
        eye = torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
        covariance = (squares + self.prior * eye) / (total + self.prior) + self.floor * eye
        factor, lost = collapsed(covariance)
        if int(lost) >= 0:
            raise ValueError(
                f"expected columns that do not follow from one another for {type(self).__name__}, got "
                f"{self.entries.names[int(lost)]} as a linear function of those before it in the {total:g} rows, so "
                "that the density has no bound; leave it out, give more rows than columns, a floor (floor=1e-6) or a "
                "prior (prior=1), or take covariance='diagonal'"
            )
        return {"mean": mean, "scale": packed(factor)}

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x: Tensor, observed: Tensor) -> Tensor:
        """log N(x; mean, C) of each row's observed entries."""
        return log_normal(x, observed, self.mean[None], self.scale[None], self.full).squeeze(-1)

    @capability(merge="share", kind="direct")
    def sample(self, n: int) -> Tensor:
        """Rows drawn from it."""
        z = normal((n, len(self.mean)), place="x", dtype=self.mean.dtype)
        return self.mean + (z @ factor_of(self.scale).mT if self.full else z * self.scale.exp())

    @capability(merge="share", kind="direct", asks="rows")
    def impute(self, x: Tensor, observed: Tensor) -> Tensor:
        """Rows whose gaps are drawn given what is observed."""
        return filled(x, observed, self.sample(len(x)), covariance_of(self.scale, self.full))

    def free_parameters(self) -> int:
        d = len(self.mean)
        return d + (d * (d + 1) // 2 if self.full else d)
