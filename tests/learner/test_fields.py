"""Further fields by name: what `fit` reads, refuses, keeps, and gives back."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

import weft
from weft import Learner, Optimizer
from weft.core import Objective, Output, capability
from weft.nets import make_net
from weft.objectives import Classification, Heads, Regression
from weft.sources import Arrays
from weft.strategies import EWC, ANDMask
from weft.testing import ContractError, check_objective

rng = np.random.default_rng(0)
ROWS = 48
X = rng.normal(size=(ROWS, 4)).astype(np.float32)
DOSE = rng.uniform(0.5, 2.0, size=ROWS).astype(np.float32)
Y = (X[:, 0] * DOSE).astype(np.float32)
KIND = np.where(X[:, 1] > 0, "oak", "fir")
VISITS = rng.poisson(np.exp(X[:, 2]))
SITE = np.arange(ROWS) % 3
IMAGES = rng.normal(size=(ROWS, 1, 4, 4)).astype(np.float32)
MASKS = np.array(["sky", "sea", "sun"])[np.digitize(IMAGES[:, 0], [-0.5, 0.5])]
ADAM = Optimizer("adam", lr=0.02)


class Dosed(Objective):
    """Learns y of x and a dose, with a group of each row beside it."""

    fields = ("x", "y", "dose", "group_of")
    kinds = {"group_of": "classes"}

    def build(self, spec):
        self.net = make_net(None, spec["x"], 1, hidden=(16,))
        self.shift = nn.Parameter(torch.zeros(spec["group_of"].classes))

    def forward(self, batch, player=""):
        told = self.net(batch["x"]).squeeze(-1) * batch["dose"] + self.shift[batch["group_of"]]
        return Output((batch["y"] - told).square())

    @capability(merge="mean")
    def predict(self, x):
        return self.net(x).squeeze(-1)


class Segments(Objective):
    """Learns which class each pixel is of."""

    targets = "classes"
    kinds = {"y": "classes"}

    def build(self, spec):
        self.net = nn.Conv2d(spec["x"].shape[0], spec["y"].classes, 1)

    def forward(self, batch, player=""):
        return Output(nn.functional.cross_entropy(self.net(batch["x"]), batch["y"], reduction="none").mean((1, 2)))

    @capability(merge="mean", finish=lambda z: z.argmax(1))
    def predict(self, x):
        return self.net(x).softmax(1)


GIVEN = {"dose": DOSE, "group_of": KIND}


def learner(objective=None, **settings):
    return Learner(objective or Dosed(), **{"epochs": 3, "random_state": 0, **settings})


def test_fields_are_what_a_source_gives():
    own = learner(batch_size=8).fit(X, Y, **GIVEN)
    numbers = torch.as_tensor(np.unique(KIND, return_inverse=True)[1])
    fields = {"dose": torch.as_tensor(DOSE), "group_of": numbers}
    source = Arrays(torch.as_tensor(X), torch.as_tensor(Y), **fields, classes={"group_of": 2}, batch_size=8)
    told = learner().fit(source)
    assert np.array_equal(own.predict(X), told.predict(X).astype(float))
    assert own.labels_["group_of"].tolist() == ["fir", "oak"]
    assert not hasattr(told, "labels_")
    check_objective(Dosed(), source)
    other = learner(batch_size=8).fit(X, Y, **{**GIVEN, "dose": DOSE[::-1].copy()})
    assert not np.array_equal(own.predict(X), other.predict(X))


def test_replicas_environments_validation_and_clones():
    many = learner(replicas=2, validation=0.25).fit(X, Y, **GIVEN)
    one = clone(many).set_params(replicas=None, random_state=1).fit(X, Y, **GIVEN)
    np.testing.assert_allclose(many.replica(1).predict(X), one.predict(X), rtol=1e-5, atol=1e-6)
    assert many.replica(0).labels_["group_of"].tolist() == ["fir", "oak"]
    learner(strategy=ANDMask(threshold=0.3)).fit(X, Y, environment=SITE, **GIVEN)
    held = learner(validation=(X[:9], Y[:9], {"dose": DOSE[:9], "group_of": ["oak"] * 9})).fit(X, Y, **GIVEN)
    assert np.isfinite(held.history_["valid_loss"]).all()
    with pytest.raises(ValueError, match="rows with 'dose', which Dosed reads"):
        learner(validation=(X[:9], Y[:9])).fit(X, Y, **GIVEN)


def test_masks_of_labels_are_numbered_and_come_back_as_labels(tmp_path):
    segments = learner(Segments(), epochs=60, optimizer=ADAM, replicas=2).fit(IMAGES, MASKS)
    assert segments.classes_.tolist() == ["sea", "sky", "sun"]
    told = segments.predict(IMAGES)
    assert told.shape == MASKS.shape
    assert (told == MASKS).mean() > 0.9
    segments.save(tmp_path / "run")
    again = weft.load(tmp_path / "run", objective=Segments())
    assert np.array_equal(again.predict(IMAGES), told)
    with pytest.raises(ValueError, match="y should be a 1d array"):
        Learner(Classification()).fit(X, np.stack([KIND, KIND], 1))


def test_heads_read_their_targets_by_name_and_answer_in_labels(tmp_path):
    def heads():
        return Heads({"kind": Classification(hidden=(8,)), "n": Regression(hidden=(8,), loss="poisson")})

    assert heads().kinds == {"kind_y": "classes", "n_y": "counts"}
    both = learner(heads(), epochs=60, optimizer=ADAM).fit(X, kind_y=KIND, n_y=VISITS)
    assert (both.kind_predict(X) == KIND).mean() > 0.9
    both.save(tmp_path / "run")
    again = weft.load(tmp_path / "run")
    assert again.labels_["kind_y"].tolist() == ["fir", "oak"]
    assert np.array_equal(again.kind_predict(X), both.kind_predict(X))
    with pytest.raises(ValueError, match=r"expected counts 0, 1, 2, \.\.\. in n_y, got -1, first in row 0"):
        learner(heads()).fit(X, kind_y=KIND, n_y=np.full(ROWS, -1))
    graded = Heads({"kind": Classification(loss="ordinal"), "n": Regression()})
    with pytest.raises(ValueError, match="expected labels in an order"):
        learner(graded).fit(X, kind_y=KIND, n_y=VISITS)


# --- wrong use ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        (
            {"dos": DOSE, "group_of": KIND},
            TypeError,
            r"got 'dos'; did you mean 'dose'\?; Dosed reads \('x', 'y', 'dose'",
        ),
        ({**GIVEN, "sample_weights": DOSE}, TypeError, "did you mean 'sample_weight'"),
        ({**GIVEN, "enviroment": SITE}, TypeError, "did you mean 'environment'"),
        ({"dose": DOSE}, ValueError, r"rows with 'group_of', which Dosed reads, .*fit\(X, dose=..., group_of=...\)"),
        ({**GIVEN, "dose": None}, ValueError, "rows with 'dose'"),
        ({**GIVEN, "dose": DOSE[:5]}, ValueError, "expected dose to have 48 rows as X has, got 5"),
        ({**GIVEN, "dose": 1.0}, ValueError, "expected dose to have 48 rows as X has, got a single value"),
        ({**GIVEN, "dose": KIND}, ValueError, "expected numbers in dose, got .*let kinds say {'dose': 'classes'}"),
        ({**GIVEN, "dose": np.full(ROWS, np.nan)}, ValueError, "Input dose contains NaN"),
        ({**GIVEN, "group_of": ["oak"] * ROWS}, ValueError, "at least two classes in group_of, got one class only"),
        ({**GIVEN, "group_of": [None] * ROWS}, ValueError, "mixture or missing|NaN|one class only|Unknown label"),
    ],
)
def test_wrong_fields_are_refused(fields, error, message):
    with pytest.raises(error, match=message):
        learner().fit(X, Y, **fields)


def test_what_reads_no_further_fields_refuses_them():
    with pytest.raises(TypeError, match="got 'dose'"):
        Learner(Classification()).fit(X, KIND, dose=DOSE)
    with pytest.raises(TypeError, match="got 'dose'"):
        Learner(Classification()).partial_fit(X, KIND, dose=DOSE)
    source = Arrays(torch.as_tensor(X), torch.as_tensor(Y))
    with pytest.raises(ValueError, match="Arrays brings its own fields, got dose beside it"):
        learner().fit(source, dose=DOSE)


class Parted(Dosed):
    """Calls a field as a source calls a setting of its own."""

    fields = ("x", "y", "part")
    kinds = {}


class Miskinded(Dosed):
    """Says of a field that it holds what nothing holds."""

    kinds = {"group_of": "classes", "dose": "number"}


def test_a_field_whose_name_has_a_meaning_is_refused():
    with pytest.raises(ValueError, match="to call its field otherwise than 'part'"):
        learner(Parted()).fit(X, Y, part=DOSE)


def test_kinds_that_lie_are_found_out():
    fields = {"dose": torch.as_tensor(DOSE), "group_of": torch.as_tensor(SITE)}
    source = Arrays(torch.as_tensor(X), torch.as_tensor(Y), **fields, classes={"group_of": 3}, batch_size=8)
    with pytest.raises(ContractError, match="the fields hold, got 'dose': 'number'"):
        check_objective(Miskinded(), source)


# --- tasks, folders -----------------------------------------------------------------------------------


def test_tasks_know_the_labels_of_all_rows():
    order = np.argsort(KIND)
    rows = {"dose": DOSE[order], "group_of": KIND[order]}
    told = learner(epochs=2).fit(X[order], Y[order], task=KIND[order], **rows)
    assert told.tasks_ == ["fir", "oak"]
    assert told.labels_["group_of"].tolist() == ["fir", "oak"]
    part = learner(epochs=2)
    first = {"dose": DOSE[KIND == "oak"], "group_of": KIND[KIND == "oak"]}
    part.partial_fit(X[KIND == "oak"], Y[KIND == "oak"], task="a", classes={"group_of": ["fir", "oak"]}, **first)
    part.partial_fit(X, Y, task="b", **GIVEN)
    with pytest.raises(ValueError, match=r"among \['fir', 'oak'\] in group_of, got also \['ash'\]"):
        part.partial_fit(X, Y, task="c", dose=DOSE, group_of=np.where(KIND == "oak", "ash", "fir"))
    with pytest.raises(ValueError, match=r"rows of dose of shape \(\) as when training began, got \(2,\)"):
        part.partial_fit(X, Y, task="c", dose=np.stack([DOSE, DOSE], 1), group_of=KIND)


class StopError(Exception):
    """Raised in the middle of a training."""


@pytest.mark.parametrize("tasks", [False, True])
def test_a_resumed_run_is_the_uninterrupted_one_and_other_fields_are_refused(tasks, tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)
    more = {"task": SITE} if tasks else {}
    whole = learner(epochs=6).fit(X, Y, **GIVEN, **more)

    def stop(record, seen=[]):  # noqa: B006
        seen.append(record)
        if len(seen) == (8 if tasks else 3):
            raise StopError

    with pytest.raises(StopError):
        learner(epochs=6, folder=tmp_path / "run", callbacks=[stop]).fit(X, Y, **GIVEN, **more)
    again = {"objective": Dosed()}
    with pytest.raises(ValueError, match="got other dose"):
        weft.load(tmp_path / "run", **again).resume(X, Y, **{**GIVEN, "dose": DOSE + 1}, **more)
    with pytest.raises(ValueError, match="got other group_of"):
        weft.load(tmp_path / "run", **again).resume(X, Y, **{**GIVEN, "group_of": KIND[::-1]}, **more)
    if tasks:  # a task that was learned already counts too
        with pytest.raises(ValueError, match="got other dose of all tasks"):
            weft.load(tmp_path / "run", **again).resume(X, Y, dose=DOSE + (SITE == 0), group_of=KIND, **more)
    with pytest.raises(ValueError, match="rows with 'dose'"):
        weft.load(tmp_path / "run", **again).resume(X, Y, group_of=KIND)
    resumed = weft.load(tmp_path / "run", **again).resume(X, Y, **GIVEN, **more)
    assert np.array_equal(resumed.predict(X), whole.predict(X))
    assert resumed.labels_["group_of"].tolist() == ["fir", "oak"]


def test_fields_pass_through_a_strategy_of_tasks():
    likely = Heads({"kind": Classification(hidden=(8,)), "value": Regression(hidden=(8,))})
    told = learner(likely, strategy=EWC(strength=1.0)).fit(X, kind_y=KIND, value_y=Y, task=SITE)
    assert told.tasks_ == ["0", "1", "2"]


class Told(Objective):
    """Learns a level for each `kind`; says the level of the kind that is asked about."""

    fields = ("x", "kind")
    kinds = {"kind": "classes"}

    def build(self, spec):
        self.level = nn.Parameter(torch.arange(3.0))

    def forward(self, batch, player=""):
        return Output((self.level[batch["kind"]] - batch["x"][:, 0]).square())

    @capability()
    def leveled(self, x, kind):
        return kind.to(x.dtype) + 0 * x[:, 0]


def test_labels_of_a_field_that_is_asked_with_are_numbered_as_in_training():
    X, kind = np.zeros((6, 2)), np.array(["c", "a", "b"] * 2)
    learner = Learner(Told(), steps=1, random_state=0).fit(X, kind=kind)
    np.testing.assert_array_equal(learner.leveled(X[:3], kind=["b", "c", "a"]), [1, 2, 0])
    with pytest.raises(ValueError, match=r"labels among \['a', 'b', 'c'\] in kind, got also \['d'\]"):
        learner.leveled(X[:1], kind=["d"])
