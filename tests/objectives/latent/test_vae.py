"""VAE: bounds that bound, gradients that agree, codes, gaps, priors; broken ones are caught."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from weft import Learner, Optimizer
from weft.core.objective import capability
from weft.core.random import key_of, keyed, uniform
from weft.core.source import Field
from weft.engine.build import build
from weft.engine.memory import peak
from weft.learner.asking import _Asked
from weft.objectives import MADE, NADE, VAE, VQVAE, DiscreteVAE
from weft.objectives.densities.density import Density
from weft.objectives.latent import explained
from weft.objectives.latent.explained import Explained, Guess
from weft.testing import ContractError, check_density, every_row

FAST = Optimizer("adam", lr=0.01)
rng = np.random.default_rng(0)
FACTORS = rng.normal(size=(500, 2)) @ np.array([[2.0, 1.0, 0.0, 0.5], [0.0, 0.5, 1.0, -1.0]])
X = FACTORS + 0.5 * rng.normal(size=(500, 4)) + 1.0
BITS = (rng.random((300, 1)) < 0.5) ^ (rng.random((300, 4)) < 0.15)
BITS = BITS.astype(np.float64)


def made(objective, columns=4, classes=None):
    """Built, in double precision, with parameters that are drawn."""
    spec = {"x": Field((columns,), torch.float64)}
    if classes:
        spec["y"] = Field((), torch.int64, classes=classes)
    built = build(objective, spec, 0, torch.float64)
    torch.manual_seed(0)
    for p in built.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return built.double().eval()


def conjugate(model):
    """Mean, covariance and posterior of x = W z + b + noise, of a VAE with a linear decoder and given noise."""
    W, b = (p.detach().numpy() for p in model.generator.parameters())
    noise = float(model.noise)
    covariance = W @ W.T + noise**2 * np.eye(len(b))
    inner = np.linalg.inv(np.eye(W.shape[1]) + W.T @ W / noise**2)

    def posterior(x):
        return (x - b) @ W @ inner / noise**2, inner

    return b, covariance, posterior


def linear(latent=2, **options):
    return VAE(latent, encoder="linear", decoder="linear", noise=0.7, **options)


def test_the_rate_in_closed_form_is_that_of_draws():
    q = Guess(torch.tensor([[0.5, -1.0]]).double(), torch.tensor([[0.3, -0.7]]).double())
    with keyed(key_of(0), torch.arange(1)):
        z = q.draw(200_000, "z")
    logs = q.log_prob(z) - torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(-1)
    error = logs.std() / math.sqrt(logs.numel())
    assert abs(logs.mean() - q.each_rate().sum()) < 4 * error
    mean, scale = q.mean, q.log_scale.exp()
    known = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, scale), torch.distributions.Normal(0.0 * mean, torch.ones_like(scale))
    )
    torch.testing.assert_close(q.each_rate(), known)
    without = 0.5 * (mean**2 + scale**2 - 1)  # the mutant that forgets the log-variance
    assert abs(logs.mean() - without.sum()) > 20 * error


def test_what_the_bound_lacks_is_the_divergence_to_the_posterior():
    """log p - ELBO = KL(q || p(z | x)), on a model where all three are known."""
    model = made(linear())
    mean, covariance, posterior = conjugate(model)
    x = torch.as_tensor(X[:5])
    with torch.no_grad(), keyed(key_of(1), torch.arange(5)):
        q = model.guess(x)
        draws = model.log_weights(x, q, 100_000)
    elbo, error = draws.mean(-1).numpy(), (draws.std(-1) / math.sqrt(draws.shape[1])).numpy()
    log_p = stats.multivariate_normal(mean, covariance).logpdf(X[:5])
    middle, spread = posterior(X[:5])
    exact = torch.distributions.MultivariateNormal(torch.as_tensor(middle), torch.as_tensor(spread))
    own = torch.distributions.MultivariateNormal(q.mean, torch.diag_embed((2 * q.log_scale).exp()))
    kl = torch.distributions.kl_divergence(own, exact).numpy()
    assert (np.abs(log_p - elbo - kl) < 4 * error + 1e-9).all()
    assert (kl > 10 * error).all()


def test_more_draws_bound_nearer():
    """ELBO <= IWAE(5) <= IWAE(50) <= log p, each by an interval over rows; without -log K it would exceed log p."""
    learner = Learner(linear(), steps=150, optimizer=FAST, dtype="float64", random_state=0).fit(X)
    mean, covariance, _ = conjugate(learner.objective_)
    log_p = stats.multivariate_normal(mean, covariance).logpdf(X)
    bounds = [np.asarray(learner.log_prob(X, draws=k)) for k in (1, 5, 50)]
    for below, above in zip(bounds, [*bounds[1:], log_p], strict=True):
        apart = above - below
        assert apart.mean() > -3 * apart.std() / math.sqrt(len(apart))
    assert (bounds[2] - bounds[0]).mean() > 3 * (bounds[2] - bounds[0]).std() / math.sqrt(len(X))
    forgotten = bounds[2] + math.log(50) - log_p
    assert forgotten.mean() > 3  # the mutant: 3.9 nats too good
    assert np.asarray(learner.log_prob(X, draws=1000)).mean() == pytest.approx(log_p.mean(), abs=0.02)


def test_the_linear_optimum_is_probabilistic_pca():
    """With PPCA's noise, a linear VAE comes to PPCA's likelihood, and its decoder spans the leading eigenvectors."""
    values, vectors = np.linalg.eigh(np.cov(X.T, bias=True))
    noise = values[:2].mean()
    W = vectors[:, 2:] * np.sqrt(values[2:] - noise)
    known = stats.multivariate_normal(X.mean(0), W @ W.T + noise * np.eye(4)).logpdf(X).mean()
    model = VAE(2, encoder="linear", decoder="linear", noise=math.sqrt(noise), draws=8)
    learner = Learner(
        model,
        steps=3000,
        batch_size=None,
        optimizer=Optimizer("adam", lr=0.03),
        schedule="cosine",
        dtype="float64",
        random_state=0,
    ).fit(X)
    elbo = np.asarray(learner.elbo(X, draws=200)).mean()
    assert known - 0.002 < elbo < known + 0.002
    found = next(iter(learner.objective_.generator.parameters())).detach().numpy()
    assert np.abs(np.linalg.qr(found)[0].T @ vectors[:, :2]).max() < 0.05


def slopes(model, x, seeds, name, **options):
    """Gradients in a parameter of the recognition net, one for each key."""
    for option, value in options.items():
        setattr(model, option, value)
    found = []
    weight = dict(model.named_parameters())[name]
    for seed in range(seeds):
        with keyed(key_of(seed), torch.arange(len(x))):
            loss = model({"x": x}).losses.mean()
        found.append(torch.autograd.grad(loss, weight)[0].flatten())
    return torch.stack(found)


def agree(one, other):
    """The largest difference of means, in standard errors."""
    error = (one.var(0) / len(one) + other.var(0) / len(other)).sqrt()
    return float(((one.mean(0) - other.mean(0)).abs() / error).max())


def test_gradients_agree_in_expectation():
    model, x = made(linear(1)), torch.as_tensor(X[:3])
    name = "recognition.net.1.weight"
    path = slopes(model, x, 3000, name, draws=2)
    score = slopes(model, x, 3000, name, draws=2, gradient="score")
    assert agree(path, score) < 4.5
    assert float(score.var(0).sum() / path.var(0).sum()) > 2  # which is why nobody takes it where there is a path
    many = slopes(model, x, 3000, name, draws=5, bound="iwae", gradient="path")
    doubly = slopes(model, x, 3000, name, draws=5, bound="iwae", gradient="doubly")
    assert agree(many, doubly) < 4.5


def test_the_doubly_reparametrized_gradient_has_no_noise_at_the_posterior():
    model, x = made(linear(1)), torch.as_tensor(X[:3])
    name = "recognition.net.1.weight"
    b, _, posterior = conjugate(model)
    W = next(iter(model.generator.parameters())).detach()
    spread = posterior(X[:1])[1].item()
    slope = W.T / model.noise**2 * spread
    with torch.no_grad():
        model.recognition.net[1].weight.copy_(torch.cat([slope, torch.zeros_like(slope)]))
        model.recognition.net[1].bias.copy_(
            torch.tensor([-(slope @ torch.as_tensor(b)).item(), 0.5 * math.log(spread)])
        )
    many = slopes(model, x, 50, name, draws=5, bound="iwae", gradient="path")
    doubly = slopes(model, x, 50, name, draws=5, bound="iwae", gradient="doubly")
    assert float(doubly.abs().max()) < 1e-7
    assert float(many.var(0).sum()) > 1e-3


def test_a_gradient_whose_shares_are_not_squared_is_caught(monkeypatch):
    model, x = made(linear(1)), torch.as_tensor(X[:3])
    name = "recognition.net.1.weight"
    many = slopes(model, x, 3000, name, draws=5, bound="iwae", gradient="path")

    def unscaled(self, x, q, draws, observed, y):
        z, held = q.draw(draws, "z"), q.detached()
        found = self.log_given(x, z, observed, y) + self.log_prior(z, y) - held.log_prob(z)
        return found.logsumexp(-1) - math.log(draws)

    monkeypatch.setattr(VAE, "_many", unscaled)
    assert agree(many, slopes(model, x, 3000, name, draws=5, bound="iwae")) > 8


# --- discrete rows -----------------------------------------------------------------------------------------


def by_quadrature(learner, rows, y=None):
    """log p of rows of a VAE with one entry of code, by Gauss and Hermite; given classes y of each."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    model = learner.objective_
    z = torch.as_tensor(nodes, dtype=torch.float64).reshape(1, -1, 1).expand(len(rows), -1, -1)
    with torch.no_grad():
        told = None if y is None else torch.as_tensor(y)
        given = model.log_given(torch.as_tensor(rows, dtype=torch.float64), z, None, told)
    logs = given + torch.as_tensor(np.log(weights / weights.sum()))
    return logs.logsumexp(-1).numpy()


