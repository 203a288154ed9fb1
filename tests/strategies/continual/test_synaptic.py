"""Synaptic intelligence against the paper's algorithm written out, and on a loss whose importances are known."""

import numpy as np
import pytest
import torch

from weft import Learner, Optimizer, weave
from weft.objectives import Classification, Regression
from weft.strategies import EWC, ANDMask, SynapticIntelligence

rng = np.random.default_rng(0)
TASKS = []
for _ in range(3):
    x = rng.normal(size=(40, 3))
    TASKS.append((x, x @ rng.normal(size=3) + 0.3 * rng.normal(size=40)))
SITE = np.arange(40) % 3


def line(strategy, steps=60, **settings):
    net = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.zeros_(net.weight)
    settings = {"optimizer": Optimizer("adam", lr=0.05), "steps": steps, "batch_size": None, **settings}
    return Learner(Regression(net), strategy=strategy, init="keep", dtype="float64", random_state=0, **settings)


def state(learner):
    return learner.training_.runs[0][1].strategy[""]


def written_out(c, xi, steps=60, lr=0.05, mask=None):
    """Adam with the penalty's gradient; omega from the loss's own gradient and the steps taken."""
    w, importance, anchor = np.zeros(3), np.zeros(3), np.zeros(3)
    for X, y in TASKS:
        m, v, path, start = np.zeros(3), np.zeros(3), np.zeros(3), w
        for t in range(1, steps + 1):
            g = X.T @ (X @ w - y) / len(y)
            if mask is not None:
                signs = [np.sign(X[e == SITE].T @ (X[e == SITE] @ w - y[e == SITE])) for e in range(3)]
                g = np.where(np.abs(np.sum(signs, 0)) >= mask * 3, g, 0.0)
            whole = g + 2 * c * importance * (w - anchor)
            m, v = 0.9 * m + 0.1 * whole, 0.999 * v + 0.001 * whole**2
            step = -lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
            path -= g * step
            w = w + step
        importance = np.maximum(importance + path / ((w - start) ** 2 + xi), 0.0)
        anchor = w
    return w, importance


@pytest.mark.parametrize("mask", [None, 1.0])
def test_three_tasks_written_out(mask):
    strategy = SynapticIntelligence(strength=2.0, damping=0.05)
    learner = line(strategy if mask is None else weave(ANDMask(threshold=mask, rescale=False), strategy))
    for i, (X, y) in enumerate(TASKS):
        learner.partial_fit(X, y, task=i, environment=None if mask is None else SITE)
    w, importance = written_out(2.0, 0.05, mask=mask)
    own = state(learner) if mask is None else state(learner)["synapticintelligence"]
    np.testing.assert_allclose(learner.predict(np.eye(3)), w, rtol=1e-9)
    np.testing.assert_allclose(own["importance"]["net.weight"].numpy()[0], importance, rtol=1e-7, atol=1e-12)
    plain, _ = written_out(0.0, 0.05, mask=mask)
    assert np.abs(plain - w).max() > 0.1


def test_on_a_quadratic_the_importance_is_half_the_curvature():
    """Loss 1/2 sum_i a_i (w_i - b_i)^2, descended slowly to its minimum from zero: the fall is a_i b_i^2 / 2."""
    scale, target = np.diag([1.0, 1.4, 0.7]), np.array([1.0, -1.0, 2.0])
    X = np.sqrt(3) * np.concatenate([scale, -scale])
    y = X @ target
    curvature = np.diag(X.T @ X) / len(X)
    learner = line(SynapticIntelligence(damping=1e-12), steps=1200, optimizer=Optimizer("sgd", lr=0.01))
    learner.partial_fit(X, y, task="a")
    found = state(learner)["importance"]["net.weight"].numpy()[0]
    np.testing.assert_allclose(found, curvature / 2, rtol=0.02)


def test_a_replica_that_stopped_early_is_the_single_run():
    """What the others do meanwhile does not go into its path."""
    X, y = rng.normal(size=(60, 4)), rng.integers(2, size=60)
    settings = {
        "strategy": SynapticIntelligence(strength=1.0),
        "epochs": 30,
        "batch_size": 20,
        "validation": 0.3,
        "patience": 2,
        "dtype": "float64",
    }
    settings["optimizer"] = Optimizer("adam", lr=0.05)
    many = Learner(Classification(hidden=(6,)), replicas=3, random_state=0, **settings)
    alone = [Learner(Classification(hidden=(6,)), random_state=k, **settings) for k in range(3)]
    for learner in (many, *alone):
        learner.partial_fit(X, y, classes=range(2), task="a")
    steps = {learner.n_steps_ for learner in alone}
    assert len(steps) > 1, "expected replicas to stop at different steps"
    for k, learner in enumerate(alone):
        for name, value in state(learner)["importance"].items():
            torch.testing.assert_close(state(many)["importance"][name][k], value, rtol=1e-8, atol=1e-12)


def test_bad_input():
    X, y = TASKS[0]
    for wrong, message in (
        ({"strength": -1.0}, "strength to be a number >= 0"),
        ({"damping": 0.0}, "damping to be a number > 0, got 0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            line(SynapticIntelligence(**wrong)).fit(X, y)
    learner = line(SynapticIntelligence(), steps=2).partial_fit(X, y, task="a")
    with pytest.raises(ValueError, match=r"got 'a' again: SynapticIntelligence keeps the sum"):
        learner.partial_fit(X, y, task="a")
    with pytest.raises(ValueError, match=r"ANDMask\(\) \(acts on the gradient\).*put ANDMask first"):
        weave(SynapticIntelligence(), ANDMask())
    weave(EWC(), ANDMask(), SynapticIntelligence())
