"""Losses that take gradients of their inputs: under groups, examples, replicas, and at a task's end."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad, jacrev, vmap

from weft import Learner
from weft.core import Objective, Output
from weft.core.random import normal, uniform
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


class WGAN(Objective):
    """Wasserstein GAN with a gradient penalty between data and samples."""

    fields = ("x",)
    players = ("critic", "generator")
    progress = ("critic_loss", "min")

    def build(self, spec):
        self.critic = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        self.generator = nn.Linear(2, 3)

    def forward(self, batch, player=""):
        x = batch["x"]
        z = normal((len(x), 2), place="z", dtype=x.dtype)
        made = self.generator(z)
        if player == "generator":
            return Output(-self.critic(made).squeeze(-1))
        between = x + uniform((len(x), 1), place="mix", dtype=x.dtype) * (made - x)
        slopes = grad(lambda x: self.critic(x).sum())(between)
        return Output((self.critic(made) - self.critic(x)).squeeze(-1) + 10.0 * (slopes.norm(dim=-1) - 1.0).square())


@pytest.mark.parametrize("name", ["erm", "groups", "examples", "gradient_at"])
def test_a_game_with_a_gradient_penalty(name):
    strategy = STRATEGIES[name]
    settings = {**SETTINGS, "epochs": 3, "strategy": strategy}
    many = Learner(WGAN(), replicas=2, **settings).fit(X, environment=SITE)
    assert many.training_.runs[0].state.replicas == 2, "trained as one"
    for k in range(2):
        single = Learner(WGAN(), **{**settings, "random_state": 1 + k}).fit(X, environment=SITE)
        torch.testing.assert_close(many.replica(k).training_.runs[0].state.params, params(single))


class Centred(nn.Module):
    """Rows that mix, without buffers: those of batch normalization cannot be changed inside `torch.func.grad`."""

    def forward(self, x):
        return x - x.mean(0)


class Mixed(Energy):
    def build(self, spec):
        self.net = nn.Sequential(nn.Linear(3, 8, bias=False), Centred(), nn.Tanh(), nn.Linear(8, 1))


@pytest.mark.parametrize("replicas", [None, 2])
def test_examples_that_the_net_couples(replicas):
    settings = {**SETTINGS, "batch_size": None, "replicas": replicas}
    mask = Learner(Mixed(), strategy=ANDMask(threshold=0.0, each="example"), **settings).fit(X)
    torch.testing.assert_close(params(mask), params(Learner(Mixed(), **settings).fit(X)))
