"""The Learner's manners: what it accepts, what it leaves alone, and what its parameters do."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from weft import Classifier, Learner, Optimizer, Regressor, weave
from weft.objectives import GAN, Classification, Regression
from weft.sources import Arrays
from weft.strategies import ERM, EWC, ANDMask

X, LABELS = load_iris(return_X_y=True)
Y = X @ np.array([0.5, -1.0, 0.3, 0.2]) + 0.1
SITE = np.arange(len(X)) % 3
ROWS, NUMBERS = torch.tensor(X, dtype=torch.float32), torch.tensor(LABELS)
SMALL = {"hidden": (8,), "epochs": 2, "random_state": 0}
QUICK = {"hidden": (16,), "epochs": 10, "random_state": 0, "optimizer": Optimizer("adam", lr=0.03)}
EXACT = {"hidden": (8,), "epochs": 5, "random_state": 0, "dtype": "float64", "batch_size": None}
DESCENT = {**EXACT, "optimizer": Optimizer("sgd", lr=0.1)}


def net(outputs=3):
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs))


def params(learner):
    return learner.training_.runs[0][1].params


# --- scikit-learn's tools ---------------------------------------------------------------------------


def test_clone_keeps_parameters_and_nothing_learned():
    fitted = Classifier(net(), strategy=ANDMask(threshold=0.5), optimizer=Optimizer("sgd", lr=0.1), epochs=1)
    fitted.fit(X, LABELS, environment=SITE)
    twin = clone(fitted)
    assert repr(twin.strategy) == "ANDMask(threshold=0.5)"
    assert twin.optimizer is not fitted.optimizer
    assert twin.get_params()["optimizer__lr"] == 0.1
    assert not hasattr(twin, "history_")
    woven = clone(Classifier(strategy=weave(EWC(strength=1.0), ANDMask())))
    assert woven.get_params()["strategy__ewc__strength"] == 1.0


def test_presets_show_every_parameter_of_the_learner():
    own = set(Classifier().get_params(deep=False))
    assert own == (set(Learner().get_params(deep=False)) - {"objective"}) | {"net", "hidden", "class_weight", "loss"}


def test_pipeline_and_cross_validation():
    scores = cross_val_score(make_pipeline(StandardScaler(), Classifier(**{**QUICK, "epochs": 20})), X, LABELS, cv=3)
    assert scores.mean() > 0.9


@pytest.mark.parametrize("optimizer", [None, "sgd", torch.optim.SGD, Optimizer("sgd")])
def test_nested_parameters_can_be_set_whatever_the_optimizer_is_given_as(optimizer):
    clf = Classifier(optimizer=optimizer, **SMALL).set_params(optimizer__lr=0.0)
    before = Classifier(**{**SMALL, "epochs": 0}).fit(X, LABELS)
    clf.fit(X, LABELS)
    for name, value in params(clf).items():
        assert torch.equal(value, params(before)[name])


def test_nested_parameters_are_set_after_what_they_belong_to():
    clf = Classifier().set_params(optimizer__lr=0.5, optimizer="sgd", strategy__threshold=0.25, strategy="and-mask")
    assert repr(clf.optimizer) == "Optimizer('sgd', lr=0.5)"
    assert repr(clf.strategy) == "ANDMask(threshold=0.25)"


def test_setting_a_nested_parameter_leaves_the_defaults_of_others_alone():
    Classifier().set_params(optimizer__lr=0.5)
    assert "lr" not in Classifier().set_params(optimizer__weight_decay=0.1).get_params(deep=False)["optimizer"].settings


def test_settings_of_a_games_players():
    game = Learner(GAN(latent=2)).set_params(optimizer__lr=0.5)
    assert repr(game.optimizer) == "Optimizer('adam', lr=0.5, betas=(0.0, 0.99))"
    assert "0.5" not in repr(GAN.optimizer)
    game.set_params(optimizer__critic__lr=0.25)
    assert {player: o.settings["lr"] for player, o in game.optimizer.items()} == {"generator": 0.5, "critic": 0.25}
    game.set_params(optimizer__weight_decay=0.125)
    assert [o.settings["weight_decay"] for o in game.optimizer.values()] == [0.125, 0.125]


def test_grid_search_over_optimizer_and_strategy_with_environments():
    grid = {"optimizer__lr": [1e-5, 3e-2], "strategy__threshold": [0.0, 0.5]}
    learner = Classifier(strategy=ANDMask(), hidden=(8,), epochs=10, random_state=0)
    search = GridSearchCV(learner, grid, cv=2).fit(X, LABELS, environment=SITE)
    assert search.best_params_["optimizer__lr"] == 3e-2
    with config_context(enable_metadata_routing=True):
        routed = GridSearchCV(learner.set_fit_request(environment=True), grid, cv=2).fit(X, LABELS, environment=SITE)
    assert_array_equal(search.cv_results_["mean_test_score"], routed.cv_results_["mean_test_score"])


@pytest.mark.filterwarnings("ignore:expected tasks for")
def test_grid_search_by_group_over_a_weave():
    learner = Classifier(strategy=weave(EWC(), ANDMask()), **SMALL)
    search = GridSearchCV(learner, {"strategy__andmask__threshold": [0.0, 1.0]}, cv=GroupKFold(2))
    search.fit(X, LABELS, groups=np.arange(len(X)) % 4, environment=SITE)
    assert search.best_estimator_.strategy.parts[1].threshold in (0.0, 1.0)


def test_a_pickled_learner_answers_and_goes_on_alike():
    fitted = Classifier(net(), schedule="cosine", validation=0.2, patience=3, **SMALL).fit(X, LABELS)
    twin = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(twin.predict_proba(X), fitted.predict_proba(X))
    assert_array_equal(twin.partial_fit(X, LABELS).predict_proba(X), fitted.partial_fit(X, LABELS).predict_proba(X))


def test_pickling_stacked_replicas():
    fitted = Classifier(replicas=3, **SMALL).fit(X, LABELS)
    assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(X), fitted.predict_proba(X))


# --- what data it accepts ---------------------------------------------------------------------------


class Rows(Dataset):
    """A user's own map-style data set."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def test_every_kind_of_input_trains_the_same_model():
    x, y = ROWS, NUMBERS
    want = Classifier(**SMALL).fit(X, LABELS).predict_proba(X)
    frame = pd.DataFrame(X, columns=list("abcd"))
    kinds = {
        "lists": (X.tolist(), LABELS.tolist()),
        "frame": (frame, pd.Series(LABELS)),
        "tensors": (x, y),
        "tensor data set": (TensorDataset(x, y), None),
        "data set": (Rows(X, LABELS), None),
        "data set of strings": (Rows(X, [f"class {k}" for k in LABELS]), None),
        "data set of rows": (Rows(X, LABELS).x, LABELS),
        "fortran order": (np.asfortranarray(X), LABELS),
    }
    for kind, (rows, labels) in kinds.items():
        clf = Classifier(**SMALL).fit(rows, labels)
        ask = rows if kind == "frame" else X
        assert_array_equal(clf.predict_proba(ask), want, err_msg=kind)
    source = Arrays(x, y, batch_size=64, classes=3)
    clf = Classifier(**SMALL).fit(source)
    assert_array_equal(clf.predict_proba(X), want)
    assert_array_equal(clf.predict_proba(x), want)
    assert clf.classes_.tolist() == [0, 1, 2]
    assert clf.n_features_in_ == 4
    assert clf.score(x, y) == clf.score(X, LABELS)


