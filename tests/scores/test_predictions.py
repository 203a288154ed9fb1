"""Accuracy, R squared and Wilson's interval."""

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, r2_score

from weft.scores import accuracy, r_squared, score, wilson


def test_scores_are_scikit_learn_s():
    rng = np.random.default_rng(0)
    y, answers = rng.integers(3, size=50).astype(str), rng.integers(3, size=50).astype(str)
    assert score("classes", y, answers) == accuracy(y, answers) == accuracy_score(y, answers)
    y, answers = rng.normal(size=50), rng.normal(size=50)
    assert score("values", y, answers) == r_squared(y, answers) == pytest.approx(r2_score(y, answers))


def test_what_has_no_score():
    assert accuracy([], []) is None
    assert r_squared([], []) is None
    assert r_squared([3.0, 3.0], [3.0, 2.0]) is None
    with pytest.raises(ValueError, match="expected the kind of target to be classes or values, got 'boxes'"):
        score("boxes", [1], [1])


@pytest.mark.parametrize(("right", "n"), [(0, 5), (3, 7), (18, 20), (24, 24)])
def test_the_interval_is_wilson_s(right, n):
    interval = binomtest(right, n).proportion_ci(method="wilson")
    assert wilson(right / n, n) == pytest.approx((interval.low, interval.high), abs=1e-6)


def test_an_interval_of_nothing_is_refused():
    with pytest.raises(ValueError, match=r"of at least one case, got 0\.5 of 0"):
        wilson(0.5, 0)