SMALL = {"steps": 300, "optimizer": FAST}


def test_bits_sum_to_one_and_bounds_to_less():
    learner = check_density(VAE(1, hidden=(8,), law="bernoulli"), BITS, support=every_row([2] * 4), settings=SMALL)
    rows = every_row([2] * 4).astype(float)
    exact = by_quadrature(learner, rows)
    assert np.exp(exact).sum() == pytest.approx(1, abs=1e-6)
    assert np.asarray(learner.log_prob(rows, draws=2000)) == pytest.approx(exact, abs=0.1)
    drawn = learner.sample(4000, random_state=0)
    seen = np.bincount((drawn @ [8, 4, 2, 1]).astype(int), minlength=16)
    assert stats.chisquare(seen, 4000 * np.exp(exact) / np.exp(exact).sum()).pvalue > 1e-4


@pytest.mark.parametrize(
    "law", [{"law": "logistic-mixture"}, {"law": "logistic-mixture", "parts": 2}, {"law": "categorical"}]
)
def test_levels_sum_to_one_and_are_drawn_by_their_probabilities(law):
    levels = np.minimum(BITS[:, :2] * 2 + (rng.random((300, 2)) < 0.3), 2.0)
    learner = Learner(VAE(1, hidden=(8,), classes=3, **law), **SMALL, dtype="float64", random_state=0).fit(levels)
    rows = every_row([3] * 2).astype(float)
    share = np.exp(by_quadrature(learner, rows))
    assert share.sum() == pytest.approx(1, abs=1e-6)
    drawn = learner.sample(4000, random_state=0)
    seen = np.bincount((drawn @ [3, 1]).astype(int), minlength=9)
    assert stats.chisquare(seen, 4000 * share / share.sum()).pvalue > 1e-4


