"""Rate and distortion of models with codes, the curve that a sweep draws, and what it says of the information."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from weft.core.legal import Number, Whole
from weft.learner.asking import Question
from weft.learner.estimator import Learner
from weft.objectives.latent.explained import Explained
from weft.scores.predictions import mean_interval

__all__ = ["Mean", "RateDistortion", "RateDistortionPoint", "explaining", "rate_distortion"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Mean:
    """A mean over rows, with Student's interval of 95%; `float(mean)` is its value.

    >>> Mean.of(np.array([1.0, 2.0, 3.0]))
    2 (-0.484 to 4.48)
    """

    value: float
    interval: tuple[float, float]

    @classmethod
    def of(cls, rows: Array) -> Mean:
        """Of one number for each row."""
        return cls(float(rows.mean()), mean_interval(rows))

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"{self.value:.3g} ({self.interval[0]:.3g} to {self.interval[1]:.3g})"


@dataclass(frozen=True)
class RateDistortionPoint:
    """One model.

    Attributes:
        setting: what sets it apart from the others of a sweep, by name; of learners in a list their place in it.
        beta: what it was told that a nat of rate costs, where it was told.
        rate, distortion, elbo: in nats, means over rows; elbo = -rate - distortion.
        slope: -dD/dR from this point to the next one of larger rate, with an interval over rows, to first order; None
            of the last, and where the rates of both do not differ by more than chance.
        information: H - D and R, between which I(X; Z) under its encoder lies; the former is -inf where H is not told.
    """

    setting: dict[str, Any]
    beta: float | None
    rate: Mean
    distortion: Mean
    elbo: Mean
    slope: Mean | None
    information: tuple[float, float]


@dataclass(frozen=True)
class RateDistortion:
    """Models in order of their rates. `print` it for a table; `weft.bench.rate_distortion_picture` draws it.

    Attributes:
        points: of each model.
        entropy: H of the data in nats, where it was told.
        rows: over which means were taken.
    """

    points: list[RateDistortionPoint]
    entropy: float | None
    rows: int

    def __str__(self) -> str:
        lines = [f"{'beta':>8} {'rate':>9} {'distortion':>11} {'elbo':>9} {'-dD/dR':>9}"]
        for p in self.points:
            beta = "" if p.beta is None else f"{p.beta:g}"
            slope = "" if p.slope is None else f"{p.slope.value:.3f}"
            lines.append(f"{beta:>8} {p.rate.value:9.3f} {p.distortion.value:11.3f} {p.elbo.value:9.3f} {slope:>9}")
        return "\n".join(lines)


def rate_distortion(
    learners: Learner | Sequence[Learner], X: Any, *, entropy: float | None = None, draws: int = 64, **named: Any
) -> RateDistortion:
    """What the codes of models cost and what they leave untold, for each of a sweep.

        R = E KL(q(z | x) || p(z)),    D = -E log p(x | z),    ELBO = -D - R,    H - D <= I(X; Z) <= R,

    where I is the information that the encoder's codes have of rows, whatever the decoder and the prior. Models of one
    ELBO lie on a line D + R and may differ in all they tell. Those of the least D at each R form a convex curve, on
    which beta, what a nat of rate costs, is -dD/dR; between two of its points the slope lies between their betas. No
    model lies below D + R = H or left of R = 0, nor, where rows are discrete, below D = 0.

    Args:
        learners: fitted; one with replicas, such as those of a sweep `replicas={"objective__beta": [...]}`, which are
            taken one by one, or several.
        X: rows to measure by; of those learned from, D + R is too low.
        entropy: H of the data in nats (of a density the differential one, in the units of X), where it is known.
        draws: codes for each row.
        named: further fields that the models read, by name.

    References:
        Alemi, Poole, Fischer, Dillon, Saurous and Murphy, "Fixing a broken ELBO", arXiv 1711.00464.

    Example:
        >>> from weft import Optimizer
        >>> from weft.objectives import VAE
        >>> X = np.random.default_rng(0).normal(size=(300, 1)) @ np.ones((1, 3))
        >>> made = {"steps": 200, "optimizer": Optimizer("adam", lr=0.02), "random_state": 0}
        >>> each = [Learner(VAE(1, hidden=(8,), noise=0.5, beta=b), **made).fit(X) for b in (4.0, 0.5)]
        >>> curve = rate_distortion(each, X)
        >>> [p.beta for p in curve.points], 0.5 < curve.points[0].slope.value < 4
        ([4.0, 0.5], True)
    """
    Whole(1).check(draws, "draws", 64)
    if entropy is not None:
        Number(-math.inf, math.inf, "()").check(entropy, "entropy", None)
    found = []
    for model, setting in _each(learners):
        explaining(model, "a rate")
        elbo = _told(model.elbo if hasattr(model, "elbo") else model.log_prob, X, draws, named)
        rate = _told(model.rate, X, draws, named)
        if not (np.isfinite(rate).all() and np.isfinite(elbo).all()):
            raise ValueError(f"expected finite rates and bounds, got others of the model with {setting}")
        found.append((model, setting, rate, -elbo - rate))
    found.sort(key=lambda one: float(one[2].mean()))
    points = []
    for k, (model, setting, rate, distortion) in enumerate(found):
        later = found[k + 1] if k + 1 < len(found) else None
        slope = None if later is None else _slope(later[2] - rate, later[3] - distortion)
        low = -math.inf if entropy is None else float(entropy) - float(distortion.mean())
        beta = (
            getattr(model.objective_, "beta", None) if getattr(model.objective_, "target_rate", None) is None else None
        )
        both = Mean.of(-distortion - rate)
        points.append(
            RateDistortionPoint(
                setting, beta, Mean.of(rate), Mean.of(distortion), both, slope, (low, float(rate.mean()))
            )
        )
        if entropy is not None and both.interval[0] > -entropy:
            warnings.warn(
                f"expected an ELBO of at most -H = {-entropy:.3f} nats, got {both} of the model with {setting}; are "
                "these the rows that it was fitted to, or is H of others, or in other units?",
                stacklevel=2,
            )
    return RateDistortion(points, None if entropy is None else float(entropy), len(found[0][2]))


def _told(ask: Question, X: Any, draws: int, named: dict[str, Any]) -> Array:
    """A number of each row, averaged over draws where it is not exact; the bound of certain codes is their log_prob."""
    return np.asarray(ask(X, **({"draws": draws} if ask.takes("draws") else {}), **named), dtype=np.float64)


def _slope(rates: Array, distortions: Array) -> Mean | None:
    """-dD/dR of two models by the differences of each row: a ratio of means, with its error to first order."""
    low, high = mean_interval(rates)
    if low <= 0 <= high:
        return None
    slope = -float(distortions.mean()) / float(rates.mean())
    return Mean(slope, mean_interval(slope + (-distortions - slope * rates) / rates.mean()))


def _each(learners: Learner | Sequence[Learner]) -> list[tuple[Learner, dict[str, Any]]]:
    """Single models, each with what sets it apart."""
    if isinstance(learners, Learner):
        check_is_fitted(learners)
        told = learners.training_.settings
        return [(learners.replica(k), dict(own)) for k, own in enumerate(told)]
    given = list(learners)
    if not given:
        raise ValueError("expected at least one learner, got none")
    return [(learner, {"learner": k}) for k, learner in enumerate(given)]


def explaining(learner: Learner, what: str) -> Learner:
    """A fitted learner of one model with codes; TypeError or ValueError elsewhere."""
    if not isinstance(learner, Learner):
        raise TypeError(f"expected a fitted Learner, got {type(learner).__name__}")
    check_is_fitted(learner)
    if not isinstance(learner.objective_, Explained):
        raise TypeError(
            f"expected a model that explains rows by codes, such as VAE, for {what}, got "
            f"{type(learner.objective_).__name__}, which has no guess q(z | x)"
        )
    if len(learner._answering()) > 1:
        raise ValueError(
            f"expected one model, got {len(learner._answering())} replicas, whose answers are one mixture's; ask one "
            "of them: learner.replica(0)"
        )
    return learner
