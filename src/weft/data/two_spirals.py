"""Two spirals with shortcut features: what every environment shares is harder than what each one offers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.core.configured import closest

__all__ = ["PRESETS", "Preset", "spirals", "spirals_test"]

_TURNS, _INNER, _JITTER = 3.0, 0.08, 0.02

Rows = NDArray[np.float32]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Preset:
    """A published setting of the spirals: the data's, and how the authors trained on it.

    Attributes:
        rows, environments, shortcuts, scale: those of `spirals` (rows are `n_per_environment`).
        test_rows: the `n` of `spirals_test`.
        epochs, batch: passes over the data, and rows per step of each environment.
        drops: at which shares of training the learning rate becomes a tenth.
        decay: the weight of the L2 penalty, which acts after the mask.
    """

    rows: int
    environments: int
    shortcuts: int
    scale: float
    test_rows: int = 2000
    epochs: int | None = None
    batch: int | None = None
    drops: tuple[float, ...] = ()
    decay: float | None = None


PRESETS = {
    "small": Preset(512, 16, 16, 1.0),
    # arXiv 2009.00329, B.2 and B.3; epochs 3000 / 32 rounded down. N(0, .1) is read as a standard deviation: so the
    # paper's best setting (Adam 1e-2, threshold 1) solves 3 seeds of 4, as a variance 1 of 4 (12 seeds, H200)
    "paper": Preset(1280, 32, 32, 0.1, epochs=93, batch=128, drops=(0.5, 0.75), decay=1e-4),
    # the defaults of the authors' run_synthetic.py, and what their README passes to it
    "code": Preset(1024, 16, 8, 1.0, epochs=150, batch=256, drops=(0.75,), decay=1e-3),
    "readme": Preset(1024, 16, 16, 1.0, epochs=150, batch=256, drops=(0.75,), decay=1e-3),
}
"""The settings by name; `small` is Weft's own, and the default."""


def spirals(
    n_per_environment: int | None = None,
    *,
    environments: int | None = None,
    shortcuts: int | None = None,
    scale: float | None = None,
    preset: str = "small",
    random_state: int = 0,
) -> tuple[Rows, Numbers, Numbers]:
    """Training rows in several environments, each with a shortcut of its own.

    A row is (spiral, shortcut) with a label y in {0, 1}, both equally frequent. The mechanism is the
    same everywhere: with r uniform in [.08, 1] and u uniform in [-.02, .02],

        spiral = (r + u) (cos a, sin a) / std,    a = 2 pi 3 r + pi y,

    each coordinate divided by its standard deviation. The shortcut differs: each environment e draws one
    vector s_e ~ N(0, scale^2 I), and

        shortcut = (2 y - 1) s_e.

    Within an environment the shortcut gives the label away linearly, but its direction means nothing
    elsewhere, so that only the spirals carry over to `spirals_test`.

    Args:
        n_per_environment: rows of each environment.
        environments: how many of them.
        shortcuts: shortcut features.
        scale: their standard deviation.
        preset: gives what is None above: `small` (512 rows, 16 environments, 16 shortcuts of scale 1), `paper`
            (1,280, 32, 32, .1), `code` (1,024, 16, 8, 1: the defaults of the authors' released code) or
            `readme` (the same with 16 shortcuts); `PRESETS` has how the authors trained, too.
        random_state: the seed.

    Returns:
        X of shape (n, 2 + shortcuts), the spiral first; y; and the environment of each row.

    References:
        Parascandolo, Neitz, Orvieto, Gresele and Schölkopf, "Learning explanations that are hard to
        vary", arXiv 2009.00329, sections 4.1 and B.2.

    Example:
        >>> X, y, environment = spirals(100, environments=4, shortcuts=3)
        >>> X.shape, y.mean().item(), np.unique(environment).tolist()
        ((400, 5), 0.5, [0, 1, 2, 3])
        >>> spirals(preset="paper")[0].shape
        (40960, 34)
    """
    given = _preset(preset)
    n_per_environment = given.rows if n_per_environment is None else n_per_environment
    environments = given.environments if environments is None else environments
    shortcuts = given.shortcuts if shortcuts is None else shortcuts
    scale = given.scale if scale is None else scale
    _check(scale, n_per_environment=n_per_environment, environments=environments, shortcuts=shortcuts)
    rng = np.random.default_rng([random_state, 0])
    y = np.tile(np.arange(n_per_environment) % 2, environments)
    environment = np.repeat(np.arange(environments), n_per_environment)
    signatures = scale * rng.standard_normal((environments, shortcuts))
    shortcut = (2 * y - 1)[:, None] * signatures[environment]
    return _rows(_spiral(y, rng), shortcut), y, environment


def spirals_test(
    n: int | None = None,
    *,
    shortcuts: int | None = None,
    scale: float | None = None,
    preset: str = "small",
    random_state: int = 0,
) -> tuple[Rows, Numbers]:
    """Test rows: the same spirals, with shortcut features that are fresh noise N(0, scale^2 I) for every row.

    Args:
        n: rows.
        shortcuts: shortcut features.
        scale: their standard deviation.
        preset: gives what is None above, as in `spirals`; each has 2,000 rows.
        random_state: the seed; its rows are independent of those `spirals` draws with the same one.

    Returns:
        X of shape (n, 2 + shortcuts) and y.

    Example:
        >>> X, y = spirals_test(100)
        >>> X.shape, y.mean().item()
        ((100, 18), 0.5)
    """
    given = _preset(preset)
    n = given.test_rows if n is None else n
    shortcuts = given.shortcuts if shortcuts is None else shortcuts
    scale = given.scale if scale is None else scale
    _check(scale, n=n, shortcuts=shortcuts)
    rng = np.random.default_rng([random_state, 1])
    y = np.arange(n) % 2
    return _rows(_spiral(y, rng), scale * rng.standard_normal((n, shortcuts))), y


def _preset(name: str) -> Preset:
    if name not in PRESETS:
        raise closest(name, PRESETS, "a preset of the spirals")
    return PRESETS[name]


def _spiral(y: Numbers, rng: np.random.Generator) -> NDArray[np.float64]:
    r = rng.uniform(_INNER, 1.0, len(y))
    angle = 2 * np.pi * _TURNS * r + np.pi * y
    radius = r + rng.uniform(-_JITTER, _JITTER, len(y))
    return radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1) / _deviation()


def _deviation() -> NDArray[np.float64]:
    """The coordinates' standard deviations, of the distribution rather than of the rows drawn, so that
    training and test rows are on one scale. The means are 0, since the two spirals mirror each other."""
    r = np.linspace(_INNER, 1.0, 10_001)
    angle = 2 * np.pi * _TURNS * r
    squares = (r**2 + _JITTER**2 / 3) * np.stack([np.cos(angle), np.sin(angle)]) ** 2
    return np.sqrt(np.trapezoid(squares, r, axis=1) / (1.0 - _INNER))


def _rows(spiral: NDArray[np.float64], shortcut: NDArray[np.float64]) -> Rows:
    return np.concatenate([spiral, shortcut], axis=1).astype(np.float32)


def _check(scale: float, **counts: int) -> None:
    if not 0.0 < scale < np.inf:
        raise ValueError(f"expected scale to be a positive number, got {scale!r}")
    for name, count in counts.items():
        least = 0 if name == "shortcuts" else 1
        if not isinstance(count, int | np.integer) or count < least:
            raise ValueError(f"expected {name} to be an integer >= {least}, got {count!r}")
