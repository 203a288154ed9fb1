"""The L2 anchor in closed form: least squares with a hold."""

import numpy as np
import pytest
import torch

from weft import Learner, Optimizer
from weft.data import ring
from weft.objectives import GAN, Regression
from weft.strategies import L2Anchor, Laplace

rng = np.random.default_rng(0)
TASKS = []
for n in (20, 30, 40):
    x = rng.normal(size=(n, 3))
    TASKS.append((x, x @ rng.normal(size=3) + 0.1 * rng.normal(size=n)))


def line(strategy):
    net = torch.nn.Linear(3, 1, bias=False)
    learner = Learner(Regression(net), strategy=strategy, optimizer=Optimizer("sgd", lr=0.2), steps=300)
    return learner.set_params(batch_size=None, dtype="float64", random_state=0)


def closed_form(anchors):
    """Tasks in sequence; `anchors(reached)` gives (weight, anchor) pairs."""
    reached = []
    for X, y in TASKS:
        held = anchors(reached)
        matrix = X.T @ X / len(y) + sum(w for w, _ in held) * np.eye(3)
        reached.append(np.linalg.solve(matrix, X.T @ y / len(y) + sum((w * a for w, a in held), np.zeros(3))))
    return reached[-1]


@pytest.mark.parametrize(
    ("settings", "anchors"),
    [
        ({}, lambda reached: [(0.5, a) for a in reached]),
        ({"penalties": "latest"}, lambda reached: [(0.5 * len(reached), a) for a in reached[-1:]]),
        ({"penalties": "online", "decay": 0.0}, lambda reached: [(0.5, a) for a in reached[-1:]]),
    ],
)
def test_three_tasks_in_closed_form(settings, anchors):
    learner = line(L2Anchor(strength=0.5, **settings))
    for i, (X, y) in enumerate(TASKS):
        learner.partial_fit(X, y, task=i)
    np.testing.assert_allclose(learner.predict(np.eye(3)), closed_form(anchors), rtol=1e-8)


def test_it_is_laplace_with_the_identity_and_counts_examples_where_asked():
    preset, whole = line(L2Anchor(strength=0.5)), line(Laplace(curvature="identity", strength=0.5, normalize=False))
    for learner in (preset, whole):
        learner.partial_fit(*TASKS[0], task="a", sample_weight=np.full(20, 2.0))
    held = [learner.training_.runs[0][1].strategy[""]["tasks"] for learner in (preset, whole)]
    assert float(held[0]["a"]["precision"]["scale"]) == 1.0
    assert float(held[1]["all"]["precision"]["scale"]) == 40.0


def test_a_repeated_task_replaces():
    learner = line(L2Anchor(strength=0.5))
    for task in ("a", "b", "a"):
        learner.partial_fit(*TASKS[0], task=task)
    assert sorted(learner.training_.runs[0][1].strategy[""]["tasks"]) == ["a", "b"]


def test_it_holds_what_has_no_likelihood():
    far = {}
    for strength in (0.0, 100.0):
        game = Learner(GAN(hidden=(8,)), strategy=L2Anchor(strength=strength), steps=30, random_state=0)
        game.partial_fit(ring(100), task="a")
        start = {n: p.clone() for n, p in game.training_.runs[0][1].params.items()}
        game.partial_fit(ring(100) + 3.0, task="b")
        far[strength] = sum(float((p - start[n]).square().sum()) for n, p in game.training_.runs[0][1].params.items())
    assert far[100.0] < 0.5 * far[0.0], far


def test_bad_input():
    with pytest.raises(ValueError, match="L2Anchor's strength to be a number >= 0, got -1"):
        line(L2Anchor(strength=-1.0)).fit(*TASKS[0])