def test_given_a_class_bits_sum_to_one_and_are_drawn_by_their_probabilities():
    y = (BITS[:, 0] > 0).astype(int)
    learner = Learner(VAE(1, hidden=(8,), law="bernoulli", conditional=True), **SMALL, dtype="float64", random_state=0)
    learner.fit(BITS, y)
    rows, first = every_row([2] * 4).astype(float), []
    for label in (0, 1):
        share = np.exp(by_quadrature(learner, rows, [label] * 16))
        assert share.sum() == pytest.approx(1, abs=1e-6)
        told = learner.log_prob(rows, y=[label] * 16, draws=2000)
        assert np.asarray(told) == pytest.approx(np.log(share), abs=0.15)
        drawn = learner.sample(4000, y=[label] * 4000, random_state=0)
        seen = np.bincount((drawn @ [8, 4, 2, 1]).astype(int), minlength=16)
        rare = share < 2e-3  # too few for the test, and taken together
        expected = np.append(share[~rare], share[rare].sum()) * 4000 / share.sum()
        assert stats.chisquare(np.append(seen[~rare], seen[rare].sum()), expected).pvalue > 1e-4
        first.append(drawn[:, 0].mean())
    assert first[0] < 0.1 < 0.9 < first[1]  # the first bit is the class


def test_expectations_are_those_of_the_model():
    learner = Learner(linear(), steps=50, optimizer=FAST, dtype="float64", random_state=0).fit(X)
    mean, covariance, _ = conjugate(learner.objective_)
    found = learner.expectation(lambda rows: rows[:, 0] * rows[:, 3], 4000, random_state=0)
    known = covariance[0, 3] + mean[0] * mean[3]
    assert abs(found.mean - known) < 4 * found.error
    assert found.error < 0.2 * abs(known) + 0.1


