"""Bits of intensities: a pixel is on with the probability that its intensity says, drawn at each step or once."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from weft.core.random import bernoulli, key_of, keyed
from weft.core.source import Batch
from weft.sources.mapped import batchwise

__all__ = ["binarize", "binarized"]


def _refuse(x: Tensor) -> None:
    if not x.is_floating_point():
        raise ValueError(
            f"expected intensities in [0, 1] to binarize, got whole numbers ({x.dtype}); bytes are divided by 255"
        )
    wrong = ~((x >= 0) & (x <= 1))
    if bool(wrong.any()):
        raise ValueError(
            f"expected intensities in [0, 1] to binarize, got {x[wrong][0].item():g}, in {int(wrong.sum())} of "
            f"{x.numel()} numbers; bytes are divided by 255"
        )


def _binarize(batch: Batch) -> Batch:
    return {**batch, "x": bernoulli(batch["x"], place="binarize")}


binarize = batchwise(_binarize, changes=True, refuse=_refuse)
"""Dynamic binarization, for `Learner(augment=binarize)` or `Mapped(source, binarize)`: bits drawn anew at each step.

A training so sees ever new rows of the images' law. Rows held out as a share, and whatever else is looked at apart from
training, are bits that a seed draws once. Rows that answers are asked for are the user's to binarize (`binarized`).

References:
    Salakhutdinov and Murray, "On the quantitative analysis of deep belief networks", ICML 2008 (bits of MNIST).
    Burda, Grosse and Salakhutdinov, "Importance weighted autoencoders", arXiv 1509.00519 (drawn anew at each step).
"""


def binarized(X: ArrayLike, *, seed: int) -> NDArray[np.float32]:
    """Bits of intensities, drawn once: a fixed draw that depends on the seed and each row's number alone.

    It is a draw of one's own: the file of bits that many papers on MNIST share was drawn by others, and likelihoods
    on it are of another data set.

    Args:
        X: intensities in [0, 1], the leading axis of which is the rows.
        seed: of the draw. A figure says which, as another draw is another data set.

    Example:
        >>> binarized([[0.0, 0.5, 1.0], [0.0, 0.5, 1.0]], seed=0)
        array([[0., 0., 1.],
               [0., 1., 1.]], dtype=float32)
    """
    given = torch.as_tensor(np.asarray(X))
    if not given.dim() or (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
        raise ValueError(f"expected rows of intensities and a whole number as seed, got {tuple(given.shape)}, {seed!r}")
    _refuse(given)
    with keyed(key_of(int(seed)), torch.arange(len(given))):
        bits: NDArray[np.float32] = bernoulli(given.float(), place="binarize").numpy()
    return bits
