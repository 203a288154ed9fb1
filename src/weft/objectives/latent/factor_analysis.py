"""Factor analysis."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from weft.core.legal import Number
from weft.core.objective import Iterations, Solution
from weft.core.source import Source
from weft.core.state import State
from weft.objectives.latent.linear import LINEAR, LinearLatent

__all__ = ["FactorAnalysis"]


class FactorAnalysis(LinearLatent):
    """Few latents explain what columns have in common, and each column has noise of its own.

        z ~ N(0, I),    x | z ~ N(W z + mean, diag(psi)),    so that    x ~ N(mean, W W' + diag(psi))

    By EM over what is observed. Given the latents each column is a regression of its own on (z, 1), over the rows that
    tell of it,

        (W_j, mean_j) = (sum_i w_i E[(z, 1)(z, 1)'])^-1 sum_i w_i x_ij E[(z, 1)],  psi_j = the expected mean square left

    and the likelihood never falls. It may have several maxima (`replicas=10` begins at as many places, the best is
    `learner.best_replica_`), and one where a column has no noise (a Heywood case), which is said. W is given so that
    W' diag(psi)^-1 W is diagonal, largest first. With (d - k)^2 < d + k, for d columns and k latents, the covariance
    does not tell W from psi: the density is still that of the maximum, its parts are one choice of many. The units of
    columns do not matter. `transform` gives the posterior mean of z, `inverse_transform` W z + mean, `posterior` draws
    of z; densities of rows with gaps are marginals and `impute` draws from the conditional, all exact.

    Args:
        latent: how many latents k, fewer than columns.
        floor: the least noise of a column, as a share of its variance.
        tolerance: the gain in mean log-likelihood at which EM ends; 0 for all iterations.
        iterations: the most of EM.

    References:
        Rubin and Thayer, "EM algorithms for ML factor analysis", Psychometrika 47, 1982;
        Liu, Rubin and Wu, "Parameter expansion to accelerate EM: the PX-EM algorithm", Biometrika 85, 1998.

    Example:
        >>> import numpy as np
        >>> from weft import Learner
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(2000, 1)) + rng.normal(size=(2000, 4)) * [0.5, 1.0, 1.5, 2.0]
        >>> learner = Learner(FactorAnalysis(1), dtype="float64", random_state=0).fit(x)
        >>> learner.objective_.log_scale.exp().detach().numpy().round(1)  # of the noise
        array([0.5, 1. , 1.5, 2. ])
    """

    legal = {**LINEAR, "floor": Number(0, 1, "()")}

    def __init__(
        self, latent: int = 2, *, floor: float = 1e-6, tolerance: float = 1e-9, iterations: int = 10_000
    ) -> None:
        super().__init__()
        self.latent = latent
        self.floor = floor
        self.tolerance = tolerance
        self.iterations = iterations

    def solve(self, source: Source, state: State) -> Iterations:
        """EM, in double precision."""
        x, seen, weight, centre = self._rows(source, state)
        found: Solution = (yield from self._by_em(state, x, seen, weight, centre)) or {}
        mass = weight.unsqueeze(-1) * seen
        spread = (mass * x**2).sum(0) / mass.sum(0)
        low = torch.exp(2 * found["log_scale"]) <= 1.001 * self.floor * spread
        if bool(low.any()):
            j = int(torch.nonzero(low)[0, 0])
            warnings.warn(
                f"the noise of {self.entries.names[j]} sits on the floor of FactorAnalysis, {self.floor:g} of its "
                "variance (a Heywood case): the latents follow that column, and the likelihood tells of the floor; "
                "take fewer latents, a larger floor, or leave out columns that follow from others",
                stacklevel=2,
            )
        return found

    def _noise(self, squares: Tensor, count: Tensor, spread: Tensor) -> Tensor:
        return torch.maximum(squares / count, self.floor * spread)
