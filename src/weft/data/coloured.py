"""Coloured MNIST: in training the colour tells the label better than the digit does, in the test it misleads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from weft.core.random import fold, key_of, permutation, unit

__all__ = ["coloured_mnist"]


def coloured_mnist(
    part: str = "train",
    *,
    flips: Sequence[float] = (0.2, 0.1),
    test_flip: float = 0.9,
    noise: float = 0.25,
    grey: bool = False,
    data: tuple[ArrayLike, ArrayLike] | None = None,
    random_state: int = 0,
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Digits in two colours, in environments that differ in how often the colour is wrong about the label.

    With d the digit, all draws independent, and * the exclusive or, in the environment of flip p

        y = [d >= 5] * Bernoulli(noise),    colour = y * Bernoulli(p),

    and the image, every second row and column of it, lies in the channel of its colour; the other is 0. The digit is
    right about y in 1 - noise = 75 % of the rows everywhere; the colour in 80 and 90 % of the training environments'
    rows, and in 10 % of the test's. So learning by colour reaches 85 % in training and 10 % in the test, and nothing
    that holds everywhere is better than 75 %.

    MNIST's 60,000 training images are shuffled; the training environments take turns in the first five sixths, the
    test gets the rest: 25,000, 25,000 and 10,000 rows. (MNIST's own test images are not used, as in the authors' code.)

    Args:
        part: `train` for the environments of `flips`, `test` for the one of `test_flip`.
        flips: each training environment's share of rows whose colour contradicts the label.
        test_flip: the test environment's.
        noise: the share of labels that contradict the digit.
        grey: leave the colour out: one channel, for the oracle that cannot be misled.
        data: images `(n, 28, 28)` or `(n, 1, 28, 28)` and their digits, in place of MNIST.
        random_state: the seed; what is drawn for an image depends on it and on the image's number alone.

    Returns:
        X of shape (n, 2, 14, 14), with `grey` (n, 1, 14, 14), in float32; y in {0, 1}; and the environment of each
        row, 0, 1, ... in training and the next number in the test.

    References:
        Arjovsky, Bottou, Gulrajani and Lopez-Paz, "Invariant risk minimization", arXiv 1907.02893, section 5.2.

    Example:
        >>> images, digits = np.ones((6000, 28, 28), np.float32), np.arange(6000) % 10
        >>> X, y, environment = coloured_mnist(data=(images, digits))
        >>> X.shape, np.bincount(environment).tolist()
        ((5000, 2, 14, 14), [2500, 2500])
        >>> colour = X[:, 1].any(axis=(1, 2))
        >>> [round(float((colour == y)[environment == e].mean()), 1) for e in (0, 1)]
        [0.8, 0.9]
    """
    if part not in ("train", "test"):
        raise ValueError(f"expected part to be 'train' or 'test', got {part!r}")
    flips = [float(flip) for flip in flips]
    if not flips or not all(0.0 <= share <= 1.0 for share in (*flips, test_flip, noise)):
        raise ValueError(
            f"expected shares in [0, 1], and one flip at least, got flips={flips}, test_flip={test_flip!r} and "
            f"noise={noise!r}"
        )
    if data is None:
        from weft.data.images import mnist

        data = mnist("train")
    images, digits = np.asarray(data[0]), np.asarray(data[1])
    n = len(images)
    if images.shape not in ((n, 28, 28), (n, 1, 28, 28)) or digits.shape != (n,) or n < 6 * len(flips):
        raise ValueError(
            f"expected at least {6 * len(flips)} images of shape (28, 28) and a digit for each, got shapes "
            f"{images.shape} and {digits.shape}"
        )
    key = key_of(random_state)
    order = permutation(fold(key, "order"), n).numpy()
    first = n - n // 6
    rows = order[:first] if part == "train" else order[first:]
    environment = np.arange(len(rows)) % len(flips) if part == "train" else np.full(len(rows), len(flips))
    flip = np.array([*flips, test_flip])[environment]

    def drawn(place: str) -> NDArray[np.float64]:
        return unit(fold(key, place, torch.from_numpy(rows)), (), torch.float64).numpy()

    y = (digits[rows] >= 5) ^ (drawn("label") < noise)
    colour = y ^ (drawn("colour") < flip)
    small = images[rows].reshape(-1, 1, 28, 28)[:, :, ::2, ::2].astype(np.float32)
    X = small if grey else small * (colour[:, None] == np.arange(2))[:, :, None, None]
    return np.ascontiguousarray(X, np.float32), y.astype(np.int64), environment
