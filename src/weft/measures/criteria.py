"""Criteria that charge a model for its parameters: AIC and BIC, of densities whose likelihood is exact."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from weft.learner.estimator import Learner
from weft.objectives.densities.density import Density

__all__ = ["aic", "bic"]


def aic(learner: Learner, X: Any, **named: Any) -> float:
    """Akaike's criterion of a density on the rows that it was fitted to: 2 k - 2 sum log p(x); less is better.

    It estimates, up to what all models share, twice the loss on as many new rows, where the k parameters are those of
    largest likelihood and rows are many for each.

    Args:
        learner: fitted, a density whose `log_prob` is exact and whose parameters count (`free_parameters`).
        X: the very rows of `fit`.
        named: further fields that `log_prob` reads, by name.

    References:
        Akaike, "A new look at the statistical model identification", IEEE Transactions on Automatic Control 19, 1974.

    Example:
        >>> from weft.objectives import Independent
        >>> X = np.random.default_rng(0).normal(size=(200, 2))
        >>> learner = Learner(Independent(), dtype="float64").fit(X)
        >>> round(aic(learner, X) + 2 * float(learner.log_prob(X).sum()), 6)  # two means, two deviations
        8.0
    """
    densities, parameters = _counted(learner, X, named, "AIC")
    return 2.0 * parameters - 2.0 * float(densities.sum())


def bic(learner: Learner, X: Any, **named: Any) -> float:
    """Schwarz' criterion: k log n - 2 sum log p(x), with n rows; less is better.

    Half of it is, up to what does not grow with n, -log of the evidence of the model under any smooth prior.

    Args:
        learner, X, named: as in `aic`.

    References:
        Schwarz, "Estimating the dimension of a model", Annals of Statistics 6, 1978.
    """
    densities, parameters = _counted(learner, X, named, "BIC")
    return parameters * math.log(len(densities)) - 2.0 * float(densities.sum())


def _counted(learner: Learner, X: Any, named: dict[str, Any], what: str) -> tuple[NDArray[np.float64], int]:
    """The log-density of each row, and how many parameters were estimated."""
    check_is_fitted(learner)
    objective = learner.objective_
    name = type(objective).__name__
    if not isinstance(objective, Density):
        raise TypeError(
            f"expected a density whose parameters count for {what}, got {name}, of which nobody knows how many numbers "
            "are estimated; compare on rows held out: learner.score, or bayes_factor"
        )
    if len(learner._answering()) > 1:
        raise ValueError(
            f"expected one model for {what}, got {len(learner._answering())} replicas, whose mixture has no count of "
            "parameters; ask one of them: learner.replica(0)"
        )
    kind = learner.log_prob.kind
    if kind != "exact":
        raise ValueError(
            f"expected an exact likelihood for {what}, got {kind or 'one of a kind that is not said'} from {name}: a "
            "criterion of it would prefer the looser or the luckier model; compare on rows held out: bayes_factor, "
            "which says what the difference is"
        )
    densities = np.asarray(learner.log_prob(X, **named), dtype=np.float64)
    if not np.isfinite(densities).all():
        raise ValueError(f"expected finite log-densities for {what}, got {densities[~np.isfinite(densities)][0]}")
    return densities, objective.free_parameters()
