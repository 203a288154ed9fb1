"""Replica k is the single run with its seed and its settings."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from weft import Classifier, Learner, Optimizer, Regressor, weave
from weft.attacks import PGD
from weft.engine import VectorizationWarning
from weft.nets import MLP
from weft.objectives import Regression
from weft.strategies import EWC, AdversarialTraining, ANDMask

rng = np.random.default_rng(0)
X = rng.normal(size=(90, 4))
Y = (X[:, 0] * X[:, 1] > 0).astype(int)
SITE = np.repeat([0, 1, 2], [40, 30, 20])


def net(inputs, outputs):
    return MLP(inputs, outputs, hidden=(16,), dropout=0.3, batch_norm=True)


def assert_same_run(replica, single, rtol=1e-7):
    for (_, a), (_, b) in zip(replica.training_.runs, single.training_.runs, strict=True):
        for kind in ("params", "buffers"):
            for name, value in getattr(b, kind).items():
                torch.testing.assert_close(
                    getattr(a, kind)[name], value, rtol=rtol, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}"
                )


COMMON = {"epochs": 3, "batch_size": 16, "dtype": "float64"}
STRATEGIES = {
    "erm": None,
    "and-mask": ANDMask(threshold=0.4),
    "example mask": ANDMask(threshold=0.1, each="example"),
    "adversarial": AdversarialTraining(PGD(eps=0.1, steps=2, start="random")),
    "woven": weave(AdversarialTraining(PGD(eps=0.05)), EWC(strength=1.0), ANDMask(threshold=0.4)),
}


@pytest.mark.filterwarnings("ignore:expected tasks for")
@pytest.mark.parametrize("name", STRATEGIES)
def test_dropout_batch_norm_and_minibatches(name):
    make = net if name != "example mask" else (lambda i, o: MLP(i, o, hidden=(16,), dropout=0.3))
    settings = {**COMMON, "strategy": STRATEGIES[name], "validation": 0.2, "clip": 0.5, "schedule": "cosine"}
    many = Classifier(make, replicas=3, random_state=5, **settings).fit(X, Y, environment=SITE)
    assert many.training_.runs[0][1].replicas == 3, "trained as one"
    for k in range(3):
        single = Classifier(make, random_state=5 + k, **settings).fit(X, Y, environment=SITE)
        assert_same_run(many.replica(k), single)
        for column in ("loss", "valid_loss", "valid_accuracy"):
            np.testing.assert_allclose(many.history_[column][:, k], single.history_[column], rtol=1e-7)
    assert not np.allclose(many.replica(0).predict_proba(X), many.replica(1).predict_proba(X))


def test_early_stopping_acts_on_each():
    settings = {**COMMON, "epochs": 40, "validation": 0.3, "patience": 2, "optimizer": Optimizer("adam", lr=0.02)}
    many = Classifier(net, replicas=4, random_state=0, **settings).fit(X, Y)
    assert len(set(many.stop_reason_)) > 1, "they stop at different times"
    for k in range(4):
        single = Classifier(net, random_state=k, **settings).fit(X, Y)
        assert single.stop_reason_ == many.stop_reason_[k]
        assert_same_run(many.replica(k), single)


@pytest.mark.parametrize("optimizer", ["sgd", Optimizer("adamw", weight_decay=0.1), Optimizer("sgd", momentum=0.9)])
def test_differing_rates_and_thresholds(optimizer):
    sweep = {"optimizer__lr": [1e-3, 1e-2, 3e-2], "strategy__threshold": [0.0, 0.5, 1.0]}
    settings = {**COMMON, "validation": 0.2, "random_state": 3}
    many = Classifier(net, strategy=ANDMask(), optimizer=optimizer, replicas=sweep, **settings)
    many.fit(X, Y, environment=SITE)
    assert many.training_.runs[0][1].replicas == 3
    for k in range(3):
        single = Classifier(net, strategy=ANDMask(threshold=sweep["strategy__threshold"][k]), optimizer=optimizer)
        single.set_params(**settings, optimizer__lr=sweep["optimizer__lr"][k]).fit(X, Y, environment=SITE)
        assert_same_run(many.replica(k), single, rtol=1e-6)
    # after a sweep the best on validation answers
    best = int(np.argmin(np.nanmin(many.history_["valid_loss"], axis=0)))
    assert many.best_replica_ == best
    np.testing.assert_allclose(many.predict_proba(X), many.replica(best).predict_proba(X))


@pytest.mark.parametrize("algorithm", ["sgd", "adam"])
def test_a_tiny_rate_beside_others_costs_them_nothing(algorithm):
    """Single precision: a step at the first one's rate, scaled up, would have no digit left."""
    rates, settings = [1e-9, 0.1, 3.0], {"steps": 30, "batch_size": None, "random_state": 0, "device": "cpu"}
    many = Classifier(hidden=(8,), optimizer=algorithm, replicas={"optimizer__lr": rates}, **settings).fit(X, Y)
    for k, lr in enumerate(rates[:2]):
        single = Classifier(hidden=(8,), optimizer=Optimizer(algorithm, lr=lr), **settings).fit(X, Y)
        np.testing.assert_allclose(many.replica(k).predict_proba(X), single.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize("algorithm", ["asgd", "rprop"])
def test_rates_that_steps_do_not_go_with_are_not_stacked(algorithm):
    settings = {**COMMON, "random_state": 3, "optimizer": algorithm}
    with pytest.warns(VectorizationWarning, match="do not go with its learning rate"):
        many = Classifier(net, replicas={"optimizer__lr": [1e-3, 1e-1]}, **settings).fit(X, Y)
    for k, lr in enumerate([1e-3, 1e-1]):
        single = Classifier(net, **{**settings, "optimizer": Optimizer(algorithm, lr=lr)}).fit(X, Y)
        assert_same_run(many.replica(k), single)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("batch_size", [8, 32]),
        ("epochs", [1, 2]),
        ("class_weight", [None, "balanced"]),
        ("dtype", ["float32", "float64"]),
    ],
)
def test_what_replicas_share_cannot_be_swept(name, values):
    with pytest.raises(ValueError, match=f"got '{name}': they share the rows"):
        Classifier(replicas={name: values}, random_state=0).fit(X, Y)


