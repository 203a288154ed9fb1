"""The ring's moments against their closed forms, and the counting of modes on samples made by hand."""

import math

import numpy as np
import pytest

from weft.data import mode_coverage, ring
from weft.data.gaussians import Coverage


def test_ring_has_its_moments():
    x = ring(50_000, modes=5, radius=2.0, sigma=0.1, random_state=1)
    assert x.shape == (50_000, 2)
    assert x.dtype == np.float32
    assert np.allclose(x.mean(0), 0.0, atol=0.03)
    # E|x|^2 = radius^2 + 2 sigma^2
    assert np.isclose((x**2).sum(1).mean(), 4.0 + 2 * 0.01, atol=0.01)
    nearest = np.round(np.arctan2(x[:, 1], x[:, 0]) / (2 * np.pi / 5)).astype(int) % 5
    assert np.allclose(np.bincount(nearest) / len(x), 0.2, atol=0.01)


def test_ring_depends_on_its_seed_alone():
    assert np.array_equal(ring(10, random_state=3), ring(10, random_state=3))
    assert not np.array_equal(ring(10, random_state=3), ring(10, random_state=4))


def test_the_ring_covers_itself():
    coverage = mode_coverage(ring(20_000))
    assert coverage.modes == 8
    assert math.isclose(coverage.share, 1 - math.exp(-4.5), abs_tol=0.003)


def test_modes_and_share_by_hand():
    three_sigma = 0.03
    samples = [[1, 0], [1 + 0.99 * three_sigma, 0], [1 + 1.01 * three_sigma, 0], [0, -1], [0, 0]]
    assert mode_coverage(samples) == Coverage(modes=2, share=0.6)
    assert mode_coverage([[0.0, 0.0]]) == Coverage(modes=0, share=0.0)
    assert mode_coverage([[0.0, 0.0]], modes=1, radius=0.0) == Coverage(modes=1, share=1.0)


@pytest.mark.parametrize("n", [0, -1, 2.5])
def test_refuses_a_bad_number_of_rows(n):
    with pytest.raises(ValueError, match="positive number of rows"):
        ring(n)


@pytest.mark.parametrize("setting", [{"modes": 0}, {"modes": 1.5}, {"radius": -1.0}, {"sigma": 0.0}])
def test_refuses_bad_settings(setting):
    with pytest.raises(ValueError, match="expected"):
        ring(3, **setting)
    with pytest.raises(ValueError, match="expected"):
        mode_coverage(np.zeros((3, 2)), **setting)


@pytest.mark.parametrize("shape", [(3,), (3, 3), (0, 2)])
def test_refuses_samples_of_another_shape(shape):
    with pytest.raises(ValueError, match="shape \\(n, 2\\)"):
        mode_coverage(np.zeros(shape))
