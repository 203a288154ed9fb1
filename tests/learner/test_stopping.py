"""Callbacks that end a run."""

import numpy as np
import pytest

import weft
from weft import Classifier, Learner
from weft.objectives import Classification
from weft.strategies import EWC

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
COMMON = {"epochs": 5, "batch_size": 20, "random_state": 0, "device": "cpu"}


def second(record):
    return record["epoch"] == 2


@pytest.mark.parametrize("answer", [True, np.True_])
@pytest.mark.parametrize("replicas", [None, 3])
def test_one_that_returns_true_ends_the_run(answer, replicas):
    seen = []

    def stop(record):
        return answer if record["epoch"] == 2 else None

    learner = Classifier(callbacks=[stop, seen.append], replicas=replicas, **COMMON).fit(X, Y)
    assert len(learner.history_) == len(seen) == 2
    reasons = [learner.stop_reason_] if replicas is None else learner.stop_reason_
    assert set(reasons) == {"stopped by a callback at step 6"}
    assert learner.n_steps_ == 6
    short = Classifier(replicas=replicas, **{**COMMON, "epochs": 2}).fit(X, Y)
    np.testing.assert_array_equal(learner.predict_proba(X), short.predict_proba(X))


@pytest.mark.parametrize("answer", [None, False, 1, "stop", {"loss": 2.0}])
def test_any_other_answer_is_an_observers_own(answer):
    learner = Classifier(callbacks=[lambda record: answer], **COMMON).fit(X, Y)
    assert learner.stop_reason_ == "completed 15 steps"


def test_the_best_is_put_back_where_there_is_patience():
    settings = {**COMMON, "validation": 0.3, "optimizer": weft.Optimizer("sgd", lr=30.0), "patience": 4}
    learner = Classifier(callbacks=[second], **settings).fit(X, Y)
    best = int(np.argmin(learner.history_["valid_loss"]))
    assert len(learner.history_) == 2
    short = Classifier(**{**settings, "epochs": best + 1, "patience": None}).fit(X, Y)
    np.testing.assert_array_equal(learner.predict_proba(X), short.predict_proba(X))


def test_tasks_go_on_with_the_next():
    task = np.arange(60) % 2
    learner = Learner(Classification("linear"), strategy=EWC(), callbacks=[second], **COMMON).fit(X, Y, task=task)
    assert list(map(int, learner.tasks_)) == [0, 1]
    assert len(learner.history_) == 4


def test_what_was_ended_is_kept_as_ended(tmp_path):
    learner = Classifier(callbacks=[second], folder=tmp_path / "run", **COMMON).fit(X, Y)
    again = weft.load(tmp_path / "run").resume(X, Y)
    assert again.stop_reason_ == learner.stop_reason_ == "stopped by a callback at step 6"
    np.testing.assert_array_equal(again.predict_proba(X), learner.predict_proba(X))
    again.set_params(folder=None).partial_fit(X, Y)
    assert again.n_steps_ == 9
