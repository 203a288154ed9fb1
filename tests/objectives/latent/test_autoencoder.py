"""Autoencoder: principal components, noise, sparse and contracted codes; broken ones are caught."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.decomposition import PCA

from weft import Learner, Optimizer
from weft.core.random import key_of, keyed
from weft.core.source import Field
from weft.engine.build import build
from weft.nets import MLP
from weft.objectives import Autoencoder

FAST = Optimizer("adam", lr=0.01)
rng = np.random.default_rng(0)
X = rng.normal(size=(300, 2)) @ rng.normal(size=(2, 6)) + 0.3 * rng.normal(size=(300, 6)) + 1.0
ANGLE = rng.uniform(0, 2 * np.pi, 400)
CURVE = np.stack([f(k * ANGLE) for k in (1, 2) for f in (np.cos, np.sin)], 1)  # a line in four dimensions
BITS = ((rng.random((200, 1)) < 0.5) ^ (rng.random((200, 6)) < 0.1)).astype(float)


def made(objective, shape=(6,)):
    """Built, in double precision, with parameters that are drawn."""
    built = build(objective, {"x": Field(shape, torch.float64)}, 0, torch.float64)
    torch.manual_seed(0)
    for p in built.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return built.double().eval()


def losses(model, x, seed=0):
    with keyed(key_of(seed), torch.arange(len(x))):
        return model({"x": x}).losses.detach()


# --- the bottleneck ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
def test_the_linear_optimum_is_principal_components(tied):
    """The error is PCA's, and reconstructions are its, also of rows that were not learned from."""
    rows, others = X[:200], X[200:]
    learner = Learner(
        Autoencoder(2, hidden=(), tied=tied),
        steps=1500,
        batch_size=None,
        optimizer=Optimizer("adam", lr=0.03),
        schedule="cosine",
        dtype="float64",
        random_state=0,
    ).fit(rows)
    known = PCA(2).fit(rows)
    again = known.inverse_transform(known.transform(others))
    assert np.abs(learner.reconstruct(others) - again).max() < 0.01
    errors = np.asarray(learner.reconstruction_error(others))
    assert errors == pytest.approx(((others - again) ** 2).sum(1), abs=0.02)
    codes = learner.transform(others)
    assert codes.shape == (100, 2)
    assert learner.inverse_transform(codes) == pytest.approx(learner.reconstruct(others))
    # the mutant: a code of one entry less, or a single component, is far off
    one = PCA(1).fit(rows)
    assert ((others - one.inverse_transform(one.transform(others))) ** 2).sum(1).mean() > 2 * errors.mean()


def test_losses_are_sums_over_the_row():
    x = torch.as_tensor(BITS[:5])
    for loss in ("squared", "absolute", "bernoulli"):
        model = made(Autoencoder(2, hidden=(4,), loss=loss))
        answer = model.reconstruct(x).detach()
        known = {
            "squared": ((x - answer) ** 2).sum(1),
            "absolute": (x - answer).abs().sum(1),
            "bernoulli": torch.nn.functional.binary_cross_entropy(answer.clamp(0, 1), x, reduction="none").sum(1),
        }[loss]
        torch.testing.assert_close(losses(model, x), known)
        torch.testing.assert_close(model.reconstruction_error(x).detach(), known)


def test_anomalies_are_further_off():
    learner = Learner(Autoencoder(2, hidden=(32,)), steps=300, optimizer=FAST, random_state=0).fit(CURVE)
    odd = CURVE[:100] * [1, 1, -1, -1]  # each half is as it was, together they are not
    usual, unusual = learner.reconstruction_error(CURVE[:100]), learner.reconstruction_error(odd)
    assert np.median(unusual) > 10 * np.median(usual)


def test_images_by_convolutions():
    images = np.repeat(BITS[:, None, None, :4], 4, 2)  # 1 x 4 x 4
    nets = {"encoder": "conv-encoder(widths=(8,))", "decoder": "conv-decoder(widths=(8,))"}
    learner = Learner(
        Autoencoder(3, **nets, loss="bernoulli", masking=0.1, contraction=0.001),
        steps=150,
        optimizer=FAST,
        random_state=0,
    ).fit(images)
    again = np.asarray(learner.reconstruct(images))
    assert again.shape == images.shape
    assert 0 <= again.min() <= again.max() <= 1
    assert ((again > 0.5) == images).mean() > 0.95
    assert learner.transform(images[:3]).shape == (3, 3)


