"""Gaps: NaN in X where an objective says that it takes them, told as `observed`, and nowhere else."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import nn

import weft
from weft import Learner, Optimizer
from weft.core import Objective, Output, capability
from weft.core.random import normal
from weft.objectives import Regression
from weft.sources import Arrays
from weft.strategies import ANDMask

rng = np.random.default_rng(0)
ROWS = 60
FULL = rng.multivariate_normal([1.0, -2.0, 5.0], [[1.0, 0.5, 0.0], [0.5, 2.0, 0.0], [0.0, 0.0, 9.0]], ROWS)
SEEN = rng.random((ROWS, 3)) > 0.25
SEEN[0], SEEN[1] = False, True
X = np.where(SEEN, FULL, np.nan)
SITE = np.arange(ROWS) % 3


class Normals(Objective):
    """Independent normals; a row's density is that of what is observed."""

    fields = ("x",)
    columns = "values"
    gaps = True
    likelihood = True

    def build(self, spec):
        self.mean = nn.Parameter(torch.zeros(spec["x"].shape))
        self.scale = nn.Parameter(torch.zeros(spec["x"].shape))
        self.told = spec["observed"]

    def forward(self, batch, player=""):
        return Output(-self.log_prob(batch["x"], batch["observed"]))

    @capability(merge="logmeanexp", kind="exact")
    def log_prob(self, x, observed):
        return (torch.distributions.Normal(self.mean, self.scale.exp()).log_prob(x) * observed).sum(-1)

    @capability(merge="share", kind="direct", asks="rows")
    def impute(self, x, observed):
        drawn = self.mean + self.scale.exp() * normal(tuple(x.shape), place="x").to(x)
        return torch.where(observed, x, drawn)

    @capability(gives="")
    def total(self, x):
        return x.sum(-1)


class Mapped(Normals):
    """Says nothing of gaps."""

    gaps = False

    def build(self, spec):
        self.mean = nn.Parameter(torch.zeros(spec["x"].shape))
        self.scale = nn.Parameter(torch.zeros(spec["x"].shape))

    def forward(self, batch, player=""):
        return Output(-self.log_prob(batch["x"], torch.ones_like(batch["x"])))


FITTED = {"steps": 400, "batch_size": None, "random_state": 0, "optimizer": Optimizer("adam", lr=0.1)}


def closed(values):
    """The density of what is observed, by each column's observed mean and deviation."""
    each = stats.norm(np.nanmean(values, 0), np.nanstd(values, 0)).logpdf(values)
    return np.nansum(each, 1)


@pytest.mark.parametrize(
    "given", [X, torch.as_tensor(X), pd.DataFrame(X, columns=list("abc"))], ids=["array", "tensor", "table"]
)
def test_the_density_is_that_of_what_is_observed(given):
    learner = Learner(Normals(), **FITTED).fit(given)
    np.testing.assert_allclose(learner.log_prob(given), closed(X), atol=5e-3)
    assert learner.log_prob(given)[0] == pytest.approx(0.0, abs=1e-6)  # nothing of the first row is known
    field = learner.training_.spec["observed"]
    assert (field.shape, field.dtype) == ((3,), torch.bool)
    full = learner.log_prob(FULL if not isinstance(given, pd.DataFrame) else pd.DataFrame(FULL, columns=list("abc")))
    assert (np.abs(full - learner.log_prob(given))[2:] > 1e-3).any()


def test_what_stands_at_a_gap_is_nothing():
    """Rows with gaps are learned from as a source with `observed` gives them, whatever is below."""
    told = Learner(Normals(), steps=20, random_state=0, batch_size=16).fit(X)
    tensor, seen = torch.as_tensor(np.where(SEEN, X, 0.0)).float(), torch.as_tensor(SEEN)
    by_source = Learner(Normals(), steps=20, random_state=0).fit(Arrays(tensor, observed=seen, batch_size=16))
    assert np.array_equal(told.log_prob(X), by_source.log_prob(X))
    with pytest.raises(ValueError, match="expected batches with 'observed', which comes along"):
        Learner(Normals(), steps=2).fit(Arrays(tensor))


def test_whole_numbers_may_have_gaps_later():
    whole = np.arange(12).reshape(4, 3)
    learner = Learner(Normals(), steps=1, random_state=0).fit(whole)
    assert learner.training_.spec["x"].dtype == torch.float32
    later = np.where([True, False, True], whole, np.nan)
    assert np.isfinite(learner.log_prob(later)).all()
    tensor = Learner(Normals(), steps=1, random_state=0).fit(torch.as_tensor(whole))
    np.testing.assert_array_equal(tensor.log_prob(later), learner.log_prob(later))


def test_gaps_are_filled_and_the_rest_is_kept():
    learner = Learner(Normals(), **{**FITTED, "steps": 1}).fit(X)
    whole = learner.impute(X, random_state=0)
    np.testing.assert_allclose(whole[SEEN], X[SEEN], rtol=1e-6)
    assert np.isfinite(whole).all()
    frame = pd.DataFrame(X, columns=list("abc"), index=np.arange(ROWS) + 100)
    table = Learner(Normals(), **{**FITTED, "steps": 100}).fit(frame).impute(frame, random_state=0)
    assert table.index.equals(frame.index)
    np.testing.assert_allclose(table.to_numpy()[SEEN], X[SEEN], rtol=1e-5)
    filled = table.to_numpy()[~SEEN[:, 2], 2]
    assert abs(filled.mean() - np.nanmean(X[:, 2])) < 4 * np.nanstd(X[:, 2]) / np.sqrt(len(filled))


