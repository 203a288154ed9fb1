"""VQVAE: the nearest entry, its gradient, its running means, its bound; broken ones are caught."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from weft import Learner, Optimizer
from weft.core.random import key_of, keyed
from weft.core.source import Field
from weft.engine.build import build
from weft.objectives import MADE, VQVAE, PixelCNN
from weft.objectives.latent.vq_vae import perplexity
from weft.testing import ContractError, check_density, every_row

FAST = Optimizer("adam", lr=0.01)
rng = np.random.default_rng(0)
BITS = ((rng.random((300, 1)) < 0.5) ^ (rng.random((300, 4)) < 0.15)).astype(np.float64)
ROWS = every_row([2] * 4)
SMALL = {"steps": 200, "optimizer": FAST}


def made(latent=2, codes=3, width=2, seed=0, shape=(4,), **options):
    """Built, in double precision, with parameters and a codebook that are drawn."""
    options = {"encoder": "linear", "decoder": "linear", "law": "bernoulli", **options}
    model = VQVAE(latent, codes=codes, width=width, **options)
    built = build(model, {"x": Field(shape, torch.float64)}, 0, torch.float64)
    torch.manual_seed(seed)
    for p in built.parameters():
        nn.init.normal_(p, std=0.7)
    built = built.double()
    if built.codebook == "ema":
        built.counts, built.sums = 0.5 + torch.rand(codes).double(), torch.randn(codes, width).double()
    return built


def asked(model, x):
    with keyed(key_of(0), torch.arange(len(x))):
        return model({"x": x}).losses


X = torch.as_tensor(ROWS).double()


def test_the_nearest_entry_by_hand():
    model = made().eval()
    with torch.no_grad():
        e, found = model.encoded(X).numpy(), model.transform(X).numpy()
    book = (model.sums / model.counts[:, None]).numpy()
    known = [[int(np.argmin([np.linalg.norm(v - b) for b in book])) for v in row] for row in e]
    assert found.tolist() == known
    assert len(np.unique(found)) == 3
    torch.testing.assert_close(model.entry(torch.tensor(found)), torch.as_tensor(book[found]))


@pytest.mark.parametrize("codebook", ["ema", "loss"])
def test_loss_and_straight_through_gradient_by_hand(codebook):
    """The decoder's slope at the entries is the encoder's, beside that of the commitment; the codebook's is its own."""
    model = made(commitment=0.4, codebook=codebook, noise="net").eval()
    asked(model, X).sum().backward()
    e = model.encoded(X).detach()
    entry = model.entry(model.nearest(e)).detach().requires_grad_()
    distortion = -model.log_given(X, entry.flatten(1).unsqueeze(1)).squeeze(1)
    apart = ((e - entry.detach()) ** 2).sum((1, 2))
    share = 1.4 if codebook == "loss" else 0.4
    torch.testing.assert_close(asked(model, X), distortion + share * apart + 2 * math.log(3))
    (back,) = torch.autograd.grad(distortion.sum(), entry)
    slope = (back + 0.8 * (e - entry.detach())).flatten(1)  # in the encoder's outputs
    torch.testing.assert_close(model.recognition[1].weight.grad, slope.T @ X)
    torch.testing.assert_close(model.recognition[1].bias.grad, slope.sum(0))
    if codebook == "loss":
        number, wanted = model.nearest(e), torch.zeros(3, 2).double()
        for k in range(3):
            wanted[k] = 2 * (entry.detach() - e)[number == k].sum(0)
        torch.testing.assert_close(model.book.vectors.grad, wanted)


def test_the_codebook_follows_as_online_k_means():
    model = made(decay=0.9).train()
    N, m = model.counts.numpy().copy(), model.sums.numpy().copy()
    for rows in X.split(4):
        asked(model, rows)
        e = model.encoded(rows).detach().numpy().reshape(-1, 2)
        number = [int(np.argmin([((v - b) ** 2).sum() for b in m / N[:, None]])) for v in e]
        N *= 0.9
        m *= 0.9
        for v, k in zip(e, number, strict=True):
            N[k] += 0.1 / len(rows)
            m[k] += 0.1 * v / len(rows)
        np.testing.assert_allclose(model.counts.numpy(), N)
        np.testing.assert_allclose(model.sums.numpy(), m)
    before = model.counts.clone()
    model.eval()
    asked(model, X)
    assert torch.equal(model.counts, before)


def followed(model, rows, numbers, weight=None):
    """The running means after a step, from where the model stands."""
    counts, sums = model.counts, model.sums
    batch = {"x": rows} if weight is None else {"x": rows, "weight": weight}
    with keyed(key_of(0), numbers):
        model(batch)
    found, (model.counts, model.sums) = (model.counts, model.sums), (counts, sums)
    return found