def test_tables_come_back_in_their_units():
    table = pd.DataFrame({"height": 170 + 10 * X[:, 0], "weight": 60 + 5 * X[:, 1], "old": X[:, 0] > 1})
    learner = Learner(Autoencoder(2, hidden=(16,)), steps=300, optimizer=FAST, random_state=0).fit(table)
    again = learner.reconstruct(table)
    assert list(again) == list(table)
    assert np.corrcoef(again["height"], table["height"])[0, 1] > 0.9
    assert abs(again["height"].mean() - table["height"].mean()) < 5
    assert again["old"].dtype == bool
    assert (again["old"] == table["old"]).mean() > 0.9
    table["site"] = np.where(X[:, 3] > 1, "Bern", "Basel")
    with pytest.raises(ValueError, match=r"got the category 'site'; give an entry for each.*get_dummies.*VAE\(\)"):
        Learner(Autoencoder(2), steps=1).fit(table)


def test_whole_numbers_are_numbers():
    whole = (BITS * 3).astype(np.int64)
    settings = {"steps": 20, "random_state": 0}
    one, other = (Learner(Autoencoder(2, hidden=(4,)), **settings).fit(rows) for rows in (whole, whole.astype(float)))
    assert np.asarray(one.reconstruct(whole)) == pytest.approx(np.asarray(other.reconstruct(whole)), abs=1e-6)


# --- denoising ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [{"noise": 0.5}, {"masking": 0.25}], ids=str)
def test_noise_is_taken_away(noise):
    """Nearer to the clean rows than the noisy ones are, and than what was trained without noise gives."""
    wide = {"hidden": (64,), "codes": "tanh"}
    settings = {"steps": 600, "optimizer": FAST, "batch_size": 100, "random_state": 0}
    trained = {
        name: Learner(Autoencoder(16, **wide, **own), **settings).fit(CURVE)
        for name, own in (("denoising", noise), ("plain", {"l1": 1e-6}))
    }
    draws = np.random.default_rng(1)
    noisy = (
        CURVE + 0.5 * draws.normal(size=CURVE.shape) if "noise" in noise else CURVE * (draws.random(CURVE.shape) > 0.25)
    )
    off = {name: ((np.asarray(own.reconstruct(noisy)) - CURVE) ** 2).sum(1).mean() for name, own in trained.items()}
    copied = ((noisy - CURVE) ** 2).sum(1).mean()
    assert off["denoising"] < 0.6 * copied
    assert off["denoising"] < 0.7 * off["plain"]


def test_rows_are_corrupted_in_training_alone_by_the_share_that_was_asked_for():
    x = torch.ones(4000, 6, dtype=torch.float64)
    model = made(Autoencoder(2, hidden=(4,), noise=0.5))
    torch.testing.assert_close(losses(model, x), losses(model, x, seed=1))
    model.train()
    assert not torch.equal(losses(model, x), losses(model, x, seed=1))
    assert torch.equal(losses(model, x), losses(model, x))
    with keyed(key_of(0), torch.arange(4000)):
        away = model.corrupted(x) - x
    assert abs(float(away.mean())) < 0.02
    assert float(away.std()) == pytest.approx(0.5, abs=0.02)
    model.noise, model.masking = 0.0, 0.3
    with keyed(key_of(0), torch.arange(4000)):
        kept = model.corrupted(x)
    assert set(kept.unique().tolist()) == {0.0, 1.0}
    assert float(kept.mean()) == pytest.approx(0.7, abs=0.02)


# --- sparse ------------------------------------------------------------------------------------------------


def test_l1_leaves_most_entries_of_a_code_at_zero():
    settings = {"steps": 400, "optimizer": FAST, "batch_size": None, "random_state": 0}
    share = {}
    for l1 in (0.0, 1.0):
        model = Autoencoder(12, hidden=(), codes="relu", tied=True, l1=l1, noise=0.01)
        codes = np.asarray(Learner(model, **settings).fit(X).transform(X))
        share[l1] = (codes > 0).mean()
    assert share[1.0] < 0.6 * share[0.0]


