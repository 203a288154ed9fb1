"""Coloured MNIST: its shares, its images, and that each draw belongs to its image."""

import os

import numpy as np
import pytest

from weft.data import coloured_mnist, mnist

RANDOM = np.random.default_rng(0)
N = 60_000
# Each image's number is written into its first two pixels that survive, so that rows can be traced.
IMAGES = np.zeros((N, 28, 28), np.float32)
IMAGES[:, 0, 0], IMAGES[:, 0, 2], IMAGES[:, 2, 0] = 1.0, np.arange(N) // 256, np.arange(N) % 256
DIGITS = RANDOM.integers(0, 10, N)
DATA = (IMAGES, DIGITS)


def number(X):
    plain = X.sum(1)
    return (256 * plain[:, 0, 1] + plain[:, 1, 0]).astype(int)


def close(share, expected, n):
    """Within four standard errors."""
    assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / n), (share, expected)


@pytest.mark.parametrize("seed", [0, 1])
def test_shares_of_noise_and_colour(seed):
    for part, flips, rows in (("train", (0.2, 0.1), 25_000), ("test", (None, None, 0.9), 10_000)):
        X, y, environment = coloured_mnist(part, data=DATA, random_state=seed)
        assert (X.dtype, y.dtype) == (np.float32, np.int64)
        digit = DIGITS[number(X)] >= 5
        lit = X.any(axis=(2, 3))
        assert (lit.sum(1) == 1).all()  # one channel each
        colour = lit[:, 1]
        for e in np.unique(environment):
            at = environment == e
            assert at.sum() == rows
            close((y != digit)[at].mean(), 0.25, rows)
            close((colour != y)[at].mean(), flips[e], rows)
            # the flips are independent: of the rows with a true label as many have a false colour
            true = at & (y == digit)
            close((colour != y)[true].mean(), flips[e], true.sum())


def test_every_image_is_used_once():
    seen = np.concatenate([number(coloured_mnist(part, data=DATA)[0]) for part in ("train", "test")])
    assert np.array_equal(np.sort(seen), np.arange(N))


def test_images_are_every_second_pixel():
    images = RANDOM.random((60, 28, 28)).astype(np.float32)
    images[:, 0, 0] = np.arange(60)
    X, *_ = coloured_mnist(data=(images[:, None], DIGITS[:60]))
    for x in X:
        np.testing.assert_array_equal(x.sum(0), images[int(x[:, 0, 0].sum())][::2, ::2])


def test_grey_leaves_only_the_colour_out():
    X, y, environment = coloured_mnist(data=DATA)
    grey, same, where = coloured_mnist(data=DATA, grey=True)
    assert grey.shape == (50_000, 1, 14, 14)
    np.testing.assert_array_equal(grey[:, 0], X.sum(1))
    np.testing.assert_array_equal(same, y)
    np.testing.assert_array_equal(where, environment)


def test_settings_and_seeds():
    X, y, environment = coloured_mnist(data=DATA, flips=(0.0, 0.5, 1.0), noise=0.0, random_state=5)
    np.testing.assert_array_equal(y, DIGITS[number(X)] >= 5)
    wrong = X[:, 1].any(axis=(1, 2)) != y
    assert np.bincount(environment).tolist() == [16_667, 16_667, 16_666]
    assert [wrong[environment == e].mean() for e in (0, 2)] == [0.0, 1.0]
    again = coloured_mnist(data=DATA, flips=(0.0, 0.5, 1.0), noise=0.0, random_state=5)
    np.testing.assert_array_equal(again[0], X)
    other = coloured_mnist(data=DATA, flips=(0.0, 0.5, 1.0), noise=0.0, random_state=6)
    assert (number(other[0]) != number(X)).mean() > 0.99


def test_real_digits():
    if not os.environ.get("WEFT_DATA"):
        pytest.skip("WEFT_DATA is not set")  # where it is, the digits must be there
    images, digits = mnist("train", download=False)
    X, _, _ = coloured_mnist()
    assert X.shape == (50_000, 2, 14, 14)
    same = coloured_mnist(data=(images, digits))
    np.testing.assert_array_equal(same[0], X)
    assert (X.any(axis=(2, 3)).sum(1) == 1).all()  # no image is blank: every colour can be seen


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"part": "valid"}, "expected part to be 'train' or 'test', got 'valid'"),
        ({"flips": (0.2, 1.1)}, r"expected shares in \[0, 1\]"),
        ({"flips": ()}, "one flip at least"),
        ({"noise": -0.1}, "noise=-0.1"),
        ({"data": (IMAGES[:, :14], DIGITS)}, r"images of shape \(28, 28\)"),
        ({"data": (IMAGES, DIGITS[:5])}, "a digit for each"),
        ({"data": (IMAGES[:5], DIGITS[:5])}, "expected at least 12 images"),
    ],
)
def test_bad_input(wrong, message):
    with pytest.raises(ValueError, match=message):
        coloured_mnist(**{"data": DATA, **wrong})
