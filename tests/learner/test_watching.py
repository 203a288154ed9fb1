"""Callbacks that see the model, metrics of what is held out, and how often records are made."""

import copy
import pickle

import numpy as np
import pytest
import torch
import torchmetrics
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.metrics import f1_score, log_loss, make_scorer, mean_absolute_error, roc_auc_score
from sklearn.model_selection import cross_val_score

import weft
from weft import Classifier, Learner, Optimizer, Regressor
from weft.data import ring
from weft.engine import VectorizationWarning
from weft.nets import MLP
from weft.objectives import GAN, Classification, LeastSquares
from weft.sources import Arrays
from weft.strategies import EMA

rng = np.random.default_rng(0)
X = rng.normal(size=(80, 4))
Y = np.where(X[:, 0] + 0.7 * rng.normal(size=80) > 0, "yes", "no")
FRESH = rng.normal(size=(41, 4))
TRUE = np.where(FRESH[:, 0] + 0.7 * rng.normal(size=41) > 0, "yes", "no")
COMMON = {"epochs": 3, "batch_size": 20, "random_state": 0, "device": "cpu", "dtype": "float64"}


def seen_by(**settings):
    """What a callback that sees the learner is told at each record, and what came of the training."""
    seen = []
    learner = Classifier(callbacks=[lambda record, learner: seen.append((record, learner))], **{**COMMON, **settings})
    return seen, learner.fit(X, Y)


@pytest.mark.parametrize("settings", [{}, {"replicas": 3}, {"strategy": EMA(decay=0.8)}])
def test_a_callback_sees_the_model_as_it_is(settings):
    seen, learner = seen_by(validation=(FRESH, TRUE), **settings)
    assert [len(view.history_) for _, view in seen] == [1, 2, 3]
    for epochs, (record, view) in enumerate(seen, 1):
        short = Classifier(**{**COMMON, **settings, "epochs": epochs}).fit(X, Y)
        np.testing.assert_array_equal(view.predict_proba(FRESH), short.predict_proba(FRESH))
        assert view.history_[-1]["valid_loss"] is not None
        assert not view.objective_.training
        np.testing.assert_allclose(
            [
                -np.log(
                    np.take_along_axis(
                        view.replica(k).predict_proba(FRESH), np.searchsorted(view.classes_, TRUE)[:, None], 1
                    )
                ).mean()
                for k in range(settings.get("replicas", 1))
            ],
            np.atleast_1d(record["valid_loss"]),
            rtol=1e-10,
        )
    plain = Classifier(validation=(FRESH, TRUE), **{**COMMON, **settings}).fit(X, Y)
    np.testing.assert_array_equal(learner.predict_proba(FRESH), plain.predict_proba(FRESH))


def test_batch_statistics_are_the_answers_own():
    def net(inputs, outputs):
        return MLP(inputs, outputs, hidden=(8,), batch_norm=True)

    seen = []
    Learner(Classification(net), strategy=EMA(), callbacks=[lambda r, m: seen.append(m)], **COMMON).fit(X, Y)
    short = Learner(Classification(net), strategy=EMA(), **{**COMMON, "epochs": 2}).fit(X, Y)
    np.testing.assert_array_equal(seen[1].predict_proba(FRESH), short.predict_proba(FRESH))


def test_whatever_it_does_with_the_copy_training_goes_on_alike():
    def spoil(record, learner):
        for run in learner.training_.runs:
            for tree in (run.state.params, run.state.buffers):
                for tensor in tree.values():
                    tensor.zero_()
        for parameter in learner.objective_.parameters():
            parameter.data.zero_()
        learner.history_.clear()

    spoiled = Classifier(callbacks=[spoil], replicas=2, **COMMON).fit(X, Y)
    plain = Classifier(replicas=2, **COMMON).fit(X, Y)
    np.testing.assert_array_equal(spoiled.predict_proba(X), plain.predict_proba(X))
    assert len(spoiled.history_) == 3


def test_it_may_stop_by_what_it_sees_and_mixes_with_others():
    plain = []
    learner = Classifier(
        callbacks=[lambda record, model: model.score(X, Y) > 0 and record["epoch"] == 2, plain.append], **COMMON
    ).fit(X, Y)
    assert learner.stop_reason_.startswith("stopped by a callback") == True  # noqa: E712
    assert len(plain) == 2


def test_replicas_one_after_another_are_seen_one_by_one():
    with pytest.warns(VectorizationWarning):
        seen, learner = seen_by(replicas={"hidden": [(4,), (8, 8)]})
    assert [view.hidden for _, view in seen] == [(4,)] * 3 + [(8, 8)] * 3
    assert [len(view.history_) for _, view in seen] == [1, 2, 3, 1, 2, 3]
    np.testing.assert_array_equal(seen[-1][1].predict_proba(X), learner.replica(1).predict_proba(X))


