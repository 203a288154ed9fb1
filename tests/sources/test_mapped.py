"""Rows mapped on their way: by seed, step and row alone, in training alone."""

import random
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone

import weft
from weft import Classifier, Learner, Regressor
from weft.core import Field
from weft.core.random import normal, uniform
from weft.core.state import State
from weft.objectives import LeastSquares, Regression
from weft.sources import Arrays, Episodes, Mapped, batchwise
from weft.strategies import EWC, VREx
from weft.testing import check_source

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(50, 3, generator=GENERATOR)
Y = X[:, 0]
SITE = np.arange(50) % 3


def jittered(row):
    """Draws from all three generators."""
    return row + 0.1 * torch.randn(3) + 0.1 * float(np.random.randn()) + 0.1 * random.random()


@batchwise
def noisy(batch):
    return {**batch, "x": batch["x"] + 0.1 * normal(batch["x"].shape, place="noise")}


@batchwise
def masked(batch):
    mask = (uniform(batch["x"].shape, place="mask") < 0.5).float()
    return {**batch, "x": batch["x"] * mask, "mask": mask}


MAPS = {"by row": jittered, "batchwise": noisy}
SPEC = {"x": Field((3,), torch.float32), "y": Field((), torch.float32), "mask": Field((3,), torch.float32)}
SOURCES = {
    "rows": lambda f: Mapped(Arrays(X, Y, batch_size=12), f),
    "groups": lambda f: Mapped(Arrays(X, Y, environment=SITE, grouped=True, batch_size=5), f),
    "episodes": lambda f: Mapped(Episodes((X, Y, SITE), tasks=2, shots=3), f),
    "twice": lambda f: Mapped(Mapped(Arrays(X, Y, batch_size=12), f), f),
    "other fields": lambda f: Mapped(Mapped(Arrays(X, Y, batch_size=12), f), masked, spec=SPEC),
}


@pytest.fixture(params=MAPS)
def function(request):
    return MAPS[request.param]


@pytest.mark.parametrize("kind", SOURCES)
def test_the_contract_holds(kind, function):
    check_source(SOURCES[kind](function))


def clock(seed=0, step=0):
    return State(objective=None, params={}, buffers={}, seeds=torch.tensor(seed), step=step)


def noise(source, plain, step=0):
    return next(source.batches(clock(step=step)))["x"] - next(plain.batches(clock(step=step)))["x"]


def test_every_row_draws_for_itself_and_anew_at_each_step(function):
    plain = Arrays(torch.zeros(40, 3), batch_size=None)
    first, second = (noise(Mapped(plain, function), plain, step) for step in (0, 1))
    assert len(first.unique(dim=0)) == 40
    assert not torch.equal(first, second)


def test_nested_maps_draw_apart(function):
    plain = Arrays(torch.zeros(40, 3), batch_size=None)
    inner = Mapped(plain, function)
    once, twice = noise(inner, plain), noise(Mapped(inner, function), plain)
    assert not torch.allclose(twice, 2 * once)


def test_ambient_generators_are_left_as_they_were(function):
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    next(Mapped(Arrays(X, Y, batch_size=12), function).batches(clock()))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert random.getstate() == before[2]


def test_ambient_generators_make_no_difference(function):
    found = []
    for seed in (3, 4):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        found.append(next(Mapped(Arrays(X, Y, batch_size=12), function).batches(clock()))["x"])
    assert torch.equal(*found)


def test_support_and_query_draw_apart(function):
    batch = next(Mapped(Episodes((torch.zeros(50, 3), Y, SITE), tasks=2, shots=3), function).batches(clock()))
    assert not torch.isclose(batch["support"]["x"], batch["query"]["x"]).any()


def test_the_rows_of_the_source_are_not_changed_in_place():
    class Held(Arrays):
        def batches(self, state):
            while True:
                yield dict(self.fields)

    for function in (lambda row: row.zero_(), batchwise(lambda batch: {**batch, "x": batch["x"].zero_()})):
        held = Held(X.clone(), Y)
        assert not next(Mapped(held, function).batches(clock()))["x"].any()
        assert torch.equal(held.fields["x"], X)


# --- through the Learner --------------------------------------------------------------------------------


def learner(function, **settings):
    return Regressor(augment=function, **{"hidden": (4,), "epochs": 3, "batch_size": 12, "random_state": 0, **settings})


def weights(learner):
    return [p.detach() for p in learner.objective_.parameters()]


def alike(one, other, **tolerance):
    torch.testing.assert_close(weights(one), weights(other), **(tolerance or {"rtol": 0, "atol": 0}))


def test_augment_is_the_mapped_source(function):
    given = Learner(Regression(hidden=(4,)), epochs=3, random_state=0).fit(
        Mapped(Arrays(X, Y, batch_size=12), function)
    )
    alike(learner(function).fit(X.numpy(), Y.numpy()), given)
    own = Learner(Regression(hidden=(4,)), epochs=3, random_state=0, augment=function).fit(Arrays(X, Y, batch_size=12))
    alike(own, given)


def test_replica_k_is_the_single_run(function):
    both = learner(function, replicas=2).fit(X.numpy(), Y.numpy())
    for k in range(2):
        alike(both.replica(k), learner(function, random_state=k).fit(X.numpy(), Y.numpy()), rtol=1e-5, atol=1e-6)


