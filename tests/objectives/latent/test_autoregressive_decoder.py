"""A VAE whose decoder sees the entries before: it sums to one, sees nothing more, and may leave the code unused."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from weft import Learner, Optimizer
from weft.core.random import key_of, keyed
from weft.core.source import Field
from weft.engine.build import build
from weft.objectives import MADE, NADE, RBM, VAE, PixelCNN
from weft.objectives.latent.chained import Chained
from weft.testing import ContractError, check_density, every_row

rng = np.random.default_rng(0)
BITS = ((rng.random((300, 1)) < 0.5) ^ (rng.random((300, 4)) < 0.15)).astype(np.float64)
ROWS = every_row([2] * 4).astype(float)
SMALL = {"steps": 200, "optimizer": Optimizer("adam", lr=0.01)}


def coded(decoder=None, latent=1, **options):
    return VAE(latent, hidden=(8,), decoder=decoder or MADE((16,), law="bernoulli"), **options)


def by_quadrature(model, rows, y=None):
    """log p of rows of a model with one entry of code, by Gauss and Hermite."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    z = torch.as_tensor(nodes, dtype=torch.float64).reshape(1, -1, 1).expand(len(rows), -1, -1)
    with torch.no_grad():
        given = model.log_given(torch.as_tensor(rows, dtype=torch.float64), z, None, y)
    return (given + torch.as_tensor(np.log(weights / weights.sum()))).logsumexp(-1).numpy()


def drawn(objective, shape=(4,)):
    """Built in double precision, with parameters that are drawn."""
    model = build(objective, {"x": Field(shape, torch.float64)}, 0, torch.float64).double()
    torch.manual_seed(0)
    for p in model.parameters():
        torch.nn.init.normal_(p)
    return model.eval()


@pytest.mark.parametrize("decoder", [MADE((16,), law="bernoulli", orderings=2), NADE(8, law="bernoulli")], ids=repr)
def test_bits_sum_to_one_and_are_drawn_by_their_probabilities(decoder):
    learner = check_density(coded(decoder), BITS, support=ROWS, settings=SMALL)
    assert (learner.sample.kind, learner.reconstruct.kind) == ("sequential", "estimate")
    exact = by_quadrature(learner.objective_, ROWS)
    assert np.exp(exact).sum() == pytest.approx(1, abs=1e-6)
    assert np.asarray(learner.log_prob(ROWS, draws=2000)) == pytest.approx(exact, abs=0.1)
    seen = np.bincount((learner.sample(4000, random_state=0) @ [8, 4, 2, 1]).astype(int), minlength=16)
    assert stats.chisquare(seen, 4000 * np.exp(exact) / np.exp(exact).sum()).pvalue > 1e-4


@pytest.mark.parametrize("order", ["given", (2, 0, 3, 1)])
def test_an_entry_sees_those_before_it_and_the_code_alone(order):
    model = drawn(coded(MADE((16,), law="bernoulli", order=order)))
    x, z = torch.rand(1, 4, dtype=torch.float64, requires_grad=True), torch.randn(1, 1, 1).double().requires_grad_()
    density = model.generator.density
    theta = density.conditionals(density.read(x, z[:, 0]))[0]
    along = density.sequences[0]
    for place, i in enumerate(along):
        to_x, to_z = torch.autograd.grad(theta[i], [x, z], retain_graph=True)
        assert (to_x[0, along[place:]] == 0).all()
        assert (to_x[0, along[:place]] != 0).all()
        assert (to_z != 0).all()


class Peeking(VAE):
    """The mutant: its decoder sees the entry that it tells of."""

    def log_given(self, x, z, observed=None, y=None):
        density = self.generator.density
        rows, codes = x.repeat_interleave(z.shape[1], 0), z.flatten(0, 1)
        theta = density.conditionals(density.read(rows, codes)) + 3 * (2 * rows - 1)
        return density.log_given(theta, rows, None).unflatten(0, z.shape[:2])


def test_a_decoder_that_sees_its_own_entry_is_caught():
    with pytest.raises(ContractError, match="total probability of at most 1"):
        check_density(Peeking(1, hidden=(8,), decoder=MADE((16,), law="bernoulli")), BITS, support=ROWS, settings=SMALL)


def test_codes_in_a_batch_are_told_apart():
    """(n, K) numbers are those of each code by itself, and the class counts."""
    spec = {"x": Field((4,), torch.float64), "y": Field((), torch.int64, classes=2)}
    model = build(coded(latent=2, conditional=True), spec, 0, torch.float64).double().eval()
    x, z, y = torch.as_tensor(BITS[:3]), torch.randn(3, 5, 2, dtype=torch.float64), torch.tensor([0, 1, 1])
    found = model.log_given(x, z, None, y)
    for n in range(3):
        for k in range(5):
            one = model.log_given(x[n : n + 1], z[n : n + 1, k : k + 1], None, y[n : n + 1])
            torch.testing.assert_close(found[n, k], one[0, 0])
    assert not torch.allclose(found, model.log_given(x, z, None, 1 - y))