def test_games_and_what_is_solved_are_seen():
    drawn = []
    Learner(
        GAN(latent=2, hidden=(8,)), steps=4, every=2, random_state=0, callbacks=[lambda r, m: drawn.append(m.sample(5))]
    ).fit(ring(40))
    assert [rows.shape for rows in drawn] == [(5, 2)] * 2
    seen = []
    learner = Learner(LeastSquares(), dtype="float64", callbacks=[lambda r, m: seen.append(m.predict(X))]).fit(
        X, X[:, 0]
    )
    np.testing.assert_allclose(seen[0], learner.predict(X))


def test_copies_of_a_learner_that_was_seen():
    seen, _ = seen_by()
    view = seen[0][1]
    for other in (pickle.loads(pickle.dumps(view)), copy.deepcopy(view)):
        np.testing.assert_array_equal(other.predict_proba(X), view.predict_proba(X))
    assert clone(view).callbacks == ()


def nothing():
    pass


def three(record, learner, more):
    pass


def optional(record, more=None):
    assert more is None


@pytest.mark.parametrize("callback", [nothing, three, "print", 3])
def test_what_cannot_be_called_with_a_record_is_refused_at_the_start(callback):
    with pytest.raises((TypeError, ValueError), match="functions of a record, or of a record and the learner"):
        Classifier(callbacks=[callback], **COMMON).fit(X, Y)
    Classifier(callbacks=[optional], **{**COMMON, "epochs": 1}).fit(X, Y)


# --- metrics ---------------------------------------------------------------------------------------------


def test_scorers_are_scikit_learns():
    metrics = {"roc_auc": "roc_auc", "log": "neg_log_loss", "f1": make_scorer(f1_score, pos_label="no")}
    learner = Classifier(metrics=metrics, validation=(FRESH, TRUE), replicas=2, **COMMON).fit(X, Y)
    last = learner.history_[-1]
    for k in range(2):
        one = learner.replica(k)
        proba = one.predict_proba(FRESH)
        assert last["valid_roc_auc"][k] == pytest.approx(roc_auc_score(TRUE == "yes", proba[:, 1]))
        assert last["valid_log"][k] == pytest.approx(-log_loss(TRUE, proba))
        assert last["valid_f1"][k] == pytest.approx(f1_score(TRUE, one.predict(FRESH), pos_label="no"))
    names = Classifier(metrics=["roc_auc", "f1_macro"], validation=0.3, **COMMON).fit(X, Y).history_[-1]
    assert {"valid_roc_auc", "valid_f1_macro"} <= names.keys()


def test_values_weights_and_torchmetrics():
    line = X @ np.array([1.0, -1.0, 0.5, 0.0])
    metrics = ["neg_mean_absolute_error", torchmetrics.MeanSquaredError()]
    learner = Regressor(metrics=metrics, validation=(FRESH, FRESH[:, 0]), **COMMON).fit(X, line)
    said = learner.predict(FRESH)
    last = learner.history_[-1]
    assert last["valid_neg_mean_absolute_error"] == pytest.approx(-mean_absolute_error(FRESH[:, 0], said))
    assert last["valid_MeanSquaredError"] == pytest.approx(np.mean((FRESH[:, 0] - said) ** 2), rel=1e-5)
    weight = rng.uniform(0.1, 2.0, size=41)
    held = Arrays(torch.as_tensor(FRESH), torch.as_tensor(FRESH[:, 0]), weight=torch.as_tensor(weight))
    weighed = Regressor(metrics=metrics[:1], validation=held, **COMMON).fit(X, line)
    error = mean_absolute_error(FRESH[:, 0], weighed.predict(FRESH), sample_weight=weight)
    assert weighed.history_[-1]["valid_neg_mean_absolute_error"] == pytest.approx(-error)
    with pytest.raises(ValueError, match="without weights for torchmetrics' 'MeanSquaredError'"):
        Regressor(metrics=metrics[1:], validation=held, **COMMON).fit(X, line)


def test_torchmetrics_of_classes():
    iris, kind = load_iris(return_X_y=True)
    three = torchmetrics.classification.MulticlassAUROC(num_classes=3)
    learner = Classifier(metrics={"auroc": three}, validation=(iris[::2], kind[::2]), **COMMON).fit(iris, kind)
    expected = roc_auc_score(kind[::2], learner.predict_proba(iris[::2]), multi_class="ovr", average="macro")
    assert learner.history_[-1]["valid_auroc"] == pytest.approx(expected, rel=1e-5)
    two = torchmetrics.classification.BinaryF1Score()
    learner = Classifier(metrics={"f1": two}, validation=(FRESH, TRUE), **COMMON).fit(X, Y)
    assert learner.history_[-1]["valid_f1"] == pytest.approx(f1_score(TRUE, learner.predict(FRESH), pos_label="yes"))