class Peeking(VAE):
    """The mutant: its decoder sees x."""

    def log_given(self, x, z, observed=None, y=None):
        theta = self.theta(z, y) + 3 * (2 * x - 1).unsqueeze(1)
        return self.entries.log_prob(theta, x.unsqueeze(1)).sum(-1)


class Free(VAE):
    """The mutant: draws of the code cost nothing, as the first term of the bound alone says."""

    def log_prior(self, z, y=None):
        return self.guess(self.held).log_prob(z) if hasattr(self, "held") else super().log_prior(z, y)

    def log_weights(self, x, q, draws, observed=None, y=None):
        return self.log_given(x, q.draw(draws, "z"), observed, y)


@pytest.mark.parametrize("mutant", [Peeking, Free])
def test_what_is_no_bound_is_caught(mutant):
    with pytest.raises(ContractError, match="total probability of at most 1"):
        check_density(mutant(1, hidden=(8,), law="bernoulli"), BITS, support=every_row([2] * 4), settings=SMALL)


def test_gaps_are_drawn_by_the_conditional():
    learner = Learner(VAE(1, hidden=(8,), law="bernoulli", gaps=True), **SMALL, dtype="float64", random_state=0)
    holes = np.where(rng.random(BITS.shape) < 0.2, np.nan, BITS)
    learner.fit(holes)
    asked = np.repeat([[1.0, 1.0, np.nan, np.nan]], 4000, 0)
    filled = np.asarray(learner.impute(asked, draws=300, random_state=0))
    assert (filled[:, :2] == 1).all()
    whole = np.array([[1.0, 1.0, a, b] for a in (0, 1) for b in (0, 1)])
    share = np.exp(by_quadrature(learner, whole))
    seen = np.bincount((filled[:, 2:] @ [2, 1]).astype(int), minlength=4)
    assert stats.chisquare(seen, 4000 * share / share.sum()).pvalue > 1e-4
    first = np.exp(by_quadrature(learner, whole)).sum()  # of what is observed alone
    with pytest.raises(ValueError, match="takes draws instead, got 5"):
        learner.impute(asked[:2], steps=5)
    told = learner.log_prob([[1.0, 1.0, np.nan, np.nan]], draws=3000)
    assert float(told[0]) == pytest.approx(math.log(first), abs=0.05)


def test_a_chain_fills_gaps_of_a_model_without_them():
    learner = Learner(VAE(1, hidden=(8,), law="bernoulli"), **SMALL, random_state=0).fit(BITS)
    asked, missing = np.repeat([[1.0, 1.0, 0.0, 0.0]], 500, 0), np.repeat([[False, False, True, True]], 500, 0)
    filled = np.asarray(learner.impute(asked, missing=missing, random_state=0))
    assert (filled[:, :2] == 1).all()
    assert 0.6 < filled[:, 2:].mean() < 1
    assert learner.impute.kind == "chain"
    with pytest.raises(ValueError, match="takes steps instead, got 5"):
        learner.impute(asked, missing=missing, draws=5)
    with pytest.raises(ValueError, match="of shape"):
        learner.impute(asked, missing=missing[:, :2])


