"""Which rows of a table are held out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["split"]


def split(strata: Sequence[NDArray[np.generic] | None], rows: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Which rows to hold out: a share of them, the same in every stratum as nearly as can be.

    Rows are put in order of their strata (environment, task, class), at random within each, and every
    so-many-th is held out. What has a single row in a stratum's own column stays in training.

    Args:
        strata: labels of each row, the most important first; None is passed over.
        rows: how many rows there are.
        share: of the rows, in [0, 1).
        seed: the choice is a function of it and of the row's number.

    Returns:
        True for the rows held out.

    Example:
        >>> y = np.array(["a"] * 8 + ["b"] * 4)
        >>> held = split([y], 12, 0.25, seed=0)
        >>> np.unique(y[held], return_counts=True)[1].tolist()
        [2, 1]
    """
    from weft.core.random import bits, fold, key_of

    if not 0.0 <= share < 1.0:
        raise ValueError(f"expected the share of held-out rows in [0, 1), got {share!r}")
    held = np.zeros(rows, dtype=bool)
    if share == 0.0:
        return held
    given = [np.unique(labels, return_inverse=True)[1].reshape(-1) for labels in strata if labels is not None]
    chance = bits(fold(key_of(seed), "table split"), (rows,)).numpy()
    order = np.lexsort([chance, *given[::-1]])
    marks = np.floor(np.arange(rows + 1) * share + 0.5)
    held[order[marks[1:] > marks[:-1]]] = True
    for codes in given:  # every class, environment and task is trained on
        held &= np.bincount(codes[~held], minlength=codes.max() + 1)[codes] > 0
    if not held.any():
        raise ValueError(
            f"expected rows to hold out, got none with a share of {share} of {rows} rows; take a larger share"
        )
    return held
