"""A ring of Gaussians: the smallest data on which a generative model can lose modes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

__all__ = ["Coverage", "mode_coverage", "ring"]


def _centres(modes: int, radius: float, sigma: float) -> NDArray[np.float64]:
    if not isinstance(modes, int | np.integer) or modes < 1:
        raise ValueError(f"expected modes to be an integer >= 1, got {modes!r}")
    if not radius >= 0 or not sigma > 0:
        raise ValueError(f"expected radius >= 0 and sigma > 0, got radius={radius!r} and sigma={sigma!r}")
    angle = 2.0 * np.pi * np.arange(modes) / modes
    return radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def ring(
    n: int,
    *,
    modes: int = 8,
    radius: float = 1.0,
    sigma: float = 0.01,
    random_state: int | np.random.RandomState | None = 0,
) -> NDArray[np.float32]:
    """Draws from equal Gaussians whose centres are spread evenly over a circle.

        x = radius (cos t, sin t) + sigma e,    t = 2 pi k / modes,  k uniform,  e ~ N(0, I)

    Args:
        n: rows.
        modes: how many Gaussians.
        radius: the circle's.
        sigma: the standard deviation of each Gaussian.
        random_state: a seed, a NumPy generator or None, as in scikit-learn.

    Returns:
        `(n, 2)` in float32.

    References:
        Srivastava, Valkov, Russell, Gutmann and Sutton, "VEEGAN", arXiv 1705.07761; with these
        defaults Lin, Khetan, Fanti and Oh, "PacGAN", arXiv 1712.04086.

    Example:
        >>> mode_coverage(ring(1000))
        Coverage(modes=8, share=0.99)
    """
    if not isinstance(n, int | np.integer) or n < 1:
        raise ValueError(f"expected n to be a positive number of rows, got {n!r}")
    centres = _centres(modes, radius, sigma)
    generator = check_random_state(random_state)
    k = generator.randint(modes, size=n)
    return (centres[k] + sigma * generator.standard_normal((n, 2))).astype(np.float32)


class Coverage(NamedTuple):
    """How many modes have a sample near them, and what share of the samples is near a mode."""

    modes: int
    share: float


def mode_coverage(samples: ArrayLike, *, modes: int = 8, radius: float = 1.0, sigma: float = 0.01) -> Coverage:
    """Which part of the ring samples cover, counted as in PacGAN.

    A sample is good if it lies within 3 sigma of its nearest centre; a mode is recovered if it has at
    least one good sample. Of the ring's own rows 1 - exp(-9/2) = 98.9% are good.

    Args:
        samples: rows of two numbers.
        modes, radius, sigma: those of `ring`.

    Returns:
        `Coverage(modes, share)`: modes recovered, and the share of good samples.

    References:
        Lin, Khetan, Fanti and Oh, "PacGAN: the power of two samples in generative adversarial
        networks", arXiv 1712.04086.

    Example:
        >>> mode_coverage([[1.0, 0.0], [1.0, 0.02], [0.0, 1.0], [0.0, 0.0]])
        Coverage(modes=2, share=0.75)
    """
    rows = np.asarray(samples, dtype=float)
    if rows.ndim != 2 or rows.shape[1] != 2 or not len(rows):
        raise ValueError(f"expected samples of shape (n, 2) with n >= 1, got {rows.shape}")
    from weft.scores.samples.support import modes as hit  # it needs torch, which the rings do not

    found = hit(rows, _centres(modes, radius, sigma), within=3.0 * sigma)
    return Coverage(found.modes, found.share)