def test_a_diverged_replica_is_frozen_and_the_others_go_on():
    x, y = X, X @ np.array([1.0, -1.0, 2.0, 0.5])
    settings = {**COMMON, "epochs": 15, "random_state": 0}
    sweep = {"optimizer__lr": [1e-2, 1e30, 3e-2]}
    many = Regressor(optimizer="sgd", replicas=sweep, **settings).fit(x, y)
    assert "diverged at step" in many.stop_reason_[1]
    assert "completed" in many.stop_reason_[0]
    assert np.isnan(many.history_["loss"][-1, 1])
    for k in (0, 2):
        single = Regressor(optimizer=Optimizer("sgd", lr=sweep["optimizer__lr"][k]), **settings).fit(x, y)
        assert_same_run(many.replica(k), single, rtol=1e-6)
    frozen = many.replica(1).training_.runs[0][1]
    assert all(bool(torch.isfinite(p).all()) for p in frozen.params.values()), "frozen at its last good parameters"
    with pytest.raises(FloatingPointError, match=r"diverged at step.*lower the learning rate"):
        Regressor(optimizer=Optimizer("sgd", lr=1e30), **settings).fit(x, y)


def test_when_all_have_diverged_the_run_stops():
    y = X @ np.ones(4)
    many = Regressor(optimizer=Optimizer("sgd", lr=1e30), replicas=2, random_state=0, **COMMON)
    with pytest.warns(RuntimeWarning, match="every replica has diverged"):
        many.fit(X, y)
    assert all("diverged" in reason for reason in many.stop_reason_)


def test_an_ensemble_averages():
    many = Classifier(replicas=3, random_state=0, **COMMON).fit(X, Y)
    each = [many.replica(k).predict_proba(X) for k in range(3)]
    np.testing.assert_allclose(many.predict_proba(X), np.mean(each, axis=0))
    values = Regressor(replicas=2, random_state=0, **COMMON).fit(X, X[:, 0])
    np.testing.assert_allclose(values.predict(X), np.mean([values.replica(k).predict(X) for k in (0, 1)], axis=0))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(1, 5, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.cell(x[..., None])[0][:, -1])


def test_what_cannot_be_stacked_is_trained_one_after_another():
    with pytest.warns(VectorizationWarning, match="GRU cannot be vectorized"):
        many = Classifier(Recurrent(), replicas=2, random_state=0, **COMMON).fit(X, Y)
    assert many.history_["loss"].shape == (3, 2)
    for k in range(2):
        assert_same_run(many.replica(k), Classifier(Recurrent(), random_state=k, **COMMON).fit(X, Y), rtol=0)


def test_a_structural_sweep_is_trained_one_after_another():
    sweep = {"objective__hidden": [(4,), (8, 8)], "random_state": [1, 2]}
    many = Learner(Regression(), replicas=sweep, validation=0.2, **COMMON)
    with pytest.warns(VectorizationWarning, match="'objective__hidden' changes what is computed"):
        many.fit(X, X[:, 0])
    for k in range(2):
        single = Learner(Regression(hidden=sweep["objective__hidden"][k]), validation=0.2, **COMMON)
        assert_same_run(many.replica(k), single.set_params(random_state=k + 1).fit(X, X[:, 0]), rtol=0)
    assert math.isfinite(many.score(X, X[:, 0]))


def test_a_given_module_starts_anew_in_each_replica():
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    many = Classifier(module, replicas=2, epochs=0, random_state=0).fit(X, Y)
    first, second = (many.replica(k).training_.runs[0][1].params["net.0.weight"] for k in (0, 1))
    assert not torch.equal(first, second)
    kept = Classifier(module, replicas=2, epochs=0, init="keep", random_state=0).fit(X, Y)
    assert torch.equal(kept.replica(1).training_.runs[0][1].params["net.0.weight"], module[0].weight)


def test_a_layer_that_cannot_be_reset_is_named():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(4, 2))

        def forward(self, x):
            return x @ self.scale

    with pytest.raises(ValueError, match=r"reset_parameters.*Scaled"):
        Classifier(Scaled(), replicas=2, random_state=0, **COMMON).fit(X, Y)


def test_tasks_in_sequence_with_replicas():
    settings = {**COMMON, "strategy": EWC(strength=10.0)}
    many = Classifier(replicas=2, random_state=0, **settings)
    singles = [Classifier(random_state=k, **settings) for k in range(2)]
    for task, sign in (("a", 1.0), ("b", -1.0)):
        for learner in (many, *singles):
            learner.partial_fit(sign * X, Y, classes=[0, 1], task=task)
    for k in range(2):
        assert_same_run(many.replica(k), singles[k], rtol=1e-6)