def test_sources_are_read_in_the_learners_dtype():
    source = Arrays(ROWS, NUMBERS, batch_size=64, classes=3)
    held = Arrays(ROWS[::2], NUMBERS[::2], classes=3)
    run = Classifier(dtype="float64", validation=held, **SMALL).fit(source)
    want = Classifier(dtype="float64", validation=(ROWS[::2], NUMBERS[::2]), **SMALL).fit(ROWS, NUMBERS)
    assert_array_equal(run.predict_proba(X), want.predict_proba(X))
    assert_array_equal(run.history_["valid_loss"], want.history_["valid_loss"])


def test_a_frame_names_the_features():
    clf = Classifier(**SMALL).fit(pd.DataFrame(X, columns=list("abcd")), LABELS)
    assert clf.feature_names_in_.tolist() == list("abcd")
    with pytest.raises(ValueError, match="feature names should match"):
        clf.predict(pd.DataFrame(X, columns=list("abce")))


@pytest.mark.parametrize(
    "names",
    [
        np.array(["setosa", "versicolor", "virginica"]),
        np.array([-5, 0, 7]),
        np.array([0.0, 1.0, 2.0]),
        np.array(["a", "b", "c"], dtype=object),
    ],
)
@pytest.mark.parametrize(
    "wrap", [np.asarray, pd.Series, pd.Categorical, list, lambda y: pd.Series(y, dtype="category")]
)
def test_labels_of_any_kind_come_back_as_they_were_given(names, wrap):
    clf = Classifier(**QUICK).fit(X, wrap(names[LABELS]))
    assert clf.classes_.tolist() == names.tolist()
    assert (clf.predict(X) == names[LABELS]).mean() > 0.8


