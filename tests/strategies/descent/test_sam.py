"""Sharpness-aware minimization against its steps written out."""

import numpy as np
import pytest
import torch
from torch import nn

from weft import Learner, Optimizer, weave
from weft.objectives import Regression
from weft.strategies import L2, SAM, ANDMask

rng = np.random.default_rng(0)
X = rng.normal(size=(30, 3))
Y = X @ np.array([1.0, -2.0, 0.5]) + 0.3 * rng.normal(size=30)
SITE = np.repeat([0, 1], [20, 10])
Y = Y + np.where(SITE == 1, 4.0 * X[:, 1], 0.0)  # the environments do not agree on the second weight


def line(strategy, **settings):
    net = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(net.weight)
    settings = {"optimizer": Optimizer("sgd", lr=0.1), "steps": 4, "batch_size": None, **settings}
    return Learner(Regression(net), strategy=strategy, init="keep", dtype="float64", random_state=0, **settings)


def gradient(w, rows=slice(None)):
    return X[rows].T @ (X[rows] @ w - Y[rows]) / len(X[rows])


def masked(w):
    each = np.stack([gradient(w, e == SITE) for e in (0, 1)])
    return np.where(np.abs(np.sign(each).sum(0)) == 2, np.array([2 / 3, 1 / 3]) @ each, 0.0)


def written_out(slope, radius, extra=0.0):
    w = np.zeros(3)
    for _ in range(4):
        g = slope(w)
        w = w - 0.1 * (slope(w + radius * g / np.linalg.norm(g)) + extra * w)
    return w


@pytest.mark.parametrize("replicas", [None, 2])
def test_the_gradient_is_that_of_the_worst_point_nearby(replicas):
    learner = line(SAM(radius=0.5), replicas=replicas).fit(X, Y)
    np.testing.assert_allclose(learner.predict(np.eye(3)), written_out(gradient, 0.5), rtol=1e-9)


def test_radii_are_swept():
    learner = line(SAM(), replicas={"strategy__radius": [0.1, 0.7]}).fit(X, Y)
    for k, radius in enumerate((0.1, 0.7)):
        np.testing.assert_allclose(learner.replica(k).predict(np.eye(3)), written_out(gradient, radius), rtol=1e-9)


def test_under_a_mask_both_gradients_are_masked_and_a_penalty_is_in_neither():
    mask = ANDMask(threshold=1.0, rescale=False)
    found = line(weave(mask, SAM(radius=0.5))).fit(X, Y, environment=SITE).predict(np.eye(3))
    expected = written_out(masked, 0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert np.abs(written_out(gradient, 0.5) - expected).max() > 1e-3, "the mask masks"
    found = line(weave(L2(strength=0.3), mask, SAM(radius=0.5))).fit(X, Y, environment=SITE).predict(np.eye(3))
    np.testing.assert_allclose(found, written_out(masked, 0.5, extra=0.3), rtol=1e-9)


def test_at_a_minimum_there_is_no_direction_to_look_in():
    learner = line(SAM(radius=0.5), steps=1).fit(X, np.zeros(30))
    assert learner.predict(np.eye(3)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("radius", [-0.1, float("nan")])
def test_bad_input(radius):
    with pytest.raises(ValueError, match="SAM's radius"):
        line(SAM(radius=radius)).fit(X, Y)
