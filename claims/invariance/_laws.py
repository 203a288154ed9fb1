"""What the AND-mask and the geometric mean leave of random gradients, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special, stats

SHARED = 2.0  # mean over deviation of a component that environments share
RIGHT = stats.norm.cdf(SHARED)  # the chance that its sign is right, .977


def survives(d: Any, threshold: float, right: float = 0.5) -> Any:
    """The chance that at least t = d (threshold + 1) / 2 of d signs agree, each `right` or not."""
    t = np.ceil(np.asarray(d) * (threshold + 1) / 2 - 1e-4)
    return stats.binom.sf(t - 1, d, right) + stats.binom.cdf(d - t, d, right)


def masked_square(d: int, threshold: float) -> float:
    """E (m g)^2 for the mean g of d standard normals and its mask m.

    Given k positive signs, magnitudes are independent half-normals of mean square 1 and squared mean 2 / pi, so that
    E (sum)^2 = d (1 - 2 / pi) + (2 k - d)^2 2 / pi. The paper bounds it by (d - t) binom(d, t) 2^(1 - d), which is of
    the right order for t < d but zero, one term short, for t = d.
    """
    k = np.arange(d + 1)
    kept = np.abs(2 * k - d) >= np.ceil(threshold * d - 1e-4)
    given = (d * (1 - 2 / np.pi) + (2 * k - d) ** 2 * 2 / np.pi) / d**2
    return float((stats.binom.pmf(k, d, 0.5) * given)[kept].sum())


def product_square(d: int) -> float:
    """The same for the geometric mean where all signs agree: 2^(1 - d) (E |g|^(2 / d))^d."""
    return float(2 ** (1 - d) * (2 ** (1 / d) * special.gamma(1 / d + 0.5) / np.sqrt(np.pi)) ** d)


def law(threshold: float, d: int) -> Any:
    """The exact values of what `sample` measures, in the order of KINDS."""
    kept = survives(d, threshold), survives(d, threshold, RIGHT)
    return np.array([*kept, 1 / d, masked_square(d, threshold), product_square(d)])
