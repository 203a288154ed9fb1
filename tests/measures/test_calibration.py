"""Calibration: on models whose posterior and probabilities are known."""

import numpy as np
import pytest
import torch

from weft import Classifier, Optimizer, Regressor
from weft.measures import coverage, expected_calibration_error, posterior
from weft.strategies import ERM, EWC, Laplace

RANDOM = np.random.default_rng(0)


def test_error_in_closed_form():
    p = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.45, 0.55]])
    y = np.array([0, 1, 1, 0])
    # four bins of width .25: (.5, .75] holds the last two (right, wrong), (.75, 1] the first two (right, wrong)
    expected = abs(1 - (0.9 + 0.8)) / 4 + abs(1 - (0.7 + 0.55)) / 4
    assert expected_calibration_error(y, p, bins=4) == pytest.approx(expected)
    named = np.array(["no", "yes"])
    assert expected_calibration_error(named[y], p, classes=named, bins=4) == pytest.approx(expected)
    assert expected_calibration_error(y, p, bins=1) == pytest.approx(abs(2 - 2.95) / 4)


def test_true_probabilities_are_calibrated_and_sharpened_ones_are_not():
    logits = RANDOM.normal(size=(200_000, 3))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    y = (RANDOM.random((len(p), 1)) > p.cumsum(1)).sum(1)
    assert expected_calibration_error(y, p) < 0.005
    sharp = p**3 / (p**3).sum(1, keepdims=True)
    assert expected_calibration_error(y, sharp) == pytest.approx(
        sharp.max(1).mean() - (p.argmax(1) == y).mean(), abs=0.005
    )


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_coverage_of_normal_draws(level):
    t = RANDOM.normal(size=100_000)
    assert coverage(3 + 2 * t, 3.0, 2.0, level=level) == pytest.approx(level, abs=0.006)
    assert coverage(3 + 2 * t, 3.0, 1.0, level=level) < level - 0.1
    assert coverage([1.0], [1.0], [0.0], level=level) == 1.0


def fitted(X, y, task, curvature):
    """A line learned to convergence, task after task, carrying a posterior of summed precisions."""
    n = len(X) // 2
    carried = Laplace(strength=1 / n, curvature=curvature, penalties="latest", normalize=False)
    line = Regressor(
        "linear", strategy=carried, optimizer=Optimizer("sgd", lr=0.3), steps=300, batch_size=None, dtype="float64"
    )
    for name in (0, 1):
        line.partial_fit(X[task == name], y[task == name], task=name)
    return posterior(line, rows=n)


@pytest.mark.turns("src/weft/measures/*", "src/weft/strategies/posterior/*")
def test_the_posterior_of_a_conjugate_model_and_its_coverage():
    inside, sure = [], []
    for seed in range(12):
        random = np.random.default_rng(seed)
        X, task = random.normal(size=(60, 8)), np.arange(60) % 2
        X[:, 1] = X[:, 0] * 0.7 + X[:, 1] * 0.7  # correlated, which a diagonal does not see
        theta = random.normal(size=9)
        y = X @ theta[:8] + theta[8] + random.normal(size=60)
        found = fitted(X, y, task, "full")
        design = np.column_stack([X, np.ones(60)])
        exact = np.linalg.inv(design.T @ design)
        np.testing.assert_allclose(found.covariance.numpy(), exact, rtol=1e-6, atol=1e-9)
        mean = torch.cat([m.flatten() for m in found.mean.values()]).numpy()
        np.testing.assert_allclose(mean, exact @ design.T @ y, atol=1e-3)
        deviation = torch.cat([s.flatten() for s in found.deviation.values()]).numpy()
        inside.append(coverage(theta, mean, deviation, level=0.9))
        sure.append(coverage(theta, mean, deviation / 2, level=0.9))
    n = 12 * 9
    assert abs(np.mean(inside) - 0.9) < 4 * np.sqrt(0.09 / n)
    assert np.mean(sure) < 0.75


def test_a_diagonal_is_too_sure_of_correlated_parameters():
    random = np.random.default_rng(0)
    X, task = random.normal(size=(60, 2)), np.arange(60) % 2
    X[:, 1] = X[:, 0] + 0.3 * X[:, 1]
    y = X.sum(1) + random.normal(size=60)
    whole = fitted(X, y, task, "full").deviation["net.1.weight"]
    diagonal = fitted(X, y, task, "diagonal").deviation["net.1.weight"]
    assert (diagonal < 0.5 * whole).all()
    low = fitted(X, y, task, "low_rank").deviation["net.1.weight"]
    torch.testing.assert_close(low, whole, rtol=1e-3, atol=1e-4)


def test_bad_input():
    with pytest.raises(ValueError, match="expected a label for each row of probabilities"):
        expected_calibration_error([0], [[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(ValueError, match="that sum to 1"):
        expected_calibration_error([0], [[0.5, 0.6]])
    with pytest.raises(ValueError, match="expected bins"):
        expected_calibration_error([0], [[0.5, 0.5]], bins=0)
    with pytest.raises(ValueError, match="a class for each of the 2 columns"):
        expected_calibration_error([0], [[0.5, 0.5]], classes=[0])
    with pytest.raises(ValueError, match=r"expected level in \(0, 1\), got 95"):
        coverage([0.0], 0.0, 1.0, level=95)
    with pytest.raises(ValueError, match="deviations >= 0"):
        coverage([0.0], 0.0, -1.0)
    X, y = RANDOM.normal(size=(20, 3)), np.arange(20) % 2
    with pytest.raises(ValueError, match="expected a learner that has consolidated tasks by a penalty"):
        posterior(Classifier(strategy=ERM(), epochs=1).partial_fit(X, y, task="a"))
    with pytest.warns(UserWarning, match="expected tasks for EWC"):
        ewc = Classifier(strategy=EWC(), epochs=1).fit(X, y)
    with pytest.raises(ValueError, match="give partial_fit a task"):
        posterior(ewc)
    ewc.partial_fit(X, y, task="a")
    with pytest.raises(ValueError, match="expected at most 4,096 parameters"):
        posterior(ewc)
    small = Classifier("linear", strategy=Laplace(curvature="full"), epochs=1).partial_fit(X, y, task="a")
    with pytest.raises(ValueError, match="flat directions"):
        posterior(small)  # the same number added to both logits changes nothing
    assert posterior(small, prior=1.0).covariance.shape == (8, 8)
