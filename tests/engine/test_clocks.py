"""Replicas that stop alone: each has its own clock, so that over tasks replica k is the single run with its seed."""

import warnings

import numpy as np
import pytest
import torch

import weft
from weft import Classifier, Learner, Optimizer, Regressor
from weft.data import FiniteMDP, ring
from weft.nets import MLP
from weft.objectives import GAN, REINFORCE
from weft.sources import Rollouts
from weft.strategies import EMA, EWC, IRM, SGLD

rng = np.random.default_rng(0)
X = rng.normal(size=(90, 4))
Y = (X[:, 0] * X[:, 1] > 0).astype(int)
SITE = np.repeat([0, 1, 2], [40, 30, 20])


def net(inputs, outputs):
    return MLP(inputs, outputs, hidden=(16,), dropout=0.3)


def normed(inputs, outputs):
    return MLP(inputs, outputs, hidden=(16,), dropout=0.3, batch_norm=True)


def assert_same_run(replica, single):
    ((_, a),), ((_, b),) = replica.training_.runs, single.training_.runs
    for kind in ("params", "buffers", "strategy"):
        torch.testing.assert_close(getattr(a, kind), getattr(b, kind), rtol=1e-6, atol=1e-7)


SETTINGS = {
    "epochs": 25,
    "batch_size": 16,
    "dtype": "float64",
    "validation": 0.3,
    "patience": 2,
    "optimizer": Optimizer("adam", lr=0.02),
    "schedule": "cosine",
}
STRATEGIES = {
    "ewc": (net, EWC(strength=3.0)),  # a bias before batch normalization would have rounding as its gradient
    "ema": (normed, EMA(decay=0.8)),
    "irm": (normed, IRM(strength=5.0, anneal=30)),
    "sgld": (net, SGLD(temperature=0.01, start=5)),
}


def learned(learner, tasks=3):
    for t in range(tasks):
        learner.partial_fit(np.roll(X, t, axis=1), Y, classes=[0, 1], environment=SITE, task=f"task {t}")
    return learner


def assert_same_runs(many, singles):
    for k, single in enumerate(singles):
        assert_same_run(many.replica(k), single)
        assert single.stop_reason_ == many.stop_reason_[k]
        assert many.replica(k).n_steps_ == single.n_steps_
    assert many.n_steps_ == max(single.n_steps_ for single in singles)
    assert len({single.n_steps_ for single in singles}) > 1, "they stopped at different steps"


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.turns("src/weft/engine/loop.py", "src/weft/engine/replicas.py", "src/weft/engine/tasks.py")
def test_over_tasks_with_early_stopping_a_replica_is_the_single_run(name):
    make, strategy = STRATEGIES[name]
    settings = {**SETTINGS, "strategy": strategy}
    if name == "sgld":
        settings |= {"optimizer": Optimizer("sgd", lr=0.05)}
    many = learned(Classifier(make, replicas=3, random_state=0, **settings))
    assert many.training_.runs[0].state.replicas == 3, "trained as one"
    assert_same_runs(many, [learned(Classifier(make, random_state=k, **settings)) for k in range(3)])


def test_it_goes_on_by_its_own_clock_after_it_was_kept(tmp_path):
    settings = {**SETTINGS, "random_state": 0, "replicas": 3}
    whole = learned(Classifier(hidden=(16,), **settings))
    half = learned(Classifier(hidden=(16,), **settings), tasks=2)
    half.save(tmp_path / "run")
    kept = weft.load(tmp_path / "run")
    kept.partial_fit(np.roll(X, 2, axis=1), Y, environment=SITE, task="task 2")
    for k in range(3):
        single, other = whole.replica(k), kept.replica(k)
        torch.testing.assert_close(single.training_.runs[0].state.params, other.training_.runs[0].state.params)
        assert single.n_steps_ == other.n_steps_


@pytest.mark.parametrize(
    "optimizer", ["adam", Optimizer("sgd", lr=0.05, momentum=0.9), Optimizer("sgd", lr=0.05)], ids=repr
)
def test_another_pass_goes_on_with_what_each_optimizer_has_gathered(optimizer):
    settings = {**SETTINGS, "optimizer": optimizer, "epochs": 40}

    def passed(learner):
        learner.fit(X, Y)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            learner.partial_fit(X, Y).partial_fit(X, Y)
        return learner, [str(warning.message) for warning in told]

    many, told = passed(Classifier(net, replicas=3, random_state=0, **settings))
    singles = [passed(Classifier(net, random_state=k, **settings))[0] for k in range(3)]
    plain = isinstance(optimizer, Optimizer) and optimizer.plain
    assert [t for t in told if "what their optimizers have gathered" in t] == told
    assert len(told) == (0 if plain else 1), "plain SGD gathers nothing"
    assert_same_runs(many, singles)


def test_players_take_their_turns_by_the_own_clock():
    settings = {"steps": 40, "batch_size": 16, "patience": 2, "dtype": "float64", "validation": 0.2}

    def played(learner, tell):
        for t in range(2):
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                learner.partial_fit(ring(100, random_state=t), task=f"task {t}")
        assert any("the players' turns" in str(warning.message) for warning in told) == tell
        return learner

    objective = GAN(latent=2, hidden=(8,), critic_steps=2)
    many = played(Learner(objective, replicas=3, random_state=0, **settings), True)
    assert_same_runs(many, [played(Learner(objective, random_state=k, **settings), False) for k in range(3)])


def test_worlds_are_played_by_the_own_clock():
    left, right = torch.eye(3).roll(-1, 1), torch.eye(3).roll(1, 1)
    world = FiniteMDP(torch.stack([left, right], 1), torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), horizon=6)
    settings = {"steps": 60, "patience": 2, "dtype": "float64", "validation": Rollouts(world, envs=8)}

    def acted(learner):
        return learner.fit(Rollouts(world, envs=4), task="a").set_params(warm_start=True).fit(Rollouts(world, envs=4))

    many = acted(Learner(REINFORCE(hidden=(8,)), replicas=3, random_state=0, **settings))
    assert_same_runs(many, [acted(Learner(REINFORCE(hidden=(8,)), random_state=k, **settings)) for k in range(3)])


def test_one_that_has_diverged_stays_where_it_was():
    y = X @ np.array([1.0, -1.0, 2.0, 0.5])
    sweep = {"optimizer__lr": [1e-2, 1e30, 5e-2]}
    settings = {**SETTINGS, "optimizer": "sgd", "random_state": 0}
    many = Regressor(replicas=sweep, **settings)
    for task in "ab":
        many.partial_fit(X, y, task=task)
    assert "diverged at step" in many.stop_reason_[1]
    assert many.replica(1).n_steps_ < 5
    for k in (0, 2):
        single = Regressor(**{**settings, "optimizer": Optimizer("sgd", lr=sweep["optimizer__lr"][k])})
        for task in "ab":
            single.partial_fit(X, y, task=task)
        assert_same_run(many.replica(k), single)
