"""Wasserstein distances beside SciPy's and closed forms."""

import sys

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from weft.scores import sliced_wasserstein, wasserstein
from weft.scores.samples import reading


@pytest.mark.parametrize(("m", "n"), [(20, 20), (12, 30), (7, 1)])
def test_in_one_dimension_both_are_scipy_s(m, n):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=m), rng.exponential(size=n)
    expected = stats.wasserstein_distance(X, Y)
    assert sliced_wasserstein(X, Y, order=1) == pytest.approx(expected)
    pytest.importorskip("ot")
    assert wasserstein(X, Y, order=1) == pytest.approx(expected)
    assert wasserstein(X, Y) == pytest.approx(sliced_wasserstein(X, Y))


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0])
def test_exact_transport_is_the_best_assignment(order):
    pytest.importorskip("ot")
    rng = np.random.default_rng(0)
    for scale in (1e-6, 1.0, 1e6):
        X, Y = scale * rng.normal(size=(40, 3)), scale * (rng.normal(size=(40, 3)) + 1)
        costs = cdist(X, Y) ** order
        expected = costs[linear_sum_assignment(costs)].mean() ** (1 / order)
        assert wasserstein(X, Y, order=order) == pytest.approx(expected)
    assert wasserstein(X, X[::-1]) == 0.0


def test_a_shift_is_seen_by_its_share_of_each_line():
    rng = np.random.default_rng(0)
    X, shift = rng.normal(size=(200, 5)), np.array([3.0, 0.0, 0.0, 0.0, 4.0])
    assert sliced_wasserstein(X, X + shift, projections=4_000) == pytest.approx(5 / np.sqrt(5), rel=0.03)
    assert sliced_wasserstein(X, X) == 0.0


def test_slices_are_quantiles_in_any_sizes_and_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(15, 3)), rng.normal(size=(10, 3))
    whole = sliced_wasserstein(X, Y, order=1.5, projections=16)
    twice = sliced_wasserstein(np.repeat(X, 2, 0), np.repeat(Y, 3, 0), order=1.5, projections=16)
    assert whole == pytest.approx(twice)
    monkeypatch.setattr(reading, "MEMORY", 3 * 4 * 8 * 49)
    assert sliced_wasserstein(X, Y, order=1.5, projections=16) == pytest.approx(whole)
    seeds = {sliced_wasserstein(X, Y, projections=16, random_state=seed) for seed in (0, 0, 1)}
    assert len(seeds) == 2


def test_bad_settings_are_told(monkeypatch):
    X = np.zeros((3, 2))
    for distance in (wasserstein, sliced_wasserstein):
        with pytest.raises(ValueError, match=r"expected order to be a number >= 1, got 0\.5"):
            distance(X, X, order=0.5)
    with pytest.raises(ValueError, match="expected projections to be an integer >= 1, got 0"):
        sliced_wasserstein(X, X, projections=0)
    with pytest.raises(ValueError, match=r"at most 10,000 rows .* or sliced_wasserstein"):
        wasserstein(np.zeros(10_001), np.zeros(3))
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(ImportError, match=r"expected POT, .* or take sliced_wasserstein"):
        wasserstein(X, X)
