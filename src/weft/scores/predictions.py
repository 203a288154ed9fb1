"""How many classes are right, how much of the values' variation is explained, and how sure a share is."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["MEASURES", "accuracy", "mean_interval", "r_squared", "r_squared_interval", "score", "wilson"]

MEASURES = {"classes": "accuracy", "values": "R2"}
"""What `score` measures, by the kind of the target."""


def accuracy(y: ArrayLike, answers: ArrayLike) -> float | None:
    """The share of answers that are right; None where there are no rows.

    >>> accuracy(["a", "b", "b"], ["a", "b", "a"])
    0.6666666666666666
    """
    y = np.asarray(y)
    return float((np.asarray(answers) == y).mean()) if len(y) else None


def r_squared(y: ArrayLike, answers: ArrayLike) -> float | None:
    """One less the squared error over the squared deviation from the mean; None where the values do not vary.

    >>> r_squared([1.0, 2.0, 3.0], [1.0, 2.0, 4.0])
    0.5
    >>> r_squared([2.0, 2.0], [2.0, 1.0]) is None
    True
    """
    y, answers = np.asarray(y, np.float64), np.asarray(answers, np.float64)
    spread = float(((y - y.mean()) ** 2).sum()) if len(y) else 0.0
    return 1.0 - float(((y - answers) ** 2).sum()) / spread if spread > 0 else None


def score(kind: str, y: ArrayLike, answers: ArrayLike) -> float | None:
    """Accuracy for `classes`, R squared for `values`.

    >>> score("classes", [0, 1], [0, 0]), score("values", [0, 1], [0, 1])
    (0.5, 1.0)
    """
    if kind not in MEASURES:
        raise ValueError(f"expected the kind of target to be {' or '.join(MEASURES)}, got {kind!r}")
    return accuracy(y, answers) if kind == "classes" else r_squared(y, answers)


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95% interval for a share seen in n cases.

    The shares p within whose z standard deviations lies the one that was seen, |share - p| <= z sqrt(p (1 - p) / n):

        (share + z^2 / 2n -+ z sqrt(share (1 - share) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    References:
        E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 1927.

    >>> tuple(round(end, 3) for end in wilson(0.9, 20))
    (0.699, 0.972)
    """
    if n < 1 or not 0.0 <= share <= 1.0:
        raise ValueError(f"expected a share in [0, 1] of at least one case, got {share!r} of {n!r}")
    z = 1.959964
    centre, spread = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)


def mean_interval(values: ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """Student's interval for the mean of independent values: mean -+ t sd / sqrt(n).

    >>> tuple(round(end, 3) for end in mean_interval([1.0, 2.0, 3.0]))
    (-0.484, 4.484)
    """
    from scipy.special import stdtrit

    values = np.asarray(values, np.float64)
    if values.ndim != 1 or len(values) < 2:
        raise ValueError(f"expected at least two values for an interval, got shape {values.shape}")
    mean = float(values.mean())
    wide = float(stdtrit(len(values) - 1, 0.5 + level / 2)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean - wide, mean + wide


def r_squared_interval(y: ArrayLike, answers: ArrayLike, level: float = 0.95) -> tuple[float, float] | None:
    """The jackknife's interval for R squared, over independent rows; None where too few rows, or values, tell it.

    With the value R_i without row i and n rows, the variance is (n - 1) mean (R_i - mean R)^2. It is rough below some
    thirty rows, as R squared is not symmetric.

    References:
        Efron and Tibshirani, "An introduction to the bootstrap", 1993, chapter 11.

    >>> y = np.arange(20.0)
    >>> [round(end, 2) for end in r_squared_interval(y, y + np.resize([3.0, -3.0], 20))]
    [0.6, 0.86]
    """
    from scipy.special import stdtrit

    y, answers = np.asarray(y, np.float64), np.asarray(answers, np.float64)
    n, value = len(y), r_squared(y, answers)
    if value is None or n < 3:
        return None
    error, off = (y - answers) ** 2, (y - y.mean()) ** 2
    left = off.sum() - off * n / (n - 1)  # the squared deviations of the others around their own mean
    if not (left > 0).all():
        return None
    each = 1.0 - (error.sum() - error) / left
    wide = float(stdtrit(n - 1, 0.5 + level / 2)) * math.sqrt((n - 1) * float(((each - each.mean()) ** 2).mean()))
    return value - wide, value + wide
