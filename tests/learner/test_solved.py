"""What is solved, not descended, keeps the Learner's conventions: records, validation, sweeps, replicas, files."""

import warnings

import numpy as np
import pytest
import torch

import weft
from weft import Learner
from weft.engine.engine import Diverged, Engine
from weft.objectives import LeastSquares
from weft.strategies import ERM

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 20))
Y = X[:, 0] + 2.0 * rng.normal(size=60)
FRESH = rng.normal(size=(80, 20))
HELD = (FRESH, FRESH[:, 0] + 2.0 * rng.normal(size=80))
RIDGES = [0.0, 30.0, 1e6]


def swept(**more):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*'objective__ridge' changes what is computed")
        return Learner(LeastSquares(), replicas={"objective__ridge": RIDGES}, random_state=0, **more).fit(X, Y)


def half_squares(learner, x, y):
    return float(np.mean((learner.predict(x) - y) ** 2) / 2)


def test_there_is_a_record_with_validation():
    seen = []
    learner = Learner(LeastSquares(), validation=HELD, callbacks=[seen.append], dtype="float64").fit(X, Y)
    (record,) = learner.history_
    assert seen == [record]
    assert record["loss"] == pytest.approx(half_squares(learner, X, Y))
    assert record["valid_loss"] == pytest.approx(half_squares(learner, *HELD))
    assert learner.progress() == ("valid_loss", record["valid_loss"])
    assert (learner.stop_reason_, learner.n_steps_) == ("solved", 0)


def test_a_share_held_out_is_not_solved_for():
    learner = Learner(LeastSquares(), validation=0.5, random_state=0, dtype="float64").fit(X, Y)
    assert learner.history_[-1]["valid_loss"] > 1.5 * learner.history_[-1]["loss"]


def test_a_sweep_is_answered_by_the_best_on_validation(tmp_path):
    many = swept(validation=HELD)
    values = many.history_["valid_loss"][-1]
    assert values.shape == (3,)
    assert many.best_replica_ == int(values.argmin()) == 1
    np.testing.assert_allclose(many.predict(X), many.replica(1).predict(X))
    many.save(tmp_path / "run")
    assert weft.load(tmp_path / "run").best_replica_ == 1


def test_replicas_are_not_probed_by_gradient(monkeypatch):
    monkeypatch.setattr(Engine, "gradient", lambda *args: pytest.fail("a gradient of what is solved"))
    many = Learner(LeastSquares(), replicas=3, random_state=0, validation=0.3, dtype="float64").fit(X, Y)
    for k in range(3):
        single = Learner(LeastSquares(), random_state=k, validation=0.3, dtype="float64").fit(X, Y)
        np.testing.assert_allclose(many.replica(k).predict(X), single.predict(X), rtol=1e-10)
        assert many.history_["valid_loss"][-1, k] == pytest.approx(single.history_["valid_loss"][-1])


def test_a_second_pass_is_refused_since_it_would_forget_the_first():
    learner = Learner(LeastSquares()).partial_fit(X[:30], Y[:30])
    with pytest.raises(ValueError, match=r"LeastSquares.*second partial_fit would forget the first; call fit"):
        learner.partial_fit(X[30:], Y[30:])
    learner.fit(X, Y)
    with pytest.raises(ValueError, match="would forget the first"):
        learner.partial_fit(X[30:], Y[30:])


def test_tasks_are_solved_one_after_another():
    learner = Learner(LeastSquares(), dtype="float64", strategy=ERM()).fit(X, Y, task=np.arange(60) // 30)
    assert learner.tasks_ == ["0", "1"]
    assert [record["task"] for record in learner.history_] == ["0", "1"]
    np.testing.assert_allclose(
        learner.predict(X), Learner(LeastSquares(), dtype="float64").fit(X[30:], Y[30:]).predict(X)
    )


class Broken(LeastSquares):
    """A solution that is none."""

    def solve(self, source, state):
        found = super().solve(source, state)
        return {**found, "net.1.bias": found["net.1.bias"] * torch.where(state.seeds == 1, torch.nan, 1.0)}


class Misnamed(LeastSquares):
    """Gives what was never built."""

    def solve(self, source, state):
        return {"slope": torch.ones(1)}


def test_what_is_not_finite_has_diverged():
    with pytest.raises(Diverged, match="expected a finite solution of Broken"):
        Learner(Broken(), random_state=1).fit(X, Y)
    many = Learner(Broken(), random_state=0, replicas=2, dtype="float64").fit(X, Y)
    assert many.stop_reason_ == ["solved", "diverged: 'net.1.bias' of the solution is not finite"]
    np.testing.assert_allclose(many.predict(X), many.replica(0).predict(X))


def test_a_name_that_was_not_built_is_told():
    with pytest.raises(KeyError, match=r"Misnamed.solve.*net.1.weight.*got 'slope'"):
        Learner(Misnamed()).fit(X, Y)
