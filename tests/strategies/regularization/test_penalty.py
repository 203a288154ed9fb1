"""L2 against the optimizer's own weight decay, L1 against the lasso's closed form."""

import numpy as np
import pytest
import torch

from weft import Classifier, Learner, Optimizer, weave
from weft.objectives import Regression
from weft.strategies import L1, L2, ANDMask

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 4))
Y = (X[:, 0] > 0).astype(int)


def test_values():
    params = {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor([[3.0]])}
    assert float(L1(strength=0.5).penalty(params, {})) == 3.0
    assert float(L2(strength=0.5).penalty(params, {})) == 3.5


@pytest.mark.parametrize("masked", [False, True])
def test_l2_is_weight_decay_in_sgd(masked):
    """With a mask on the gradients of environments too: the penalty acts after it, as weight decay does."""
    inner = [ANDMask(threshold=0.6)] if masked else []
    settings = {"hidden": (6,), "epochs": 4, "batch_size": 10, "dtype": "float64", "random_state": 0}
    environment = np.arange(60) % 3 if masked else None
    decay = Optimizer("sgd", lr=0.2, momentum=0.9, weight_decay=0.05)
    plain = Optimizer("sgd", lr=0.2, momentum=0.9)
    strategy = weave(*inner, L2(strength=0.05))
    by_loss = Classifier(strategy=strategy, optimizer=plain, **settings).fit(X, Y, environment=environment)
    strategy = weave(*inner) if inner else None
    by_step = Classifier(strategy=strategy, optimizer=decay, **settings).fit(X, Y, environment=environment)
    free = Classifier(strategy=strategy, optimizer=plain, **settings).fit(X, Y, environment=environment)
    np.testing.assert_allclose(by_loss.predict_proba(X), by_step.predict_proba(X), rtol=1e-9)
    assert np.abs(by_loss.predict_proba(X) - free.predict_proba(X)).max() > 1e-3


def test_l1_is_soft_thresholding():
    """With orthonormal columns, least squares / 2 plus L1 is minimized by shrinking each coefficient by n strength."""
    q, _ = np.linalg.qr(rng.normal(size=(40, 3)))
    x = q * np.sqrt(40)  # so that x'x = n
    y = x @ np.array([2.0, -0.8, 0.05])
    net = lambda inputs, outputs: torch.nn.Linear(inputs, outputs, bias=False)
    learner = Learner(
        Regression(net),
        strategy=L1(strength=0.3),
        optimizer=Optimizer("sgd", lr=0.05),
        schedule="linear",
        steps=800,
        batch_size=None,
        dtype="float64",
        random_state=0,
    ).fit(x, y)
    coefficients = learner.predict(np.eye(3))
    np.testing.assert_allclose(coefficients, [1.7, -0.5, 0.0], atol=2e-3)


def test_replicas_may_differ_in_strength():
    settings = {"epochs": 3, "batch_size": 20, "dtype": "float64", "hidden": (6,)}
    strengths = [0.0, 0.1]
    many = Classifier(
        strategy=L2(), replicas={"strategy__strength": strengths, "random_state": [0, 0]}, **settings
    ).fit(X, Y)
    for k, strength in enumerate(strengths):
        one = Classifier(strategy=L2(strength=strength), random_state=0, **settings).fit(X, Y)
        np.testing.assert_allclose(many.replica(k).predict_proba(X), one.predict_proba(X), rtol=1e-9)


@pytest.mark.parametrize("kind", [L1, L2])
@pytest.mark.parametrize("strength", [-1.0, float("nan")])
def test_strength_out_of_range(kind, strength):
    with pytest.raises(ValueError, match=f"expected {kind.__name__}'s strength to be a number >= 0, got"):
        Classifier(strategy=kind(strength=strength)).fit(X, Y)
