"""Memory aware synapses against importances taken one example at a time."""

import numpy as np
import pytest
import torch
from torch import nn

from weft import Learner, Optimizer
from weft.objectives import Classification, Regression
from weft.strategies import MAS

rng = np.random.default_rng(0)
X = rng.normal(size=(20, 4))
LABELS = rng.integers(3, size=20)


def outputs(net, params, row):
    return torch.func.functional_call(net, params, (row[None],))[0]


@pytest.mark.parametrize("weighted", [False, True])
def test_importance_is_the_mean_absolute_gradient_of_the_squared_output(weighted):
    net = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3))
    learner = Learner(Classification(net), strategy=MAS(), epochs=3, dtype="float64", random_state=0)
    weight = rng.uniform(0.5, 2.0, size=20) if weighted else np.ones(20)
    total: dict = {}
    for i, part in enumerate((X, -X)):
        learner.partial_fit(part, LABELS, classes=range(3), task=i, sample_weight=weight if weighted else None)
        run = learner.training_.runs[0][1]
        for row, w in zip(torch.as_tensor(part), weight, strict=True):
            leaves = {n.removeprefix("net."): p.detach().clone().requires_grad_() for n, p in run.params.items()}
            size = outputs(learner.objective_.net, leaves, row).square().sum()
            for n, g in zip(leaves, torch.autograd.grad(size, list(leaves.values())), strict=True):
                total[n] = total.get(n, 0.0) + w * g.abs() / weight.sum()
    own = run.strategy[""]
    for n, p in total.items():
        torch.testing.assert_close(own["importance"][f"net.{n}"], p)
        assert torch.equal(own["anchor"][f"net.{n}"], run.params[f"net.{n}"])


def test_the_next_task_is_held_by_it():
    """A linear model: the minimizer of the second task's loss and the penalty, in closed form."""
    first, second = (rng.normal(size=(30, 3)) for _ in range(2))
    y1, y2 = first @ np.array([1.0, 2.0, -1.0]), second @ np.array([-1.0, 1.0, 0.5])
    net = nn.Linear(3, 1, bias=False)
    learner = Learner(Regression(net), strategy=MAS(strength=0.3), optimizer=Optimizer("sgd", lr=0.1), steps=400)
    learner.set_params(batch_size=None, dtype="float64", random_state=0)
    learner.partial_fit(first, y1, task="a").partial_fit(second, y2, task="b")
    w = np.array([1.0, 2.0, -1.0])
    importance = np.abs(2 * (first @ w)[:, None] * first).mean(0)
    hold = 2 * 0.3 * np.diag(importance)
    expected = np.linalg.solve(second.T @ second / 30 + hold, second.T @ y2 / 30 + hold @ w)
    np.testing.assert_allclose(learner.predict(np.eye(3)), expected, rtol=1e-6)


def test_bad_input():
    with pytest.raises(ValueError, match="MAS's strength to be a number >= 0, got -1"):
        Learner(Classification(), strategy=MAS(strength=-1.0), epochs=1).fit(X, LABELS)
    learner = Learner(Classification(), strategy=MAS(), epochs=1, random_state=0)
    learner.partial_fit(X, LABELS, classes=range(3), task="a")
    with pytest.raises(ValueError, match="got 'a' again: MAS keeps the sum"):
        learner.partial_fit(X, LABELS, task="a")
