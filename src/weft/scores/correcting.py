"""Several tests at once: p-values corrected for their number."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["holm"]


def holm(p: ArrayLike) -> NDArray[np.float64]:
    """P-values corrected for their number (the last axis), step down.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    given = np.asarray(p, dtype=float)
    count = given.shape[-1]
    order = np.argsort(given, axis=-1)
    steps = np.take_along_axis(given, order, -1) * np.arange(count, 0, -1)
    corrected = np.empty_like(given)
    np.put_along_axis(corrected, order, np.minimum(1.0, np.maximum.accumulate(steps, -1)), -1)
    return corrected