# --- the rate ----------------------------------------------------------------------------------------------


def test_a_target_rate_is_held():
    model = VAE(2, hidden=(32,), noise=0.5, target_rate=1.5)
    learner = Learner(model, steps=800, optimizer=FAST, batch_size=100, random_state=0).fit(X)
    assert np.asarray(learner.rate(X, draws=50)).mean() == pytest.approx(1.5, abs=0.15)
    assert not model.decomposable
    assert float(learner.objective_.price) > 1.5  # the slope there: a fixed weight of 1 would not have held it


def test_free_bits_and_beta_by_hand():
    x = torch.as_tensor(X[:6])
    model = made(linear())
    with keyed(key_of(0), torch.arange(6)):
        plain, (_, _, _, q) = model({"x": x}).losses, model.taken({"x": x})
    each, plain = q.each_rate().detach(), plain.detach()
    distortion = plain - each.sum(-1)
    model.beta = 3.0
    with keyed(key_of(0), torch.arange(6)):
        torch.testing.assert_close(model({"x": x}).losses.detach(), distortion + 3 * each.sum(-1))
    model.beta, level = 1.0, float(each.mean(0).mean())
    model.free_bits = level
    with keyed(key_of(0), torch.arange(6)):
        losses = model({"x": x}).losses.detach()
    torch.testing.assert_close(losses.mean(), distortion.mean() + each.mean(0).clamp_min(level).sum())


@pytest.mark.parametrize("options", [{"target_rate": 0.5}, {"free_bits": 1.0}], ids=str)
def test_rows_of_no_weight_do_not_move_what_a_rate_costs(options):
    x = torch.as_tensor(X[:6])
    found = []
    for rows, weight in ((x, torch.ones(6)), (torch.cat([x, 50 + x]), torch.tensor([1.0] * 6 + [0.0] * 6))):
        model = made(linear(**options)).train()
        with keyed(key_of(0), torch.arange(len(rows))):
            losses = model({"x": rows, "weight": weight.double()}).losses[:6]
        found.append((losses.detach(), float(getattr(model, "price", torch.zeros(())))))
    torch.testing.assert_close(found[0], found[1])


def test_the_rate_is_charged_more_from_step_to_step():
    x = torch.as_tensor(X[:6])
    model = made(linear(warm_up=4)).train()
    found = []
    for _ in range(6):
        with keyed(key_of(0), torch.arange(6)):
            found.append(float(model({"x": x}).losses.mean().detach()))
    steps = np.diff(found)
    assert steps[:3] == pytest.approx(steps[0])
    assert steps[0] > 0
    assert steps[3:] == pytest.approx(0)
    assert int(model.seen) == 6


# --- priors, inference, nets -------------------------------------------------------------------------------


class Laplace(Density):
    """A density of a user's: independent, of a learned location and scale."""

    def build(self, spec):
        self.location, self.log_scale = (torch.nn.Parameter(torch.zeros(spec["x"].shape)) for _ in range(2))

    def law(self):
        return torch.distributions.Laplace(self.location, self.log_scale.exp())

    @capability(merge="logmeanexp", kind="exact", gives="density")
    def log_prob(self, x):
        return self.law().log_prob(x).sum(-1)

    @capability(merge="share", kind="direct")
    def sample(self, n):
        u = uniform((n, len(self.location)), place="u", dtype=self.location.dtype)
        return self.law().icdf(u.clamp(1e-6, 1 - 1e-6))


