"""Losses that take gradients of their inputs: under groups, examples, replicas, and at a task's end."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad, jacrev, vmap

from weft import Learner
from weft.core import Objective, Output
from weft.strategies import EWC, SAM, ANDMask, GeometricMean, VREx

rng = np.random.default_rng(0)
X = rng.normal(size=(48, 3))
SITE = np.arange(48) % 3


class Energy(Objective):
    """A scalar field by its values and slopes."""

    fields = ("x",)
    likelihood = True

    def __init__(self, *, how="grad"):
        super().__init__()
        self.how = how

    def build(self, spec):
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def values(self, x):
        return self.net(x).squeeze(-1)

    def slopes(self, x):
        if self.how == "grad":
            return grad(lambda x: self.values(x).sum())(x)
        if self.how == "each":
            return vmap(grad(self.values))(x)
        if self.how == "jacobian":
            return vmap(jacrev(self.net))(x).flatten(1)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.values(x).sum(), x, create_graph=True)[0]

    def forward(self, batch, player=""):
        x = batch["x"]
        return Output((self.slopes(x).norm(dim=-1) - 1.0).square() + (self.values(x) - x[:, 0]).square())


class Score(Energy):
    """Score matching: the net runs once, inside the gradient."""

    def forward(self, batch, player=""):
        return Output((self.slopes(batch["x"]) + batch["x"]).square().sum(-1))


HOWS = ("grad", "each", "jacobian", "autograd")
SETTINGS = {"epochs": 2, "batch_size": 8, "dtype": "float64", "random_state": 1}
STRATEGIES = {
    "erm": None,
    "groups": ANDMask(threshold=0.4),
    "examples": ANDMask(threshold=0.1, each="example"),
    "sums": GeometricMean(threshold=0.4),
    "whole": VREx(strength=1.0),
    "gradient_at": SAM(radius=0.1),
    "fisher": EWC(strength=1.0, fisher="empirical"),
}


def params(learner):
    return learner.replica(0).training_.runs[0].state.params


def fitted(objective, strategy, **more):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*cannot be vectorized.*requires_grad_")
        learner = Learner(objective, strategy=strategy, **SETTINGS, **more)
        return params(learner.fit(X, environment=SITE, task=np.arange(48) // 24))


@pytest.mark.parametrize("kind", [Energy, Score])
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_way_gives_the_same_alone_and_in_replicas(kind, name):
    strategy = STRATEGIES[name]
    expected = fitted(kind(how="grad"), strategy)
    for how in HOWS:
        torch.testing.assert_close(fitted(kind(how=how), strategy), expected, msg=lambda m, how=how: f"{how}: {m}")
        many = fitted(kind(how=how), strategy, replicas=2)
        torch.testing.assert_close(many, expected, msg=lambda m, how=how: f"{how}, replicas: {m}")


@pytest.mark.parametrize("kind", [Energy, Score])
@pytest.mark.parametrize("each", ["environment", "example"])
def test_a_neutral_mask_is_the_mean(kind, each):
    settings = {**SETTINGS, "batch_size": None}
    mask = Learner(kind(), strategy=ANDMask(threshold=0.0, each=each), **settings).fit(X, environment=SITE)
    mean = Learner(kind(), **settings).fit(X)
    torch.testing.assert_close(params(mask), params(mean))
