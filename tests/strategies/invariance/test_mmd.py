"""MMD against every pair of rows gone through by loops."""

import itertools
import math

import numpy as np
import pytest
import torch
from tests.strategies.invariance.feature_cases import groups_of, penalty

from weft import Classifier, Learner
from weft.objectives import GAN
from weft.strategies import MMD


def naive(parts, gammas):
    def mean(a, b):
        values = [sum(math.exp(-g * float((p - q).square().sum())) for g in gammas) for p in a for q in b]
        return sum(values) / len(values)

    return np.mean([mean(a, a) + mean(b, b) - 2 * mean(a, b) for a, b in itertools.combinations(parts, 2)])


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("gammas", [(0.5,), MMD().gammas])
def test_the_definition(groups, gammas):
    features, batch = groups_of(groups, 6, 3)
    found = penalty(MMD(strength=2.0, gammas=gammas), features + 5.0, batch)
    np.testing.assert_allclose(found, 2.0 * naive(features.split(6), gammas), rtol=1e-9)


def test_padding_and_absent_groups_do_not_count():
    features, batch = groups_of(4, 6, 3)
    weight = torch.ones(4, 6, dtype=torch.float64)
    weight[1, 4:], weight[2] = 0.0, 0.0
    parts = [features[:6], features[6:10], features[18:]]
    found = penalty(MMD(), features, batch, weight.flatten())
    np.testing.assert_allclose(found, naive(parts, MMD().gammas), rtol=1e-9)


def test_the_same_rows_in_every_group_cost_nothing():
    features, batch = groups_of(1, 5, 3)
    batch = {"group": torch.eye(3, dtype=torch.bool).repeat_interleave(5, 0)}
    assert abs(float(penalty(MMD(), features.repeat(3, 1), batch))) < 1e-12


def test_its_gradient_is_the_definitions():
    features, batch = groups_of(3, 4, 2)
    gammas = (0.1, 1.0)

    def definition(f):
        def mean(a, b):
            squares = (a[:, None] - b[None]).square().sum(-1)
            return sum(torch.exp(-g * squares) for g in gammas).mean()

        return sum(mean(a, a) + mean(b, b) - 2 * mean(a, b) for a, b in itertools.combinations(f.split(4), 2)) / 3

    found = torch.func.grad(lambda f: penalty(MMD(gammas=gammas), f, batch))(features)
    torch.testing.assert_close(found, torch.func.grad(definition)(features))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strength": -1.0}, "expected MMD's strength to be a number >= 0, got -1.0"),
        ({"gammas": ()}, "expected MMD's gammas"),
        ({"gammas": (1.0, -1.0)}, "expected MMD's gammas"),
        ({"gammas": 1.0}, "expected MMD's gammas"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Classifier(strategy=MMD(**settings)).fit([[0.0], [1.0]], [0, 1], environment=[0, 1])


def test_an_objective_without_features_is_refused():
    X, site = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 3
    with pytest.raises(ValueError, match=r"MMD\(\) cannot train GAN: it reads 'features'"):
        Learner(GAN(), strategy=MMD()).fit(X, environment=site)