def test_labels_may_be_booleans():
    clf = Classifier(**SMALL).fit(X, LABELS == 1)
    assert clf.predict(X).dtype == bool


def test_integers_in_a_tensor_stay_token_numbers():
    tokens = torch.randint(0, 5, (60, 7), generator=torch.Generator().manual_seed(0))
    embed = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(21, 2))
    clf = Classifier(embed, **{**QUICK, "epochs": 40}).fit(tokens, tokens[:, 0] > 2)
    assert clf.score(tokens, tokens[:, 0] > 2) > 0.9


def test_rows_of_any_shape_reach_the_module():
    images = np.random.default_rng(0).normal(size=(40, 1, 6, 6))
    conv = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    clf = Classifier(conv, epochs=1).fit(images, images.mean((1, 2, 3)) > 0)
    assert clf.predict_proba(images).shape == (40, 2)


@pytest.mark.parametrize("shape", [(150,), (150, 1), (150, 2)])
def test_a_regressor_answers_in_the_shape_of_its_targets(shape):
    y = np.broadcast_to(Y[:, None], (150, 2))[:, : shape[-1] if len(shape) > 1 else 1].reshape(shape)
    reg = Regressor(**SMALL).fit(X, y)
    assert reg.predict(X).shape == shape
    assert np.isfinite(reg.score(X, y))


def test_read_only_arrays_are_not_written_to():
    rows = X.copy()
    rows.flags.writeable = False
    Classifier(**{**SMALL, "dtype": "float64"}).fit(rows, LABELS).predict(rows)
    assert_array_equal(rows, X)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("replicas", [None, 2])
def test_every_dtype_trains_and_answers(dtype, replicas):
    clf = Classifier(dtype=dtype, replicas=replicas, **QUICK).fit(X, LABELS)
    assert str(next(iter(params(clf).values())).dtype) == f"torch.{dtype}"
    assert clf.score(X, LABELS) > 0.7


# --- weights ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("class_weight", [None, "balanced", {0: 3.0}])
def test_weight_two_is_a_duplicated_row(class_weight):
    weight = 1.0 + (np.arange(len(X)) % 3 == 0)
    twice = np.repeat(np.arange(len(X)), weight.astype(int))
    weighted = Classifier(class_weight=class_weight, **DESCENT).fit(X, LABELS, sample_weight=weight)
    repeated = Classifier(class_weight=class_weight, **DESCENT).fit(X[twice], LABELS[twice])
    plain = Classifier(class_weight=class_weight, **DESCENT).fit(X, LABELS)
    assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), rtol=1e-10)
    assert np.abs(weighted.predict_proba(X) - plain.predict_proba(X)).max() > 1e-6


