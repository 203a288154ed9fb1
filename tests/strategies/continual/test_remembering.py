"""Digits, then the same digits with permuted pixels: every way to remember keeps more of the first than none."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from weft import Classifier, Learner, Optimizer
from weft.data import CartPole
from weft.objectives import DQN, PPO
from weft.strategies import AGEM, ERM, EWC, MAS, L2Anchor, Replay, SynapticIntelligence

X, Y = load_digits(return_X_y=True)
X = X / 16
ORDER = np.random.default_rng(0).permutation(64)


def learned(strategy):
    clf = Classifier(strategy=strategy, hidden=(100,), epochs=12, optimizer=Optimizer("adam", lr=3e-3))
    clf.set_params(random_state=0)
    clf.partial_fit(X[:900], Y[:900], classes=range(10), task="plain")
    clf.partial_fit(X[:900][:, ORDER], Y[:900], task="permuted")
    return clf.score(X[900:], Y[900:]), clf.score(X[900:][:, ORDER], Y[900:])


@pytest.fixture(scope="module")
def naive():
    return learned(ERM())


@pytest.mark.parametrize(
    "strategy",
    [EWC(strength=100.0), L2Anchor(strength=0.02), SynapticIntelligence(strength=10.0), MAS(strength=0.1)]
    + [Replay(size=100), AGEM(size=100)],
    ids=lambda s: type(s).__name__,
)
def test_it_remembers(strategy, naive):
    first, second = learned(strategy)
    assert first > naive[0] + 0.02, (first, naive)
    assert second > naive[1] - 0.15, (second, naive)


@pytest.mark.parametrize("strategy", [Replay(), AGEM()], ids=lambda s: type(s).__name__)
def test_rows_that_a_policy_was_credited_for_are_not_remembered(strategy):
    """PPO's ratio makes the rows of the last segment right; those of an earlier task are another policy's."""
    with pytest.raises(ValueError, match=r"a row's credit is of the policy and the critic that played it"):
        Learner(PPO(hidden=(4,)), strategy=strategy, steps=1).fit("cart-pole", task="first")
    Learner(DQN(hidden=(4,)), strategy=strategy, steps=1).fit(
        DQN().plays(CartPole(), start=64, batch_size=8), task="first"
    )
