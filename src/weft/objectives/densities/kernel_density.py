"""Kernel density: a mean of kernels around the rows."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.corpus import Corpus
from weft.core.legal import Choice, Flag, Number
from weft.core.objective import capability
from weft.core.random import uniform
from weft.core.source import Batch, Source, Spec
from weft.core.state import State
from weft.objectives.densities.bandwidths import RULES, adapted, cross_validated, reference_width
from weft.objectives.densities.density import Density
from weft.objectives.densities.kernels import KERNELS, log_sums
from weft.objectives.densities.numbers import moments, numbers_of
from weft.objectives.densities.rows import all_rows, weights_of

__all__ = ["KernelDensity"]

_MEASURED = 10_000  # rows up to which each is asked for its loss


class KernelDensity(Density):
    """The density around the rows: at each a kernel K, whose width follows the scale of the columns.

        p(x) = sum_i w_i / sum_j w_j  K(H^-1 (x - x_i) / l_i) / (|H| l_i^d)

    H = h diag(deviations), or h times a root of the covariance, with h by a rule; so the estimate changes with the
    units of a column as a density should, and in no other way. l_i is 1, or each row's own width. There is nothing to
    descend: the rows are kept, `log_prob` sums over all of them in blocks, and costs as many kernels as there are rows
    times those asked about. So does the loss that records tell, which of more than 10,000 rows is told from
    every so-many-th.

    Weights count rows: one of weight 2 is the row twice. Compact kernels have the density 0, a `log_prob` of -inf,
    where no row is near. Values may not be missing.

    Args:
        bandwidth: the rule by which h is found, in deviations of the columns: `scott`, n^(-1/(d+4)); `silverman`,
            (n (d+2) / 4)^(-1/(d+4)); `cv`, the likeliest when each row is left out in turn, equal ones together
            (some 30 n^2 kernels). For other kernels than the normal one they are widened as their variance and
            roughness ask. A number is h itself: the same for all columns, in their units (of a table, whose numbers are
            standardized, in deviations), and with `whiten` in roots of the covariance.
        kernel: `gaussian`; `epanechnikov`, 1 - |u|^2, or `tophat`, 1, within the unit ball.
        variable: None for one width for all rows; `abramson`, inverse to the root of a first estimate with one width;
            or `neighbours`, as the distance to the sqrt(n)-th neighbour.
        whiten: whether the kernels have the rows' full covariance, in place of the columns' deviations.

    References:
        Rosenblatt, "Remarks on some nonparametric estimates of a density function", Annals of Mathematical Statistics
        27, 1956. Silverman, "Density estimation for statistics and data analysis", 1986. Scott, "Multivariate density
        estimation", 1992. Habbema, Hermans and van den Broek, "A stepwise discriminant analysis program using density
        estimation", Compstat 1974 (leaving out). Abramson, "On bandwidth variation in kernel estimates: a square root
        law", Annals of Statistics 10, 1982. Marron and Nolan, "Canonical kernels for density estimation", Statistics
        and Probability Letters 7, 1988.

    Example:
        >>> import numpy as np
        >>> from weft import Learner
        >>> X = np.random.default_rng(0).normal(size=(500, 2)) * [1, 1000]
        >>> kernels = Learner(KernelDensity(bandwidth="silverman"), dtype="float64").fit(X)
        >>> kernels.log_prob(X[:2]).round(2), kernels.objective_.widths.round().tolist()
        (array([-8.87, -9.06]), [0.0, 344.0])
    """

    centre: Tensor
    root: Tensor
    rows: Tensor
    log_share: Tensor
    log_width: Tensor
    solved = True
    space = {"bandwidth": Range(0.03, 3.0, log=True)}  # for rows of about unit scale
    legal = {
        "bandwidth": Choice(*RULES) | Number(0, ends="()"),
        "kernel": Choice(*KERNELS),
        "variable": Choice("abramson", "neighbours") | None,
        "whiten": Flag(),
    }

    def __init__(
        self,
        *,
        bandwidth: float | str = "silverman",
        kernel: str = "gaussian",
        variable: str | None = None,
        whiten: bool = False,
    ) -> None:
        super().__init__()
        self.bandwidth = bandwidth
        self.kernel = kernel
        self.variable = variable
        self.whiten = whiten

    def build(self, spec: Spec) -> None:
        self.names = numbers_of(spec["x"], type(self).__name__)
        d = len(self.names)
        self.register_buffer("centre", torch.zeros(d))
        self.register_buffer("root", torch.eye(d))
        self.register_buffer("rows", torch.empty(0, d))
        self.register_buffer("log_share", torch.empty(0))
        self.register_buffer("log_width", torch.empty(0))

    def solve(self, source: Source, state: State) -> dict[str, Tensor]:
        given = all_rows(source, state)
        weight = weights_of(given).double()
        x = given["x"].double()[weight > 0]
        self.refuse_constant(x, self.names)
        x, place = torch.unique(x, dim=0, return_inverse=True)
        weight = weight.new_zeros(len(x)).index_add(0, place, weight[weight > 0])
        centre, covariance = moments(x, weight)
        root = self._scale(covariance)
        z = torch.linalg.solve_triangular(root, (x - centre).T, upper=False).T
        width = self._width(z, weight)
        z, root = z / width, root * width
        log_width = adapted(self.variable, KERNELS[self.kernel], z, weight)
        log_share = weight.log() - weight.sum().log()
        return {"centre": centre, "root": root, "rows": z, "log_share": log_share, "log_width": log_width}

    def _scale(self, covariance: Tensor) -> Tensor:
        """What rows are measured by before h: a lower triangle."""
        if not self.whiten:
            one = not isinstance(self.bandwidth, str)
            return torch.eye(len(covariance)).to(covariance) if one else covariance.diagonal().sqrt().diag()
        root, failed = torch.linalg.cholesky_ex(covariance)
        spread = covariance.diagonal().sqrt()
        if bool(failed) or bool((root.diagonal() < 1e-6 * spread).any()):
            j = int(failed) - 1 if bool(failed) else int((root.diagonal() / spread).argmin())
            raise ValueError(
                f"expected columns of which none is a linear function of the others, for whiten=True, got "
                f"{self.names[j]}, which is one; leave it out, or set whiten=False"
            )
        return root

    def _width(self, z: Tensor, weight: Tensor) -> float:
        if not isinstance(self.bandwidth, str):
            return float(self.bandwidth)
        kernel, d = KERNELS[self.kernel], z.shape[1]
        width = reference_width(self.bandwidth, float(weight.sum()), d) * kernel.canonical(d)
        return cross_validated(kernel, z, weight, width) if self.bandwidth == "cv" else width

    @property
    def widths(self) -> Tensor:
        """The bandwidth along each column, in its units as the model reads them."""
        return self.root.square().sum(1).sqrt()

    def measure(self, batch: Batch) -> Mapping[str, Tensor | Corpus]:
        every = math.ceil(len(self.rows) / _MEASURED) or 1
        losses = torch.zeros_like(batch["x"][:, 0])
        told = losses.clone()
        losses[::every] = -self.log_prob(batch["x"][::every])
        told[::every] = 1.0
        return {"loss": Corpus(sums={"loss": losses, "rows": told}, conclude=_mean)}

    @capability(merge="logmeanexp", kind="exact", gives="density")
    def log_prob(self, x: Tensor) -> Tensor:
        """log p of each row, summed over all kernels."""
        kernel, root = KERNELS[self.kernel], self.root.double()
        z = torch.linalg.solve_triangular(root, (x.double() - self.centre.double()).T, upper=False).T
        norm = kernel.log_norm(x.shape[1]) + root.diagonal().log().sum()
        return (log_sums(kernel, z, self.rows, self.log_share, self.log_width) - norm).to(x.dtype)

    @capability(merge="share", kind="direct")
    def sample(self, n: int) -> Tensor:
        """A row, drawn by weight, and a draw of its kernel."""
        share = self.log_share.double().exp().cumsum(0)
        u = uniform((n,), place="row", dtype=torch.float64) * share[-1]
        chosen = torch.searchsorted(share, u, right=True).clamp_max(len(share) - 1)
        away = KERNELS[self.kernel].draw(n, self.rows.shape[1], self.rows.dtype)
        z = self.rows[chosen] + self.log_width[chosen].exp()[:, None] * away
        return self.centre + z @ self.root.T

    def free_parameters(self) -> int:
        """Refused: the rows themselves are what is known, so that AIC and BIC say nothing."""
        raise ValueError(
            "expected a model with a number of parameters, got KernelDensity, which keeps its rows; compare models by "
            "log_prob of rows that were held out"
        )


def _mean(sums: Mapping[str, Tensor]) -> Tensor:
    return sums["loss"] / sums["rows"]