def test_weight_zero_is_an_absent_row():
    weight = (np.arange(len(X)) % 4 > 0).astype(float)
    weighted = Regressor(**DESCENT).fit(X, Y, sample_weight=weight)
    without = Regressor(**DESCENT).fit(X[weight > 0], Y[weight > 0])
    assert_allclose(weighted.predict(X), without.predict(X), rtol=1e-10)


def test_balanced_class_weights_raise_the_minoritys_recall():
    rng = np.random.default_rng(0)
    y = (np.arange(400) < 20).astype(int)
    rows = rng.normal(size=(400, 2)) + y[:, None]
    recall = {}
    for weight in (None, "balanced"):
        clf = Classifier("linear", class_weight=weight, optimizer=Optimizer("adam", lr=0.05), epochs=20, random_state=0)
        recall[weight] = (clf.fit(rows, y).predict(rows[y == 1]) == 1).mean()
    assert recall["balanced"] > recall[None] + 0.3


def test_class_weights_by_label_multiply_sample_weights():
    names = np.array(["a", "b", "c"])[LABELS]
    by_class = Classifier(class_weight={"b": 5.0, "c": 0.5}, **DESCENT).fit(
        X, names, sample_weight=np.full(len(X), 2.0)
    )
    by_row = Classifier(**DESCENT).fit(X, names, sample_weight=2.0 * np.array([1.0, 5.0, 0.5])[LABELS])
    assert_allclose(by_class.predict_proba(X), by_row.predict_proba(X), rtol=1e-12)


# --- modules, freezing, groups, initialization ------------------------------------------------------


def test_the_users_module_is_never_modified():
    module = net().eval()
    module[0].weight.requires_grad_(False)
    before = copy.deepcopy(module)
    for init in ("reset", "keep"):
        Classifier(module, init=init, epochs=2, dtype="float64").fit(X, LABELS)
    Learner(Classification(module), epochs=1, replicas=2).fit(X, LABELS)
    for (name, p), q in zip(module.named_parameters(), before.parameters(), strict=True):
        assert torch.equal(p, q), name
        assert p.dtype == q.dtype
        assert p.requires_grad == q.requires_grad
        assert p.grad is None
    assert not module.training


def test_init_keeps_or_redraws_a_modules_parameters():
    module = net()
    kept = Classifier(module, init="keep", epochs=0).fit(X, LABELS)
    for name, p in module.named_parameters():
        assert torch.equal(params(kept)[f"net.{name}"], p)
    first, again, other = (Classifier(module, epochs=0, random_state=s).fit(X, LABELS) for s in (0, 0, 1))
    for name, p in module.named_parameters():
        assert torch.equal(params(first)[f"net.{name}"], params(again)[f"net.{name}"])
        assert not torch.equal(params(first)[f"net.{name}"], params(other)[f"net.{name}"])
        assert not torch.equal(params(first)[f"net.{name}"], p)


@pytest.mark.parametrize("factory", [net, lambda inputs, outputs: nn.Linear(inputs, outputs), "linear", "mlp", None])
def test_a_net_may_be_a_factory_or_a_name(factory):
    clf = Classifier(factory, epochs=1, random_state=0).fit(X, LABELS)
    assert clf.predict_proba(X).shape == (150, 3)


def test_a_nets_settings_may_stand_in_its_name():
    net = Classifier("mlp(dropout=0.5, batch_norm=True)", hidden=(8,), epochs=1).fit(X, LABELS).objective_.net
    assert [type(layer).__name__ for layer in net.features] == ["Flatten", "Linear", "BatchNorm1d", "ReLU", "Dropout"]
    assert (net.features[1].out_features, net.features[-1].p) == (8, 0.5)
    wide = Classifier("mlp(hidden=(16, 4))", hidden=(8,), epochs=1).fit(X, LABELS).objective_.net
    assert [layer.out_features for layer in wide.features if isinstance(layer, nn.Linear)] == [16, 4]


