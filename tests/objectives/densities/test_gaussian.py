"""The Gaussian against numpy and scipy, with gaps against the likelihood of what is observed."""

import numpy as np
import pytest
import torch
from scipy import stats

from weft import Learner
from weft.objectives import Gaussian
from weft.objectives.densities import normals
from weft.objectives.densities.normals import factor_of, log_normal, packed
from weft.sources import Arrays
from weft.testing import ContractError, check_density, check_objective

rng = np.random.default_rng(0)
COMMON = {"random_state": 0, "dtype": "float64", "device": "cpu"}
X = rng.normal(size=(200, 3)) @ np.array([[1.0, 0.8, -0.3], [0.0, 0.6, 0.5], [0.0, 0.0, 0.4]]) + [1.0, 2.0, 0.0]
GAPS = np.where(rng.random(X.shape) < 0.3, np.nan, X)
PAIR = X[:, :2]


def fitted(rows, **settings):
    return Learner(Gaussian(**settings), **COMMON).fit(rows)


def of(learner):
    """Mean and covariance."""
    model = learner.objective_
    scale = model.scale.detach()
    factor = factor_of(scale).numpy() if model.full else np.diag(np.exp(scale.numpy()))
    return model.mean.detach().numpy(), factor @ factor.T


def observed_log_likelihood(rows, mean, covariance):
    """By scipy, row after row, each by its own marginal."""
    total = 0.0
    for row in rows:
        o = ~np.isnan(row)
        if o.any():
            total += stats.multivariate_normal(mean[o], covariance[np.ix_(o, o)]).logpdf(row[o])
    return total / len(rows)


def test_it_is_the_sample_mean_and_covariance_and_scipys_density():
    learner = fitted(X)
    mean, covariance = of(learner)
    np.testing.assert_allclose(mean, X.mean(0), rtol=1e-12)
    np.testing.assert_allclose(covariance, np.cov(X.T, bias=True), rtol=1e-12)
    peer = stats.multivariate_normal(mean, covariance)
    np.testing.assert_allclose(learner.log_prob(X), peer.logpdf(X), rtol=1e-10)
    assert learner.score(X) == pytest.approx(peer.logpdf(X).mean())
    assert learner.objective_.free_parameters() == 3 + 6


def test_a_diagonal_one_has_the_columns_own_variances_over_what_is_observed():
    mean, covariance = of(fitted(GAPS, covariance="diagonal"))
    np.testing.assert_allclose(mean, np.nanmean(GAPS, 0), rtol=1e-12)
    np.testing.assert_allclose(np.diag(covariance), np.nanvar(GAPS, 0), rtol=1e-12)


def test_floor_and_prior_are_as_they_say():
    _, covariance = of(fitted(X, floor=0.5, prior=10.0))
    own = (np.cov(X.T, bias=True) * 200 + 10 * np.eye(3)) / 210 + 0.5 * np.eye(3)
    np.testing.assert_allclose(covariance, own, rtol=1e-12)


