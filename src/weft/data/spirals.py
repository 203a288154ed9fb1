"""Two spirals with shortcut features: what every environment shares is harder than what each one offers."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["spirals", "spirals_test"]

_TURNS, _INNER, _JITTER = 3.0, 0.08, 0.02

Array = np.ndarray[Any, Any]


def spirals(
    n_per_environment: int = 512, *, environments: int = 16, shortcuts: int = 16, random_state: int = 0
) -> tuple[Array, Array, Array]:
    """Training rows in several environments, each with a shortcut of its own.

    A row is (spiral, shortcut) with a label y in {0, 1}, both equally frequent. The mechanism is the
    same everywhere: with r uniform in [.08, 1] and u uniform in [-.02, .02],

        spiral = (r + u) (cos a, sin a) / std,    a = 2 pi 3 r + pi y,

    each coordinate divided by its standard deviation. The shortcut differs: each environment e draws one
    vector s_e ~ N(0, I), and

        shortcut = (2 y - 1) s_e.

    Within an environment the shortcut gives the label away linearly, but its direction means nothing
    elsewhere, so that only the spirals carry over to `spirals_test`.

    Args:
        n_per_environment: rows of each environment.
        environments: how many of them.
        shortcuts: shortcut features.
        random_state: the seed.

    Returns:
        X of shape (n, 2 + shortcuts), the spiral first; y; and the environment of each row.

    References:
        Parascandolo, Neitz, Orvieto, Gresele and Schölkopf, "Learning explanations that are hard to
        vary", arXiv 2009.00329, section 4.1 (there with 32 environments and shortcuts N(0, .1)).

    Example:
        >>> X, y, environment = spirals(100, environments=4, shortcuts=3)
        >>> X.shape, y.mean().item(), np.unique(environment).tolist()
        ((400, 5), 0.5, [0, 1, 2, 3])
    """
    _check(n_per_environment=n_per_environment, environments=environments, shortcuts=shortcuts)
    rng = np.random.default_rng([random_state, 0])
    y = np.tile(np.arange(n_per_environment) % 2, environments)
    environment = np.repeat(np.arange(environments), n_per_environment)
    signatures = rng.standard_normal((environments, shortcuts))
    shortcut = (2 * y - 1)[:, None] * signatures[environment]
    return _rows(_spiral(y, rng), shortcut), y, environment


def spirals_test(n: int = 2000, *, shortcuts: int = 16, random_state: int = 0) -> tuple[Array, Array]:
    """Test rows: the same spirals, with shortcut features that are fresh noise N(0, I) for every row.

    Args:
        n: rows.
        shortcuts: shortcut features.
        random_state: the seed; its rows are independent of those `spirals` draws with the same one.

    Returns:
        X of shape (n, 2 + shortcuts) and y.

    Example:
        >>> X, y = spirals_test(100)
        >>> X.shape, y.mean().item()
        ((100, 18), 0.5)
    """
    _check(n=n, shortcuts=shortcuts)
    rng = np.random.default_rng([random_state, 1])
    y = np.arange(n) % 2
    return _rows(_spiral(y, rng), rng.standard_normal((n, shortcuts))), y


def _spiral(y: Array, rng: np.random.Generator) -> Array:
    r = rng.uniform(_INNER, 1.0, len(y))
    angle = 2 * np.pi * _TURNS * r + np.pi * y
    radius = r + rng.uniform(-_JITTER, _JITTER, len(y))
    return radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1) / _deviation()


def _deviation() -> Array:
    """The coordinates' standard deviations, of the distribution rather than of the rows drawn, so that
    training and test rows are on one scale. The means are 0, since the two spirals mirror each other."""
    r = np.linspace(_INNER, 1.0, 10_001)
    angle = 2 * np.pi * _TURNS * r
    squares = (r**2 + _JITTER**2 / 3) * np.stack([np.cos(angle), np.sin(angle)]) ** 2
    return np.sqrt(np.trapezoid(squares, r, axis=1) / (1.0 - _INNER))


def _rows(spiral: Array, shortcut: Array) -> Array:
    return np.concatenate([spiral, shortcut], axis=1).astype(np.float32)


def _check(**counts: int) -> None:
    for name, count in counts.items():
        least = 0 if name == "shortcuts" else 1
        if not isinstance(count, int | np.integer) or count < least:
            raise ValueError(f"expected {name} to be an integer >= {least}, got {count!r}")
