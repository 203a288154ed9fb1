"""Probabilistic PCA and factor analysis against scikit-learn, scipy, their own marginals and a direct maximization."""

import warnings

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from sklearn import decomposition

from weft import Learner
from weft.objectives import FactorAnalysis, ProbabilisticPCA
from weft.objectives.latent import linear
from weft.sources import Arrays
from weft.testing import ContractError, check_density, check_objective

rng = np.random.default_rng(0)
COMMON = {"random_state": 0, "dtype": "float64", "device": "cpu"}
TRUE = rng.normal(size=(6, 2)) * [2.0, 1.0]
X = rng.normal(size=(300, 2)) @ TRUE.T + rng.normal(size=(300, 6)) * np.linspace(0.5, 1.5, 6) + np.arange(6.0)
HOLES = rng.random(X.shape) < 0.25
GAPS = np.where(HOLES, np.nan, X)
PAIR = X[:, :2]
BOX = [(a - 7 * s, a + 7 * s) for a, s in zip(PAIR.mean(0), PAIR.std(0), strict=True)]
MODELS = {
    "closed": lambda k=2, **s: ProbabilisticPCA(k, **s),
    "em": lambda k=2, **s: ProbabilisticPCA(k, inference="em", **s),
    "factors": lambda k=2, **s: FactorAnalysis(k, **s),
}
every = pytest.mark.parametrize("name", MODELS)
by_em = pytest.mark.parametrize("name", ["em", "factors"])


def fitted(model, rows=X, **settings):
    return Learner(model, **COMMON).fit(rows, **settings)


def of(learner):
    """Mean, loadings and variances of the noise."""
    model = learner.objective_
    noise = np.exp(2 * model.log_scale.detach().numpy())
    return model.mean.detach().numpy(), model.loadings.detach().numpy(), np.broadcast_to(noise, len(model.mean))


def covariance(learner):
    _, loadings, noise = of(learner)
    return loadings @ loadings.T + np.diag(noise)


def marginal(rows, mean, c):
    """log p of what is observed, by scipy, row after row."""
    out = np.zeros(len(rows))
    for i, row in enumerate(rows):
        o = ~np.isnan(row)
        if o.any():
            out[i] = stats.multivariate_normal(mean[o], c[np.ix_(o, o)]).logpdf(row[o])
    return out


def posterior_of(learner, row):
    """Mean and covariance of z given a row, by conditioning the joint normal of (z, x) on what is observed."""
    mean, w, noise = of(learner)
    o = ~np.isnan(row)
    gain = w[o].T @ np.linalg.inv(w[o] @ w[o].T + np.diag(noise[o]))
    return gain @ (row[o] - mean[o]), np.eye(w.shape[1]) - gain @ w[o]


# --- against peers ----------------------------------------------------------------------------------------


def test_the_closed_form_is_scikit_learns_pca():
    learner, peer = fitted(ProbabilisticPCA(2)), decomposition.PCA(2).fit(X)
    # scikit-learn divides by n - 1, maximum likelihood by n
    np.testing.assert_allclose(of(learner)[2], peer.noise_variance_ * 299 / 300, rtol=1e-9)
    np.testing.assert_allclose(covariance(learner), peer.get_covariance() * 299 / 300, rtol=1e-9, atol=1e-12)
    peer.noise_variance_ *= 299 / 300
    peer.explained_variance_ = peer.explained_variance_ * 299 / 300
    np.testing.assert_allclose(learner.log_prob(X), peer.score_samples(X), rtol=1e-9)
    axes = of(learner)[1] / np.linalg.norm(of(learner)[1], axis=0)
    np.testing.assert_allclose(np.abs(axes.T @ peer.components_.T), np.eye(2), atol=1e-9)


