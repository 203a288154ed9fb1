import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from weft import Classifier, Learner, Optimizer
from weft.core.source import Field
from weft.engine.build import build
from weft.objectives import Classification, Regression

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 4)) @ rng.normal(size=(4, 4))
Y = X @ np.array([1.0, -2.0, 0.5, 3.0]) + 4.0 + 0.3 * rng.normal(size=60)


def test_digits_at_97_percent():
    x, y = load_digits(return_X_y=True)
    a, b, c, d = train_test_split(x / 16, y, test_size=0.25, random_state=0, stratify=y)
    scores = [Classifier(random_state=seed).fit(a, c).score(b, d) for seed in range(2)]
    assert np.mean(scores) >= 0.97, scores


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
    with pytest.raises(ValueError, match="noise to be a number > 0"):
        Learner(Regression(noise=0.0)).fit(X, Y)
