import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, Ridge

from weft import Learner, Optimizer
from weft.objectives import LeastSquares, Regression

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 4)) @ rng.normal(size=(4, 4))
Y = X @ np.array([1.0, -2.0, 0.5, 3.0]) + 4.0 + 0.3 * rng.normal(size=60)
WEIGHT = rng.uniform(0.2, 2.0, size=60)


@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("ridge", [0.0, 3.0])
def test_solve_is_the_closed_form(ridge, weight):
    solved = Learner(LeastSquares(ridge=ridge), dtype="float64").fit(X, Y, sample_weight=weight)
    truth = (Ridge(alpha=ridge) if ridge else LinearRegression()).fit(X, Y, sample_weight=weight)
    np.testing.assert_allclose(solved.predict(X), truth.predict(X))
    assert solved.stop_reason_ == "solved"


@pytest.mark.parametrize("ridge", [0.0, 3.0])
def test_a_linear_net_descends_to_the_closed_form(ridge):
    """Full batch; weight decay lambda on the mean of half squared errors is ridge = n lambda."""
    z = (X - X.mean(0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(X.T))).T  # well conditioned
    optimizer = Optimizer("sgd", lr=0.5, weight_decay=ridge / 60, groups={"*.bias": {"weight_decay": 0.0, "lr": 0.5}})
    net = Learner(Regression("linear"), optimizer=optimizer, steps=400, batch_size=None, dtype="float64")
    net.fit(z, Y)
    truth = (Ridge(alpha=ridge) if ridge else LinearRegression()).fit(z, Y)
    np.testing.assert_allclose(net.predict(z), truth.predict(z), rtol=1e-8)
    solved = Learner(LeastSquares(ridge=ridge), dtype="float64").fit(z, Y)
    np.testing.assert_allclose(net.predict(z), solved.predict(z), rtol=1e-8)


def test_several_outputs():
    y = np.stack([Y, -2 * Y + X[:, 0]], axis=1)
    solved = Learner(LeastSquares(), dtype="float64").fit(X, y)
    np.testing.assert_allclose(solved.predict(X), LinearRegression().fit(X, y).predict(X))


def test_singular_designs_are_solved_too():
    doubled = np.concatenate([X, X[:, :1]], axis=1)
    solved = Learner(LeastSquares(), dtype="float64").fit(doubled, Y)
    np.testing.assert_allclose(solved.predict(doubled), LinearRegression().fit(X, Y).predict(X))


def test_the_ridge_must_not_be_negative():
    with pytest.raises(ValueError, match="ridge to be a number >= 0"):
        Learner(LeastSquares(ridge=-1.0)).fit(X, Y)