def test_kinds_of_columns_keep_their_gaps():
    frame = pd.DataFrame(
        {
            "wet": pd.array([True, None, False] * 20, dtype="boolean"),
            "visits": pd.array([1, 2, None] * 20, dtype="Int64"),
            "leaf": pd.Categorical(["oak", None, "fir"] * 20),
            "height": np.where(SEEN[:, 0], FULL[:, 0], np.nan),
        }
    )
    learner = Learner(Normals(), steps=1, random_state=0).fit(frame)
    kinds = [part.kind for part in learner.training_.spec["x"].columns]
    assert kinds == ["boolean", "count", "category", "number"]
    read = learner.read(frame)
    np.testing.assert_array_equal(read["observed"].numpy(), ~frame.isna().to_numpy())
    assert bool((read["x"][~read["observed"]] == 0).all())
    back = learner.recipe_.decode(np.where(read["observed"], read["x"].double(), np.nan))
    pd.testing.assert_frame_equal(back, frame, rtol=1e-5)
    with pytest.raises(ValueError, match="expected some value in column 'height', got none"):
        Learner(Normals(), steps=1).fit(frame.assign(height=np.nan))


class Features(Regression):
    """Reads a table as features, with its gaps."""

    gaps = True

    def forward(self, batch, player=""):
        return super().forward({**batch, "x": batch["x"] * batch["observed"]})


def test_features_have_their_gaps_told_and_not_filled():
    frame = pd.DataFrame({"a": X[:, 0], "leaf": np.where(SEEN[:, 1], np.where(SITE > 0, "oak", "fir"), None)})
    learner = Learner(Features(hidden=(4,)), steps=1, random_state=0).fit(frame, FULL[:, 0])
    parts = learner.training_.spec["x"].columns
    assert [(p.name, p.kind, p.width) for p in parts] == [("a", "number", 1), ("leaf", "category", 2)]
    seen = learner.read(frame, FULL[:, 0])["observed"].numpy()
    np.testing.assert_array_equal(seen, np.stack([SEEN[:, 0], SEEN[:, 1], SEEN[:, 1]], 1))


def test_gaps_go_through_replicas_groups_sweeps_tasks_weights_and_validation(tmp_path):
    settings = {"epochs": 2, "random_state": 0, "batch_size": 8}
    many = Learner(Normals(), **settings, replicas=2, validation=0.25).fit(X)
    one = Learner(Normals(), **{**settings, "random_state": 1}, validation=0.25).fit(X)
    np.testing.assert_allclose(many.replica(1).log_prob(X), one.log_prob(X), rtol=1e-5)
    Learner(Normals(), **settings, strategy=ANDMask(threshold=0.3)).fit(X, environment=SITE)
    swept = Learner(Normals(), **settings, optimizer="adam", replicas={"optimizer__lr": [0.1, 0.01]}).fit(X)
    assert swept.log_prob(X).shape == (ROWS,)
    assert Learner(Normals(), **settings).fit(X, task=SITE).tasks_ == ["0", "1", "2"]
    held = Learner(Normals(), **settings, validation=(X[:9], None)).fit(X)
    assert np.isfinite(held.history_["valid_loss"]).all()
    full = {"steps": 5, "random_state": 0, "batch_size": None, "dtype": "float64"}
    weighed = Learner(Normals(), **full).fit(X, sample_weight=1.0 + (SITE == 0))
    doubled = Learner(Normals(), **full).fit(np.concatenate([X, X[SITE == 0]]))
    np.testing.assert_allclose(weighed.log_prob(X), doubled.log_prob(X), rtol=1e-10)
    one.save(tmp_path / "run")
    again = weft.load(tmp_path / "run", objective=Normals())
    np.testing.assert_array_equal(again.log_prob(X), one.log_prob(X))
    assert again.partial_fit(X).training_.spec == one.training_.spec


class StopError(Exception):
    """Raised in the middle of a training."""


def test_a_resumed_run_knows_its_gaps(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)

    def stop(record, seen=[]):  # noqa: B006
        seen.append(record)
        if len(seen) == 3:
            raise StopError

    settings = {"epochs": 6, "random_state": 0, "batch_size": 16}
    whole = Learner(Normals(), **settings).fit(X)
    with pytest.raises(StopError):
        Learner(Normals(), **settings, folder=tmp_path / "run", callbacks=[stop]).fit(X)
    other = np.where(SEEN, X, 0.0)  # the same rows but for their gaps
    with pytest.raises(ValueError, match="got other observed"):
        weft.load(tmp_path / "run", objective=Normals()).resume(other)
    resumed = weft.load(tmp_path / "run", objective=Normals()).resume(X)
    assert np.array_equal(resumed.log_prob(X), whole.log_prob(X))


def test_gaps_that_nobody_takes_are_refused():
    with pytest.raises(ValueError, match="Input X contains NaN"):
        Learner(Mapped(), steps=1).fit(X)
    learner = Learner(Normals(), steps=1, random_state=0).fit(X)
    with pytest.raises(ValueError, match=r"rows without gaps for 'total', which takes no argument 'observed'.*row 0"):
        learner.total(X)
    assert learner.total(FULL).shape == (ROWS,)
    with pytest.raises(TypeError, match="expected 'observed' to be filled in by what 'log_prob' is asked about"):
        learner.log_prob(FULL, observed=SEEN)
    with pytest.raises(ValueError, match=r"some value in every column of X, got none in column 1"):
        Learner(Normals(), steps=1).fit(np.where([True, False, True], X, np.nan))
    with pytest.raises(ValueError, match="contains NaN, infinity"):
        Learner(Normals(), steps=1).fit(np.where(SEEN, FULL, np.inf))