def test_parts_follow_as_the_whole():
    """The mean of what two halves leave is what the whole leaves, dead entries too; rows of weight 0 leave nothing."""
    model = made(codes=5).train()
    model.counts[1] = 0.0
    whole = followed(model, X, torch.arange(16))
    halves = [followed(model, X[i], torch.arange(16)[i]) for i in (slice(8), slice(8, 16))]
    padded = followed(model, X, torch.arange(16), torch.tensor([1.0] * 8 + [0.0] * 8).double())
    for a, b, c, one, pad in zip(whole, *halves, (0, 1), padded, strict=True):
        torch.testing.assert_close(a, (b + c) / 2)
        torch.testing.assert_close(pad, halves[0][one])


def test_a_dead_entry_is_put_where_a_vector_is():
    model = made(codes=5, revive=0.2).train()
    model.counts[1] = 0.02  # of an even share of 2 / 5
    asked(model, X)
    e = model.encoded(X).detach().reshape(-1, 2)
    apart = (e - model.vectors()[1]).norm(dim=1).min()
    assert float(apart) < 0.2 * float(e.std(0).norm())
    assert float(model.counts[1]) > 2  # by which it is known
    asked(model, X)
    assert 0.3 < float(model.counts[1]) < 1.5
    held = made(codes=5, revive=0.0).train()
    held.counts[1] = 0.02
    before = held.vectors()[1].clone()
    held.sums[1] += 1000 * held.counts[1]  # far from every vector
    before = held.vectors()[1].clone()
    for _ in range(3):
        asked(held, X)
    torch.testing.assert_close(held.vectors()[1], before)  # never used, never moved


def test_all_entries_begin_at_vectors_and_stay_finite():
    learner = Learner(VQVAE(2, codes=16, width=3, hidden=(8,), law="bernoulli"), **SMALL, random_state=0).fit(BITS)
    assert bool(torch.isfinite(learner.objective_.vectors()).all())
    assert len(np.unique(learner.transform(BITS))) >= 4
    told = learner.history_["perplexity"]
    assert ((told >= 1) & (told <= 16)).all()
    assert perplexity({"used": torch.tensor([3.0, 3.0, 0.0, 3.0, 3.0])}).item() == pytest.approx(4)


# --- the bound ---------------------------------------------------------------------------------------------


def exact_of(learner, codes, latent):
    """log p(x) by the sum over all codes."""
    model = learner.objective_

    def exact(rows):
        every = torch.tensor(list(itertools.product(range(codes), repeat=latent)))
        with torch.no_grad():
            z = model.entry(every).flatten(1).unsqueeze(0)
            joint = model.log_given(torch.as_tensor(np.asarray(rows)).double(), z) + model.log_code(every)
        return joint.logsumexp(-1).numpy()

    return exact


@pytest.mark.parametrize("codebook", ["ema", "loss"])
@pytest.mark.parametrize("prior", [None, MADE((8,), law="categorical", classes=3)], ids=["uniform", "made"])
def test_the_bound_is_one(codebook, prior):
    model = VQVAE(2, codes=3, width=2, hidden=(8,), law="bernoulli", codebook=codebook, prior=prior)
    learner = check_density(model, BITS, support=ROWS, settings=SMALL)
    exact = exact_of(learner, 3, 2)(ROWS)
    assert np.exp(exact).sum() == pytest.approx(1, abs=1e-6)
    bound = np.asarray(learner.log_prob(ROWS))
    assert (bound <= exact + 1e-9).all()
    assert learner.log_prob.kind == "lower bound"
    drawn = np.asarray(learner.sample(4000, random_state=0)) @ [8, 4, 2, 1]
    counts, share = np.bincount(drawn.astype(int), minlength=16), np.exp(exact) / np.exp(exact).sum()
    assert stats.chisquare(counts, 4000 * share).pvalue > 1e-4


class Free(VQVAE):
    """The mutant: its codes cost nothing."""

    def rate(self, x, observed=None, y=None):
        return 0 * super().rate(x, observed, y)


class Best(VQVAE):
    """The mutant: a code is paid for by how sure a row is of it, not by the prior."""

    def log_code(self, number):
        return super().log_code(number) / number.shape[1]


@pytest.mark.parametrize("kind", [VQVAE, Free, Best])
def test_what_is_no_bound_is_caught(kind):
    """Each pattern has a code of its own, which tells nearly all of it."""
    patterns = np.repeat([[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]], 25, 0).astype(float)
    settings = {"steps": 200, "optimizer": Optimizer("adam", lr=0.03), "batch_size": None}
    model = kind(2, codes=4, width=4, hidden=(16,), law="bernoulli")
    if kind is VQVAE:
        check_density(model, patterns, support=ROWS, settings=settings)
        return
    with pytest.raises(ContractError, match="total probability of at most 1"):
        check_density(model, patterns, support=ROWS, settings=settings)


