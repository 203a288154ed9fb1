"""Probabilistic principal component analysis."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.legal import Choice
from weft.core.objective import Iterations, Solution
from weft.core.source import Source
from weft.core.state import State
from weft.objectives.latent.linear import LINEAR, LinearLatent

__all__ = ["ProbabilisticPCA"]


class ProbabilisticPCA(LinearLatent):
    """Principal components as a density: rows are a linear map of few latents, with the same noise in every column.

        z ~ N(0, I),    x | z ~ N(W z + mean, s^2 I),    so that    x ~ N(mean, W W' + s^2 I)

    The maximum of the likelihood is known: with l_1 >= l_2 >= ... the eigenvalues of the covariance of the rows (their
    weights counted) and u_j the eigenvectors,

        s^2 = mean of l_(k+1), ..., l_d,    column j of W = u_j sqrt(l_j - s^2)

    Where values are missing it is found by EM over what is observed. W is given along the principal axes, largest
    first. The noise is the same for all columns, so their units count: a column in thousands is a column of signal;
    `FactorAnalysis` does not mind. `transform` gives the posterior mean of z, `inverse_transform` W z + mean,
    `posterior` draws of z; densities of rows with gaps are marginals and `impute` draws from the conditional: exact.

    Args:
        latent: how many latents k, fewer than columns.
        inference: `closed`, by eigenvectors, for rows without gaps; or `em`.
        tolerance: the gain in mean log-likelihood at which EM ends; 0 for all iterations.
        iterations: the most of EM.

    References:
        Tipping and Bishop, "Probabilistic principal component analysis", JRSS B 61, 1999;
        Liu, Rubin and Wu, "Parameter expansion to accelerate EM: the PX-EM algorithm", Biometrika 85, 1998.

    Example:
        >>> import numpy as np
        >>> from weft import Learner
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(1000, 1)) * [3.0, 4.0, 0.0] + rng.normal(size=(1000, 3))
        >>> learner = Learner(ProbabilisticPCA(1), dtype="float64", random_state=0).fit(x)
        >>> w = learner.objective_.loadings.detach().numpy().flatten()
        >>> (w / np.linalg.norm(w)).round(2) + 0.0
        array([0.6 , 0.8 , 0.01])
        >>> learner.posterior(x[:2], draws=5, random_state=0).shape
        (2, 5, 1)
    """

    shared = True
    varies = False  # the noise of the others keeps the density of a constant column bounded
    legal = {**LINEAR, "inference": Choice("closed", "em")}

    def __init__(
        self, latent: int = 2, *, inference: str = "closed", tolerance: float = 1e-9, iterations: int = 10_000
    ) -> None:
        super().__init__()
        self.latent = latent
        self.inference = inference
        self.tolerance = tolerance
        self.iterations = iterations

    def solve(self, source: Source, state: State) -> Solution | Iterations:
        """By eigenvectors of the covariance or by EM, in double precision."""
        x, seen, weight, centre = self._rows(source, state)
        if self.inference == "em":
            return self._by_em(state, x, seen, weight, centre)
        if not bool(seen.all()):
            i, j = torch.nonzero(~seen)[0].tolist()
            raise ValueError(
                f"expected rows without gaps for ProbabilisticPCA(inference='closed'), got a gap in "
                f"{self.entries.names[j]} of row {i}; take inference='em', which learns from what is observed"
            )
        values, vectors = torch.linalg.eigh((weight.unsqueeze(-1) * x).mT @ x / weight.sum())
        values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
        rest = values[self.latent :]
        variance = self._noise(rest, torch.ones_like(rest), values)
        strength = (values[: self.latent] - variance).clamp_min(0).sqrt()
        return self._solution(centre, vectors[:, : self.latent] * strength, variance)

    def _noise(self, squares: Tensor, count: Tensor, spread: Tensor) -> Tensor:
        """The mean over the columns; raises where it is but rounding of the variance."""
        variance = squares.sum(0, keepdim=True) / count.sum()
        if not bool(variance > 1e-12 * spread.mean()):
            raise ValueError(
                f"expected rows that vary about every plane of {self.latent} dimension{'s' * (self.latent != 1)} for "
                f"ProbabilisticPCA, got rows that lie in one: no noise is left, and the density has no bound; take "
                "fewer latents, more rows than latents, or leave out columns that follow from others"
            )
        return variance