def test_frozen_parameters_stay_bit_for_bit():
    module = net()
    clf = Classifier(module, init="keep", optimizer=Optimizer("adam", freeze=["net.0.*"]), epochs=3).fit(X, LABELS)
    for name, p in module.named_parameters():
        assert torch.equal(params(clf)[f"net.{name}"], p) == name.startswith("0."), name


def test_a_groups_learning_rate_is_its_own():
    module = net()
    optimizer = Optimizer("sgd", lr=0.1, groups={"net.2.*": {"lr": 0.0}})
    clf = Classifier(module, init="keep", optimizer=optimizer, epochs=3).fit(X, LABELS)
    for name, p in module.named_parameters():
        assert torch.equal(params(clf)[f"net.{name}"], p) == name.startswith("2."), name


# --- updates, beside a plain PyTorch loop -----------------------------------------------------------


def by_hand(steps, *, lr=0.1, schedule=None, clip=None, factor=None, **settings):
    """Full-batch training of a linear regression by a bare loop."""
    x, y = torch.tensor(X), torch.tensor(Y)
    model = nn.Linear(4, 1, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, **settings)
    scheduler = schedule(optimizer) if schedule else None
    for step in range(steps):
        if factor is not None:
            optimizer.param_groups[0]["lr"] = lr * factor(step / steps)
        optimizer.zero_grad()
        (0.5 * (y - model(x).squeeze(1)).square()).mean().backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if scheduler:
            scheduler.step()
    return model(x).detach().squeeze(1).numpy()


def by_weft(steps, *, lr=0.02, settings=None, **kwargs):
    optimizer = Optimizer("sgd", lr=lr, **(settings or {}))
    learner = Regressor("linear", optimizer=optimizer, steps=steps, dtype="float64", batch_size=None, **kwargs)
    return learner.fit(X, Y).predict(X)


def test_momentum_and_weight_decay_as_in_pytorch():
    settings = {"momentum": 0.9, "weight_decay": 0.1}
    assert_allclose(by_weft(20, settings=settings), by_hand(20, lr=0.02, **settings), rtol=1e-9)


@pytest.mark.parametrize(
    ("schedule", "factor"),
    [
        ("constant", lambda t: 1.0),
        ("linear", lambda t: 1.0 - t),
        ("cosine", lambda t: 0.5 * (1.0 + np.cos(np.pi * t))),
        ("step", lambda t: 1.0 if t < 0.75 else 0.1),
        (lambda t: (1.0 - t) ** 2, lambda t: (1.0 - t) ** 2),
    ],
)
def test_schedules_by_name_and_by_function(schedule, factor):
    assert_allclose(by_weft(12, schedule=schedule), by_hand(12, lr=0.02, factor=factor), rtol=1e-9)


class EveryThird(torch.optim.lr_scheduler.StepLR):
    """A scheduler class that needs nothing but the optimizer."""

    def __init__(self, optimizer):
        super().__init__(optimizer, step_size=3, gamma=0.5)


def test_a_schedule_may_be_a_class_of_pytorch():
    assert_allclose(by_weft(12, schedule=EveryThird), by_hand(12, lr=0.02, schedule=EveryThird), rtol=1e-9)


def test_clipping_as_in_pytorch():
    clipped = by_weft(12, clip=0.5)
    assert_allclose(clipped, by_hand(12, lr=0.02, clip=0.5), rtol=1e-6)  # PyTorch adds 1e-6 to the norm
    assert np.abs(clipped - by_weft(12)).max() > 1e-3