def test_the_mean_of_an_entry_comes_to_the_target():
    settings = {"steps": 600, "optimizer": FAST, "batch_size": None, "random_state": 0}
    found = {}
    for kl, target in ((0.0, 0.05), (5.0, 0.1)):
        model = Autoencoder(12, hidden=(16,), codes="sigmoid", kl=kl, target=target, noise=0.01)
        found[kl] = np.asarray(Learner(model, **settings).fit(X).transform(X)).mean(0)
    assert found[5.0] == pytest.approx(np.full(12, 0.1), abs=0.04)
    assert np.abs(found[0.0] - 0.1).mean() > 0.15  # the mutant without the penalty


def test_penalties_by_hand():
    x = torch.as_tensor(X[:7])
    model = made(Autoencoder(3, hidden=(4,), codes="sigmoid", l1=0.5))
    z = model.transform(x).detach()
    plain = model.reconstruction_error(x).detach()
    torch.testing.assert_close(losses(model, x), plain + 0.5 * z.abs().sum(1))
    model.l1, model.kl, model.target = 0.0, 2.0, 0.3
    bits = torch.distributions.kl_divergence(
        torch.distributions.Bernoulli(torch.full((3,), 0.3, dtype=torch.float64)),
        torch.distributions.Bernoulli(z.mean(0)),
    )
    torch.testing.assert_close(losses(model, x), plain + 2 * bits.sum())
    assert Autoencoder(l1=1.0).decomposable
    assert not Autoencoder(kl=1.0, codes="sigmoid").decomposable


# --- contractive -------------------------------------------------------------------------------------------


def by_autograd(model, x):
    """The squares of all derivatives of a row's code, one row after another."""
    return torch.stack(
        [
            (torch.autograd.functional.jacobian(lambda r: model.transform(r.unsqueeze(0))[0], row) ** 2).sum()
            for row in x
        ]
    )


NETS = {
    "one layer": {"hidden": ()},
    "tied": {"hidden": (), "tied": True},
    "deep": {"hidden": (8, 8)},
    "a user's": {
        "encoder": lambda n, k: torch.nn.Sequential(torch.nn.Linear(n, 5), torch.nn.GELU(), torch.nn.Linear(5, k))
    },
}


@pytest.mark.parametrize("codes", ["identity", "relu", "sigmoid", "tanh"])
@pytest.mark.parametrize("net", NETS)
def test_the_contraction_is_that_of_the_jacobian(net, codes):
    model, x = made(Autoencoder(3, codes=codes, contraction=0.7, **NETS[net])), torch.as_tensor(X[:5])
    known = by_autograd(model, x)
    z, found = model.contracted(x)
    torch.testing.assert_close(found.detach(), known)
    torch.testing.assert_close(z, model.transform(x))
    torch.testing.assert_close(losses(model, x), model.reconstruction_error(x).detach() + 0.7 * known)


def test_the_contraction_of_images_and_its_gradient():
    model = made(Autoencoder(2, encoder="conv-encoder(widths=(3,))", contraction=1.0, codes="tanh"), (1, 4, 4))
    x = torch.as_tensor(rng.normal(size=(3, 1, 4, 4)))
    torch.testing.assert_close(model.contracted(x)[1].detach(), by_autograd(model, x))
    weight = model.encoder.features[0].weight

    def total():
        return model.contracted(x)[1].sum()

    (slope,) = torch.autograd.grad(total(), weight)
    with torch.no_grad():
        weight[0, 0, 1, 1] += 1e-5
        above = total().detach()
        weight[0, 0, 1, 1] -= 2e-5
        below = total().detach()
    assert float((above - below) / 2e-5) == pytest.approx(float(slope[0, 0, 1, 1]), rel=1e-4)


def test_a_slope_that_is_not_squared_is_caught(monkeypatch):
    from weft.objectives.latent import autoencoder

    monkeypatch.setitem(autoencoder.CODES, "sigmoid", (torch.sigmoid, lambda z: (z * (1 - z)).sqrt()))
    model, x = made(Autoencoder(3, codes="sigmoid", contraction=1.0, hidden=())), torch.as_tensor(X[:5])
    assert float((model.contracted(x)[1].detach() - by_autograd(model, x)).abs().min()) > 0.01


def test_contracted_codes_move_less():
    settings = {"steps": 500, "optimizer": FAST, "batch_size": None, "random_state": 0}
    moved = {}
    for contraction in (0.0, 20.0):
        model = Autoencoder(8, hidden=(), codes="sigmoid", tied=True, contraction=contraction, noise=0.01)
        learner = Learner(model, **settings).fit(X)
        away = X + 0.01 * np.random.default_rng(1).normal(size=X.shape)
        moved[contraction] = np.square(np.asarray(learner.transform(away)) - learner.transform(X)).sum()
    assert moved[20.0] < 0.6 * moved[0.0]


