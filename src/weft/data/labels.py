"""Random labels: what can only be memorized."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from weft.core.random import fold, key_of, unit

__all__ = ["RandomLabels", "random_labels"]


class RandomLabels(NamedTuple):
    """Labels of which a share was redrawn.

    Attributes:
        y: the labels after it.
        redrawn: True for the rows whose label was drawn anew, be it the same as before.
        changed: True for the rows whose label is another than before.
    """

    y: NDArray[np.generic]
    redrawn: NDArray[np.bool_]
    changed: NDArray[np.bool_]


def random_labels(y: ArrayLike, *, share: float = 1.0, random_state: int = 0) -> RandomLabels:
    """Redraws the labels of a share of the rows uniformly from the classes.

    Each row i is chosen, or not, by a draw of its own, and with K classes

        y_i' = a class, each with probability 1/K,   with probability share,      else y_i,

    so that about share (1 - 1/K) of the labels change. At share 1 nothing is left to learn but the rows themselves.

    Args:
        y: labels of any kind, numbers or names; the classes are those that occur.
        share: of the rows, in [0, 1].
        random_state: the seed. A row's draws depend on it and on the row's number alone, and the rows redrawn at one
            share are among those redrawn at a larger one, with the same new labels.

    Returns:
        `RandomLabels(y, redrawn, changed)`.

    References:
        Zhang, Bengio, Hardt, Recht and Vinyals, "Understanding deep learning requires rethinking generalization",
        arXiv 1611.03530, section 2; here after Parascandolo et al., arXiv 2009.00329, section 4.2.

    Example:
        >>> y, redrawn, changed = random_labels(np.repeat(["cat", "dog"], 500), share=0.5)
        >>> redrawn.mean().round(1).item(), changed.mean().round(1).item(), y[:4].tolist()
        (0.5, 0.2, ['cat', 'dog', 'cat', 'cat'])
    """
    before = np.asarray(y)
    if before.ndim != 1 or not len(before):
        raise ValueError(f"expected one label for each row, got an array of shape {before.shape}")
    if before.dtype.kind == "f" and np.isnan(before).any():
        raise ValueError(f"expected a label for each row, got {int(np.isnan(before).sum())} that are missing (NaN)")
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"expected share in [0, 1], got {share!r}")
    classes = np.unique(before)
    keys = fold(key_of(random_state), "random labels", torch.arange(len(before)))
    chance, pick = unit(keys, (2,), torch.float64).numpy().T
    redrawn = chance < share
    after = np.where(redrawn, classes[np.floor(pick * len(classes)).astype(np.int64)], before)
    return RandomLabels(after, redrawn, after != before)