def test_accumulation_is_a_larger_batch_with_dropout_too():
    module = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
    common = {"epochs": 3, "random_state": 0, "dtype": "float64"}
    parts = Classifier(module, batch_size=10, accumulate=4, **common).fit(X, LABELS, sample_weight=1.0 + SITE)
    whole = Classifier(module, batch_size=40, **common).fit(X, LABELS, sample_weight=1.0 + SITE)
    assert parts.n_steps_ == whole.n_steps_
    assert_allclose(parts.predict_proba(X), whole.predict_proba(X), rtol=1e-9)


# --- going on ---------------------------------------------------------------------------------------


def test_fit_starts_anew_and_warm_start_goes_on():
    clf = Classifier(**SMALL).fit(X, LABELS)
    once = params(clf)["net.head.weight"].clone()
    assert torch.equal(params(clf.fit(X, LABELS))["net.head.weight"], once)
    warm = Classifier(warm_start=True, **SMALL).fit(X, LABELS)
    steps = warm.n_steps_
    warm.fit(X, LABELS)
    assert warm.n_steps_ == 2 * steps
    assert len(warm.history_) == 4
    assert not torch.equal(params(warm)["net.head.weight"], once)


def test_parameters_changed_between_fits_count():
    warm = Classifier(warm_start=True, **SMALL).fit(X, LABELS)
    before = {name: p.clone() for name, p in params(warm).items()}
    warm.set_params(optimizer__lr=0.0).fit(X, LABELS)
    assert all(torch.equal(p, before[name]) for name, p in params(warm).items())
    warm.partial_fit(X, LABELS)
    assert all(torch.equal(p, before[name]) for name, p in params(warm).items())
    warm.set_params(optimizer__lr=0.1, strategy=ANDMask(threshold=0.2)).fit(X, LABELS, environment=SITE)
    assert not all(torch.equal(p, before[name]) for name, p in params(warm).items())
    warm.set_params(strategy=EWC(strength=1.0)).partial_fit(X, LABELS, task="new")
    assert warm.tasks_ == ["new"]


def test_partial_fit_without_a_task_is_one_pass():
    clf = Classifier(hidden=(8,), batch_size=40, random_state=0)
    for passes in (1, 2, 3):
        clf.partial_fit(X, LABELS)
        assert clf.n_steps_ == 4 * passes
        assert len(clf.history_) == passes


def test_passes_one_by_one_are_a_fit():
    whole = Classifier(**EXACT).fit(X, LABELS)
    parts = Classifier(**EXACT)
    for _ in range(5):
        parts.partial_fit(X, LABELS)  # Adam's moments are carried over
    assert_allclose(parts.predict_proba(X), whole.predict_proba(X), rtol=1e-9)


def test_partial_fit_knows_classes_to_come():
    clf = Classifier(**SMALL).partial_fit(X[:50], LABELS[:50], classes=range(3))
    assert clf.predict_proba(X).shape == (150, 3)
    clf.partial_fit(X[50:], LABELS[50:], classes=[2, 1, 0])


def test_tasks_by_row_are_tasks_in_sequence():
    task = np.repeat(["b", "a"], 75)
    at_once = Classifier(strategy=EWC(strength=1.0), **SMALL).fit(X, LABELS, task=task)
    in_turn = Classifier(strategy=EWC(strength=1.0), **SMALL)
    for name in ("b", "a"):
        in_turn.partial_fit(X[task == name], LABELS[task == name], classes=range(3), task=name)
    assert at_once.tasks_ == in_turn.tasks_ == ["b", "a"]
    assert_array_equal(at_once.predict_proba(X), in_turn.predict_proba(X))


def test_a_task_repeated_replaces_what_it_left():
    clf = Classifier(strategy=EWC(strength=1.0), **SMALL)
    for name in ("first", "second", "first"):
        clf.partial_fit(X, LABELS, task=name)
    kept = clf.training_.runs[0][1].strategy[""]["tasks"]
    assert sorted(kept) == ["first", "second"]
    assert clf.tasks_ == ["second", "first"]
    for name, anchor in kept["first"]["anchor"].items():
        assert torch.equal(anchor, params(clf)[name])