def test_a_strong_decoder_leaves_the_code_unused():
    """The bound is as good as that of a decoder which needs its code, at a rate near 0 (Chen et al., 2016)."""
    settings = {"steps": 600, "optimizer": Optimizer("adam", lr=0.01), "random_state": 0}
    strong = Learner(coded(), **settings).fit(BITS)
    weak = Learner(VAE(1, hidden=(8,), law="bernoulli"), **settings).fit(BITS)
    rates = [float(np.mean(learner.rate(BITS, draws=50))) for learner in (strong, weak)]
    bounds = [float(np.mean(learner.elbo(BITS, draws=50))) for learner in (strong, weak)]
    assert rates[0] < 0.05 < 0.3 < rates[1]
    assert bounds[0] > bounds[1]
    held = Learner(coded(free_bits=0.4), **settings).fit(BITS)
    assert float(np.mean(held.rate(BITS, draws=50))) > 0.3


def test_gaps_that_come_last_are_drawn_by_the_conditional():
    holes = BITS.copy()
    holes[::3, 2:] = np.nan
    learner = Learner(coded(gaps=True), **SMALL, dtype="float64", random_state=0).fit(holes)
    assert learner.impute.kind == "sequential"
    filled = np.asarray(learner.impute(np.repeat([[1.0, 0.0, np.nan, np.nan]], 4000, 0), draws=100, random_state=0))
    assert (filled[:, :2] == [1, 0]).all()
    whole = np.array([[1.0, 0.0, a, b] for a in (0, 1) for b in (0, 1)])
    share = np.exp(by_quadrature(learner.objective_, whole))
    seen = np.bincount((filled[:, 2:] @ [2, 1]).astype(int), minlength=4)
    assert stats.chisquare(seen, 4000 * share / share.sum()).pvalue > 1e-4
    told = float(learner.log_prob([[1.0, 0.0, np.nan, np.nan]], draws=3000)[0])
    assert told == pytest.approx(math.log(share.sum()), abs=0.05)
    with pytest.raises(ValueError, match="gaps in what comes last"):
        learner.impute([[np.nan, 1.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match="gaps in what comes last"):
        Learner(coded(gaps=True), steps=1).fit(np.where((np.arange(4) == 0) & (BITS == 1), np.nan, BITS))


def test_a_chain_fills_what_comes_last_and_refuses_the_rest():
    learner = Learner(coded(), **SMALL, random_state=0).fit(BITS)
    asked, last = np.repeat([[1.0, 1.0, 0.0, 0.0]], 500, 0), np.repeat([[False, False, True, True]], 500, 0)
    filled = np.asarray(learner.impute(asked, missing=last, steps=5, random_state=0))
    assert (filled[:, :2] == 1).all()
    assert 0.6 < filled[:, 2:].mean() < 1
    with pytest.raises(ValueError, match="gaps in what comes last"):
        learner.impute(asked, missing=last[:, ::-1].copy())


def test_means_are_those_of_draws():
    learner = Learner(coded(), **SMALL, dtype="float64", random_state=0).fit(BITS)
    codes = 1e-6 * rng.normal(size=(2000, 1))  # near each other, but not equal: draws are a function of the row
    found = np.asarray(learner.inverse_transform(codes)).mean(0)
    with torch.no_grad():
        share = learner.objective_.log_given(torch.as_tensor(ROWS), torch.zeros(16, 1, 1).double()).exp()
    assert found == pytest.approx(share[:, 0].numpy() @ ROWS, abs=0.02)
    model = drawn(coded(MADE((16,), law="categorical", classes=3)))
    with keyed(key_of(0), torch.arange(5)), torch.no_grad():
        likeliest = model.mean_given(torch.zeros(5, 1, dtype=torch.float64))
    assert set(likeliest.flatten().tolist()) <= {0.0, 1.0, 2.0}


def test_images_have_a_decoder_of_pixels():
    images = np.repeat(BITS[:100, None, None, :], 4, 2)
    model = VAE(2, encoder="conv-encoder", hidden=(16,), decoder=PixelCNN(width=8, layers=2, kernel=3))
    learner = Learner(model, steps=20, random_state=0).fit(images)
    assert learner.sample(2, random_state=0).shape == learner.reconstruct(images[:2]).shape == (2, 1, 4, 4)
    assert isinstance(learner.objective_.generator, Chained)
    assert (np.asarray(learner.log_prob(images[:3])) < 0).all()


BAD = {
    "an autoregressive density such as MADE": {"decoder": RBM(4)},
    "not conditional itself": {"decoder": MADE(conditional=True)},
    "with an order": {"decoder": MADE(agnostic=True)},
    "no law, classes, parts or noise": {"decoder": MADE(), "law": "bernoulli"},
    "hidden": {"decoder": MADE((0,))},
}


@pytest.mark.parametrize("told", BAD, ids=str)
def test_decoders_that_cannot_be_are_refused(told):
    with pytest.raises((ValueError, TypeError), match=told):
        Learner(VAE(1, **BAD[told]), steps=1).fit(BITS)
