"""Kernel densities against scikit-learn and SciPy; widths that follow units; draws that follow the density."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import integrate, stats
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from sklearn.neighbors import KernelDensity as Peer

from weft import Learner
from weft.engine.memory import peak
from weft.objectives import KernelDensity
from weft.objectives.densities import kernel_density, kernels
from weft.objectives.densities.kernels import KERNELS, Normal
from weft.testing import ContractError, check_density

rng = np.random.default_rng(0)
X = rng.normal(size=(150, 2)) @ [[1.0, 0.0], [0.8, 0.6]]
NEW = rng.normal(size=(60, 2))
COMMON = {"dtype": "float64", "random_state": 0}
EVERY = [
    {"bandwidth": rule, "kernel": kernel, "variable": variable, "whiten": whiten}
    for rule, kernel, variable, whiten in [
        ("scott", "gaussian", None, False),
        ("silverman", "epanechnikov", "abramson", False),
        ("cv", "gaussian", "neighbours", True),
        ("cv", "epanechnikov", None, False),
        ("silverman", "tophat", None, True),
    ]
]


def shown(given):
    return " ".join(str(value) for value in given.values())


def fitted(X, weight=None, **given):
    return Learner(KernelDensity(**given), **COMMON).fit(X, sample_weight=weight)


@pytest.mark.parametrize("kernel", KERNELS)
def test_it_is_scikit_learns_at_the_same_bandwidth(kernel):
    weight = rng.random(150)
    ours = fitted(X, weight, bandwidth=0.4, kernel=kernel).log_prob(NEW)
    peer = Peer(bandwidth=0.4, kernel=kernel, rtol=0).fit(X, sample_weight=weight).score_samples(NEW)
    assert np.isfinite(ours).sum() > 40
    np.testing.assert_allclose(np.exp(ours), np.exp(peer), rtol=1e-10, atol=1e-14)  # it says e^-36 for some 0


@pytest.mark.parametrize("rule", ["scott", "silverman"])
def test_its_rules_are_scipys(rule):
    np.testing.assert_allclose(
        fitted(X, bandwidth=rule, whiten=True).log_prob(NEW), stats.gaussian_kde(X.T, rule).logpdf(NEW.T), rtol=1e-10
    )
    line = X[:, :1] * 300
    np.testing.assert_allclose(
        fitted(line, bandwidth=rule).log_prob(NEW[:, :1] * 300),
        stats.gaussian_kde(line.T, rule).logpdf(NEW[:, 0] * 300),
        rtol=1e-10,
    )


@pytest.mark.parametrize("given", EVERY, ids=shown)
def test_a_change_of_units_changes_the_density_by_their_volume_alone(given):
    units, shift = np.array([1e-3, 40.0]), [5.0, -3.0]
    with np.errstate(invalid="ignore"):
        apart = fitted(X, **given).log_prob(NEW) - fitted(X * units + shift, **given).log_prob(NEW * units + shift)
    np.testing.assert_allclose(apart[~np.isnan(apart)], np.log(units).sum(), atol=1e-6)
    assert (~np.isnan(apart)).sum() > 30
    table = pd.DataFrame(X * units, columns=["a", "b"])
    told = fitted(table, **given).log_prob(table)  # whose numbers are standardized on the way
    np.testing.assert_allclose(told, fitted(X * units, **given).log_prob(X * units), atol=1e-6)


def test_a_fixed_width_is_in_units_and_does_not_follow_them():
    one, thousand = (fitted(X * unit, bandwidth=0.3).log_prob(NEW * unit) for unit in (1.0, 1000.0))
    assert np.abs(one - thousand - 2 * np.log(1000)).max() > 1  # the peer's rules do the same: its issue 26658


@pytest.mark.parametrize("given", EVERY, ids=shown)
def test_weight_2_is_the_row_twice(given):
    weight = rng.integers(0, 4, 150)
    twice = fitted(np.repeat(X, weight, axis=0), **given)
    np.testing.assert_allclose(fitted(X, weight, **given).log_prob(NEW), twice.log_prob(NEW), rtol=1e-9)


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
def test_the_cross_validated_width_is_the_likeliest_when_rows_are_left_out(kernel):
    x = X[:60, :1]
    h = float(fitted(x, bandwidth="cv", kernel=kernel).objective_.widths)

    def lost(log_h):
        return -sum(
            Peer(bandwidth=np.exp(log_h), kernel=kernel).fit(np.delete(x, i, 0)).score(x[i : i + 1]) for i in range(60)
        )

    best = minimize_scalar(lost, bounds=(np.log(h / 1.5), np.log(h * 1.5)), method="bounded", options={"xatol": 1e-4})
    assert abs(np.log(h) - best.x) < 2e-3


def test_rows_of_their_own_width_are_as_their_papers_say():
    z = X / X.std(0, ddof=1)
    h = 150 ** (-1 / 6)
    pilot = np.exp(Peer(bandwidth=h, rtol=0).fit(z).score_samples(z))
    apart = np.sort(np.linalg.norm(z[:, None] - z, axis=-1), 1)
    for how, width in {"abramson": pilot**-0.5, "neighbours": apart[:, 13]}.items():  # sqrt(150) = 12.2, itself first
        width = width / np.exp(np.log(width).mean()) * h
        each = stats.norm.pdf(NEW[:, None] / X.std(0, ddof=1), z, width[:, None]).prod(-1) / X.std(0, ddof=1).prod()
        ours = fitted(X, bandwidth="scott", variable=how)
        np.testing.assert_allclose(ours.log_prob(NEW), np.log(each.mean(1)), rtol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("d", [1, 2, 5])
def test_kernels_have_the_norm_variance_and_roughness_that_they_say(kernel, d):
    k = KERNELS[kernel]
    sphere = 2 * np.pi ** (d / 2) / math.gamma(d / 2)

    def radial(f):
        def at(r):
            return float(f(float(k.log_shape(torch.tensor(r * r, dtype=torch.float64)).exp()), r) * r ** (d - 1))

        return sphere * integrate.quad(at, 0, 1 if kernel != "gaussian" else 12)[0]

    norm = radial(lambda p, r: p)
    assert np.log(norm) == pytest.approx(k.log_norm(d), abs=1e-6)
    assert radial(lambda p, r: p * r * r) / norm / d == pytest.approx(k.variance(d), rel=1e-6)
    assert np.log(radial(lambda p, r: p * p) / norm**2) == pytest.approx(k.log_roughness(d), abs=1e-6)


def test_widths_of_other_kernels_are_canonical():
    assert KERNELS["epanechnikov"].canonical(1) == pytest.approx(1.7188 / 0.7764, rel=1e-4)  # Scott 1992, table 6.2
    assert Normal().canonical(7) == 1.0
    law = rng.normal(size=(4000, 1))
    at = np.linspace(-4, 4, 400)[:, None]
    wrong = {}
    for kernel in KERNELS:
        told = np.exp(fitted(law, bandwidth="silverman", kernel=kernel).log_prob(at))
        wrong[kernel] = np.mean((told - stats.norm.pdf(at[:, 0])) ** 2)
    assert max(wrong.values()) < 1.5 * min(wrong.values())


@pytest.mark.parametrize("given", EVERY, ids=shown)
def test_it_is_a_density_and_draws_by_it(given):
    check_density(KernelDensity(**given), X[:60], box=[(-7, 7), (-7, 7)])


class NoVolume(KernelDensity):
    def log_prob(self, x):
        return super().log_prob(x) + self.root.diagonal().log().sum()


class MeanOfLogs(KernelDensity):
    def log_prob(self, x):
        z = torch.linalg.solve_triangular(self.root, (x - self.centre).T, upper=False).T
        logs = kernels.log_kernels(Normal(), z, self.rows, self.log_share, self.log_width)
        norm = Normal().log_norm(x.shape[1]) + self.root.diagonal().log().sum()
        return (logs - self.log_share).mean(1) - norm


class SamplesOfTheRows(KernelDensity):
    def sample(self, n):
        return super().sample(n) * 0 + self.centre + (self.rows @ self.root.T)[torch.arange(n) % len(self.rows)]


@pytest.mark.parametrize(
    ("mutant", "told"), [(NoVolume, "total"), (MeanOfLogs, "total"), (SamplesOfTheRows, "samples with the frequencies")]
)
def test_mutants_are_caught(mutant, told):
    with pytest.raises(ContractError, match=told):
        check_density(mutant(bandwidth="scott"), X[:60, :1], box=[(-7, 7)])


def test_blocks_change_nothing_and_bound_the_memory(monkeypatch):
    few = X[:40]
    learner = fitted(few, bandwidth="cv", variable="abramson")
    whole = learner.log_prob(NEW)
    monkeypatch.setattr(kernels, "_QUERIES", 7)
    monkeypatch.setattr(kernels, "_ROWS", 11)
    np.testing.assert_allclose(learner.log_prob(NEW), whole, rtol=1e-12)
    np.testing.assert_allclose(fitted(few, bandwidth="cv", variable="abramson").log_prob(NEW), whole, rtol=1e-9)
    rows = torch.randn(20_000, 3, dtype=torch.float64)
    monkeypatch.undo()
    zero = torch.zeros(20_000, dtype=torch.float64)
    taken = peak(lambda: kernels.log_sums(Normal(), rows[:5000], rows, zero, zero))
    assert taken < 40e6  # the matrix of all kernels would take 800


def test_the_loss_of_many_rows_is_told_from_some(monkeypatch):
    weight = rng.random(150)
    learner = fitted(X, weight, bandwidth="scott")
    each = -learner.log_prob(X)
    assert learner.history_["loss"][-1] == pytest.approx(np.average(each, weights=weight))
    monkeypatch.setattr(kernel_density, "_MEASURED", 40)
    some = fitted(X, weight, bandwidth="scott").history_["loss"][-1]
    assert some == pytest.approx(np.average(each[::4], weights=weight[::4]))


def test_far_rows_have_finite_densities():
    each = stats.norm.logpdf([300.0, 0.0], X, 0.5).sum(1)  # of which every exponential is 0
    assert fitted(X, bandwidth=0.5).log_prob([[300.0, 0.0]])[0] == pytest.approx(logsumexp(each) - np.log(150))
    assert fitted(X, kernel="tophat").log_prob([[300.0, 0.0]])[0] == -np.inf


def test_replicas_answer_as_one():
    alone = fitted(X, bandwidth="scott")
    several = Learner(KernelDensity(bandwidth="scott"), replicas=2, **COMMON).fit(X)
    np.testing.assert_allclose(several.log_prob(NEW), alone.log_prob(NEW), rtol=1e-9)
    assert several.sample(10, random_state=0).shape == (10, 2)


def test_what_cannot_be_estimated_is_told():
    with pytest.raises(ValueError, match=r"numbers that vary for KernelDensity, got 2 in every row of column 1"):
        fitted(np.c_[X[:, 0], np.full(150, 2.0)])
    with pytest.raises(ValueError, match=r"expected real numbers for a density, got whole ones"):
        fitted(np.arange(10).reshape(-1, 1))
    with pytest.raises(ValueError, match=r"columns of real numbers for KernelDensity, got town \(category\)"):
        fitted(pd.DataFrame({"a": X[:6, 0], "town": list("abcabc")}))
    with pytest.raises(ValueError, match="NaN"):
        fitted(np.where(X > 1, np.nan, X))
    with pytest.raises(ValueError, match=r"none is a linear function of the others.*got column 1"):
        fitted(np.c_[X[:, 0], 2 * X[:, 0]], whiten=True)
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"expected KernelDensity's bandwidth to be one of .* or a number > 0"):
            fitted(X, bandwidth=wrong)
    with pytest.raises(ValueError, match="did you mean 'silverman'"):
        fitted(X, bandwidth="silvermann")
    with pytest.raises(ValueError, match="look for rows far from all others"):
        fitted(np.r_[X[:, :1], [[1e6]]] / 1e3, bandwidth="cv", kernel="epanechnikov")
    with pytest.raises(ValueError, match="sum to more than 1"):
        fitted(X, np.full(150, 1e-3))
    with pytest.raises(ValueError, match="keeps its rows"):
        fitted(X, bandwidth=1.0).objective_.free_parameters()
