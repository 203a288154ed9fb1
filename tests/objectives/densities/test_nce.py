"""Noise-contrastive estimation against closed forms: normalizers, the loss, consistency, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import nn
from torch.nn.functional import softplus

from weft import Learner, Optimizer
from weft.core import Output, capability
from weft.core.random import key_of, keyed
from weft.core.source import Field
from weft.engine.build import build
from weft.objectives import ICA, NCE, RBM, Classification, Independent
from weft.testing import every_row

rng = np.random.default_rng(0)
PLANE = rng.normal(size=(2000, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]]) + [0.3, -0.4]
BITS = (rng.random((2000, 3)) < [0.3, 0.5, 0.8]).astype(float)
BITS[:, 1] = np.where(rng.random(2000) < 0.8, BITS[:, 0], BITS[:, 1])


class Bell(nn.Module):
    """-(x - m)' L L' (x - m) / 2: a normal law without its normalizer, (2 pi)^(d/2) / det L."""

    def __init__(self, columns):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(columns))
        self.factor = nn.Parameter(torch.eye(columns))

    def forward(self, x):
        return -0.5 * (((x - self.mean) @ self.factor) ** 2).sum(-1)

    def log_normalizer(self):
        return 0.5 * len(self.mean) * math.log(2 * math.pi) - float(torch.linalg.slogdet(self.factor.detach())[1])


SETTINGS = {
    "steps": 300,
    "random_state": 0,
    "dtype": "float64",
    "optimizer": Optimizer("adam", lr=0.05),
    "batch_size": 500,
}
SETTINGS["schedule"] = "cosine"


def test_a_normal_law_and_its_normalizer_are_found():
    learner = Learner(NCE(lambda: Bell(2), draws=5), **SETTINGS).fit(PLANE)
    found, model = learner.objective_, learner.objective_.model
    assert abs(found.log_normalizer.item() - model.log_normalizer()) < 0.03
    truth = multivariate_normal(PLANE.mean(0), np.cov(PLANE.T))
    assert np.abs(learner.log_prob(PLANE) - truth.logpdf(PLANE)).mean() < 0.05
    # The noise is fitted to the same data, so that data and noise cannot be told apart.
    assert np.abs(learner.ratio(PLANE)).mean() < 0.05
    assert (learner.log_prob.kind, learner.ratio.kind) == ("estimate", "estimate")
    assert repr(learner.score(PLANE)).endswith("(estimate)")


class NoNormalizer(NCE):
    @capability(merge="logmeanexp", kind="estimate", gives="density")
    def log_prob(self, x):
        return self.log_unnormalized(x)


class NoiseOfNoDensity(NCE):
    """The noise's normalizer is left out, and so c takes it over."""

    def _log_noise(self, x):
        return super()._log_noise(x) + 0.5 * x.shape[1] * math.log(2 * math.pi)


class AsManyDrawsAsOne(NCE):
    """log nu is left out of the odds."""

    def forward(self, batch, player=""):
        return super().forward(batch, player) if self.draws == 1 else self._odds(batch)

    def _odds(self, batch):
        x, nu = batch["x"], self.draws
        drawn = self._draw(len(x), nu).detach().flatten(0, 1)
        return Output(softplus(-self.ratio(x)) + softplus(self.ratio(drawn)).reshape(len(x), nu).sum(1))


@pytest.mark.parametrize("mutant", [NCE, NoNormalizer, NoiseOfNoDensity, AsManyDrawsAsOne])
def test_mutants_are_caught(mutant):
    """By quadrature: check_density does not judge the total of an estimate, which is off by c - log Z in every row."""
    learner = Learner(mutant(lambda: Bell(1), draws=5), **{**SETTINGS, "steps": 150}).fit(PLANE[:, :1])
    grid = np.linspace(-8, 8, 2001)[:, None]
    total = np.trapezoid(np.exp(learner.log_prob(grid)), grid[:, 0])
    assert (abs(total - 1) < 0.1) == (mutant is NCE), total


def test_the_noise_is_that_of_the_data():
    model = Learner(NCE(lambda: Bell(2)), steps=1, random_state=0, dtype="float64").fit(PLANE).objective_
    with keyed(key_of(0), torch.arange(20_000)):
        drawn = model._draw(20_000, 1)[:, 0].detach()
    truth = multivariate_normal(PLANE.mean(0), np.cov(PLANE.T, bias=True))
    np.testing.assert_allclose(model._log_noise(torch.as_tensor(PLANE)), truth.logpdf(PLANE), rtol=1e-9)
    np.testing.assert_allclose(np.cov(drawn.T), np.cov(PLANE.T), atol=0.04)
    np.testing.assert_allclose(drawn.mean(0), PLANE.mean(0), atol=0.04)


@pytest.mark.parametrize("draws", [1, 3])
def test_the_loss_is_that_of_telling_data_from_noise(draws):
    """At the truth g = -log nu for noise like the data: -log(1 / (1 + nu)) - nu log(nu / (1 + nu)) for each row."""

    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.zero = nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return multivariate(x) + 0 * self.zero

    def multivariate(x):
        return -0.5 * (x**2).sum(-1) - 0.5 * math.log(2 * math.pi)

    built = build(NCE(Flat, draws=draws), {"x": Field((1,), torch.float64)}, 0, torch.float64)
    with keyed(key_of(0), torch.arange(5)):
        losses = built({"x": torch.randn(5, 1, dtype=torch.float64)}).losses
    wanted = math.log(1 + draws) - draws * math.log(draws / (1 + draws))
    torch.testing.assert_close(losses, torch.full((5,), wanted, dtype=torch.float64))


