import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes, load_digits
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import train_test_split

from weft import Classifier, Learner, Optimizer
from weft.core.source import Field
from weft.engine.build import build
from weft.objectives import Classification, LeastSquares, Regression

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 4)) @ rng.normal(size=(4, 4))
Y = X @ np.array([1.0, -2.0, 0.5, 3.0]) + 4.0 + 0.3 * rng.normal(size=60)
WEIGHT = rng.uniform(0.2, 2.0, size=60)


def test_digits_at_97_percent():
    x, y = load_digits(return_X_y=True)
    a, b, c, d = train_test_split(x / 16, y, test_size=0.25, random_state=0, stratify=y)
    scores = [Classifier(random_state=seed).fit(a, c).score(b, d) for seed in range(2)]
    assert np.mean(scores) >= 0.97, scores


@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("ridge", [0.0, 3.0])
def test_solve_is_the_closed_form(ridge, weight):
    found = Learner(LeastSquares(ridge=ridge), dtype="float64").fit(X, Y, sample_weight=weight)
    truth = (Ridge(alpha=ridge) if ridge else LinearRegression()).fit(X, Y, sample_weight=weight)
    np.testing.assert_allclose(found.predict(X), truth.predict(X))
    assert found.stop_reason_ == "solved"


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
    found = Learner(LeastSquares(), dtype="float64").fit(X, y)
    np.testing.assert_allclose(found.predict(X), LinearRegression().fit(X, y).predict(X))


def test_singular_designs_are_solved_too():
    doubled = np.concatenate([X, X[:, :1]], axis=1)
    found = Learner(LeastSquares(), dtype="float64").fit(doubled, Y)
    np.testing.assert_allclose(found.predict(doubled), LinearRegression().fit(X, Y).predict(X))


def test_a_linear_classifier_is_logistic_regression():
    labels = (Y > 4).astype(int) + (Y > 8)
    z = (X - X.mean(0)) / X.std(0)
    optimizer = Optimizer("sgd", lr=1.0, weight_decay=0.05, groups={"*.bias": {"weight_decay": 0.0, "lr": 1.0}})
    net = Classifier("linear", optimizer=optimizer, epochs=2000, batch_size=None, dtype="float64", random_state=0)
    net.fit(z, labels)
    truth = LogisticRegression(C=1 / (60 * 0.05), tol=1e-10, max_iter=10_000).fit(z, labels)
    np.testing.assert_allclose(net.predict_proba(z), truth.predict_proba(z), atol=1e-6)


def test_losses_are_the_negative_log_likelihoods():
    spec = {"x": Field((4,), torch.float64), "y": Field((), torch.int64, 3)}
    objective = build(Classification(hidden=(5,)), spec, 0, torch.float64)
    batch = {"x": torch.as_tensor(X), "y": torch.randint(3, (60,), generator=torch.Generator().manual_seed(0))}
    output = objective(batch)
    torch.testing.assert_close(output.losses, -objective.distribution(output).log_prob(batch["y"]))
    torch.testing.assert_close(output.losses, F.cross_entropy(objective.net(batch["x"]), batch["y"], reduction="none"))
    spec = {"x": Field((4,), torch.float64), "y": Field((2,), torch.float64)}
    objective = build(Regression(hidden=(5,), noise=0.7), spec, 0, torch.float64)
    batch = {"x": torch.as_tensor(X), "y": torch.randn(60, 2, dtype=torch.float64)}
    output = objective(batch)
    constant = 2 * np.log(0.7 * np.sqrt(2 * np.pi))
    torch.testing.assert_close(output.losses + constant, -objective.distribution(output).log_prob(batch["y"]))


def test_a_regression_learns_diabetes():
    x, y = load_diabetes(return_X_y=True)
    a, b, c, d = train_test_split(x * 20, (y - y.mean()) / y.std(), random_state=0)
    net = Learner(Regression(hidden=(32,)), validation=0.2, patience=5, random_state=0).fit(a, c)
    assert net.score(b, d) > 0.3, "linear regression has 0.36"


def test_the_noise_must_be_positive():
    with pytest.raises(ValueError, match="noise > 0"):
        Learner(Regression(noise=0.0)).fit(X, Y)
    with pytest.raises(ValueError, match="ridge >= 0"):
        Learner(LeastSquares(ridge=-1.0)).fit(X, Y)