def test_factor_analysis_is_scikit_learns():
    learner = fitted(FactorAnalysis(2, tolerance=1e-13))
    peer = decomposition.FactorAnalysis(2, tol=1e-12, max_iter=100_000, svd_method="lapack").fit(X)
    np.testing.assert_allclose(of(learner)[2], peer.noise_variance_, rtol=1e-3)
    np.testing.assert_allclose(covariance(learner), peer.get_covariance(), rtol=1e-3, atol=1e-3)
    assert learner.score(X) == pytest.approx(peer.score(X), abs=1e-8)
    np.testing.assert_allclose(learner.log_prob(X), peer.score_samples(X), atol=1e-3)
    w = of(learner)[1] / np.sqrt(of(learner)[2])[:, None]
    assert abs((w.T @ w)[0, 1]) < 1e-9
    assert (w.T @ w)[0, 0] > (w.T @ w)[1, 1]


@every
def test_the_density_is_scipys_with_gaps_too(name):
    learner = fitted(MODELS[name]())
    peer = stats.multivariate_normal(of(learner)[0], covariance(learner))
    np.testing.assert_allclose(learner.log_prob(X), peer.logpdf(X), rtol=1e-9)
    rows = np.vstack([GAPS[:40], np.full((1, 6), np.nan)])
    np.testing.assert_allclose(
        learner.log_prob(rows), marginal(rows, of(learner)[0], covariance(learner)), rtol=1e-9, atol=1e-12
    )
    assert learner.log_prob(rows)[-1] == 0
    assert (learner.log_prob.kind, learner.sample.kind, learner.posterior.kind) == ("exact", "direct", "direct")


def test_the_closed_form_is_ems_limit():
    closed, em = fitted(ProbabilisticPCA(2)), fitted(ProbabilisticPCA(2, inference="em", tolerance=1e-14))
    for a, b in zip(of(closed), of(em), strict=True):  # the loadings too: both are along the principal axes
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
    assert em.score(X) == pytest.approx(closed.score(X), abs=1e-10)


@by_em
@pytest.mark.parametrize("rows", [X, GAPS, GAPS[:11], X[:10]], ids=["whole", "gaps", "few with gaps", "few"])
def test_the_likelihood_never_falls_and_is_that_of_what_is_observed(name, rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few rows a column may have no noise left
        learner = fitted(MODELS[name](iterations=300, tolerance=1e-12), rows)
    told = np.asarray(learner.history_["log_likelihood"], dtype=float)
    told = told[~np.isnan(told)]
    assert len(told) > 5
    assert (np.diff(told) > -1e-10).all()
    assert told[-1] - told[0] > 0.1
    own = marginal(rows, of(learner)[0], covariance(learner)).mean()
    assert -1e-10 < own - told[-1] < 1e-4  # told before the last step
    assert learner.score(rows) == pytest.approx(own, abs=1e-7)


@by_em
def test_with_gaps_em_ends_at_the_maximum_of_what_is_observed(name):
    """Found directly, by a quasi-Newton method on the marginals of a tiny case."""
    rows = GAPS[:60, :4]
    rows = rows[~np.isnan(rows).all(1)]
    learner = fitted(MODELS[name](1, tolerance=1e-13), rows)
    x, seen = torch.as_tensor(np.nan_to_num(rows)), torch.as_tensor(~np.isnan(rows))
    width = 1 if name == "em" else 4

    def loss(theta):
        t = torch.tensor(theta, requires_grad=True)
        c = torch.outer(t[4:8], t[4:8]) + torch.diag((2 * t[8:]).exp().expand(4))
        value = torch.zeros((), dtype=torch.float64)
        for row, o in zip(x, seen, strict=True):
            value = value - torch.distributions.MultivariateNormal(t[:4][o], c[o][:, o]).log_prob(row[o])
        value = value / len(x)
        value.backward()
        return value.item(), t.grad.numpy()

    start = np.concatenate([np.nanmean(rows, 0), np.ones(4), np.zeros(width)])
    best = optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9})
    assert learner.score(rows) == pytest.approx(-best.fun, abs=1e-8)
    np.testing.assert_allclose(of(learner)[0], best.x[:4], atol=1e-3)
    np.testing.assert_allclose(np.abs(of(learner)[1][:, 0]), np.abs(best.x[4:8]), atol=1e-3)
    np.testing.assert_allclose(of(learner)[2], np.broadcast_to(np.exp(2 * best.x[8:]), 4), atol=2e-3)


