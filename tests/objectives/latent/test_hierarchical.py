"""HierarchicalVAE: a linear hierarchy against its evidence; bounds, rates by layer; broken ones are caught."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from weft import Learner, Optimizer
from weft.core.random import key_of, keyed
from weft.core.source import Field
from weft.engine.build import build
from weft.objectives import HierarchicalVAE
from weft.objectives.latent.explained import log_normal
from weft.testing import ContractError, check_density, every_row

FAST = Optimizer("adam", lr=0.01)
rng = np.random.default_rng(0)
X = rng.normal(size=(300, 1)) @ np.array([[2.0, 1.0, -1.0]]) + 0.6 * rng.normal(size=(300, 3)) + 1.0
BITS = ((rng.random((300, 1)) < 0.5) ^ (rng.random((300, 4)) < 0.15)).astype(np.float64)
WAYS = ("bottom-up", "top-down")
a, b, s1 = 0.8, 0.3, 0.5  # z_1 | z_2 ~ N(a z_2 + b, s1^2)
W, c, noise = np.array([1.0, -0.5, 2.0]), np.array([0.1, 0.0, 1.0]), 0.7  # x | z_1 ~ N(W z_1 + c, noise^2)


def linear(inference, latent=(1, 1), std=0.5, **options):
    """Of linear nets, built in double precision, with parameters that are drawn."""
    model = HierarchicalVAE(
        latent, encoder="linear", decoder="linear", between="linear", noise=noise, inference=inference, **options
    )
    model = build(model, {"x": Field((3,), torch.float64)}, 0, torch.float64).double().eval()
    torch.manual_seed(0)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=std)
    return model


def put(net, weight, bias):
    """Numbers into a linear net."""
    with torch.no_grad():
        held, own = list(net.parameters())
        held.copy_(torch.as_tensor(np.asarray(weight, dtype=float)).reshape(held.shape))
        own.copy_(torch.as_tensor(np.asarray(bias, dtype=float)))


def known(inference):
    """The hierarchy of the numbers above, with the guess that is its posterior."""
    model = linear(inference)
    put(model.downs[0], [a, 0], [b, math.log(s1)])
    put(model.generator, W, c)
    spread = a**2 + s1**2  # of z_1
    told = W / (W @ W)  # the row's own word on z_1: told @ (x - c), of variance noise^2 / |W|^2
    doubt = noise**2 / (W @ W)
    if inference == "bottom-up":
        share = spread / (spread + doubt)
        put(
            model.recognition,
            [share * told, 0 * W],
            [share * (-told @ c) + (1 - share) * b, 0.5 * math.log(share * doubt)],
        )
        gain = a / spread
        put(model.ups[0], [gain, 0], [-gain * b, 0.5 * math.log(1 - gain * a)])
    else:  # what the row says of z_1 before the model's word; and of z_2 after it
        gain = a / (spread + doubt)
        put(
            model.recognition,
            [told, gain * told, 0 * W, 0 * W],
            [-told @ c, -gain * (told @ c + b), 0.5 * math.log(doubt), 0.5 * math.log(1 - gain * a)],
        )
    return model


def evidence(rows):
    covariance = np.outer(W, W) * (a**2 + s1**2) + noise**2 * np.eye(3)
    return stats.multivariate_normal(W * b + c, covariance).logpdf(rows)


def exact(model, rows):
    """log p of rows of a linear hierarchy whose scales do not depend on the layer above."""
    down, bias = (p.detach().numpy() for p in model.downs[0].parameters())
    size = model.layers[0]
    A, own, scales = down[:size], bias[:size], np.exp(2 * bias[size:])
    D, middle = (p.detach().numpy() for p in model.generator.parameters())
    covariance = D @ (A @ A.T + np.diag(scales)) @ D.T + noise**2 * np.eye(3)
    return stats.multivariate_normal(D @ own + middle, covariance).logpdf(rows)


@pytest.mark.parametrize("inference", WAYS)
def test_at_the_posterior_every_draw_tells_the_evidence(inference):
    model = known(inference)
    with torch.no_grad(), keyed(key_of(0), torch.arange(20)):
        x = torch.as_tensor(X[:20])
        weights = model.log_weights(x, model.guess(x), 7)
        assert weights.shape == (20, 7)
    assert weights.numpy() == pytest.approx(np.repeat(evidence(X[:20])[:, None], 7, 1), abs=1e-10)


@pytest.mark.parametrize("inference", WAYS)
def test_forgetting_the_rate_of_the_top_is_caught(inference):
    """The mutant: log p(z_2) counts, log q(z_2 | .) does not."""
    model = known(inference)
    with torch.no_grad(), keyed(key_of(0), torch.arange(20)):
        x = torch.as_tensor(X[:20])
        q = model.guess(x)
        z = q.draw(7, "z")
        first = q.each(z)[0]
        broken = model.log_given(x, z) + model.log_prior(z) - log_normal(z[..., :1], *first)
    assert np.abs(broken.numpy() - evidence(X[:20])[:, None]).max() > 0.5


@pytest.mark.parametrize("inference", WAYS)
def test_more_draws_bound_nearer(inference):
    """ELBO <= IWAE(5) <= IWAE(50) <= log p, of a hierarchy with any parameters."""
    model = linear(inference, (2, 1))
    with torch.no_grad():
        next(model.downs[0].parameters())[model.layers[0] :] = 0  # scales that do not depend on the layer above
    log_p = exact(model, X)
    bounds = []
    for draws in (1, 5, 50):
        with torch.no_grad(), keyed(key_of(draws), torch.arange(len(X))):
            bounds.append(model.log_prob(torch.as_tensor(X), draws=draws).numpy())
    for below, above in zip(bounds, [*bounds[1:], log_p], strict=True):
        apart = above - below
        assert apart.mean() > -3 * apart.std() / math.sqrt(len(apart))
    assert (bounds[2] - bounds[0]).mean() > 3 * (bounds[2] - bounds[0]).std() / math.sqrt(len(X))


@pytest.mark.parametrize("inference", WAYS)
def test_the_rate_by_layers_is_that_of_draws(inference):
    model = linear(inference, (2, 2, 1), std=0.15)
    x = torch.as_tensor(X[:3])
    with torch.no_grad(), keyed(key_of(0), torch.arange(3)):
        q = model.guess(x)
        z = q.draw(60_000, "z")
        logs = q.log_prob(z) - model.log_prior(z)
        each = model.each_rate(q, z, None)
    assert each.shape == (3, 5)
    error = logs.std(1) / math.sqrt(logs.shape[1])
    assert ((logs.mean(1) - each.sum(-1)).abs() < 6 * error + 1e-9).all()
    assert (each[:, -1] > 6 * error).all()  # the mutant, which forgets the top layer, is told apart


@pytest.mark.parametrize("inference", WAYS)
def test_training_comes_to_the_evidence(inference):
    """A linear hierarchy of one entry each is a factor model: its best evidence is that of probabilistic PCA."""
    values = np.linalg.eigvalsh(np.cov(X.T, bias=True))
    spread = math.sqrt(values[:2].mean())
    covariance = np.cov(X.T, bias=True)
    vector = np.linalg.eigh(covariance)[1][:, -1:]
    best = vector @ vector.T * (values[-1] - spread**2) + spread**2 * np.eye(3)
    known_best = stats.multivariate_normal(X.mean(0), best).logpdf(X).mean()
    model = HierarchicalVAE(
        (1, 1), encoder="linear", decoder="linear", between="linear", noise=spread, inference=inference, draws=4
    )
    learner = Learner(
        model, steps=500, batch_size=None, optimizer=Optimizer("adam", lr=0.03), schedule="cosine", random_state=0
    ).fit(X)
    elbo = float(np.mean(learner.elbo(X, draws=200)))
    assert known_best - 0.03 < elbo < known_best + 0.005
    assert {"rate", "rate_1", "rate_2", "distortion"} <= set(learner.history_[0])
    rates = np.asarray(learner.rates(X, draws=100))
    assert rates.sum(1).mean() == pytest.approx(float(np.mean(learner.rate(X, draws=100))), abs=0.05)


def test_draws_of_the_prior_have_its_density():
    model = linear("top-down", (1, 1))
    put(model.downs[0], [a, 0], [b, math.log(s1)])
    with torch.no_grad(), keyed(key_of(0), torch.arange(20_000)):
        z = model.draw_prior(20_000).numpy()
    assert z.mean(0) == pytest.approx([b, 0], abs=0.03)
    assert np.cov(z.T) == pytest.approx(np.array([[a**2 + s1**2, a], [a, 1]]), abs=0.04)
    grid = torch.cartesian_prod(torch.linspace(-8, 8, 401), torch.linspace(-8, 8, 401)).double()
    with torch.no_grad():
        total = model.log_prior(grid.unsqueeze(1)).exp().sum() * 0.04**2
    assert float(total) == pytest.approx(1, abs=1e-6)


class Unpaid(HierarchicalVAE):
    """The mutant: the top layer is guessed for nothing."""

    def log_prior(self, z, y=None):
        lower, top = z.split(self.layers, -1)
        return log_normal(lower, *self.below(0, top)) + 2.0 * self.layers[-1]


SMALL = {"steps": 120, "optimizer": FAST}


@pytest.mark.parametrize("inference", WAYS)
def test_bits_sum_to_one(inference):
    told = {"hidden": (8,), "law": "bernoulli", "inference": inference}
    learner = check_density(HierarchicalVAE((2, 1), **told), BITS, support=every_row([2] * 4), settings=SMALL)
    rows = every_row([2] * 4).astype(float)
    share = np.exp(np.asarray(learner.log_prob(rows, draws=3000)))
    assert share.sum() == pytest.approx(1, abs=0.02)
    seen = np.bincount((learner.sample(4000, random_state=0) @ [8, 4, 2, 1]).astype(int), minlength=16)
    assert np.abs(seen / 4000 - share).max() < 0.04
    with pytest.raises(ContractError, match="total probability of at most 1"):
        check_density(Unpaid((2, 1), **told), BITS, support=rows, settings=SMALL)


def test_what_a_vae_can_do():
    y = BITS[:, 0].astype(int)
    holes = np.where(rng.random(BITS.shape) < 0.2, np.nan, BITS)
    options = {"prior": 2, "bound": "iwae", "draws": 3, "gaps": True, "conditional": True}
    learner = Learner(
        HierarchicalVAE((3, 2, 1), hidden=(8,), law="bernoulli", **options), steps=20, random_state=0
    ).fit(holes, y)
    assert learner.transform(holes[:3], y=y[:3]).shape == (3, 6)
    assert learner.posterior(holes[:3], y=y[:3], draws=4).shape == (3, 4, 6)
    assert learner.rates(holes[:3], y=y[:3]).shape == (3, 3)
    assert not np.isnan(np.asarray(learner.impute(holes, y=y, random_state=0))).any()
    plain = Learner(HierarchicalVAE((2, 1), hidden=(8,), free_bits=0.1, warm_up=5), steps=20, random_state=0).fit(X)
    assert plain.reconstruct(X[:2]).shape == plain.inverse_transform(plain.transform(X[:2])).shape == (2, 3)
    with pytest.raises(ValueError, match="refine=0"):
        plain.elbo(X, refine=5)


BAD = {
    "two layers or more": {"latent": (4,)},
    "latent to be": {"latent": 4},
    "inference": {"inference": "per-datum"},
    "name or a factory": {"between": torch.nn.Linear(4, 16)},
    "prior=None and": {"prior": 2, "free_bits": 0.1},
}


@pytest.mark.parametrize("told", BAD, ids=str)
def test_settings_that_cannot_be_are_refused(told):
    with pytest.raises((ValueError, TypeError), match=told):
        Learner(HierarchicalVAE(**BAD[told]), steps=1).fit(X)
