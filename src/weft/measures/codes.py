"""How much of a code is used: active units, and whether the posterior has collapsed into the prior."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from weft.core.legal import Number
from weft.learner.estimator import Learner

__all__ = ["ActiveUnits", "active_units"]

NO_RATE = 0.01  # nats that a code tells of a row, below which it tells nothing


@dataclass(frozen=True)
class ActiveUnits:
    """What `active_units` found; `int(answer)` is the number of active units.

    Attributes:
        variances: of each entry's posterior mean over the rows, `(latent,)`.
        threshold: above which an entry is active.
        rate: the mean KL(q(z | x) || p(z)) of the rows in nats, where the model tells it, else None.
    """

    variances: NDArray[np.float64]
    threshold: float
    rate: float | None

    @property
    def active(self) -> tuple[int, ...]:
        """The numbers of the active entries, from 0."""
        return tuple(np.flatnonzero(self.variances > self.threshold).tolist())

    @property
    def collapsed(self) -> bool:
        """Whether the code tells nothing of a row: no entry is active, or the rate is below .01 nats."""
        return not self.active or (self.rate is not None and self.rate < NO_RATE)

    @property
    def conclusion(self) -> str:
        """In a sentence or two."""
        rate = "" if self.rate is None else f"; a code tells {self.rate:.3g} nats of its row on the average"
        said = f"{len(self.active)} of {len(self.variances)} entries of the code are active{rate}."
        if self.collapsed:
            said += (
                " The posterior has collapsed into the prior: the model draws rows without their codes. Raise the rate "
                "(a smaller beta, warm_up, free_bits or target_rate where the objective has them), or take a weaker "
                "decoder."
            )
        return said

    def __int__(self) -> int:
        return len(self.active)


def active_units(learner: Learner, X: Any, *, threshold: float = 0.01, **named: Any) -> ActiveUnits:
    """The entries u of a code whose posterior mean varies from row to row, A_u = Var_x(E_q[z_u | x]) > threshold.

    Those that do not are equal to the prior whatever the row, and the model draws without them. Where none is active,
    or the rate is about 0, the posterior has collapsed, which is warned of. The threshold is in units of the prior,
    whose entries are taken to have deviations of about 1; the measure is of the inference as it was trained, which may
    leave an entry unused that the decoder would use.

    Args:
        learner: fitted, of a model with latent variables: one that has draws of their `posterior` and their mean as
            `transform`. One replica.
        X: rows, as for `fit`, at least two.
        threshold: of the variance.
        named: further fields by row that `transform` reads, such as `y`.

    References:
        Burda, Grosse and Salakhutdinov, "Importance weighted autoencoders", arXiv 1509.00519, section 5.2.

    Example:
        >>> from weft.objectives import ProbabilisticPCA
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(500, 1)) * [3.0, 3.0, 3.0] + rng.normal(size=(500, 3))
        >>> int(active_units(Learner(ProbabilisticPCA(1), random_state=0).fit(X), X))
        1
    """
    check_is_fitted(learner)
    Number(0).check(threshold, "threshold", 0.01)
    offered = learner.objective_.capabilities()
    if not {"transform", "posterior"} <= offered.keys():
        raise TypeError(
            f"expected a model with latent variables, which has their posterior and its mean as transform, got "
            f"{type(learner.objective_).__name__}, which offers {', '.join(offered) or 'nothing'}; of other codes "
            "there is no prior to compare with"
        )
    means = np.asarray(learner.transform(X, **named), dtype=np.float64)
    if means.ndim != 2:
        raise ValueError(f"expected a code of numbers for each row, (n, latent), got shape {means.shape}")
    if len(means) < 2:
        raise ValueError(f"expected at least 2 rows to see how codes vary, got {len(means)}")
    rate = None
    if "rate" in offered and offered["rate"].asks == "rows":
        rate = float(np.asarray(learner.rate(X, **named), dtype=np.float64).mean())
    found = ActiveUnits(means.var(0), float(threshold), rate)
    if found.collapsed:
        warnings.warn(found.conclusion, stacklevel=2)
    return found