@pytest.mark.parametrize("prior", [3, MADE((16,)), Laplace()], ids=["mixture", "made", "a user's"])
def test_any_density_may_be_the_prior(prior):
    learner = Learner(VAE(1, hidden=(16,), noise=0.5, prior=prior), **SMALL, dtype="float64", random_state=0).fit(X)
    line = torch.linspace(-40, 40, 20_001, dtype=torch.float64)
    with torch.no_grad():
        logs = learner.objective_.log_prior(line.reshape(-1, 1, 1)).flatten()
    assert float(logs.exp().sum() * (line[1] - line[0])) == pytest.approx(1, abs=1e-3)
    assert learner.sample(7, random_state=0).shape == (7, 4)
    assert np.isfinite(learner.log_prob(X)).all()
    fresh = build(VAE(1, hidden=(16,), prior=prior), {"x": Field((4,), torch.float64)}, 0, torch.float64)
    trained = dict(learner.objective_.named_parameters())
    for name, start in fresh.named_parameters():  # it is trained along
        if name.startswith(("inner", "mixing")):
            assert not torch.equal(trained[name], start)


def test_a_guess_of_its_own_is_nearer_than_an_amortized_one():
    learner = Learner(VAE(2, hidden=(16,), noise=0.5), steps=60, optimizer=FAST, random_state=0).fit(X)
    plain, own = (np.asarray(learner.elbo(X[:50], draws=200, refine=k)) for k in (0, 200))
    assert (own - plain).mean() > 3 * (own - plain).std() / math.sqrt(50)
    best = np.asarray(learner.log_prob(X[:50], draws=5000))
    assert own.mean() < best.mean() + 0.05


def test_inference_may_be_per_datum():
    model = VAE(2, decoder="linear", noise=0.7, inference="per-datum")
    learner = Learner(model, steps=1500, optimizer=Optimizer("adam", lr=0.03), batch_size=None, random_state=0)
    learner.fit(X[:100])
    codes = learner.objective_.recognition.mean.detach().numpy()
    assert codes.shape == (100, 2)
    again = np.asarray(learner.transform(X[:100]))  # by a search, since asked rows have no number
    assert np.abs(again - codes).mean() < 0.15
    assert np.isfinite(learner.log_prob(X[100:110])).all()


@pytest.mark.parametrize("law", [{"law": "bernoulli"}, {"noise": 0.3}, {}], ids=str)
def test_images_by_convolutions_both_ways(law):
    images = np.repeat(BITS[:, None, None, :], 4, 2) + (0 if "law" in law else 0.3 * rng.normal(size=(300, 1, 4, 4)))
    model = VAE(2, encoder="conv-encoder(widths=(4,))", decoder="conv-decoder(widths=(4,))", **law)
    learner = Learner(model, steps=150, optimizer=FAST, random_state=0)
    before = Learner(model, steps=1, random_state=0).fit(images).elbo(images, draws=20)
    after = learner.fit(images).elbo(images, draws=20)
    assert after.mean() > before.mean() + 3
    assert learner.sample(3, random_state=0).shape == learner.reconstruct(images[:3]).shape == (3, 1, 4, 4)
    right, left = learner.reconstruct(images), images[::-1]  # of its own row, not of another
    assert ((right - images) ** 2).mean() < 0.9 * ((right - left) ** 2).mean()


def test_images_classes_and_tables():
    images = np.repeat(BITS[:, None, None, :], 4, 2)  # 1 x 4 x 4
    y = BITS[:, 0].astype(int)
    learner = Learner(
        VAE(2, encoder="conv-encoder", hidden=(16,), law="bernoulli", conditional=True), steps=30, random_state=0
    ).fit(images, y)
    assert learner.sample(3, y=[0, 1, 1], random_state=0).shape == (3, 1, 4, 4)
    assert learner.reconstruct(images[:2], y=y[:2]).shape == (2, 1, 4, 4)
    levels = (BITS * 3).astype(np.int64)
    for law in ({"law": "logistic-mixture", "classes": 4}, {"law": "categorical", "classes": 4}):
        told = Learner(VAE(2, hidden=(16,), **law), steps=30, random_state=0).fit(levels)
        assert (np.asarray(told.log_prob(levels)) < 0).all()
    table = pd.DataFrame({"age": 40 + 10 * X[:300, 0], "ill": BITS[:, 0] > 0, "site": np.where(y > 0, "Bern", "Basel")})
    table.loc[::7, "age"] = np.nan
    mixed = Learner(VAE(2, hidden=(16,), gaps=True), steps=200, optimizer=FAST, random_state=0).fit(table)
    filled = mixed.impute(table, random_state=0)
    assert filled["age"].notna().all()
    assert filled["age"].mean() == pytest.approx(table["age"].mean(), rel=0.15)
    assert set(mixed.sample(20, random_state=0)["site"]) <= {"Bern", "Basel"}
    counted = table.assign(visits=np.arange(300) % 5)  # what is whole comes back whole
    learner = Learner(VAE(2, hidden=(16,), gaps=True), steps=20, random_state=0).fit(counted)
    for back in (learner.reconstruct(counted[:9]), learner.inverse_transform(np.zeros((9, 2), dtype=np.float32))):
        assert list(back) == list(counted)
        assert back["visits"].dtype.kind == "i"


