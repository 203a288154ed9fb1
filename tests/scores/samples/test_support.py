"""Precision, recall, density, coverage, modes: beside plain loops, and the right way round."""

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from weft.scores import density_coverage, modes, precision_recall
from weft.scores.samples import reading


def balls(rows, k):
    return NearestNeighbors(n_neighbors=k + 1).fit(rows).kneighbors(rows)[0][:, -1]


@pytest.mark.parametrize("columns", [2, 40])
def test_they_are_their_definitions(columns, monkeypatch):
    rng = np.random.default_rng(0)
    real, made = rng.normal(size=(60, columns)) + 5, 1.3 * rng.normal(size=(45, columns)) + 5.2
    apart = np.linalg.norm(made[:, None] - real, axis=-1)  # (generated, real)
    for memory in (reading.MEMORY, 8 * 6 * 60 * 7):
        monkeypatch.setattr(reading, "MEMORY", memory)
        precision = (apart <= balls(real, 3)).any(1).mean()
        recall = (apart <= balls(made, 3)[:, None]).any(0).mean()
        assert precision_recall(real, made) == pytest.approx((precision, recall))
        inside = apart <= balls(real, 4)
        expected = inside.sum() / (4 * len(made)), inside.any(0).mean()
        assert density_coverage(real, made, neighbours=4) == pytest.approx(expected)


def test_dropped_modes_cost_recall_and_scatter_costs_precision():
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [20.0, 0.0], [0.0, 20.0], [20.0, 20.0]])
    real = np.repeat(centres, 100, 0) + rng.normal(size=(400, 2))
    dropped = centres[0] + rng.normal(size=(400, 2))
    precise, recalled = precision_recall(real, dropped)
    assert precise > 0.9
    assert recalled < 0.3
    density, coverage = density_coverage(real, dropped)
    assert density > 0.8
    assert coverage < 0.3
    scattered = rng.uniform(-30, 50, size=(400, 2))
    precise, recalled = precision_recall(real, scattered)
    assert precise < 0.3
    assert recalled > 0.9
    assert density_coverage(real, scattered).density < 0.1


def test_one_outlier_raises_precision_and_not_density():
    rng = np.random.default_rng(0)
    real = np.r_[rng.normal(size=(300, 2)), [[60.0, 0.0]]]
    far = rng.normal(size=(300, 2)) + [30.0, 0.0]
    assert precision_recall(real, far).precision > 0.9
    assert density_coverage(real, far).density < 0.3


def test_of_one_law_they_are_as_the_paper_expects():
    rng = np.random.default_rng(0)
    found = np.mean([density_coverage(rng.normal(size=(300, 8)), rng.normal(size=(300, 8))) for _ in range(20)], axis=0)
    k, n = 5, 300
    chances = [(n - j) / (2 * n - 1 - j) for j in range(k)]  # all of the k nearest of 2n - 1 are real: not covered
    assert found == pytest.approx((1.0, 1 - np.prod(chances)), abs=0.02)


def test_modes_are_counted_as_in_pacgan():
    centres = [[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]]
    samples = [[0.0, 2.9], [0.1, 0.0], [10.0, 3.1], [10.0, -3.0]]
    assert modes(samples, centres, within=3.0) == (2, 0.75, (2, 1, 0))
    assert modes([[5.0, 5.0]], centres, within=3.0) == (0, 0.0, (0, 0, 0))
    rng = np.random.default_rng(0)
    found = modes(rng.normal(size=(20_000, 2)), [[0.0, 0.0]], within=3.0)
    assert found.share == pytest.approx(1 - np.exp(-4.5), abs=0.003)


def test_bad_settings_are_told():
    X = np.random.default_rng(0).normal(size=(8, 2))
    with pytest.raises(ValueError, match=r"expected within to be a number > 0, got 0\.0"):
        modes(X, X, within=0.0)
    with pytest.raises(ValueError, match=r"rows of the same shape, got \(n, 2\) and \(n, 1\)"):
        modes(X, X[:, :1], within=1.0)
    for measure in (precision_recall, density_coverage):
        with pytest.raises(ValueError, match="expected neighbours to be an integer >= 1, got 0"):
            measure(X, X, neighbours=0)
        with pytest.raises(ValueError, match="expected at least 9 rows in X, got 8"):
            measure(X, X, neighbours=8)


def test_duplicates_whose_balls_hold_nothing_are_told():
    X = np.random.default_rng(0).normal(size=(8, 2))
    with pytest.raises(ValueError, match=r"expected real rows that differ, got 100 % .* leave duplicates out"):
        density_coverage(np.ones((8, 2)), X)
    with pytest.raises(ValueError, match="expected generated rows that differ"):
        precision_recall(X, np.repeat(X[:2], 4, 0))
    assert precision_recall(X, np.repeat(X, 2, 0)) == (1.0, 1.0)  # two of each still differ
