"""DataFrames: by the command line's recipe, or column by column; what comes back is in their words and units."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from torch import nn

import weft
from weft import Classifier, Learner, Optimizer, Regressor
from weft.core import Objective, Output, Part, capability
from weft.core.random import uniform
from weft.objectives import Regression
from weft.strategies import ANDMask
from weft.tables import Recipe
from weft.tables.files import Columns

rng = np.random.default_rng(0)
ROWS = 60
FRAME = pd.DataFrame(
    {
        "height": rng.normal(170, 10, ROWS),
        "leaf": rng.choice(["long", "round", "oval"], ROWS),
        "wet": rng.random(ROWS) > 0.5,
        "visits": rng.poisson(3, ROWS),
    }
)
GAPPED = FRAME.assign(height=FRAME.height.where(rng.random(ROWS) > 0.2))
Y = np.where(FRAME.leaf == "long", "a", "b")
SITE = np.arange(ROWS) % 3
QUICK = {"epochs": 2, "random_state": 0}


# --- features -----------------------------------------------------------------------------------------


def test_a_table_is_read_as_the_command_line_reads_it():
    table = Recipe.learn(Columns.of(GAPPED, "table")).apply(Columns.of(GAPPED, "table"))
    own = Classifier(**QUICK).fit(GAPPED, Y)
    told = Classifier(**QUICK).fit(table.X, Y)
    assert np.array_equal(own.predict_proba(GAPPED), told.predict_proba(table.X))
    assert own.score(GAPPED, Y) == told.score(table.X, Y)
    assert own.recipe_.columns == Recipe.learn(Columns.of(GAPPED, "table")).columns
    assert own.feature_names_in_.tolist() == list(FRAME.columns)
    assert own.n_features_in_ == 4
    parts = own.training_.spec["x"].columns
    assert [(p.name, p.kind, p.width, p.classes) for p in parts] == [
        ("height", "number", 1, None),
        ("height is missing", "missing", 1, None),
        ("leaf", "category", 3, 3),
        ("wet", "boolean", 1, None),
        ("visits", "number", 1, None),
    ]
    assert np.array_equal(own.predict(GAPPED[::-1][["leaf", "wet", "visits", "height"]]), own.predict(GAPPED)[::-1])


def test_numbers_alone_go_on_as_they_did():
    numbers = FRAME[["height", "visits"]].astype(float)
    own, told = Classifier(**QUICK).fit(numbers, Y), Classifier(**QUICK).fit(numbers.to_numpy(), Y)
    assert np.array_equal(own.predict_proba(numbers), told.predict_proba(numbers.to_numpy()))
    assert not hasattr(own, "recipe_")
    assert own.training_.spec["x"].columns == ()
    objects = numbers.astype(object)
    assert not hasattr(Classifier(**QUICK).fit(objects, Y), "recipe_")
    assert not hasattr(own.fit(FRAME, Y).fit(numbers, Y), "recipe_")


@pytest.mark.parametrize("replicas", [None, 2])
def test_nothing_is_learned_from_the_rows_held_out(replicas):
    learner = Regressor(**QUICK, validation=0.25, replicas=replicas)
    y = FRAME.visits.to_numpy(float)
    learner.fit(FRAME[["height", "leaf"]], y)
    held = weft.tables.split.split([], ROWS, 0.25, 0)
    assert held.sum() == 15
    mean = learner.recipe_.columns[0].mean
    assert mean == pytest.approx(FRAME.height[~held].mean(), rel=1e-12)
    assert abs(mean - FRAME.height.mean()) > 1e-3
    # Whatever the held-out rows are, training is the same; only what is measured on them differs.
    other = FRAME[["height", "leaf"]].copy()
    other.loc[held, "height"] += 1000.0
    again = clone(learner).fit(other, y)
    assert again.recipe_ == learner.recipe_
    assert np.array_equal(again.predict(FRAME[["height", "leaf"]]), learner.predict(FRAME[["height", "leaf"]]))
    assert not np.array_equal(again.history_["valid_loss"], learner.history_["valid_loss"])


def test_every_class_environment_and_task_is_on_both_sides_and_numbered_alike():
    learner = Classifier(**QUICK, validation=0.25, strategy=ANDMask(threshold=0.3))
    learner.fit(GAPPED, Y, environment=SITE)
    assert np.isfinite(learner.history_["valid_loss"]).all()
    tasks = Classifier(**QUICK, validation=0.25).fit(FRAME, Y, task=SITE)
    held = weft.tables.split.split([SITE, Y], ROWS, 0.25, 0)
    assert tasks.recipe_.columns[0].mean == pytest.approx(FRAME.height[~held].mean(), rel=1e-12)
    assert tasks.tasks_ == ["0", "1", "2"]


def test_validation_rows_are_read_by_the_recipe_of_training():
    own = Classifier(**QUICK, validation=(FRAME[40:], Y[40:])).fit(FRAME[:40], Y[:40])
    columns = Columns.of(FRAME[:40], "table")
    recipe = Recipe.learn(columns)
    later = recipe.apply(Columns.of(FRAME[40:], "table")).X
    told = Classifier(**QUICK, validation=(later, Y[40:])).fit(recipe.apply(columns).X, Y[:40])
    assert np.array_equal(own.history_["valid_loss"], told.history_["valid_loss"])
    with pytest.raises(ValueError, match="expected a DataFrame with the columns that fit was given"):
        Classifier(**QUICK, validation=(later, Y[40:])).fit(FRAME[:40], Y[:40])


def test_what_is_unlike_training_speaks():
    learner = Classifier(**QUICK).fit(FRAME, Y)
    with pytest.raises(ValueError, match=r"expected a DataFrame with the columns that fit was given.*got ndarray"):
        learner.predict(np.zeros((3, 6)))
    with pytest.raises(ValueError, match="got none called 'leaf'; is it the one that is called 'leav' there"):
        learner.predict(FRAME.rename(columns={"leaf": "leav"}))
    with pytest.warns(UserWarning, match="categories that training has not seen, encoded as none of them: 'leaf' in"):
        learner.predict(FRAME.assign(leaf="square"))
    with pytest.raises(ValueError, match="expected numbers in column 'height', got 'tall' in row 1"):
        learner.predict(FRAME.assign(height="tall"))
    with pytest.raises(ValueError, match="different names in X, got 'leaf' more than once"):
        learner.predict(pd.concat([FRAME, FRAME[["leaf"]]], axis=1))
    with pytest.raises(ValueError, match=r"expected columns of one kind each.*mixture"):
        Classifier(**QUICK).fit(FRAME.assign(leaf=[1, "two"] * 30), Y)
    with pytest.raises(ValueError, match=r"'code' has 60 different texts.*X.drop\(columns=\['code'\]\)"):
        Classifier(**QUICK).fit(FRAME.assign(code=[f"id{i}" for i in range(ROWS)]), Y)


def test_the_recipe_travels(tmp_path):
    learner = Classifier(**QUICK).fit(GAPPED, Y)
    answer = learner.predict_proba(GAPPED)
    learner.save(tmp_path / "run")
    for twin in (weft.load(tmp_path / "run"), pickle.loads(pickle.dumps(learner)), copy.deepcopy(learner)):
        assert twin.recipe_ == learner.recipe_
        assert twin.training_.spec == learner.training_.spec
        assert np.array_equal(twin.predict_proba(GAPPED), answer)
    assert not hasattr(clone(learner), "recipe_")
    many = Classifier(**QUICK, replicas=2).fit(GAPPED, Y)
    assert np.array_equal(many.replica(0).predict_proba(GAPPED), answer)
    before = learner.recipe_
    assert learner.partial_fit(GAPPED[:30], Y[:30]).recipe_ == before


class StopError(Exception):
    """Raised in the middle of a training."""


@pytest.mark.parametrize("tasks", [False, True])
def test_a_resumed_run_is_the_uninterrupted_one(tasks, tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)
    more = {"task": SITE} if tasks else {}
    settings = {"epochs": 6, "validation": 0.2, "random_state": 3}
    whole = Classifier(**settings).fit(GAPPED, Y, **more)

    def stop(record, seen=[]):  # noqa: B006
        seen.append(record)
        if len(seen) == (8 if tasks else 3):
            raise StopError

    with pytest.raises(StopError):
        Classifier(**settings, folder=tmp_path / "run", callbacks=[stop]).fit(GAPPED, Y, **more)
    with pytest.raises(ValueError, match=r"got other (x|X)"):
        weft.load(tmp_path / "run").resume(GAPPED.assign(height=1.0), Y, **more)
    resumed = weft.load(tmp_path / "run").resume(GAPPED, Y, **more)
    assert np.array_equal(resumed.predict_proba(GAPPED), whole.predict_proba(GAPPED))
    assert resumed.recipe_ == whole.recipe_


# --- column by column -----------------------------------------------------------------------------------


class Columnwise(Objective):
    """Each column by itself: a normal, a Bernoulli, a categorical or a Poisson distribution, by its kind."""

    fields = ("x",)
    columns = "values"
    likelihood = True

    def build(self, spec):
        width = spec["x"].shape[0]
        self.parts = spec["x"].columns or (Part("", "number"),) * width
        most = max((p.classes or 2 for p in self.parts), default=2)
        self.place = nn.Parameter(torch.zeros(width))
        self.scale = nn.Parameter(torch.zeros(width))
        self.logits = nn.Parameter(torch.zeros(width, most))

    def law(self, i):
        kind, d = self.parts[i].kind, torch.distributions
        if kind == "number":
            return d.Normal(self.place[i], self.scale[i].exp())
        if kind == "count":
            return d.Poisson(self.place[i].exp())
        return d.Categorical(logits=self.logits[i, : self.parts[i].classes or 2])

    def forward(self, batch, player=""):
        return Output(-self.log_prob(batch["x"]))

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x):
        return sum(self.law(i).log_prob(x[:, i]) for i in range(x.shape[1]))

    @capability(merge="share", kind="direct")
    def sample(self, n):
        drawn = [self.inverse(i, uniform((n,), place=f"u{i}").to(self.place)) for i in range(len(self.parts))]
        return torch.stack(drawn, 1)

    def inverse(self, i, u):
        law = self.law(i)
        if self.parts[i].kind == "number":
            return law.icdf(u.clamp(1e-6, 1 - 1e-6))
        chances = law.probs if self.parts[i].kind != "count" else law.log_prob(torch.arange(40.0)).exp()
        return (u[:, None] > chances.cumsum(-1)).sum(-1).clamp_max(len(chances) - 1).to(u.dtype)


FITTED = {"steps": 300, "batch_size": None, "random_state": 0, "optimizer": Optimizer("adam", lr=0.1)}


@pytest.fixture(scope="module")
def columnwise():
    return Learner(Columnwise(), **FITTED).fit(FRAME)


def test_parts_say_what_each_entry_is(columnwise):
    parts = columnwise.training_.spec["x"].columns
    assert [(p.name, p.kind, p.width, p.classes) for p in parts] == [
        ("height", "number", 1, None),
        ("leaf", "category", 1, 3),
        ("wet", "boolean", 1, None),
        ("visits", "count", 1, None),
    ]
    floats = FRAME.assign(visits=FRAME.visits.astype(float), leaf=FRAME.leaf.astype("category"), wet=FRAME.visits - 9)
    kinds = [p.kind for p in Learner(Columnwise(), steps=0, random_state=0).fit(floats).training_.spec["x"].columns]
    assert kinds == ["number", "category", "number", "number"]  # floats are numbers, and so are whole ones below 0


def test_log_prob_is_in_the_tables_units(columnwise):
    """The closed form: each column's own maximum likelihood, on the table as it is."""
    shares = FRAME.leaf.value_counts(normalize=True)
    wet = FRAME.wet.mean()
    expected = (
        stats.norm(FRAME.height.mean(), FRAME.height.std(ddof=0)).logpdf(FRAME.height)
        + np.log(FRAME.leaf.map(shares).to_numpy(float))
        + np.log(np.where(FRAME.wet, wet, 1 - wet))
        + stats.poisson(FRAME.visits.mean()).logpmf(FRAME.visits)
    )
    np.testing.assert_allclose(columnwise.log_prob(FRAME), expected, atol=2e-3)
    assert columnwise.score(FRAME) == pytest.approx(expected.mean(), abs=2e-3)
    scaled = Learner(Columnwise(), **FITTED).fit(FRAME.assign(height=FRAME.height * 1000))
    np.testing.assert_allclose(
        scaled.log_prob(FRAME.assign(height=FRAME.height * 1000)), expected - np.log(1000), atol=2e-3
    )


