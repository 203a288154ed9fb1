"""Tasks in sequence, from the matrix R[i, j] of scores on task j after task i: what is kept, lost and passed on."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["average_accuracy", "backward_transfer", "forgetting", "forward_transfer"]

Array = NDArray[np.float64]
Score = float | Array
"""One number, or one for each of the matrix's leading axes (replicas)."""
_KINDS = ("max", "learned")


def average_accuracy(matrix: ArrayLike) -> Score:
    """The mean over all k tasks at the end,

        A = 1/k sum_j R[k, j],

    R[i, j] the accuracy on task j after task i.

    Args:
        matrix: R, of shape (..., k, k); leading axes, such as replicas, are kept.

    References:
        Lopez-Paz and Ranzato, "Gradient episodic memory for continual learning", arXiv 1706.08840, section 2.

    Example:
        >>> average_accuracy([[0.9, 0.1], [0.7, 0.8]])
        0.75
    """
    return _bare(_square(matrix)[..., -1, :].mean(-1))


def backward_transfer(matrix: ArrayLike, *, more: bool = True) -> Score:
    """What later tasks did to earlier ones, less than 0 where these are forgotten:

        BWT = 1/(k-1) sum_{j<k} (R[k, j] - R[j, j]).

    Args:
        matrix: R[i, j], the score on task j after task i, of shape (..., k, k).
        more: whether more of the score is better; for a loss (False) the sign is turned, so that a gain stays > 0.

    Returns:
        One number, or one for each of the leading axes; NaN for a single task.

    References:
        Lopez-Paz and Ranzato, "Gradient episodic memory for continual learning", arXiv 1706.08840, section 2.

    Example:
        >>> round(backward_transfer([[0.9, 0.1], [0.7, 0.8]]), 6)
        -0.2
    """
    R = _square(matrix)
    gain = R[..., -1, :-1] - np.diagonal(R, axis1=-2, axis2=-1)[..., :-1]
    return _mean(gain if more else -gain)


def forward_transfer(matrix: ArrayLike, before: ArrayLike, *, more: bool = True) -> Score:
    """What earlier tasks did for a later one before it was learned, beside a net that has learned nothing:

        FWT = 1/(k-1) sum_{j>1} (R[j-1, j] - b[j]).

    Args:
        matrix: R[i, j], the score on task j after task i, of shape (..., k, k).
        before: b, of shape (..., k): the untrained net's scores.
        more: whether more of the score is better; for a loss (False) the sign is turned.

    Returns:
        One number, or one for each of the leading axes; NaN for a single task.

    References:
        Lopez-Paz and Ranzato, "Gradient episodic memory for continual learning", arXiv 1706.08840, section 2.

    Example:
        >>> round(forward_transfer([[0.9, 0.3], [0.7, 0.8]], [0.1, 0.1]), 6)
        0.2
    """
    R, b = _square(matrix), np.asarray(before, dtype=float)
    if b.shape != R.shape[:-1]:
        raise ValueError(f"expected before to have shape {R.shape[:-1]}, a score for each task, got {b.shape}")
    gain = np.diagonal(R, offset=1, axis1=-2, axis2=-1) - b[..., 1:]
    return _mean(gain if more else -gain)


def forgetting(matrix: ArrayLike, *, kind: str = "max", more: bool = True) -> Score:
    """What earlier tasks have lost at the end, in one of the two customary definitions:

        max:      F = 1/(k-1) sum_{j<k} (max_{i<k} R[i, j] - R[k, j]),
        learned:  F = 1/(k-1) sum_{j<k} (R[j, j] - R[k, j]) = -BWT.

    `max` compares with the best that was ever reached, also by tasks before or after j, so it is never less than
    `learned`; only `learned` tells where tasks get better afterwards on average.

    Args:
        matrix: R[i, j], the score on task j after task i, of shape (..., k, k).
        kind: `max` or `learned`.
        more: whether more of the score is better; for a loss (False) its least value takes the maximum's place.

    Returns:
        One number, or one for each of the leading axes; NaN for a single task.

    References:
        Chaudhry, Dokania, Ajanthan and Torr, "Riemannian walk for incremental learning", arXiv 1801.10112, section 3
        (`max`). `learned` is what Avalanche calls forgetting.

    Example:
        >>> R = [[0.8, 0.1, 0.1], [0.9, 0.8, 0.1], [0.7, 0.6, 0.8]]
        >>> round(forgetting(R), 6), round(forgetting(R, kind="learned"), 6)
        (0.2, 0.15)
    """
    if kind not in _KINDS:
        raise ValueError(f"expected kind to be 'max' or 'learned', got {kind!r}")
    R = _square(matrix) if more else -_square(matrix)
    if kind == "learned":
        return np.negative(backward_transfer(R)) if R.ndim > 2 else -float(backward_transfer(R))
    if R.shape[-1] < 2:
        return _mean(R[..., -1, :-1])
    return _mean(R[..., :-1, :-1].max(-2) - R[..., -1, :-1])


def _square(matrix: ArrayLike) -> Array:
    R = np.asarray(matrix, dtype=float)
    if R.ndim < 2 or R.shape[-1] != R.shape[-2] or not R.shape[-1]:
        raise ValueError(
            f"expected a matrix of scores with a row and a column for each task, shape (..., k, k), got {R.shape}"
        )
    return R


def _mean(values: Array) -> Score:
    """Over the last axis; NaN where it is empty."""
    if not values.shape[-1]:
        return _bare(np.full(values.shape[:-1], np.nan))
    return _bare(values.mean(-1))


def _bare(values: Array) -> Score:
    """A number where there is but one."""
    return float(values) if np.ndim(values) == 0 else values