# --- what it does not do -----------------------------------------------------------------------------------


def test_it_has_no_likelihood_and_says_so():
    learner = Learner(Autoencoder(1, hidden=(4,)), steps=2, random_state=0).fit(X)
    said = {
        "log_prob": r"tells no density of a row.*such as VAE\(\), Independent\(\) or Mixture\(\); Autoencoder offers",
        "sample": r"draws no rows.*VAE\(\).*; Autoencoder offers inverse_transform, reconstruct",
        "posterior": r"tells no law of codes given a row; .* such as VAE\(\) or FactorAnalysis\(\)",
        "impute": "does not fill in what is missing",
    }
    for name, message in said.items():
        assert not hasattr(learner, name)
        with pytest.raises(AttributeError, match=message):
            getattr(learner, name)
    assert not Autoencoder().likelihood
    with pytest.raises(AttributeError, match="has no score"):
        learner.score(X)


BAD = {
    "latent to be an integer >= 1": {"latent": 0},
    "noise to be a number >= 0": {"noise": -0.1},
    r"masking to be a number in \[0, 1\)": {"masking": 1.0},
    "l1 to be a number >= 0": {"l1": -1.0},
    r"target to be a number in \(0, 1\)": {"target": 0.0, "kl": 1.0, "codes": "sigmoid"},
    "contraction to be a number >= 0": {"contraction": float("nan")},
    "loss to be": {"loss": "hinge"},
    "codes to be": {"codes": "softmax"},
    "codes='sigmoid' beside kl": {"kl": 1.0},
    "kl beside a target": {"target": 0.1},
    r"hidden=\(\) and no nets beside tied": {"tied": True},
    "does not start at zero": {"encoder": "linear", "decoder": "linear"},
    "reads each row by itself beside contraction": {"encoder": "mlp(batch_norm=True)", "contraction": 1.0},
    "encoder whose answer": {"encoder": torch.nn.Linear(6, 3)},
    "image's shape": {"encoder": "conv-encoder"},
}


@pytest.mark.parametrize("told", BAD)
def test_settings_that_cannot_be_are_refused(told):
    with pytest.raises((ValueError, TypeError), match=told):
        Learner(Autoencoder(**{"latent": 2, **BAD[told]}), steps=1).fit(X)


def test_rows_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"entries in \[0, 1\].*bernoulli.*got -?\d.*scale them"):
        Learner(Autoencoder(2, loss="bernoulli"), steps=1).fit(X)
    learner = Learner(Autoencoder(2, loss="bernoulli"), steps=1, random_state=0).fit(BITS)
    with pytest.raises(ValueError, match=r"entries in \[0, 1\]"):
        learner.reconstruct(2 * BITS)
    with pytest.raises(ValueError, match="NaN"):
        Learner(Autoencoder(2), steps=1).fit(np.where(X > 2, np.nan, X))
    with pytest.raises(ValueError, match="expected codes of 2 entries"):
        learner.inverse_transform(np.zeros((3, 5)))


def test_what_can_copy_is_told():
    with pytest.warns(UserWarning, match="the nets can learn to copy"):
        Learner(Autoencoder(6, hidden=(4,)), steps=1).fit(X)
    for held in ({"noise": 0.1}, {"masking": 0.1}, {"l1": 0.1}, {"contraction": 0.1}, {"latent": 5}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Learner(Autoencoder(**{"latent": 6, "hidden": (4,), **held}), steps=1).fit(X)


def test_a_net_of_the_users_with_dropout_is_trained_by_replicas():
    model = Autoencoder(2, encoder=lambda n, k: MLP(n, k, hidden=(8,), dropout=0.2), hidden=(8,), contraction=0.01)
    several = Learner(model, steps=20, replicas=2, random_state=0).fit(X)
    alone = Learner(model, steps=20, random_state=1).fit(X)
    assert np.asarray(several.replica(1).transform(X)) == pytest.approx(np.asarray(alone.transform(X)), abs=1e-5)
    with pytest.raises(ValueError, match="replica"):
        several.transform(X)
    both = [np.asarray(several.replica(k).reconstruction_error(X)) for k in (0, 1)]
    assert np.asarray(several.reconstruction_error(X)) == pytest.approx(np.mean(both, 0), rel=1e-4)
