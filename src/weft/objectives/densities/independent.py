"""Independent columns, each by its own law, in closed form."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.core.legal import Choice, Number, Whole
from weft.core.objective import Solution, capability
from weft.core.source import Source, Spec
from weft.core.state import State
from weft.objectives.densities.density import Density
from weft.objectives.densities.laws import LAWS, Laws, laws_of
from weft.objectives.densities.rows import all_rows, refuse_rows, shared, weights_of

__all__ = ["Independent"]


class Independent(Density):
    """Every column by the law of its kind, independent of the others: p(x) = prod_j p_j(x_j).

    The laws' parameters are those of largest likelihood, in closed form. It is what other densities of a table have to
    beat, and given a class it is naive Bayes. What is missing costs nothing.

    Args:
        law: `auto` by the columns' kinds (normal, bernoulli, categorical, poisson), or one of these for all.
        classes: of `categorical` for an array, how many there are.
        floor: is added to each variance.
        smoothing: so many imagined draws of each outcome, of laws of whole numbers: maximum a posteriori under a
            Dirichlet prior. With 0, an outcome that was never seen has no probability, and is refused.

    References:
        Bishop, "Pattern recognition and machine learning", 2006, chapter 2.

    Example:
        >>> import numpy as np
        >>> from weft import Learner
        >>> flips = np.array([[1.0], [1.0], [0.0]])
        >>> learner = Learner(Independent(law="bernoulli", smoothing=0.0), dtype="float64").fit(flips)
        >>> np.exp(learner.log_prob([[1.0]])).round(3)
        array([0.667])
    """

    solved = True
    entries: Laws
    solves = "together"
    gaps = True
    legal = {
        "law": Choice("auto", *(law for law in LAWS if law != "student")),
        "classes": Whole(2) | None,
        "floor": Number(0),
        "smoothing": Number(0),
    }

    def __init__(
        self, *, law: str = "auto", classes: int | None = None, floor: float = 0.0, smoothing: float = 1e-3
    ) -> None:
        super().__init__()
        self.law = law
        self.classes = classes
        self.floor = floor
        self.smoothing = smoothing

    @property
    def varies(self) -> bool:  # type: ignore[override]
        return not self.floor

    def build(self, spec: Spec) -> None:
        self.entries = laws_of(spec["x"], self.law, classes=self.classes)
        self.theta = nn.Parameter(torch.zeros(self.entries.size))

    def solve(self, source: Source, state: State) -> Solution:
        """The laws' parameters, in double precision, for all replicas."""
        taken = all_rows(source, state)
        x, observed, weight = taken["x"].double(), taken["observed"], weights_of(taken, 2).double()
        varying = [j for j, law in enumerate(self.entries.laws) if law.continuous] if not self.floor else []
        refuse_rows(type(self).__name__, shared(x), shared(observed), shared(weight), varying, self.entries.names)
        theta = self.entries.estimate(x, weight.unsqueeze(-1), observed, self.floor, self.smoothing).squeeze(-2)
        if not bool(torch.isfinite(theta).all()):
            raise ValueError(
                "expected every outcome at least once, got one that never came, whose probability would be 0: give "
                "smoothing=1 (one imagined draw of each outcome), or leave the column out"
            )
        return {"theta": theta}

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x: Tensor, observed: Tensor) -> Tensor:
        """The sum of the columns' log-densities, over what is observed."""
        return (self.entries.log_prob(self.theta, x) * observed).sum(-1)

    @capability(merge="share", kind="direct")
    def sample(self, n: int) -> Tensor:
        """Rows drawn from it."""
        return self.entries.draw(self.theta.expand(n, -1), "x")

    @capability(merge="share", kind="direct", asks="rows")
    def impute(self, x: Tensor, observed: Tensor) -> Tensor:
        """Rows whose gaps are drawn, whatever is observed of the others."""
        return torch.where(observed, x, self.sample(len(x)))

    def free_parameters(self) -> int:
        return self.entries.free