def test_groups_are_mapped(function):
    given = {"strategy": VREx(strength=1.0), "batch_size": 5}
    found = learner(function, **given).fit(X.numpy(), Y.numpy(), environment=SITE)
    plain = learner(None, **given).fit(X.numpy(), Y.numpy(), environment=SITE)
    assert not torch.equal(weights(found)[0], weights(plain)[0])
    both = learner(function, replicas=2, **given).fit(X.numpy(), Y.numpy(), environment=SITE)
    alike(both.replica(0), found, rtol=1e-5, atol=1e-6)


class Killed(Exception):  # noqa: N818
    pass


def stop(record):
    if record["step"] == 10:
        raise Killed


def test_a_resumed_run_is_the_uninterrupted_one(function, tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)
    whole = learner(function).fit(X.numpy(), Y.numpy())
    with pytest.raises(Killed):
        learner(function, folder=tmp_path, callbacks=[stop]).fit(X.numpy(), Y.numpy())
    assert weft.load(tmp_path).predict(X.numpy()).shape == (50,)  # to answer, it is not needed
    with pytest.raises(ValueError, match="expected 'augment' again to go on"):
        weft.load(tmp_path).resume(X.numpy(), Y.numpy())
    with pytest.raises(ValueError, match="other map 0"):
        weft.load(tmp_path, augment=lambda row: row).resume(X.numpy(), Y.numpy())
    alike(weft.load(tmp_path, augment=function).resume(X.numpy(), Y.numpy()), whole)


def test_training_rows_only():
    """Validation and what a strategy keeps of a task are of rows as they were given."""
    seen = []

    def marked(row):
        seen.append(row)
        return row + 100.0

    found = learner(marked, validation=0.2, epochs=2, strategy=EWC()).fit(X.numpy(), Y.numpy(), task=["a"] * 50)
    assert len(seen) == 2 * 40
    held = Regressor(hidden=(4,), validation=(X.numpy(), Y.numpy()), epochs=1, random_state=0, augment=marked)
    held.fit(X.numpy(), Y.numpy())
    error = np.mean((held.predict(X.numpy()) - Y.numpy()) ** 2)
    assert held.history_["valid_loss"][-1] == pytest.approx(error / 2, rel=1e-4)
    assert found.tasks_ == ["a"]


def test_other_fields_are_there_in_one_pass_too():
    source = SOURCES["other fields"](noisy)
    whole = torch.cat([batch["mask"] for batch in source.once(clock(), 50)])
    parts = torch.cat([batch["mask"] for batch in source.once(clock(), 7)])
    assert torch.equal(whole, parts)
    assert len(whole.unique(dim=0)) > 4


def test_it_is_a_parameter_as_others_are(function):
    made = clone(learner(function))
    assert made.get_params()["augment"] is not None
    assert type(made.augment) is type(function)


def test_transforms_as_torchvision_makes_them():
    class RandomFlip(torch.nn.Module):
        """As torchvision's: a module, one draw for what it is given."""

        def forward(self, image):
            return image.flip(-1) if torch.rand(1) < 0.5 else image

    images = torch.arange(4.0).expand(200, 1, 2, 4)
    plain = Arrays(images, batch_size=None)
    flipped = noise(Mapped(plain, RandomFlip()), plain)[:, 0, 0, 0] != 0
    assert 60 < int(flipped.sum()) < 140
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Classifier(augment=RandomFlip(), hidden=(4,), epochs=1, random_state=0).fit(images.numpy(), np.arange(200) % 2)
    with pytest.raises(ValueError, match="batchwise, to draw by weft"):
        noise(Mapped(plain, batchwise(lambda b: {**b, "x": RandomFlip()(b["x"])})), plain)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda row: row[:2], r"'x' of shape \(12, 3\)"),
        (lambda row: row.double(), "torch.float32, got"),
        (lambda row: row.numpy(), "to make a tensor of a row of 'x', got ndarray"),
        (lambda row: row[: 1 + (row[0] > 0)], "rows of one shape"),
        (batchwise(lambda batch: batch["x"]), "to give a batch, got Tensor"),
        (batchwise(lambda batch: {"x": batch["x"], "weight": batch["weight"]}), "'y' of shape"),
        (batchwise(lambda batch: {"x": batch["x"], "y": batch["y"]}), "to pass 'weight' on"),
        (batchwise(lambda batch: {**batch, "extra": torch.ones(2)}), "12 rows of every field, got others of 'extra'"),
    ],
)
def test_what_does_not_fit_is_refused(function, message):
    class Weighing(Arrays):
        """As where groups are padded: the weights are not in the spec."""

        def batches(self, state):
            for batch in super().batches(state):
                yield {**batch, "weight": torch.ones(len(batch["y"]))}

    with pytest.raises((TypeError, ValueError), match=message):
        next(Mapped(Weighing(X[:48], Y[:48], batch_size=12), function).batches(clock()))


def test_settings_that_would_be_ignored_are_refused():
    with pytest.raises(ValueError, match="expected no augment for LeastSquares"):
        Learner(LeastSquares(), augment=jittered).fit(X.numpy(), Y.numpy())
    with pytest.raises(ValueError, match="got 'augment': they share the rows"):
        learner(None, replicas={"augment": [jittered, noisy]}).fit(X.numpy(), Y.numpy())