def test_more_noise_comes_closer():
    """The mean squared error of log Z over replicas that differ in their noise alone, after as many steps."""
    errors = {}
    for draws in (1, 8, 64):
        settings = {**SETTINGS, "steps": 150, "batch_size": 100, "replicas": 16, "schedule": None}
        learner = Learner(NCE(lambda: Bell(1), draws=draws), **settings).fit(PLANE[:100, :1])
        models = [learner.replica(k).objective_ for k in range(16)]
        found = [m.log_normalizer.item() - m.model.log_normalizer() for m in models]
        errors[draws] = float(np.mean(np.square(found)))
    assert errors[1] > 2 * errors[8] > 4 * errors[64]
    assert errors[64] < 1e-3


def test_an_rbm_without_chains():
    settings = {**SETTINGS, "steps": 1000, "batch_size": 200, "optimizer": Optimizer("adam", lr=0.3)}
    learner = Learner(NCE(RBM(4), noise="bernoulli", draws=5), **settings).fit(BITS)
    rows = every_row([2] * 3)
    exact = learner.objective_.model.units.log_normalizer().item()
    assert abs(learner.objective_.log_normalizer.item() - exact) < 0.05
    share = np.array([(row == BITS).all(1).mean() for row in rows])
    assert np.abs(np.exp(learner.log_prob(rows)) - share).max() < 0.03
    assert abs(np.exp(learner.log_prob(rows)).sum() - 1) < 0.05


def test_replicas_are_single_runs_and_the_noise_stays():
    noise = Learner(ICA(), random_state=0).fit(PLANE)
    before = {n: p.clone() for n, p in noise.objective_.named_parameters()}
    settings = {"steps": 10, "dtype": "float64"}
    many = Learner(NCE(hidden=(4,), noise=noise), replicas=2, random_state=0, **settings).fit(PLANE)
    for k in range(2):
        one = Learner(NCE(hidden=(4,), noise=noise), random_state=k, **settings).fit(PLANE)
        np.testing.assert_allclose(many.replica(k).log_prob(PLANE), one.log_prob(PLANE), rtol=1e-9)
        for name, value in before.items():
            torch.testing.assert_close(one.objective_.noise.get_parameter(name).float(), value, rtol=0, atol=0)
    for name, value in noise.objective_.named_parameters():
        assert value.requires_grad, "the learner that was given is left alone"
        assert torch.equal(value, before[name])


def test_bad_input():
    quick = {"steps": 2, "random_state": 0}
    rbm = Learner(RBM(2), **quick).fit(BITS)
    with pytest.raises(ValueError, match="got RBM, whose log_prob is exact and whose sample is chain"):
        Learner(NCE(noise=rbm), **quick).fit(BITS)
    with pytest.raises(ValueError, match="noise to be fitted, got ICA as made; fit it"):
        Learner(NCE(noise=ICA()), **quick).fit(PLANE)
    with pytest.raises(TypeError, match=r"NCE's noise to be one of 'normal', 'bernoulli' or a fitted density, got 3"):
        Learner(NCE(noise=3), **quick).fit(PLANE)
    with pytest.raises(ValueError, match="whose log_prob is none"):
        Learner(NCE(noise=Classification()), **quick).fit(PLANE)
    with pytest.raises(TypeError, match=r"expected NCE's model to have log_unnormalized\(x\), got ICA"):
        Learner(NCE(ICA()), **quick).fit(PLANE)
    with pytest.raises(ValueError, match=r"expected 0 or 1 in column 0, .* 2000 of 2000 rows"):
        Learner(NCE(noise="bernoulli"), **quick).fit(PLANE)
    with pytest.raises(ValueError, match="expected real numbers for a density, got whole ones"):
        Learner(NCE(), **quick).fit(BITS.astype(int))
    with pytest.raises(ValueError, match="expected numbers that vary for NCE, got 0 in every row of column 2"):
        Learner(NCE(), **quick).fit(np.column_stack([PLANE, np.zeros(2000)]))
    with pytest.raises(ValueError, match="2000 rows of 3 columns with a singular covariance; leave some out"):
        Learner(NCE(), **quick).fit(np.column_stack([PLANE, PLANE.sum(1)]))
    with pytest.raises(ValueError, match="expected a model whose answer to a batch of 2 rows has shape"):
        Learner(NCE(nn.Linear(2, 2)), **quick).fit(PLANE)
    bits = Learner(NCE(noise="bernoulli", hidden=(4,)), **quick).fit(BITS)
    with pytest.raises(ValueError, match=r"expected 0 or 1 in column 0, .* 3 of 3 rows"):
        bits.log_prob(BITS[:3] + 0.5)
    coins = Learner(Independent(law="bernoulli"), random_state=0).fit(BITS)
    with pytest.raises(ValueError, match=r"expected 0 or 1 in column 0, .* 2000 of 2000 rows"):
        Learner(NCE(noise=coins, hidden=(4,)), **quick).fit(BITS + 0.5)
    with pytest.raises(AttributeError, match="no attribute 'sample': NCE draws no rows"):
        Learner(NCE(), **quick).fit(PLANE).sample(3)
