"""Digits from several sites, with a feature that predicts the label well, but the other way round at some of them."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["digits_sites"]

SITES = {"north": 1, "east": 1, "south": 1, "west": -1, "abroad": -1}


def digits_sites(random_state: int = 0, *, noise: float = 0.3, agreement: float = 0.95) -> dict[str, Any]:
    """Scikit-learn's 8x8 digits (1,797 of them), shared out over five sites; is the digit five or more?

    Each row has the 64 pixels, in [0, 1] but for some noise, and a `shortcut`: +-1, plus a little noise, which
    agrees with the label in a share `agreement` of the rows in north, east and south, and disagrees as often in
    west and abroad. Whoever learns from the first four sites pooled finds the shortcut useful, for three sites of four
    agree on it; abroad it misleads. What the pixels say holds everywhere.

    Args:
        random_state: draws sites and shortcuts.
        noise: standard deviation of what is added to each pixel.
        agreement: how often it tells the truth, where it does.

    Returns:
        Columns by name: `pixel 0` to `pixel 63`, `shortcut`, `site`, `label`.

    References:
        After the coloured digits of Arjovsky, Bottou, Gulrajani and Lopez-Paz, "Invariant risk minimization",
        arXiv 1907.02893, section 5.2.

    Example:
        >>> table = digits_sites()
        >>> len(table), len(table["label"]), sorted(set(table["site"].tolist()))
        (67, 1797, ['abroad', 'east', 'north', 'south', 'west'])
    """
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    random = np.random.default_rng(random_state)
    names = list(SITES)
    site = random.permutation(np.arange(len(digits)) % len(names))
    label = digits >= 5
    sign = np.where(label, 1.0, -1.0) * np.array(list(SITES.values()))[site]
    sign *= np.where(random.random(len(digits)) < agreement, 1.0, -1.0)
    shortcut = sign + 0.1 * random.standard_normal(len(digits))
    pixels = images / 16.0 + noise * random.standard_normal(images.shape)
    columns = {f"pixel {i}": pixels[:, i] for i in range(64)}
    return {
        **columns,
        "shortcut": shortcut,
        "site": np.array(names)[site],
        "label": np.where(label, "five or more", "less than five"),
    }