def test_samples_come_back_as_a_table(columnwise, tmp_path):
    drawn = columnwise.sample(4000, random_state=0)
    assert list(drawn.columns) == list(FRAME.columns)
    assert drawn.dtypes.equals(FRAME.dtypes)
    assert drawn.height.mean() == pytest.approx(FRAME.height.mean(), abs=0.7)
    assert drawn.height.std() == pytest.approx(FRAME.height.std(), abs=0.7)
    assert drawn.visits.mean() == pytest.approx(FRAME.visits.mean(), abs=0.15)
    expected = FRAME.leaf.value_counts(normalize=True)
    assert (drawn.leaf.value_counts(normalize=True) - expected).abs().max() < 0.03
    columnwise.save(tmp_path / "run")
    again = weft.load(tmp_path / "run", objective=Columnwise())
    pd.testing.assert_frame_equal(again.sample(20, random_state=0), columnwise.sample(20, random_state=0))
    np.testing.assert_array_equal(again.log_prob(FRAME), columnwise.log_prob(FRAME))
    many = Learner(Columnwise(), **{**FITTED, "steps": 5}, replicas=2).fit(FRAME)
    assert many.sample(7).shape == (7, 4)
    single = Learner(Columnwise(), **{**FITTED, "steps": 5, "random_state": 1}).fit(FRAME)
    np.testing.assert_allclose(many.replica(1).log_prob(FRAME), single.log_prob(FRAME), rtol=1e-5)


