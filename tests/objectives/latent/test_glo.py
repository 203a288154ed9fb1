"""GLO: codes in the ball, found again by a search, drawn from by their normal; broken ones are caught."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.decomposition import PCA

import weft
from weft import Learner, Optimizer
from weft.core.random import key_of, keyed
from weft.objectives import GLO
from weft.sources import Arrays
from weft.strategies import EMA, MAML, SGLD, SynapticIntelligence

rng = np.random.default_rng(0)
ANGLE = rng.uniform(0, 2 * np.pi, 150)
CURVE = np.stack([f(k * ANGLE) for k in (1, 2) for f in (np.cos, np.sin)], 1)
LINE = rng.normal(size=(100, 2)) @ rng.normal(size=(2, 5)) + 0.2 * rng.normal(size=(100, 5)) + 1
SETTINGS = {"steps": 400, "batch_size": None, "random_state": 0}


@pytest.fixture(scope="module")
def trained():
    return Learner(GLO(3, hidden=(32,)), **SETTINGS).fit(CURVE)


def codes_of(learner):
    return learner.objective_.table.z.detach().numpy()


def off(rows, others):
    return np.square(np.asarray(rows) - others).sum(1)


def test_a_search_finds_codes_that_are_as_good_as_the_learned_ones(trained):
    own = off(trained.inverse_transform(codes_of(trained)), CURVE)
    assert own.mean() < 0.1
    codes = trained.transform(CURVE)
    found = off(trained.inverse_transform(codes), CURVE)
    assert (found < own + 0.05).mean() > 0.95
    assert found.mean() < 1.05 * own.mean() + 0.01
    assert np.asarray(trained.reconstruct(CURVE)) == pytest.approx(
        np.asarray(trained.inverse_transform(codes)), abs=1e-5
    )
    assert np.asarray(trained.reconstruction_error(CURVE)) == pytest.approx(found, abs=1e-4)
    once = off(trained.reconstruct(CURVE, steps=1, starts=1), CURVE)  # the mutant: no search
    assert once.mean() > 5 * own.mean()
    assert trained.reconstruction_error.kind == "upper bound"


def test_more_starts_are_better(trained):
    one, many = (np.asarray(trained.reconstruction_error(CURVE, starts=k)) for k in (1, 16))
    assert many.mean() < one.mean()


def test_a_linear_decoder_comes_to_principal_components():
    """Codes in a ball are no restriction on a linear map, which can stretch them."""
    learner = Learner(
        GLO(2, hidden=()),
        steps=1500,
        batch_size=None,
        schedule="cosine",
        optimizer=Optimizer("adam", lr=0.03),
        dtype="float64",
        random_state=0,
    ).fit(LINE)
    known = PCA(2).fit(LINE)
    least = off(known.inverse_transform(known.transform(LINE)), LINE).mean()
    own = off(learner.inverse_transform(codes_of(learner)), LINE).mean()
    assert least - 1e-9 < own < 1.05 * least


class Outside(GLO):
    """The mutant: nothing is put back."""

    def project(self, params):
        return params


def test_codes_stay_in_the_ball(trained):
    fast = {**SETTINGS, "steps": 100, "optimizer": Optimizer("adam", lr=0.1)}
    lengths = {
        kind: np.linalg.norm(codes_of(Learner(kind(3, hidden=(8,)), **fast).fit(CURVE)), axis=1)
        for kind in (GLO, Outside)
    }
    assert lengths[GLO].max() < 1 + 1e-5
    assert (lengths[GLO] > 0.999).any()  # some are on its edge: it matters
    assert lengths[Outside].max() > 1.2
    assert np.linalg.norm(trained.transform(5 * CURVE), axis=1).max() < 1 + 1e-5
    averaged = Learner(GLO(3, hidden=(8,)), strategy=EMA(decay=0.9), **fast).fit(CURVE)
    assert np.linalg.norm(codes_of(averaged), axis=1).max() < 1 + 1e-5


def drawn_codes(model, n):
    with torch.no_grad(), keyed(key_of(0), torch.arange(n)):
        from weft.core.random import normal

        return model.drawn(normal((n, int(model.latent)), place="z", dtype=model.table.z.dtype)).numpy()


def test_draws_have_the_mean_and_covariance_of_the_codes(trained):
    codes, drawn = codes_of(trained), drawn_codes(trained.objective_, 20_000)
    covariance = np.cov(codes.T, bias=True)
    assert np.abs(np.cov(drawn.T) - covariance).max() < 5 * covariance.max() / np.sqrt(20_000)
    assert np.abs(drawn.mean(0) - codes.mean(0)).max() < 5 * np.sqrt(covariance.max() / 20_000)
    away = drawn - codes.mean(0)
    squares = np.einsum("ni,ij,nj->n", away, np.linalg.inv(covariance), away)
    assert stats.kstest(squares, stats.chi2(3).cdf).pvalue > 1e-3
    rows = trained.sample(50, random_state=0)
    assert rows.shape == (50, 4)
    assert np.asarray(trained.sample(50, random_state=0)) == pytest.approx(np.asarray(rows))
    assert trained.sample.kind == "direct"


def test_codes_in_a_subspace_have_a_normal_too(trained):
    model = trained.module(0) if hasattr(trained, "module") else trained.objective_
    with torch.no_grad():
        model.table.z[:, 2] = model.table.z[:, 0]
    drawn = drawn_codes(model, 2000)
    assert np.abs(drawn[:, 2] - drawn[:, 0]).max() < 1e-3
    assert np.isfinite(drawn).all()


def test_an_answer_is_a_function_of_the_row(trained):
    rows = CURVE[:20] + 0.01
    whole = np.asarray(trained.transform(rows))
    assert np.asarray(trained.transform(rows[7:9])) == pytest.approx(whole[7:9], abs=1e-4)
    assert np.asarray(trained.transform(rows[::-1])) == pytest.approx(whole[::-1], abs=1e-4)


def test_a_replica_is_the_single_run_and_a_resumed_one_the_uninterrupted(tmp_path):
    model, short = GLO(2, hidden=(8,)), {"batch_size": 40, "steps": 30}
    several = Learner(model, **short, replicas=2, random_state=0).fit(CURVE)
    alone = Learner(model, **short, random_state=1).fit(CURVE)
    assert codes_of(several.replica(1)) == pytest.approx(codes_of(alone), abs=1e-5)
    assert np.asarray(several.replica(1).transform(CURVE[:5])) == pytest.approx(
        np.asarray(alone.transform(CURVE[:5])), abs=1e-3
    )
    assert several.sample(7, random_state=0).shape == (7, 4)
    assert several.reconstruction_error(CURVE[:5]).shape == (5,)
    with pytest.raises(ValueError, match="replica"):
        several.transform(CURVE)

    def stop(record):
        if record["step"] >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Learner(model, **short, every=5, random_state=1, folder=tmp_path / "run", callbacks=[stop]).fit(CURVE)
    with pytest.raises(ValueError, match="data"):
        weft.load(tmp_path / "run").resume(CURVE[::-1])
    loaded = weft.load(tmp_path / "run").resume(CURVE)
    assert np.array_equal(codes_of(loaded), codes_of(alone))
    assert np.array_equal(loaded.sample(3, random_state=0), alone.sample(3, random_state=0))


def test_tables_images_and_bits():
    table = pd.DataFrame({"height": 170 + 10 * LINE[:, 0], "count": rng.poisson(3, 100), "old": LINE[:, 1] > 1})
    learner = Learner(GLO(2, hidden=(16,)), steps=100, batch_size=None, random_state=0).fit(table)
    drawn = learner.sample(30, random_state=0)
    assert list(drawn) == list(table)
    assert drawn["old"].dtype == bool
    assert (drawn["count"] >= 0).all()
    images = np.repeat((CURVE > 0).astype(float)[:, None, None, :], 4, 2)
    pictures = Learner(
        GLO(3, decoder="conv-decoder(widths=(8,))", loss="bernoulli"), steps=200, batch_size=None, random_state=0
    ).fit(images)
    again = np.asarray(pictures.reconstruct(images[:20]))
    assert again.shape == (20, 1, 4, 4)
    assert ((again > 0.5) == images[:20]).mean() > 0.95


def test_wrong_uses_are_refused(trained):
    for name, message in {
        "log_prob": r"tells no density of a row.*Mixture\(\), or compare its samples with data",
        "posterior": r"tells no law of codes given a row",
    }.items():
        with pytest.raises(AttributeError, match=message):
            getattr(trained, name)
    for name, bad in {"latent": 0, "loss": "pyramid", "decoder": torch.nn.Linear(2, 7)}.items():
        with pytest.raises((ValueError, TypeError), match=name):
            Learner(GLO(**{"latent": 2, name: bad}), steps=1).fit(CURVE)
    with pytest.raises(ValueError, match="validation=None for GLO"):
        Learner(GLO(2), steps=1, validation=0.2).fit(CURVE)
    with pytest.raises(ValueError, match="expected no tasks for GLO"):
        Learner(GLO(2), steps=1).partial_fit(CURVE, task="first")
    for strategy in (SynapticIntelligence(), MAML()):
        with pytest.raises(ValueError, match="cannot train GLO: it learns from tasks or episodes"):
            Learner(GLO(2), strategy=strategy, steps=1).fit(CURVE)
    with pytest.raises(ValueError, match="cannot train GLO: it makes a step of its own"):
        Learner(GLO(2), strategy=SGLD(), optimizer=Optimizer("sgd", lr=0.1), steps=1).fit(CURVE)
    rows = torch.as_tensor(CURVE).float()
    with pytest.raises(ValueError, match="got no index from the source; give rows to fit"):
        Learner(GLO(2), steps=1).fit(Arrays(rows, batch_size=10))
    with pytest.raises(ValueError, match="got no number of rows from the source"):
        Learner(GLO(2), steps=1).fit(Arrays(rows, index=torch.arange(150), batch_size=10))
    numbered = Arrays(rows, index=torch.arange(150), classes={"index": 150}, batch_size=10)
    assert codes_of(Learner(GLO(2), steps=1).fit(numbered)).shape == (150, 2)
    with pytest.raises((TypeError, ValueError), match="index"):
        Learner(GLO(2), steps=1).fit(CURVE, index=np.arange(150))
    with pytest.raises(ValueError, match="expected the 150 rows that training began with"):
        Learner(GLO(2, hidden=(4,)), steps=1).fit(CURVE).partial_fit(CURVE[:100])
    for option in ("steps", "starts"):
        with pytest.raises((ValueError, TypeError), match=option):
            trained.transform(CURVE, **{option: 0})
    with pytest.raises(ValueError, match="expected codes of 3 entries"):
        trained.inverse_transform(CURVE)
