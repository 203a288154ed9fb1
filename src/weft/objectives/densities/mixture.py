"""Mixtures of independent columns, each by its own law."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.core.legal import Choice, Number, Whole
from weft.core.objective import Solution
from weft.core.source import Spec
from weft.objectives.densities.laws import LAWS, Categorical, laws_of
from weft.objectives.densities.mixing import LOST, MIXING, Mixing, Rows, Start, first_of, spread_of

__all__ = ["Mixture"]

_NUMBERS = 2**21  # numbers that are held at once


class Mixture(Mixing):
    """A mixture whose components have independent columns, each by the law of its kind.

        p(x) = sum_k share_k prod_j p_j(x_j | theta_kj)

    with p_j normal for numbers, Bernoulli for what is true or false, categorical, Poisson for counts; or one law for
    all, such as Student's t, whose EM weighs rows down that lie far out (the precision of each number is a latent too).
    Given the component the columns are independent, so that missing values cost nothing: densities are of what is
    observed, `impute` draws from the exact conditional, both by the components' posterior.

    By EM all restarts (`replicas=50`) are solved together, the best is `learner.best_replica_`; by gradient the same
    joint density is descended, under any strategy. An anomaly score is `-log_prob`; `transform` gives the
    responsibilities p(k | x).

    Args:
        components: how many.
        law: `auto` by the columns' kinds, or one for all: normal, student, bernoulli, categorical, poisson.
        classes: of `categorical` for an array, how many there are.
        freedom: of `student`, the degrees of freedom.
        inference: `em`, or `gradient`.
        start: of EM `k-means` (`auto`), `k-means++` or `rows` (nearest to rows drawn); of a gradient `random`; or for
            both the parameters by name: `{"logits": (K,), "theta": (K, numbers)}`.
        floor: is added to each variance by EM; a gradient knows none.
        smoothing: so many imagined draws of each outcome, of laws of whole numbers, by EM; a gradient knows none.
        tolerance: the gain in mean log-likelihood at which EM ends; 0 for all iterations.
        iterations: the most of EM.

    References:
        Dempster, Laird and Rubin, "Maximum likelihood from incomplete data via the EM algorithm", JRSS B 39, 1977;
        Peel and McLachlan, "Robust mixture modelling using the t distribution", Statistics and Computing 10, 2000.

    Example:
        >>> import numpy as np
        >>> from weft import Learner
        >>> rng = np.random.default_rng(0)
        >>> kind = rng.integers(0, 2, (300, 1))
        >>> bits = (rng.random((300, 6)) < np.where(kind, 0.9, 0.1)).astype(float)
        >>> learner = Learner(Mixture(2, law="bernoulli"), dtype="float64", random_state=0).fit(bits)
        >>> learner.transform(bits[:1]).round(1).max()
        np.float64(1.0)
        >>> np.exp(learner.log_prob([[1.0, 1.0, 1.0, 1.0, 1.0, np.nan]])).round(1)
        array([0.3])
    """

    numbers = ("theta",)
    theta: nn.Parameter
    legal = {
        **MIXING,
        "law": Choice("auto", *LAWS),
        "classes": Whole(2) | None,
        "freedom": Number(0, ends="()"),
        "smoothing": Number(0),
    }

    def __init__(
        self,
        components: int = 2,
        *,
        law: str = "auto",
        classes: int | None = None,
        freedom: float = 4.0,
        inference: str = "em",
        start: Start = "auto",
        floor: float = 1e-6,
        smoothing: float = 1e-3,
        tolerance: float = 1e-6,
        iterations: int = 1000,
    ) -> None:
        super().__init__()
        self.components = components
        self.law = law
        self.classes = classes
        self.freedom = freedom
        self.inference = inference
        self.start = start
        self.floor = floor
        self.smoothing = smoothing
        self.tolerance = tolerance
        self.iterations = iterations

    def build(self, spec: Spec) -> None:
        self.entries = laws_of(spec["x"], self.law, classes=self.classes, freedom=self.freedom)
        k = self.components
        self.declare({"logits": (k,), "theta": (k, self.entries.size)}, random={"theta": 0.5})

    def log_given(self, theta: Solution, x: Tensor, observed: Tensor | None) -> Tensor:
        each = self.entries.log_prob(theta["theta"].unsqueeze(-3), x.unsqueeze(-2))
        return (each if observed is None else each * observed.unsqueeze(-2)).sum(-1)

    def draw(self, component: Tensor) -> Tensor:
        return self.entries.draw(self.theta[component], "x")

    def fill(self, x: Tensor, observed: Tensor, component: Tensor) -> Tensor:
        return torch.where(observed, x, self.draw(component))

    def step(self, shown: Rows, theta: Solution) -> tuple[Solution, Tensor, Tensor]:
        """So many replicas at a time as fit the memory, each with all its entries at once."""
        count, each = len(theta["theta"]), shown.x.shape[1] * self.components * len(self.entries)
        most, found, evidence, lost = max(1, _NUMBERS // each), [], [], []
        for a in range(0, count, most):
            block = torch.arange(a, min(a + most, count), device=shown.x.device)
            rows, own = shown.of(block), {name: value[block] for name, value in theta.items()}
            joint = own["logits"].unsqueeze(-2) + self.log_given(own, rows.x, rows.observed)
            evidence.append(torch.logsumexp(joint, -1))
            part = (joint - evidence[-1].unsqueeze(-1)).exp() * rows.weight.unsqueeze(-1)
            found.append(self._maximize(rows, part, own["theta"]))
            lost.append(self._lost(rows, found[-1]["theta"]))
        after = {name: torch.cat([one[name] for one in found]) for name in theta}
        return after, torch.cat(evidence), torch.cat(lost)

    def _maximize(self, rows: Rows, part: Tensor, theta: Tensor | None) -> Solution:
        mass = part.sum(-2).clamp_min(torch.finfo(part.dtype).tiny)
        found = self.entries.estimate(rows.x, part, rows.observed, self.floor, self.smoothing, theta)
        return {"logits": (mass / mass.sum(-1, keepdim=True)).log(), "theta": found}

    def begin(self, rows: Rows, part: Tensor) -> tuple[Solution, Tensor]:
        theta = self._maximize(rows, part, None)
        return theta, self._lost(rows, theta["theta"])

    def _lost(self, rows: Rows, theta: Tensor) -> Tensor:
        """For each replica the first component that has closed in on a single value of a density's, or -1."""
        starts = [sum(law.size for law in self.entries.laws[:j]) for j in range(len(self.entries))]
        own = [j for j, law in enumerate(self.entries.laws) if law.continuous]
        variance = (2 * theta[..., [starts[j] + 1 for j in own]]).exp()
        return first_of(~(variance >= LOST * spread_of(rows.x, rows.observed)[:, None, own]).all(-1))

    def features(self, rows: Rows) -> Tensor:
        """Numbers, roots of counts, an entry for each category; the column's mean at gaps."""
        seen = rows.observed.to(rows.x.dtype)
        columns = []
        for j, law in enumerate(self.entries.laws):
            own, there = rows.x[..., j : j + 1], seen[..., j : j + 1]
            if isinstance(law, Categorical):
                own = (own == torch.arange(law.classes, device=own.device)).to(own.dtype)
            elif law.name == "poisson":
                own = own.clamp_min(0).sqrt()
            mean = (own * there).sum(-2, keepdim=True) / there.sum(-2, keepdim=True).clamp_min(1)
            columns.append(torch.where(there > 0, own, mean))
        return torch.cat(columns, -1)

    def free_parameters(self) -> int:
        return self.components - 1 + self.components * self.entries.free