# --- the posterior ----------------------------------------------------------------------------------------


@every
def test_posterior_transform_and_the_way_back(name):
    learner = fitted(MODELS[name]())
    for row in (X[0], GAPS[np.isnan(GAPS).sum(1).argmax()]):
        mean, c = posterior_of(learner, row)
        drawn = learner.posterior(np.repeat(row[None], 4, 0), draws=10_000, random_state=0)
        assert drawn.shape == (4, 10_000, 2)
        drawn = drawn.reshape(-1, 2)
        wide = np.sqrt(np.diag(c) / len(drawn))
        np.testing.assert_allclose(learner.transform(row[None])[0], mean, rtol=1e-9, atol=1e-12)
        assert (np.abs(drawn.mean(0) - mean) < 5 * wide).all()
        np.testing.assert_allclose(np.cov(drawn.T), c, atol=6 * np.diag(c).max() / np.sqrt(len(drawn)))
    z = learner.transform(X)
    np.testing.assert_allclose(learner.inverse_transform(z), z @ of(learner)[1].T + of(learner)[0], rtol=1e-9)
    one = learner.posterior(X[:3], random_state=1)
    assert one.shape == (3, 1, 2)
    assert len(np.unique(learner.posterior(X[[0, 0]], draws=3, random_state=1))) == 12  # no draw is another's


def elbo(learner, row, mean, c):
    """E_q[log p(x | z)] - KL(q || p(z)) for q = N(mean, c), in closed form."""
    centre, w, noise = of(learner)
    rest = row - centre - w @ mean
    given = -0.5 * (np.log(2 * np.pi * noise) + rest**2 / noise + np.einsum("jk,kl,jl->j", w, c, w) / noise).sum()
    return given - 0.5 * (np.trace(c) + mean @ mean - len(mean) - np.linalg.slogdet(c)[1])


def divergence(mean, c, other, d):
    """KL between two normals."""
    away, inverse = other - mean, np.linalg.inv(d)
    logs = np.linalg.slogdet(d)[1] - np.linalg.slogdet(c)[1]
    return 0.5 * (np.trace(inverse @ c) + away @ inverse @ away - len(mean) + logs)


def gap_of(learner, row, seed):
    """log p - ELBO, and KL(q || posterior), with the posterior's moments as the model itself tells them."""
    own = np.random.default_rng(seed)
    factor = np.tril(own.normal(size=(2, 2)), -1) + np.diag(own.uniform(0.2, 2.0, 2))
    mean, c = own.normal(size=2), factor @ factor.T
    model, x = learner.objective_, torch.as_tensor(row[None])
    found = model._infer(x, None)
    precision = (found.factor @ found.factor.mT).detach().numpy()
    exact = divergence(mean, c, found.mean[0].detach().numpy(), np.linalg.inv(precision))
    return learner.log_prob(row[None])[0] - elbo(learner, row, mean, c), exact


@every
def test_log_p_less_the_elbo_is_the_divergence_from_the_posterior(name):
    learner = fitted(MODELS[name]())
    for seed, row in enumerate(X[:20]):
        gap, exact = gap_of(learner, row, seed)
        assert gap == pytest.approx(exact, rel=1e-8)
        assert gap > 0
        mean, c = posterior_of(learner, row)
        assert elbo(learner, row, mean, c) == pytest.approx(learner.log_prob(row[None])[0], rel=1e-10)


@every
def test_what_is_imputed_has_the_conditional_mean_and_covariance(name):
    learner = fitted(MODELS[name]())
    mean, c = of(learner)[0], covariance(learner)
    row = X[5].copy()
    row[[1, 4]] = np.nan
    drawn = learner.impute(np.repeat(row[None], 20_000, 0), random_state=0)
    o, g = [0, 2, 3, 5], [1, 4]
    gain = c[np.ix_(g, o)] @ np.linalg.inv(c[np.ix_(o, o)])
    assert (drawn[:, o] == row[o]).all()
    np.testing.assert_allclose(drawn[:, g].mean(0), mean[g] + gain @ (row[o] - mean[o]), atol=0.05)
    np.testing.assert_allclose(np.cov(drawn[:, g].T), c[np.ix_(g, g)] - gain @ c[np.ix_(o, g)], atol=0.08)