def test_torchmetrics_by_name_are_made_for_the_targets():
    iris, kind = load_iris(return_X_y=True)
    learner = Classifier(metrics=["AUROC"], monitor="AUROC", validation=(iris[::2], kind[::2]), **COMMON)
    learner.fit(iris, kind)
    expected = roc_auc_score(kind[::2], learner.predict_proba(iris[::2]), multi_class="ovr", average="macro")
    assert learner.history_[-1]["valid_AUROC"] == pytest.approx(expected, rel=1e-5)
    assert learner.progress()[0] == "valid_AUROC"
    two = Classifier(metrics=["F1Score"], validation=(FRESH, TRUE), **COMMON).fit(X, Y)
    assert two.history_[-1]["valid_F1Score"] == pytest.approx(f1_score(TRUE, two.predict(FRESH), pos_label="yes"))
    line = Regressor(metrics=["R2Score"], validation=(FRESH, FRESH[:, 0]), **COMMON).fit(X, X[:, 0])
    assert line.history_[-1]["valid_R2Score"] == pytest.approx(line.score(FRESH, FRESH[:, 0]), rel=1e-4)


def test_a_monitored_metric_says_how_training_goes():
    settings = {
        **COMMON,
        "epochs": 12,
        "optimizer": Optimizer("sgd", lr=5.0),
        "validation": (FRESH, TRUE),
        "patience": 2,
    }
    learner = Classifier(metrics=["roc_auc"], monitor="roc_auc", **settings).fit(X, Y)
    column = learner.history_["valid_roc_auc"]
    name, value = learner.progress()
    assert (name, value) == ("valid_roc_auc", -column[-1])
    best = roc_auc_score(TRUE == "yes", learner.predict_proba(FRESH)[:, 1])  # the best was put back
    assert best == pytest.approx(column.max(), abs=2e-4)
    assert column[-1] < column.max()
    sweep = {"optimizer__lr": [1e-6, 0.3]}
    many = Classifier(metrics=["roc_auc"], monitor="roc_auc", validation=0.3, replicas=sweep, **COMMON).fit(X, Y)
    assert many.best_replica_ == int(many.history_["valid_roc_auc"].max(0).argmax())


def test_scorers_work_from_outside_too():
    scores = cross_val_score(Classifier(**COMMON), X, Y, cv=2, scoring="neg_log_loss")
    assert np.isfinite(scores).all()


def test_metrics_are_kept_and_resumed(tmp_path):
    settings = {"metrics": ["roc_auc"], "monitor": "roc_auc", "validation": 0.3}
    learner = Classifier(folder=tmp_path / "run", **settings, **COMMON).fit(X, Y)
    again = weft.load(tmp_path / "run")
    assert (again.metrics, again.monitor) == (["roc_auc"], "roc_auc")
    np.testing.assert_array_equal(again.history_["valid_roc_auc"], learner.history_["valid_roc_auc"])


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"metrics": ["roc_acu"]}, "got 'roc_acu'; did you mean 'roc_auc"),
        ({"metrics": "roc_auc"}, r"a list of metrics such as \['roc_auc'\].*got 'roc_auc'"),
        ({"metrics": ["AUROK"]}, "a metric of torchmetrics.*got 'AUROK'; did you mean 'AUROC"),
        ({"metrics": ["MinkowskiDistance"]}, "needs no settings, got MinkowskiDistance"),
        ({"metrics": [3]}, "a metric's name, a scorer.*got 3"),
        ({"metrics": ["roc_auc"], "validation": None}, "expected rows held out beside metrics"),
        ({"metrics": ["f1", "f1"]}, "got 'f1' twice"),
        ({"metrics": ["accuracy"]}, "got 'accuracy', which Classification measures itself"),
        ({"metrics": ["roc_auc"], "monitor": "roc"}, "one of the learner's metrics to monitor.*got 'roc'"),
        ({"metrics": [torchmetrics.SumMetric()], "monitor": "SumMetric"}, "whose higher_is_better is None"),
        ({"metrics": ["roc_auc"], "replicas": {"metrics": [[], []]}}, "got 'metrics': they share"),
        ({"replicas": {"every": [1, 2]}}, "got 'every': they share"),
        ({"every": 0}, "every to be an integer >= 1"),
    ],
)
def test_wrong_ones_are_refused(settings, match):
    with pytest.raises((TypeError, ValueError), match=match):
        Classifier(**{"validation": 0.3, **settings}, **COMMON).fit(X, Y)


def test_what_cannot_be_answered_is_refused_at_the_start():
    hinge = Learner(Classification(loss="hinge"), metrics=["neg_log_loss"], validation=0.3, **COMMON)
    with pytest.raises(ValueError, match="offers predict_proba, which the metric 'neg_log_loss' asks"):
        hinge.fit(X, Y)
    with pytest.raises(ValueError, match="an objective that learns y beside metrics"):
        Learner(GAN(), metrics=["r2"], validation=0.3).fit(ring(40))


# --- every -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [None, 2])
def test_every_so_many_updates_a_record(replicas):
    learner = Classifier(every=5, replicas=replicas, **COMMON).fit(X, Y)
    assert list(learner.history_["step"]) == [5, 10, 12]
    plain = Classifier(replicas=replicas, **COMMON).fit(X, Y)
    assert list(plain.history_["step"]) == [4, 8, 12]
    np.testing.assert_array_equal(learner.predict_proba(X), plain.predict_proba(X))