def test_categories_that_are_declared_are_kept_with_their_type():
    sizes = pd.Categorical(rng.choice([3, 1], ROWS), categories=[3, 1, 2], ordered=True)
    frame = FRAME.assign(leaf=sizes)
    learner = Learner(Columnwise(), steps=3, random_state=0).fit(frame)
    assert learner.training_.spec["x"].columns[1].classes == 3
    drawn = learner.sample(50, random_state=0)
    assert drawn.leaf.dtype == frame.leaf.dtype
    assert set(drawn.leaf) == {1, 2, 3}
    later = FRAME[:3].assign(leaf=pd.Categorical([2, 2, 2], categories=[3, 1, 2], ordered=True))
    assert np.isfinite(learner.log_prob(later)).all()


def test_plain_arrays_are_taken_as_they_are():
    X = FRAME[["height"]].to_numpy()
    learner = Learner(Columnwise(), steps=1, random_state=0, dtype="float64").fit(X)
    assert learner.training_.spec["x"].columns == ()
    mean, scale = (learner.objective_.place[0].item(), learner.objective_.scale[0].exp().item())
    np.testing.assert_allclose(learner.log_prob(X), stats.norm(mean, scale).logpdf(X[:, 0]), rtol=1e-10)
    assert isinstance(learner.sample(3), np.ndarray)
    whole = Learner(Columnwise(), steps=1, random_state=0).fit(FRAME[["visits"]].to_numpy())
    assert whole.training_.spec["x"].dtype == torch.int64