def test_bounds_and_distortions_of_a_table_are_in_its_units():
    """In units a tenth as large, numbers are ten times as many, a density a tenth of it, and a code costs the same."""
    table = pd.DataFrame({"age": 40 + 10 * X[:100, 0], "height": X[:100, 1]})
    found = []
    for factor in (1.0, 10.0):
        rows = table.assign(age=factor * table["age"])
        learner = Learner(VAE(1, hidden=(8,)), steps=20, random_state=0).fit(rows)
        found.append([np.asarray(getattr(learner, name)(rows)).mean() for name in ("elbo", "distortion", "rate")])
    apart = np.subtract(*reversed(found))
    assert apart == pytest.approx([-math.log(10), math.log(10), 0.0], abs=1e-3)


@pytest.mark.parametrize("scale", ["exp", "softplus"])
def test_scales_are_positive(scale):
    model = made(VAE(2, hidden=(8,), scale=scale))
    theta = model.theta(torch.randn(5, 2, dtype=torch.float64) * 50, None)
    assert torch.isfinite(model.entries.log_prob(theta, torch.as_tensor(X[:5]))).all()


@pytest.mark.parametrize("noise", ["net", "shared", 0.5])
@pytest.mark.parametrize("scale", ["exp", "softplus"])
def test_the_deviations_of_rows_are_found_where_they_are_learned(scale, noise):
    """Of independent rows with known deviations nothing is in the code, and the likelihood is that of two normals."""
    rows = np.random.default_rng(1).normal(size=(2000, 2)) * [0.5, 2.0]
    model = VAE(1, encoder="linear", decoder="linear", noise=noise, scale=scale)
    learner = Learner(model, steps=800, optimizer=Optimizer("adam", lr=0.02), schedule="cosine", random_state=0)
    theta = learner.fit(rows).objective_.theta(torch.zeros(1, 1), None)[0]
    found = theta[learner.objective_._scales].exp().detach().numpy()
    if noise == 0.5:  # given: what it leaves over is put into the code
        assert found == pytest.approx([0.5, 0.5])
        return
    known = stats.norm(0, rows.std(0)).logpdf(rows).sum(1).mean()
    assert np.asarray(learner.log_prob(rows)).mean() == pytest.approx(known, abs=0.03)


# --- memory ------------------------------------------------------------------------------------------------


def test_an_estimate_takes_no_more_memory_for_more_rows_and_draws(monkeypatch):
    """Within `memory`, beside the answer: rows are cut into pieces, and draws into blocks of 50."""
    memory, rows = 2**21, (np.random.default_rng(0).random((256, 64)) < 0.5).astype(np.float32)
    options = {"steps": 1, "random_state": 0, "device": "cpu"}

    def taken(n, draws):
        learner = Learner(VAE(4, hidden=(32,), law="bernoulli"), memory=memory, **options).fit(rows)
        return peak(lambda: learner.log_prob(rows[:n], draws=draws))

    few = taken(32, 50)
    assert few < memory
    assert taken(256, 50) < memory
    assert taken(32, 1000) < 1.1 * few
    with monkeypatch.context() as whole:  # the mutants: all draws at once, all rows at once
        whole.setattr(explained, "_BLOCK", 10**6)
        assert taken(2, 20_000) > 2 * memory
    monkeypatch.setattr(_Asked, "at_a_time", lambda self, runs: self.count)
    assert taken(256, 50) > 2 * memory


