"""Digits from several sites, with marks that tell the label at each site, but in another way at the next."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["digits_sites"]

SITES = ("Aarhus", "Basel", "Cork", "Delft", "Esslingen", "Florence", "Ghent", "Helsinki")
MARKS = 16


def digits_sites(random_state: int = 0, *, noise: float = 0.1) -> dict[str, NDArray[np.generic]]:
    """Scikit-learn's 8x8 digits (1,797 of them), shared out over eight sites; is the digit five or more?

    Beside the 64 pixels, in [0, 1] but for some noise, each row has 16 marks. At site s mark j is +1 or -1 as the
    label is, times a sign that belongs to s and j: within a site any mark tells the label, and from site to site
    the signs flip; at Helsinki each is the opposite of what it is at most of the others. So marks are an easy way
    to be right at the sites that one has seen, and mislead at the last; what the pixels say holds everywhere.

    Args:
        random_state: draws sites, signs and noise.
        noise: standard deviation of what is added to each pixel; the marks get three times as much.

    Returns:
        Columns by name: `pixel 0` to `pixel 63`, `mark 0` to `mark 15`, `site`, `label`.

    References:
        After the spirals of Parascandolo et al., "Learning explanations that are hard to vary", arXiv 2009.00329,
        section 4.1.

    Example:
        >>> table = digits_sites()
        >>> len(table), len(table["label"]), sorted(set(table["site"].tolist()))[:3]
        (82, 1797, ['Aarhus', 'Basel', 'Cork'])
    """
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    random = np.random.default_rng(random_state)
    site = random.permutation(np.arange(len(digits)) % len(SITES))
    label = np.where(digits >= 5, 1.0, -1.0)
    signs = random.choice([-1.0, 1.0], size=(len(SITES), MARKS))
    signs[-1] = -np.sign(signs[:-1].sum(0))
    marks = label[:, None] * signs[site] + 3 * noise * random.standard_normal((len(digits), MARKS))
    pixels = images / 16.0 + noise * random.standard_normal(images.shape)
    return {
        **{f"pixel {i}": pixels[:, i] for i in range(pixels.shape[1])},
        **{f"mark {j}": marks[:, j] for j in range(MARKS)},
        "site": np.array(SITES)[site],
        "label": np.where(label > 0, "five or more", "less than five"),
    }
