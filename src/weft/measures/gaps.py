"""What a bound of the evidence lacks: by its family of guesses, and by the net that guesses for all rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.legal import Choice, Whole
from weft.learner.estimator import Learner
from weft.measures.rates import Mean, explaining

__all__ = ["InferenceGaps", "inference_gaps"]


@dataclass(frozen=True)
class InferenceGaps:
    """Means over rows, in nats; the gaps are paired by row.

    Attributes:
        evidence: log p(x), by many draws or by annealing: itself a lower bound in expectation.
        refined: the bound with the best guess of each row, as far as the search went.
        elbo: the bound with the guess of the model.
        approximation: evidence - refined: what no guess of the family can mend; too small as far as `evidence` is.
        amortization: refined - elbo: what a guess by itself for each row would mend.
    """

    evidence: Mean
    refined: Mean
    elbo: Mean
    approximation: Mean
    amortization: Mean


def inference_gaps(
    learner: Learner,
    X: Any,
    *,
    evidence: str = "iwae",
    draws: int = 5000,
    refine: int = 300,
    chains: int = 16,
    steps: int = 100,
    leaps: int = 5,
    **named: Any,
) -> InferenceGaps:
    """Where the bound of a model with codes loses: log p(x) - ELBO = approximation gap + amortization gap.

        log p(x) - ELBO(q*)    q* the best guess for the row within the family: KL(q* || p(z | x))
        ELBO(q*) - ELBO(q)     q the guess of the net for all rows

    q* is searched for by `refine` steps of Adam for each row, beginning with q, and evaluated by draws of its own. As
    log p(x) is bounded from below too, the approximation gap is at least what is told, up to the interval; a negative
    one says that the evidence was found badly: take more draws, or annealing.

    Args:
        learner: fitted, one model with codes.
        X: rows.
        evidence: `iwae`, the bound of `draws` weighted draws of q, or `ais`, annealed, which does not rest on q.
        draws: of `iwae`; the bounds take a tenth of it.
        refine: steps of the search.
        chains, steps, leaps: of `ais`.
        named: further fields that the model reads, by name.

    References:
        Cremer, Li and Duvenaud, "Inference suboptimality in variational autoencoders", arXiv 1801.03558.

    Example:
        >>> from weft.objectives import VAE
        >>> X = np.random.default_rng(0).normal(size=(200, 2)) @ np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
        >>> learner = Learner(VAE(2, hidden=(16,), noise=0.5), steps=50, random_state=0).fit(X)
        >>> gaps = inference_gaps(learner, X[:50], draws=1000)
        >>> gaps.elbo.value < gaps.refined.value < gaps.evidence.value, gaps.amortization.interval[0] > 0
        (True, True)
    """
    Choice("iwae", "ais").check(evidence, "evidence", "iwae")
    Whole(10).check(draws, "draws", 5000)
    Whole(1).check(refine, "refine", 300)
    model = explaining(learner, "its gaps").objective_
    if not getattr(model, "refines", False):
        raise TypeError(
            f"expected a model whose guess of a row can be searched for, such as VAE, for its gaps, got "
            f"{type(model).__name__}, whose guess has no numbers of its own for a row"
        )
    if evidence == "iwae":
        told = learner.log_prob(X, draws=draws, **named)
    else:
        told = learner.ais(X, chains=chains, steps=steps, leaps=leaps, **named)
    few = int(draws) // 10
    log_p = np.asarray(told, dtype=np.float64)
    refined = np.asarray(learner.elbo(X, draws=few, refine=refine, **named), dtype=np.float64)
    elbo = np.asarray(learner.elbo(X, draws=few, **named), dtype=np.float64)
    return InferenceGaps(
        Mean.of(log_p), Mean.of(refined), Mean.of(elbo), Mean.of(log_p - refined), Mean.of(refined - elbo)
    )