BAD = {
    "latent to be an integer >= 1": {"latent": 0},
    "draws to be an integer >= 1": {"draws": 0},
    "target_rate to be": {"target_rate": -1.0},
    "bound='elbo' beside beta": {"bound": "iwae", "draws": 5, "beta": 2.0},
    "bound='iwae' beside gradient='doubly'": {"gradient": "doubly"},
    "draws of at least 2 beside gradient='score'": {"gradient": "score"},
    "draws of at least 2 beside bound='iwae'": {"bound": "iwae"},
    "at most one of free_bits": {"free_bits": 0.1, "target_rate": 1.0},
    "beta=1 and no warm_up": {"target_rate": 1.0, "beta": 2.0},
    "prior=None and": {"free_bits": 0.1, "prior": 3},
    "no encoder beside": {"inference": "per-datum", "encoder": "mlp"},
    "exact log_prob": {"prior": VAE(1)},
    "a prior of real numbers": {"prior": MADE((4,), law="bernoulli")},
    "a prior of real numbers, which the codes of VAE are": {"prior": NADE(4, law="categorical", classes=3)},
    "parts of VAE beside a law that has some": {"parts": 3},
    "no classes for these laws": {"classes": 3},
    "whose law is normal-mixture, which has no deviation": {"law": "normal-mixture", "noise": 0.5},
    "none of whose nets makes a deviation": {"inference": "per-datum", "noise": 0.5, "scale": "softplus"},
}


@pytest.mark.parametrize("told", BAD, ids=str)
def test_settings_that_cannot_be_are_refused(told):
    with pytest.raises((ValueError, TypeError), match=told.replace("(", r"\(")):
        Learner(VAE(**BAD[told]), steps=1).fit(X)


@pytest.mark.parametrize("kind", [VAE, DiscreteVAE, VQVAE])
def test_settings_that_no_law_reads_are_refused(kind):
    with pytest.raises(ValueError, match="whose law is bernoulli, which has no deviation"):
        Learner(kind(2, law="bernoulli", noise="shared"), steps=1).fit(BITS)
    with pytest.raises(ValueError, match="beside a law that has some"):
        Learner(kind(2, law="bernoulli", parts=2), steps=1).fit(BITS)
    with pytest.raises(ValueError, match="no classes for these laws"):
        Learner(kind(2, law="bernoulli", classes=2), steps=1).fit(BITS)
    if kind is VAE:
        Learner(kind(2, law="bernoulli", scale="softplus"), steps=1).fit(BITS)  # of the guess
    else:
        with pytest.raises(ValueError, match="none of whose nets makes a deviation"):
            Learner(kind(2, law="bernoulli", scale="softplus"), steps=1).fit(BITS)


def test_wrong_questions_are_refused():
    learner = Learner(VAE(1, hidden=(4,)), steps=2, random_state=0).fit(X)
    for name in ("log_prob", "elbo", "posterior", "rate"):
        with pytest.raises((ValueError, TypeError), match="draws"):
            getattr(learner, name)(X, draws=0)
    given = Learner(VAE(1, hidden=(4,), conditional=True), steps=2, random_state=0).fit(X, (X[:, 0] > 1).astype(int))
    with pytest.raises(ValueError, match="expected a class y"):
        given.log_prob(X)
    with pytest.raises(ValueError, match="expected codes of 1 numbers"):
        learner.inverse_transform(np.zeros((2, 3), dtype=np.float32))
    with pytest.warns(UserWarning, match="at most the log of the training rows"):
        Learner(VAE(1, hidden=(4,), target_rate=50.0), steps=2).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Learner(VAE(1, hidden=(4,), target_rate=0.5), steps=2).fit(X)
    own = VAE(1, inference="per-datum")
    with pytest.raises(ValueError, match="got no index from the source"):
        build(own, {"x": Field((4,), torch.float64)}, 0, torch.float64)
    with pytest.raises(NotImplementedError, match="log_prior"):
        Explained().log_prior(torch.zeros(1, 1, 1))