# --- the contract -----------------------------------------------------------------------------------------


@every
def test_it_is_a_density(name):
    check_density(MODELS[name](1), PAIR, box=BOX)
    check_objective(MODELS[name](1), Arrays(torch.as_tensor(X), observed=torch.ones(X.shape) > 0))


@by_em
def test_it_is_a_density_where_it_has_learned_from_gaps(name):
    check_density(MODELS[name](1), GAPS[:, :2], box=BOX)


@every
def test_weights_count_as_rows(name):
    weight = np.random.default_rng(1).integers(0, 3, len(X)).astype(float)
    for rows in (X,) if name == "closed" else (X, GAPS):
        tight = {} if name == "closed" else {"tolerance": 0.0, "iterations": 50}  # the whole way is the same
        one = fitted(MODELS[name](**tight), rows, sample_weight=weight)
        two = fitted(MODELS[name](**tight), np.repeat(rows, weight.astype(int), 0))
        for a, b in zip(of(one), of(two), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    assert not np.allclose(of(one)[1], of(fitted(MODELS[name](), rows))[1], rtol=1e-3)


@by_em
def test_rows_condensed_and_in_parts_are_as_in_one(name, monkeypatch):
    plain = [of(fitted(MODELS[name](iterations=5, tolerance=0.0), rows)) for rows in (X, GAPS)]
    monkeypatch.setattr(linear, "_condensed", lambda x, weight: (x, torch.ones_like(x) > 0, weight))
    monkeypatch.setattr("weft.objectives.densities.normals._NUMBERS", 100)
    for rows, wanted in zip((X, GAPS), plain, strict=True):
        for a, b in zip(of(fitted(MODELS[name](iterations=5, tolerance=0.0), rows)), wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


@by_em
def test_replicas_begin_apart_and_are_the_single_runs(name):
    model = MODELS[name](iterations=3, tolerance=0.0)
    both = Learner(model, **COMMON, replicas=2).fit(GAPS)
    single = Learner(model, **{**COMMON, "random_state": both.seeds_[1] if hasattr(both, "seeds_") else 1}).fit(GAPS)
    np.testing.assert_allclose(both.replica(1).log_prob(X), single.log_prob(X), rtol=1e-9)
    assert not np.allclose(both.replica(0).log_prob(X), both.replica(1).log_prob(X), rtol=1e-6)
    each = np.stack([both.replica(k).log_prob(GAPS) for k in range(2)])
    np.testing.assert_allclose(both.log_prob(GAPS), np.logaddexp(*each) - np.log(2), rtol=1e-9)
    assert both.impute(GAPS, random_state=0).shape == X.shape
    with pytest.raises(ValueError, match=r"replica"):
        both.posterior(X)


@every
def test_in_single_precision_it_is_solved_in_double(name):
    far = X + 1000
    single = Learner(MODELS[name](), random_state=0, device="cpu").fit(far.astype(np.float32))
    double = fitted(MODELS[name](), far.astype(np.float32).astype(np.float64))
    for a, b in zip(of(single), of(double), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_free_parameters_leave_the_rotation_out():
    assert fitted(ProbabilisticPCA(2)).objective_.free_parameters() == 6 + (12 - 1) + 1
    assert fitted(FactorAnalysis(2)).objective_.free_parameters() == 6 + (12 - 1) + 6
    assert fitted(FactorAnalysis(1), PAIR).objective_.free_parameters() == 2 + 3  # no more than a Gaussian's


@every
def test_a_table_is_in_its_own_units(name):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": 1000 * X[:, 0], "b": X[:, 1] - 5, "c": X[:, 2]})
    learner = fitted(MODELS[name](1), table)
    drawn = learner.sample(20_000, random_state=0)
    assert list(drawn.columns) == ["a", "b", "c"]
    np.testing.assert_allclose(drawn.mean(), table.mean(), atol=5 * table.std().max() / 100)
    # A total probability of 1 over the draws' own law: E[1 / p] over a box is its volume.
    peer = stats.multivariate_normal(table.mean(), np.cov(drawn.T))
    np.testing.assert_allclose(learner.log_prob(table), peer.logpdf(table), atol=0.3)
    assert list(learner.impute(table.assign(b=np.nan), random_state=0).columns) == ["a", "b", "c"]


def test_a_constant_column_is_no_matter_to_pca_and_is_refused_by_factors():
    rows = np.column_stack([X, np.full(300, 1.5)])
    assert np.isfinite(fitted(ProbabilisticPCA(2), rows).log_prob(rows)).all()
    with pytest.raises(ValueError, match=r"expected numbers that vary for FactorAnalysis, got 1.5 in every row of c"):
        fitted(FactorAnalysis(2), rows)


# --- mutants ----------------------------------------------------------------------------------------------


@every
def test_a_density_without_its_log_determinant_is_caught(name, monkeypatch):
    plain = linear.infer

    def wrong(*given):
        found = plain(*given)
        return found._replace(evidence=found.evidence + torch.diagonal(found.factor, dim1=-2, dim2=-1).log().sum(-1))

    class Broken(type(MODELS[name]())):
        def log_prob(self, x, observed=None):
            masks = None if observed is None or bool(observed.all()) else observed
            return wrong(x, masks, self.mean, self.loadings, self.log_scale).evidence

    settings = {"inference": "em"} if name == "em" else {}
    with pytest.raises(ContractError, match="total probability"):
        check_density(Broken(1, **settings), PAIR, box=BOX)


def test_a_wrong_noise_is_caught(monkeypatch):
    """By all the columns in place of those that are left, as if nothing were explained twice."""
    plain = ProbabilisticPCA._noise
    monkeypatch.setattr(ProbabilisticPCA, "_noise", lambda self, s, c, spread: plain(self, s, c, spread) * 4 / 6)
    with pytest.raises(AssertionError):
        test_the_closed_form_is_scikit_learns_pca()
    with pytest.raises(AssertionError):
        test_the_closed_form_is_ems_limit()
    plain_of_factors = FactorAnalysis._noise
    monkeypatch.setattr(FactorAnalysis, "_noise", lambda self, s, c, spread: plain_of_factors(self, s, c, spread) * 0.9)
    with pytest.raises(AssertionError):
        test_factor_analysis_is_scikit_learns()


@every
def test_a_posterior_without_the_noise_is_caught(name, monkeypatch):
    """(W'W)^-1 and M^-1 with unit noise, in place of (I + W' diag(psi)^-1 W)^-1."""
    plain = linear.LinearLatent._infer

    def wrong(self, x, observed):
        found = plain(self, x, observed)
        return found._replace(factor=torch.linalg.cholesky(torch.eye(2) + self.loadings.mT @ self.loadings))

    learner = fitted(MODELS[name]())
    gap, exact = gap_of(learner, X[0], 0)
    assert gap == pytest.approx(exact, rel=1e-8)
    monkeypatch.setattr(linear.LinearLatent, "_infer", wrong)
    gap, exact = gap_of(learner, X[0], 0)
    assert gap != pytest.approx(exact, rel=1e-2)
    with pytest.raises(AssertionError):
        test_posterior_transform_and_the_way_back(name)


@by_em
def test_em_that_takes_gaps_for_values_is_caught(name, monkeypatch):
    plain = linear.infer
    monkeypatch.setattr(linear, "infer", lambda x, m, *given: plain(x, torch.ones_like(m) if given[3:] else m, *given))
    with pytest.raises(AssertionError):
        test_with_gaps_em_ends_at_the_maximum_of_what_is_observed(name)


def test_gaps_drawn_without_regard_to_what_is_observed_are_caught(monkeypatch):
    monkeypatch.setattr(
        linear.LinearLatent, "impute", lambda self, x, observed: torch.where(observed, x, self.sample(len(x)))
    )
    linear.LinearLatent.impute.capability = linear.LinearLatent.sample.capability.__class__(
        merge="share", kind="direct", asks="rows", gives="x"
    )
    with pytest.raises(ContractError):
        check_density(ProbabilisticPCA(1), PAIR, box=BOX)


# --- bad input --------------------------------------------------------------------------------------------


def test_bad_settings_speak():
    for model in (ProbabilisticPCA, FactorAnalysis):
        with pytest.raises(ValueError, match=r"expected .*latent to be an integer >= 1, got 0"):
            fitted(model(0))
        with pytest.raises(ValueError, match=r"expected fewer latents than columns for .*, got latent=6 for 6 columns"):
            fitted(model(6))
        with pytest.raises(TypeError, match=r"latent to be an integer >= 1, got '2'"):
            fitted(model("2"))
        with pytest.raises(ValueError, match=r"tolerance to be a number >= 0, got -1"):
            fitted(model(tolerance=-1.0))
        with pytest.raises(ValueError, match=r"iterations to be an integer >= 1, got 0"):
            fitted(model(iterations=0))
    with pytest.raises(ValueError, match=r"inference to be .*closed.*em"):
        fitted(ProbabilisticPCA(2, inference="vb"))
    with pytest.raises(ValueError, match=r"floor to be a number in \(0, 1\), got 0"):
        fitted(FactorAnalysis(2, floor=0.0))
    with pytest.raises(ValueError, match=r"got latent=1 for 1 column, .*Gaussian"):
        fitted(ProbabilisticPCA(1), X[:, :1])


def test_bad_rows_speak():
    with pytest.raises(ValueError, match=r"expected rows without gaps .*inference='closed'.*take inference='em'"):
        fitted(ProbabilisticPCA(2), GAPS)
    plane = np.column_stack([PAIR, PAIR.sum(1), PAIR[:, 0] - PAIR[:, 1]])
    for inference in ("closed", "em"):
        with pytest.raises(ValueError, match=r"rows that lie in one: no noise is left.*fewer latents"):
            fitted(ProbabilisticPCA(2, inference=inference), plane)
    with pytest.raises(ValueError, match=r"rows that lie in one"):
        fitted(ProbabilisticPCA(2), np.full((5, 3), 1.5))
    for model in (ProbabilisticPCA(1, inference="em"), FactorAnalysis(1)):
        with pytest.raises(ValueError, match=r"got none in column 1|gaps in every row of column 1"):
            fitted(model, np.column_stack([X[:, 0], np.full(300, np.nan), X[:, 1]]))
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match=r"columns whose law is 'normal' for FactorAnalysis, got b"):
        fitted(FactorAnalysis(1), pandas.DataFrame({"a": X[:, 0], "b": ["u", "v"] * 150}))


def test_draws_that_are_none_speak():
    learner = fitted(ProbabilisticPCA(2))
    with pytest.raises(ValueError, match=r"expected draws to be an integer >= 1, got 0"):
        learner.posterior(X[:2], draws=0)
    with pytest.raises(TypeError, match=r"expected draws to be an integer >= 1, got '3'"):
        learner.posterior(X[:2], draws="3")


@by_em
def test_em_says_where_it_has_not_converged(name):
    with pytest.warns(UserWarning, match=r"has not converged in 3 iterations: .*iterations=30"):
        fitted(MODELS[name](iterations=3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(MODELS[name](iterations=3, tolerance=0.0))  # as many as were asked for


def test_a_column_without_noise_is_said():
    rows = np.column_stack([X, X[:, 0]])
    with pytest.warns(UserWarning, match=r"the noise of column \d sits on the floor .*Heywood"):
        learner = fitted(FactorAnalysis(2, iterations=2000, tolerance=1e-7), rows)
    assert np.isfinite(learner.log_prob(rows)).all()