class Halved(Columnwise):
    """Gives codes that no category has."""

    def inverse(self, i, u):
        return super().inverse(i, u) + 0.5


def test_what_models_columns_refuses_what_it_cannot(columnwise):
    def fit(frame, **settings):
        return Learner(Columnwise(), steps=1, random_state=0, **settings).fit(frame)

    with pytest.raises(ValueError, match="that training has seen, got 'square' in row 1, which no probability"):
        columnwise.log_prob(FRAME.assign(leaf="square"))
    with pytest.raises(ValueError, match=r"counts 0, 1, 2, ... in column 'visits', as training began with, got -1"):
        columnwise.log_prob(FRAME.assign(visits=-1))
    with pytest.raises(ValueError, match="expected a DataFrame"):
        columnwise.log_prob(FRAME[["height"]].to_numpy())
    with pytest.raises(ValueError, match="expected an array, as training began with, got a DataFrame"):
        fit(FRAME[["height"]].to_numpy()).log_prob(FRAME[["height"]])
    with pytest.raises(ValueError, match="a value of column 'height' in every row, got none in row"):
        fit(GAPPED)
    with pytest.raises(ValueError, match="numbers that vary in column 'height', which is to be modelled, got 1"):
        fit(FRAME.assign(height=1.0))
    with pytest.raises(ValueError, match=r"a count that torch.float32 holds exactly in column 'visits', got 16777217"):
        fit(FRAME.assign(visits=2**24 + 1))
    fit(FRAME.assign(visits=2**24 + 1), dtype="float64")
    many = pd.Categorical([f"c{i:03d}" for i in range(257, 317)], categories=[f"c{i:03d}" for i in range(400)])
    with pytest.raises(ValueError, match=r"a category that torch.bfloat16 holds exactly in column 'leaf', got 257"):
        fit(FRAME.assign(leaf=many.repeat(1)[np.arange(ROWS) // 2 * 2]), dtype="bfloat16")
    with pytest.raises(ValueError, match=r"codes 0..2 as the answer for column 'leaf', a category, got"):
        Learner(Halved(), steps=1, random_state=0).fit(FRAME).sample(3)


class Blurred(Regression):
    """Tells a density of whatever it is given, as features."""

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x):
        return -x.square().sum(-1)


def test_a_density_of_features_says_that_it_is_none_of_the_table():
    learner = Learner(Blurred(hidden=(4,)), steps=1, random_state=0).fit(FRAME, FRAME.height)
    with pytest.warns(UserWarning, match="log_prob is of the features that the table became"):
        learner.log_prob(FRAME)


def test_the_command_line_gives_such_an_objective_a_table(tmp_path, monkeypatch):
    from weft.commands.job import Job, Options, train

    out = np.flatnonzero(weft.tables.split.split([], ROWS, 0.2, 0))[0]  # held out by the first seed
    frame = FRAME.assign(leaf=np.where(np.arange(ROWS) != out, FRAME.leaf, "rare"))
    own = Learner(Columnwise(), epochs=1, validation=0.2, random_state=0).fit(frame)
    assert own.training_.spec["x"].columns[1].classes == 4
    path = tmp_path / "table.csv"
    frame.to_csv(path, index=False)
    monkeypatch.setattr(Options, "make_objective", lambda self: Columnwise())
    learners = []
    make = Options.make_learner
    monkeypatch.setattr(Options, "make_learner", lambda *a, **k: learners.append(make(*a, **k)) or learners[-1])
    columns = weft.tables.read_columns(path)
    for seed in (0, 1):
        job = Job.plan(columns, Options(seed=seed, epochs=2))
        told = train(job, columns, tmp_path / f"run{seed}")
        assert told["features"] == 4
        own = learners[-1]
        assert [p.kind for p in own.training_.spec["x"].columns] == ["number", "category", "boolean", "count"]
        assert own.training_.spec["x"].columns[1].classes == 4
        held = job.data.recipe.apply(columns).held
        assert own.recipe_.columns[0].mean == pytest.approx(frame.height[~held].mean(), rel=1e-9)
        assert set(own.sample(20).leaf) <= {"long", "round", "oval", "rare"}


def test_specs_of_earlier_versions_are_read():
    from weft.learner.loading import _spec

    parts = [["height", "number", 1, None], ["leaf", "category", 2, 2]]
    kept = {"x": [[3], "torch.float32", None, parts], "y": [[], "torch.int64", 2]}
    told = _spec(kept)
    assert told["x"].columns == (Part("height", "number"), Part("leaf", "category", 2, 2))
    assert (told["y"].classes, told["y"].columns) == (2, ())


def test_what_was_there_is_imputed_to_the_last_bit():
    from weft.objectives import Independent

    numbers = np.random.default_rng(0).normal(1e6, 1.0, 50)  # float32 knows them to 0.06
    table = pd.DataFrame({"a": numbers, "b": list("xy") * 25})
    table.loc[4, "a"] = np.nan
    whole = Learner(Independent(), random_state=0).fit(table).impute(table)
    assert np.array_equal(whole["a"].drop(4), table["a"].drop(4))
    assert np.isfinite(whole["a"][4])
