"""CORAL against pairs gone through one by one, with NumPy's means and covariances."""

import itertools

import numpy as np
import pytest
import torch
from tests.strategies.invariance.feature_cases import groups_of, penalty
from torch import nn

from weft import Classifier, Learner, Optimizer, weave
from weft.objectives import GAN, Regression
from weft.strategies import CORAL, EWC


def naive(parts):
    """DomainBed's definition: the mean over pairs of two mean squared differences."""
    found = []
    for a, b in itertools.combinations([p.numpy() for p in parts], 2):
        means = ((a.mean(0) - b.mean(0)) ** 2).mean()
        covariances = ((np.cov(a.T) - np.cov(b.T)) ** 2).mean()
        found.append(means + covariances)
    return np.mean(found)


@pytest.mark.parametrize("groups", [2, 3, 6])
def test_the_definition(groups):
    features, batch = groups_of(groups, 9, 4)
    np.testing.assert_allclose(penalty(CORAL(strength=2.5), features, batch), 2.5 * naive(features.split(9)))


def test_padding_and_absent_groups_do_not_count():
    features, batch = groups_of(4, 6, 3)
    weight = torch.ones(4, 6, dtype=torch.float64)
    weight[1, 4:], weight[2] = 0.0, 0.0
    parts = [features[:6], features[6:10], features[18:]]
    np.testing.assert_allclose(penalty(CORAL(), features, batch, weight.flatten()), naive(parts))
    np.testing.assert_allclose(penalty(CORAL(), features, batch, 7.0 * weight.flatten()), naive(parts))
    alone = torch.zeros(4, 6, dtype=torch.float64)
    alone[1] = 1.0
    assert penalty(CORAL(), features, batch, alone.flatten()) == 0.0


def test_its_gradient_is_the_definitions():
    features, batch = groups_of(3, 5, 2)
    found = torch.func.grad(lambda f: penalty(CORAL(), f, batch))(features)

    def definition(f):
        total = 0.0
        for a, b in itertools.combinations(f.split(5), 2):
            total = total + (a.mean(0) - b.mean(0)).square().mean() + (a.T.cov() - b.T.cov()).square().mean()
        return total / 3

    torch.testing.assert_close(found, torch.func.grad(definition)(features))


def test_features_come_together():
    """A shift between two sites is in the features without the penalty, and almost gone with it."""
    rng = np.random.default_rng(0)
    site = np.arange(400) % 2
    X = np.column_stack([rng.normal(size=(400, 2)), 3.0 * site])
    y = (X[:, 0] > 0).astype(int)

    def shift(strength):
        settings = {"hidden": (8,), "epochs": 60, "optimizer": Optimizer("adam", lr=0.01), "random_state": 0}
        learner = Classifier(strategy=CORAL(strength=strength), **settings).fit(X, y, environment=site)
        with torch.no_grad():
            state = learner.training_.runs[0][1]
            net = learner.objective_.net
            net.load_state_dict({name.removeprefix("net."): p for name, p in state.params.items()})
            features = net.features(torch.as_tensor(X, dtype=torch.float32))
        assert learner.score(X, y) > 0.9
        return float((features[site == 0].mean(0) - features[site == 1].mean(0)).norm() / features.std())

    assert shift(10.0) < 0.1 * shift(0.0)


@pytest.mark.filterwarnings("ignore:expected tasks for")
def test_any_net_that_ends_in_a_linear_layer_has_features():
    rng = np.random.default_rng(0)
    X, site = rng.normal(size=(30, 3)), np.arange(30) % 3
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    Classifier(net, strategy=CORAL(), epochs=1).fit(X, X[:, 0] > 0, environment=site)
    Learner(Regression(hidden=(4,)), strategy=weave(EWC(), CORAL()), epochs=1).fit(X, X[:, 0], environment=site)


def test_an_objective_without_features_is_refused():
    X, site = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 3
    with pytest.raises(ValueError, match=r"CORAL\(\) cannot train GAN: it reads 'features', which GAN does not"):
        Learner(GAN(), strategy=CORAL()).fit(X, environment=site)
    for net in ("linear", nn.Sequential(nn.Linear(3, 2), nn.Identity())):
        with pytest.raises(ValueError, match="reads 'features', which Classification does not provide"):
            Classifier(net, strategy=CORAL()).fit(X, X[:, 0] > 0, environment=site)


@pytest.mark.parametrize("strength", [-1.0, float("nan")])
def test_strength_out_of_range(strength):
    with pytest.raises(ValueError, match="expected CORAL's strength to be a number >= 0"):
        Classifier(strategy=CORAL(strength=strength)).fit([[0.0], [1.0]], [0, 1], environment=[0, 1])
