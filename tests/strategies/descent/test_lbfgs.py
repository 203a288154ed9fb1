"""L-BFGS against least squares' closed form, and its two loops against the matrix that they stand for."""

import numpy as np
import pytest
import torch

from weft import Learner, Optimizer, weave
from weft.objectives import Classification, LeastSquares, Regression
from weft.strategies import L2, LBFGS, ANDMask

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 8)) * np.logspace(0, 1.0, 8)  # curvatures from 1 to 100
Y = X @ rng.normal(size=8) + 0.5 * rng.normal(size=60)
SITE = np.arange(60) % 3
SETTINGS = {"optimizer": Optimizer("sgd", lr=1.0), "batch_size": None, "dtype": "float64", "random_state": 0}


@pytest.mark.parametrize("replicas", [None, 3])
def test_it_reaches_the_closed_form(replicas):
    exact = Learner(LeastSquares(), dtype="float64").fit(X, Y).predict(X)
    learner = Learner(Regression("linear"), strategy=LBFGS(), steps=80, replicas=replicas, **SETTINGS).fit(X, Y)
    for k in range(replicas or 1):
        one = learner if replicas is None else learner.replica(k)
        np.testing.assert_allclose(one.predict(X), exact, rtol=1e-7, atol=1e-7)
    slow = Learner(Regression("linear"), steps=80, **{**SETTINGS, "optimizer": Optimizer("sgd", lr=0.015)}).fit(X, Y)
    assert np.abs(slow.predict(X) - exact).max() > 1e-2, "descent is far from there after as many steps"


def test_with_a_penalty_it_reaches_ridge():
    """The penalty is in the gradient, and in the search a linear term, which does not keep it from getting there."""
    strength = 0.7
    learner = Learner(Regression("linear"), strategy=weave(L2(strength=strength), LBFGS()), steps=60, **SETTINGS)
    learner.fit(X, Y)
    design = np.hstack([X, np.ones((60, 1))])
    w = np.linalg.solve(design.T @ design / 60 + strength * np.eye(9), design.T @ Y / 60)
    np.testing.assert_allclose(learner.predict(X), design @ w, rtol=1e-6, atol=1e-6)


def test_under_a_neutral_mask_it_is_the_same():
    found = [
        Learner(Regression("linear"), strategy=s, steps=30, **SETTINGS).fit(X, Y, environment=SITE).predict(X)
        for s in (LBFGS(), weave(ANDMask(threshold=0.0), LBFGS()))
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


def test_two_loops_are_the_matrix():
    torch.manual_seed(0)
    pairs, size = 4, 6
    root = torch.randn(size, size, dtype=torch.float64)
    curvature = root @ root.T + torch.eye(size, dtype=torch.float64)
    s = torch.randn(pairs, size, dtype=torch.float64)
    y = s @ curvature
    weight = 1.0 / (s * y).sum(1)
    h = torch.eye(size, dtype=torch.float64) / (weight[0] * y[0].square().sum())
    for k in reversed(range(pairs)):
        left = torch.eye(size, dtype=torch.float64) - weight[k] * torch.outer(s[k], y[k])
        h = left @ h @ left.T + weight[k] * torch.outer(s[k], s[k])
    g = torch.randn(size, dtype=torch.float64)
    found = LBFGS(history=pairs)._direction(g, {"s": s, "y": y, "weight": weight})
    torch.testing.assert_close(found, -h @ g)


def test_the_loss_of_a_net_never_rises():
    y = (Y > 0).astype(int)
    net = Classification(hidden=(16,))
    learner = Learner(net, strategy=LBFGS(trials=12), steps=25, **SETTINGS).fit(X / 10, y)
    losses = learner.history_["loss"]
    assert (np.diff(losses) <= 1e-12).all()
    assert losses[-1] < 0.2 * losses[0]


def test_a_new_task_forgets_the_curvature_of_the_last():
    learner = Learner(Regression("linear"), strategy=LBFGS(), steps=80, **SETTINGS)
    learner.partial_fit(X, Y, task="one")
    learner.partial_fit(X[:, ::-1].copy(), Y, task="two")
    exact = Learner(LeastSquares(), dtype="float64").fit(X[:, ::-1].copy(), Y).predict(X)
    np.testing.assert_allclose(learner.predict(X), exact, rtol=1e-5, atol=1e-5)
    strategy = LBFGS(history=2)
    state = {**strategy.init({"w": torch.ones(3)}), "weight": torch.ones(2), "begun": torch.tensor(True)}
    released = strategy.release(state, "two")
    assert not released["weight"].any()
    assert not released["begun"]


def test_a_schedule_that_ends_at_zero_ends_where_it_is():
    settings = {**SETTINGS, "schedule": lambda t: 1.0 if t < 0.5 else 0.0}
    found = Learner(Regression("linear"), strategy=LBFGS(), steps=40, **settings).fit(X, Y).predict(X)
    half = Learner(Regression("linear"), strategy=LBFGS(), steps=20, **SETTINGS).fit(X, Y).predict(X)
    np.testing.assert_allclose(found, half, rtol=1e-12)


@pytest.mark.parametrize("bad", [{"history": -1}, {"trials": -1}, {"history": True}])
def test_bad_input(bad):
    with pytest.raises((ValueError, TypeError), match=f"LBFGS's {next(iter(bad))}"):
        Learner(Regression("linear"), strategy=LBFGS(**bad), steps=1, **SETTINGS).fit(X, Y)


def test_the_default_optimizer_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"expected plain SGD with LBFGS\(\).*optimizer=Optimizer\('sgd', lr="):
        Learner(Regression("linear"), strategy=LBFGS(), steps=1).fit(X, Y)