# --- validation, early stopping, callbacks ----------------------------------------------------------


def test_validation_as_a_pair_a_data_set_and_a_source():
    x, y = torch.tensor(X[::2], dtype=torch.float32), torch.tensor(LABELS[::2])
    kinds = [(X[::2], LABELS[::2]), TensorDataset(x, y), Arrays(x, y, classes=3)]
    runs = [Classifier(validation=kind, **SMALL).fit(X[1::2], LABELS[1::2]) for kind in kinds]
    for run in runs:
        assert_array_equal(run.history_["valid_loss"], runs[0].history_["valid_loss"])
    p = runs[0].predict_proba(X[::2])[np.arange(75), LABELS[::2]]
    assert_allclose(runs[0].history_["valid_loss"][-1], -np.log(p).mean(), rtol=1e-5)


def test_a_share_for_validation_is_held_out_by_class():
    sizes = []

    class Counting(nn.Linear):
        def forward(self, x):
            sizes.append(len(x))
            return super().forward(x)

    clf = Classifier(Counting(4, 3), validation=0.2, batch_size=None, epochs=1, random_state=0).fit(X, LABELS)
    assert max(sizes) == 120, "a step, its measures; and looks at what the net draws and takes"
    assert sizes[-1] == 30, "the validation"
    assert "valid_accuracy" in clf.history_[0]
    same = Classifier(Counting(4, 3), validation=0.2, batch_size=None, epochs=1, random_state=0).fit(X, LABELS)
    other = Classifier(Counting(4, 3), validation=0.2, batch_size=None, epochs=1, random_state=1).fit(X, LABELS)
    assert same.history_["valid_loss"] == clf.history_["valid_loss"] != other.history_["valid_loss"]


def test_early_stopping_puts_the_best_parameters_back():
    rng = np.random.default_rng(0)
    noise = rng.permutation(LABELS)  # nothing to learn, so that validation soon gets worse
    held = (X[::2], noise[::2])
    optimizer = Optimizer("adam", lr=0.02)
    clf = Classifier(hidden=(64,), optimizer=optimizer, epochs=200, validation=held, patience=4, random_state=0)
    clf.fit(X[1::2], noise[1::2])
    losses = clf.history_["valid_loss"]
    assert "no progress in 4 evaluations" in clf.stop_reason_
    assert len(losses) < 200
    p = clf.predict_proba(X[::2])[np.arange(75), noise[::2]]
    assert_allclose(-np.log(p).mean(), losses[: len(losses) - 4].min(), rtol=1e-5)
    assert losses[-1] > losses.min()


def test_training_to_the_end_says_so():
    clf = Classifier(batch_size=50, **SMALL).fit(X, LABELS)
    assert clf.stop_reason_ == "completed 6 steps"


def test_callbacks_observe_every_record():
    seen = []
    watched = Classifier(callbacks=[seen.append], **SMALL).fit(X, LABELS)
    plain = Classifier(**SMALL).fit(X, LABELS)
    assert seen == list(watched.history_)
    assert_array_equal(watched.predict_proba(X), plain.predict_proba(X))


def test_history_as_columns_and_as_a_frame():
    clf = Classifier(validation=0.2, **SMALL).fit(X, LABELS)
    frame = clf.history_.to_frame()
    assert_array_equal(frame["valid_loss"], clf.history_["valid_loss"])
    assert len(frame) == 2


def test_a_progress_bar_on_request(capsys):
    Classifier(verbose=True, **SMALL).fit(X, LABELS)
    assert "Classification" in capsys.readouterr().out
    Classifier(**SMALL).fit(X, LABELS)
    assert capsys.readouterr().out == ""


# --- environments, replicas -------------------------------------------------------------------------


