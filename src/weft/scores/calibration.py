"""Calibration: do probabilities and intervals say how sure one may be?"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["coverage", "expected_calibration_error"]


def expected_calibration_error(
    y: ArrayLike, probabilities: ArrayLike, *, classes: ArrayLike | None = None, bins: int = 15
) -> float:
    """The gap between how sure a classifier is and how often it is right. With the rows in bins B by confidence,

        ECE = sum_B |B| / n |accuracy(B) - confidence(B)|,

    confidence the largest probability of a row, bins of equal width. 0 is calibrated. (With few rows it is biased
    upwards, as chance alone makes a gap in every bin.)

    Args:
        y: the labels, (n,).
        probabilities: (n, classes), as `predict_proba` gives them.
        classes: the label of each column, as `classes_` has them; by default 0, 1, ...
        bins: how many.

    References:
        Naeini, Cooper and Hauskrecht, "Obtaining well calibrated probabilities using Bayesian binning", AAAI 2015;
        Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", arXiv 1706.04599.

    Example:
        >>> expected_calibration_error([0, 0, 0, 1], [[0.75, 0.25]] * 4)
        0.0
        >>> expected_calibration_error([0, 0, 1, 1], [[0.75, 0.25]] * 4)
        0.25
    """
    labels, p = np.asarray(y), np.asarray(probabilities, dtype=float)
    if p.ndim != 2 or labels.shape != p.shape[:1] or not len(p):
        raise ValueError(
            f"expected a label for each row of probabilities (n, classes), got shapes {labels.shape} and {p.shape}"
        )
    if not (p >= 0).all() or not np.allclose(p.sum(1), 1.0, atol=1e-3):
        raise ValueError("expected rows of probabilities >= 0 that sum to 1, got others")
    if not isinstance(bins, int) or bins < 1:
        raise ValueError(f"expected bins to be a number >= 1, got {bins!r}")
    names = np.arange(p.shape[1]) if classes is None else np.asarray(classes)
    if names.shape != p.shape[1:]:
        raise ValueError(f"expected a class for each of the {p.shape[1]} columns, got shape {names.shape}")
    sure, right = p.max(1), names[p.argmax(1)] == labels
    where = np.clip(np.ceil(sure * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.abs(np.bincount(where, right - sure, minlength=bins))
    return float(gaps.sum() / len(p))


def coverage(truth: ArrayLike, mean: ArrayLike, deviation: ArrayLike, *, level: float = 0.95) -> float:
    """The share of true values within the central intervals of normal distributions, |t - m| <= z s.

    Of a calibrated posterior it is `level`, over repeated draws of parameters and data; less, where the posterior is
    too sure.

    Args:
        truth: the values, of any shape.
        mean, deviation: of the distribution of each.
        level: in (0, 1).

    Example:
        >>> coverage([0.0, 1.0, 3.0], mean=[0.0, 0.0, 0.0], deviation=[1.0, 1.0, 1.0])
        0.6666666666666666
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"expected level in (0, 1), got {level!r}")
    t, m, s = np.broadcast_arrays(*(np.asarray(v, dtype=float) for v in (truth, mean, deviation)))
    if not t.size or not (s >= 0).all():
        raise ValueError("expected values with deviations >= 0, got none or others")
    z = NormalDist().inv_cdf((1.0 + level) / 2.0)
    return float((np.abs(t - m) <= z * s).mean())