def test_weights_count_as_rows():
    weight = rng.integers(0, 3, len(X)).astype(float)
    for rows in (X, GAPS):
        one = of(Learner(Gaussian(), **COMMON).fit(rows, sample_weight=weight))
        two = of(fitted(np.repeat(rows, weight.astype(int), 0)))
        for a, b in zip(one, two, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_with_gaps_it_is_where_the_likelihood_of_what_is_observed_is_flat_and_em_is_monotone():
    learner = fitted(GAPS, tolerance=1e-13)
    mean, covariance = of(learner)
    best = observed_log_likelihood(GAPS, mean, covariance)
    assert learner.score(GAPS) == pytest.approx(best, rel=1e-10)
    told = learner.history_["log_likelihood"][:-1]
    assert (np.diff(told) > -1e-12).all()
    for direction in np.random.default_rng(1).normal(size=(6, 3)):  # no direction is better, to second order
        moved = observed_log_likelihood(GAPS, mean + 1e-3 * direction, covariance)
        tilted = observed_log_likelihood(GAPS, mean, covariance + 1e-3 * np.outer(direction, direction))
        assert -1e-4 < moved - best < 0
        assert -1e-4 < tilted - best < 1e-9


def test_what_is_imputed_has_the_conditional_mean_and_covariance():
    learner = fitted(X)
    mean, c = of(learner)
    row = np.array([np.nan, 2.5, np.nan])
    drawn = learner.impute(np.repeat(row[None], 20_000, 0), random_state=0)
    gain = c[[0, 2], 1] / c[1, 1]
    wanted = c[np.ix_([0, 2], [0, 2])] - np.outer(gain, c[[0, 2], 1])
    assert (drawn[:, 1] == 2.5).all()
    np.testing.assert_allclose(drawn[:, [0, 2]].mean(0), mean[[0, 2]] + gain * (2.5 - mean[1]), atol=0.02)
    np.testing.assert_allclose(np.cov(drawn[:, [0, 2]].T), wanted, atol=0.02)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_it_is_a_density(covariance):
    check_density(Gaussian(covariance=covariance), PAIR, box=[(-6, 8), (-5, 9)])
    check_objective(Gaussian(covariance=covariance), Arrays(torch.as_tensor(X), observed=torch.ones(X.shape) > 0))


@pytest.mark.parametrize("broken", ["log_prob", "gaps", "filled"])
def test_mutants_are_caught(monkeypatch, broken):
    if broken == "log_prob":  # the determinant forgotten
        whole = normals.log_normal

        def wrong(x, observed, mean, scale, full):
            return whole(x, observed, mean, scale, full) + torch.diagonal(scale, dim1=-2, dim2=-1).sum(-1)

        monkeypatch.setattr("weft.objectives.densities.gaussian.log_normal", wrong)
    if broken == "gaps":  # what is missing taken for its value, 0
        monkeypatch.setattr(normals, "whole", lambda observed: True)
    if broken == "filled":  # drawn without regard to what is observed
        monkeypatch.setattr(
            "weft.objectives.densities.gaussian.filled", lambda x, observed, drawn, c: torch.where(observed, x, drawn)
        )
    with pytest.raises(ContractError):
        check_density(Gaussian(), PAIR, box=[(-6, 8), (-5, 9)])


def test_rows_with_gaps_alone_or_mapped_are_as_by_pattern():
    scale = packed(torch.linalg.cholesky(torch.as_tensor(np.cov(X.T))))
    mean, x = torch.as_tensor(X.mean(0)), torch.as_tensor(np.nan_to_num(GAPS))
    seen = torch.as_tensor(~np.isnan(GAPS))
    plain = log_normal(x, seen, mean[None], scale[None], True)
    mapped = torch.vmap(lambda a, b: log_normal(a[None], b[None], mean[None], scale[None], True)[0])(x, seen)
    np.testing.assert_allclose(mapped, plain, rtol=1e-12)
    rows = normals.Patterns(x, seen)
    moments = normals.gathered(
        rows,
        torch.ones(len(x)),
        torch.zeros(1, 1),
        mean[None, None],
        (factor_of(scale) @ factor_of(scale).T)[None, None],
    )
    np.testing.assert_allclose(moments.evidence[0], plain[:, 0], rtol=1e-10)


def test_patterns_in_parts_are_as_in_one(monkeypatch):
    whole = of(fitted(GAPS, iterations=5, tolerance=0.0))
    monkeypatch.setattr(normals, "_NUMBERS", 100)
    for a, b in zip(of(fitted(GAPS, iterations=5, tolerance=0.0)), whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_bad_rows_speak():
    with pytest.raises(ValueError, match=r"expected numbers that vary for Gaussian, got 1 in every row of column 1"):
        fitted(np.column_stack([X[:, 0], np.ones(200)]))
    with pytest.raises(ValueError, match=r"column 2 as a linear function of those before it .*floor=1e-6"):
        fitted(np.column_stack([PAIR, PAIR.sum(1)]))
    with pytest.raises(ValueError, match="column 2 as a linear function"):
        fitted(X[:3])
    with pytest.raises(ValueError, match=r"got none in column 1; leave it out"):
        fitted(np.column_stack([X[:, 0], np.full(200, np.nan)]))
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match=r"columns whose law is 'normal' for Gaussian, got b, which holds classes"):
        fitted(pandas.DataFrame({"a": X[:, 0], "b": ["u", "v"] * 100}))


def test_a_table_is_in_its_own_units():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": 1000 * X[:, 0], "b": X[:, 1] - 5})
    learner = fitted(table)
    peer = stats.multivariate_normal(table.mean(), np.cov(table.T, bias=True))
    np.testing.assert_allclose(learner.log_prob(table), peer.logpdf(table), rtol=1e-8)
    assert list(learner.sample(3).columns) == ["a", "b"]
