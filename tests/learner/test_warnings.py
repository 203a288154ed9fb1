"""Settings that would come to nothing say so, once."""

import re
import warnings

import numpy as np
import pytest
import torch

from weft import Classifier, Learner, Optimizer, weave
from weft.core.strategy import Strategy
from weft.data import CartPole
from weft.objectives import REINFORCE, Classification, Gaussian, GaussianMixture, LeastSquares
from weft.sources import Rollouts
from weft.strategies import AGEM, EWC, LBFGS, SGLD, SWA, LwF, Replay

rng = np.random.default_rng(0)
X = rng.normal(size=(64, 3))
Y = (X[:, 0] > 0).astype(int)
PLAIN = Optimizer("sgd", lr=0.1)
TASK = np.arange(64) % 2


def said(act):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [str(w.message) for w in caught]


def classifier(**settings):
    return Classifier(**{"hidden": (4,), "epochs": 2, "batch_size": 16, "random_state": 0, **settings})


@pytest.mark.parametrize("strategy", [EWC(), LwF(), Replay(), AGEM(), weave(EWC(), SWA(start=1))], ids=repr)
def test_what_looks_back_on_tasks_needs_them(strategy):
    (text,) = said(lambda: classifier(strategy=strategy).fit(X, Y))
    assert text.startswith(f"expected tasks for {strategy.parts[0]!r}")
    assert "task=..." in text
    assert not said(lambda: classifier(strategy=strategy).fit(X, Y, task=TASK))
    assert not said(lambda: classifier(strategy=strategy).partial_fit(X, Y, task="one"))


@pytest.mark.parametrize("replicas", [None, 3, {"hidden": [(4,), (5,)]}])
def test_it_is_said_once(replicas):
    texts = said(lambda: classifier(strategy=EWC(), replicas=replicas, patience=3).fit(X, Y))
    assert sum("expected tasks" in text for text in texts) == 1
    assert sum("beside patience=3" in text for text in texts) == 1


def test_patience_without_rows_held_out():
    (text,) = said(lambda: classifier(patience=3).fit(X, Y))
    assert text.startswith("expected rows held out beside patience=3, got none")
    assert not said(lambda: classifier(patience=3, validation=0.25).fit(X, Y))
    acting = Learner(REINFORCE(hidden=(4,)), steps=2, patience=3)  # every batch is new
    assert not said(lambda: acting.fit(Rollouts(CartPole(), envs=4, horizon=5)))


@pytest.mark.parametrize("objective", [Gaussian(), LeastSquares(), GaussianMixture(2)], ids=repr)
@pytest.mark.parametrize(
    ("given", "got"),
    [
        ({"steps": 10}, "steps=10"),
        ({"epochs": 3, "batch_size": 8}, "epochs=3, batch_size=8"),
        ({"optimizer": "sgd", "schedule": "cosine"}, "optimizer='sgd', schedule='cosine'"),
        ({"accumulate": 2, "clip": 1.0}, r"accumulate=2, clip=1\.0"),
        ({"replicas": {"optimizer__lr": [0.1, 0.2]}}, "optimizer__lr"),
    ],
)
def test_a_descents_settings_beside_what_is_solved(objective, given, got):
    y = X[:, 0] if "y" in objective.fields else None
    learner = Learner(objective, random_state=0, **given)
    (text,) = said(lambda: learner.fit(X, y))
    assert re.fullmatch(
        rf"expected no settings of a descent for {type(objective).__name__}, which is solved on all rows, got {got}, "
        r"which come to nothing: leave them out(; its own iterations say how long it goes on)?",
        text,
    )
    assert ("iterations" in text) == (type(objective) is not LeastSquares)
    with pytest.warns(UserWarning, match="of a descent") as caught:
        learner.fit(X, y)
    assert caught[0].filename == __file__


def test_nothing_is_said_where_they_count():
    assert not said(lambda: Learner(Gaussian(), batch_size=None, random_state=0).fit(X))  # all rows: as it is
    mixed = {"objective__inference": ["em", "gradient"]}
    texts = said(lambda: Learner(GaussianMixture(2), steps=2, replicas=mixed, random_state=0).fit(X))
    assert not any("of a descent" in text for text in texts)
    assert not said(lambda: Learner(GaussianMixture(2, inference="gradient"), steps=2, random_state=0).fit(X))


def test_a_mean_that_never_begins():
    """Of 8 steps."""
    (text,) = said(lambda: classifier(strategy=SWA(start=9)).fit(X, Y))
    assert text.startswith("expected at least 9 steps for SWA(start=9), whose mean begins there, got 8")
    assert not said(lambda: classifier(strategy=SWA(start=8)).fit(X, Y))
    going_on = classifier(strategy=SWA(start=9))
    assert not said(lambda: [going_on.partial_fit(X, Y) for _ in range(3)])


def test_a_mean_that_never_begins_since_training_stopped():
    still = {"optimizer": Optimizer("sgd", lr=0.0), "validation": 0.25, "patience": 1, "epochs": 20}
    learner = classifier(strategy=SWA(start=12), **still)
    (text,) = said(lambda: learner.fit(X, Y))
    assert f"got {learner.n_steps_}: the last parameters answer" in text
    assert learner.n_steps_ < 12


def test_draws_that_are_never_taken():
    (text,) = said(lambda: classifier(strategy=SGLD(draws=3, start=2, every=3), optimizer=PLAIN).fit(X, Y))
    assert text.startswith("expected at least 11 steps for the draws of SGLD(")
    full = classifier(strategy=SGLD(draws=2, start=2, every=3), optimizer=PLAIN)  # at steps 5 and 8
    assert not said(lambda: full.fit(X, Y))
    drawn = full.training_.runs[0].state.strategy[""]
    assert int(drawn["count"]) == 1  # the other is where training has ended
    assert not said(lambda: classifier(strategy=SGLD(start=50), optimizer=PLAIN).fit(X, Y))


def test_curvature_from_one_batch_to_another():
    (text,) = said(lambda: classifier(strategy=LBFGS(), optimizer=PLAIN).fit(X, Y))
    assert text.startswith("expected the same rows at every step for LBFGS()")
    assert not said(lambda: classifier(strategy=LBFGS(), optimizer=PLAIN, batch_size=None).fit(X, Y))
    assert not said(lambda: classifier(strategy=LBFGS(history=0, trials=0), optimizer=PLAIN).fit(X, Y))


def test_what_is_known_where_training_begins():
    """A strategy is told before its first step, once for each task, and keeps what it wants of it."""
    heard = []

    class Listening(Strategy):
        def init(self, params):
            return {"steps": torch.zeros(())}

        def begin(self, known, state):
            heard.append((known.steps, known.epoch, known.task, known.open, known.extent("y")))
            return {"steps": torch.full_like(state["steps"], known.steps)}

    learner = Learner(Classification(hidden=(4,)), strategy=Listening(), epochs=2, batch_size=16, replicas=2)
    learner.fit(X, Y, task=TASK)
    assert heard == [(4, 2, "0", False, (0, 1)), (8, 2, "1", False, (0, 1))]
    assert learner.training_.runs[0].state.strategy[""]["steps"].tolist() == [8.0, 8.0]
    learner.partial_fit(X, Y)
    assert heard[2] == (12, 4, None, True, (0, 1))