def test_environments_may_differ_in_size_and_be_named():
    site = np.array(["Bern"] * 100 + ["Oslo"] * 40 + ["Rom"] * 10)
    order = np.random.default_rng(0).permutation(150)
    mask = Classifier(strategy=ANDMask(threshold=0.0), weighting="example", **EXACT)
    mask.fit(X[order], LABELS[order], environment=site)
    erm = Classifier(strategy=ERM(), **EXACT).fit(X[order], LABELS[order])
    assert_allclose(mask.predict_proba(X), erm.predict_proba(X), rtol=1e-7)


def test_a_replica_is_a_learner_of_its_own():
    both = Classifier(replicas=2, **SMALL).fit(X, LABELS)
    one = both.replica(1)
    before = both.predict_proba(X)
    alone = Classifier(**{**SMALL, "random_state": 1}).fit(X, LABELS)
    assert_allclose(one.predict_proba(X), alone.predict_proba(X), rtol=1e-5)
    one.partial_fit(X, LABELS)
    assert_array_equal(both.predict_proba(X), before)
    with pytest.raises(IndexError, match=r"0\.\.1, got 2"):
        both.replica(2)


def test_a_sweep_answers_by_its_best_replica():
    sweep = Classifier(replicas={"optimizer__lr": [1e-6, 1e-2]}, validation=0.2, hidden=(8,), epochs=10, random_state=0)
    sweep.fit(X, LABELS)
    assert sweep.best_replica_ == 1
    assert_array_equal(sweep.predict_proba(X), sweep.replica(1).predict_proba(X))


def test_a_replica_of_a_sweep_goes_on_with_its_own_settings():
    sweep = Classifier(replicas={"optimizer__lr": [1e-2, 0.0]}, **SMALL).fit(X, LABELS)
    still, moving = sweep.replica(1), sweep.replica(0)
    assert still.get_params()["optimizer__lr"] == 0.0
    for one, moves in ((still, False), (moving, True)):
        before = {name: p.clone() for name, p in params(one).items()}
        one.partial_fit(X, LABELS)
        assert all(torch.equal(p, before[name]) for name, p in params(one).items()) != moves


def test_random_state_none_differs_from_fit_to_fit():
    settings = {**SMALL, "random_state": None, "epochs": 0}
    a, b = Classifier(**settings).fit(X, LABELS), Classifier(**settings).fit(X, LABELS)
    assert a.seeds_ != b.seeds_


def test_capabilities_are_the_objectives():
    assert hasattr(Learner(Classification()), "predict_proba")
    assert not hasattr(Learner(Regression()), "predict_proba")
    with pytest.raises(AttributeError, match="has no attribute 'predict_proba'; Regression offers predict"):
        Learner(Regression()).predict_proba  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'adapt'") as refusal:
        Learner(Regression()).adapt  # noqa: B018
    assert "expected a strategy that adapts, such as MAML()" in str(refusal.value.__cause__)


def test_the_validation_measures_are_those_of_the_held_out_rows():
    """Whatever the strategy: by hand, on the rows themselves."""
    rng = np.random.default_rng(3)
    x, labels = rng.normal(size=(80, 5)), rng.integers(2, size=80)
    held, truth = rng.normal(size=(30, 5)), rng.integers(2, size=30)
    for strategy in (None, ANDMask(threshold=0.2)):
        for replicas in (None, 2):
            clf = Classifier(strategy=strategy, validation=(held, truth), epochs=2, replicas=replicas, random_state=0)
            clf.fit(x, labels, environment=np.arange(80) % 3)
            for k in range(replicas or 1):
                p = clf.replica(k).predict_proba(held)
                last = {n: np.atleast_1d(v)[k] for n, v in clf.history_[-1].items() if n.startswith("valid")}
                np.testing.assert_allclose(last["valid_loss"], -np.log(p[np.arange(30), truth]).mean(), rtol=1e-4)
                np.testing.assert_allclose(last["valid_accuracy"], (p.argmax(1) == truth).mean(), rtol=1e-4)
