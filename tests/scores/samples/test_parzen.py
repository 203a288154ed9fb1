"""Gaussian balls around draws: the density they are, the width by validation, and the faults that they have."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.cluster import KMeans
from sklearn.neighbors import KernelDensity

from weft.scores import parzen_likelihood

rng = np.random.default_rng(0)
CENTRES = 2 * rng.normal(size=(5, 10))


def drawn(n):
    """Of five normals in ten dimensions."""
    return CENTRES[rng.integers(5, size=n)] + 0.5 * rng.normal(size=(n, 10))


def known(X):
    each = [stats.multivariate_normal(c, 0.25 * np.eye(10)).logpdf(X) for c in CENTRES]
    return np.logaddexp.reduce(each).mean() - math.log(5)


TRAIN, HELD, X = drawn(4000), drawn(400), drawn(1000)


def test_the_density_of_scikit_learn():
    found = parzen_likelihood(TRAIN[:300], X, validation=HELD)
    balls = KernelDensity(bandwidth=found.bandwidth).fit(TRAIN[:300])
    assert found.value == pytest.approx(balls.score(X) / len(X))
    assert found.interval[0] < found.value < found.interval[1]
    held = [KernelDensity(bandwidth=found.bandwidth * f).fit(TRAIN[:300]).score(HELD) for f in (0.8, 1, 1.25)]
    assert np.argmax(held) == 1
    images = TRAIN[:300].reshape(-1, 2, 5)
    assert float(parzen_likelihood(images, X.reshape(-1, 2, 5), validation=HELD.reshape(-1, 2, 5))) == found.value


def test_in_one_dimension_it_comes_near():
    draws, rows, held = rng.normal(size=(3, 1000, 1))
    truth = stats.norm.logpdf(rows).mean()
    assert parzen_likelihood(draws, rows, validation=held).value == pytest.approx(truth, abs=0.04)


def test_its_faults():
    """The truth loses to centroids and to five points, and to copies of the training rows it does not win."""
    truth = known(X)
    right = parzen_likelihood(drawn(200), X, validation=HELD).value
    centroids = KMeans(200, n_init=1, random_state=0).fit(TRAIN).cluster_centers_
    placed = parzen_likelihood(centroids, X, validation=HELD).value
    points = parzen_likelihood(CENTRES, X, validation=HELD).value
    copies = parzen_likelihood(TRAIN[:200], X, validation=HELD).value
    assert right < truth - 0.5  # far below, with as many draws
    assert right + 0.3 < placed < points
    assert points == pytest.approx(truth, abs=0.05)
    assert copies == pytest.approx(right, abs=0.2)


def test_a_width_by_the_rows_themselves_is_caught():
    """The mutant: of draws that are the rows, the narrowest is likeliest; a validation of others says how wide."""
    with pytest.warns(UserWarning, match="got the least"):
        cheated = parzen_likelihood(X, X[::-1], validation=X)
    honest = parzen_likelihood(X[:500], X[500:], validation=HELD)
    assert cheated.value > known(X) + 5
    assert honest.value < known(X)


WRONG = {
    "other than X": {"validation": X},
    "rows of the same shape": {"validation": HELD[:, :3]},
    "a bandwidth to be": {"validation": HELD, "bandwidths": [0.0]},
    "bandwidths > 0 to try": {"validation": HELD, "bandwidths": []},
    "two rows in validation": {"validation": HELD[:1]},
    "NaN or infinity": {"validation": HELD * np.nan},
}


@pytest.mark.parametrize("told", WRONG, ids=str)
def test_wrong_questions_are_refused(told):
    with pytest.raises(ValueError, match=told):
        parzen_likelihood(TRAIN[:50], X, **WRONG[told])