# --- answers -----------------------------------------------------------------------------------------------


def test_codes_go_and_come_back():
    y = BITS[:, 0].astype(int)
    model = VQVAE(2, codes=5, width=3, hidden=(8,), law="bernoulli", conditional=True)
    learner = Learner(model, **SMALL, random_state=0).fit(BITS, y)
    codes = learner.transform(BITS[:5], y=y[:5])
    assert codes.shape == (5, 2)
    back = learner.inverse_transform(codes, y=y[:5])
    np.testing.assert_allclose(back, learner.reconstruct(BITS[:5], y=y[:5]), rtol=1e-5)
    assert learner.sample(3, y=[0, 1, 1], random_state=0).shape == (3, 4)
    rate, distortion = (np.asarray(getattr(learner, name)(BITS, y=y)) for name in ("rate", "distortion"))
    np.testing.assert_allclose(learner.log_prob(BITS, y=y), -rate - distortion, rtol=1e-5)
    assert rate == pytest.approx(2 * math.log(5), rel=1e-5)
    with pytest.raises(ValueError, match="class y"):
        learner.transform(BITS)
    with pytest.raises(ValueError, match=r"whole numbers 0\.\.4"):
        learner.inverse_transform(codes + 5, y=y[:5])
    assert not hasattr(learner, "posterior")


def test_a_grid_of_codes_with_a_prior_of_grids():
    images = np.repeat(np.repeat(BITS[:, :4].reshape(-1, 1, 2, 2), 2, 2), 2, 3)  # 1 x 4 x 4, two by two alike
    model = VQVAE(
        (2, 2),
        codes=4,
        width=3,
        encoder=nn.Sequential(nn.Conv2d(1, 8, 2, 2), nn.ReLU(), nn.Conv2d(8, 3, 1)),
        decoder=nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 2, 2)),
        law="bernoulli",
        prior=PixelCNN(layers=2, width=8, kernel=3, law="categorical", classes=4),
    )
    learner = Learner(model, steps=200, optimizer=Optimizer("adam", lr=0.02), random_state=1).fit(images)
    codes = np.asarray(learner.transform(images))
    assert codes.shape == (300, 2, 2)
    assert np.abs(np.asarray(learner.reconstruct(images)) - images).mean() < 0.1
    assert learner.sample(3, random_state=0).shape == (3, 1, 4, 4)
    # a patch that is lit has one code wherever it stands
    assert len(np.unique(codes[BITS.reshape(-1, 2, 2) == 1])) < 3
    uniform = 4 * math.log(4)
    assert np.asarray(learner.rate(images)).mean() < uniform - 1  # the prior has learned that neighbours are alike


def test_the_prior_moves_nothing_but_itself():
    with_prior = made(prior=MADE((8,), law="categorical", classes=3))
    asked(with_prior.eval(), X).sum().backward()
    slopes = [p.grad.clone() for name, p in with_prior.named_parameters() if not name.startswith("inner")]
    assert any(p.grad.abs().max() > 0 for name, p in with_prior.named_parameters() if name.startswith("inner"))
    with_prior.zero_grad()
    with_prior.log_code = lambda number: torch.zeros(len(number)).double()
    asked(with_prior, X).sum().backward()
    rest = [p.grad for name, p in with_prior.named_parameters() if not name.startswith("inner")]
    for one, other in zip(slopes, rest, strict=True):
        torch.testing.assert_close(one, other)


BAD = {
    "codes to be an integer >= 2": {"codes": 1},
    "a grid's height and width": {"latent": (2, 2, 2)},
    "commitment to be": {"commitment": -1.0},
    "decay to be": {"decay": 1.0},
    "codebook='ema' beside decay": {"codebook": "loss", "revive": 0.5},
    "the codes of VQVAE, got MADE()": {"prior": MADE()},
    "law='categorical', classes=512": {"prior": MADE(law="categorical", classes=8)},
    "exact log_prob": {"prior": VQVAE(1)},
    "prior to be": {"prior": 3},
    "a net as the decoder": {"decoder": MADE()},
}


@pytest.mark.parametrize("told", BAD, ids=str)
def test_settings_that_cannot_be_are_refused(told):
    with pytest.raises((ValueError, TypeError)) as error:
        Learner(VQVAE(**{"law": "bernoulli", **BAD[told]}), steps=1).fit(BITS)
    assert told in str(error.value)
