"""Independent component analysis: a density, its Newton steps against autograd, and FastICA as the peer."""

import numpy as np
import pytest
import torch
from scipy.stats import hypsecant, norm
from sklearn.decomposition import FastICA

from weft import Learner
from weft.objectives import ICA, ClassConditional
from weft.objectives.densities.ica import _slopes, log_law
from weft.strategies import ANDMask
from weft.testing import ContractError, check_density

rng = np.random.default_rng(0)
PLANE = rng.laplace(size=(600, 2)) @ np.array([[1.0, 0.5], [-0.3, 2.0]]) + [3.0, -1.0]
BOX = [(-17.0, 23.0), (-36.0, 34.0)]
DOUBLE = {"random_state": 0, "dtype": "float64"}


def amari(found, mixing):
    """0 where unmixing times mixing is a permutation with scales, at most 1 (Amari, Cichocki and Yang, 1996)."""
    p = np.abs(found @ mixing)
    rows, columns = p / p.max(1, keepdims=True), p / p.max(0, keepdims=True)
    d = len(p)
    return ((rows.sum(1) - 1).sum() + (columns.sum(0) - 1).sum()) / (2 * d * (d - 1))


def unmixing(learner):
    return (learner.objective_.unmixing @ learner.objective_.whitening).detach().numpy()


@pytest.mark.parametrize("prior", ["super", "sub", "mixed"])
def test_it_is_a_density(prior):
    learner = check_density(ICA(prior=prior), PLANE, box=BOX)
    assert learner.log_prob.kind == "exact"
    assert learner.sample.kind == "direct"


def test_it_is_one_by_descent():
    check_density(ICA(inference="gradient"), PLANE, box=BOX, settings={"steps": 100})


class NoVolume(ICA):
    def log_prob(self, x):
        return log_law(self.transform(x), self.prior).sum(-1)


class Lighter(ICA):
    """Draws by the logistic law, as wide as the secant's."""

    def sample(self, n):
        drawn = self.transform(super().sample(n))
        return self.inverse_transform(torch.sign(drawn) * drawn.abs() ** 0.8)


@pytest.mark.parametrize(
    ("mutant", "told"), [(NoVolume, "total probability of 1 by quad"), (Lighter, "samples with the f")]
)
def test_mutants_are_caught(mutant, told):
    with pytest.raises(ContractError, match=told):
        check_density(mutant(), PLANE, box=BOX)


def test_the_laws_are_scipys():
    s = torch.linspace(-8, 8, 33, dtype=torch.float64)
    np.testing.assert_allclose(log_law(s, "super"), hypsecant.logpdf(s), rtol=1e-12)
    halves = np.log(0.5 * norm.pdf(s, 1) + 0.5 * norm.pdf(s, -1))
    np.testing.assert_allclose(log_law(s, "sub"), halves, rtol=1e-9)
    share = torch.full((33,), -0.4, dtype=torch.float64)
    p = 1 / (1 + np.exp(0.4))
    both = np.log(p * hypsecant.pdf(s) + (1 - p) * np.exp(halves))
    np.testing.assert_allclose(log_law(s, "mixed", share), both, rtol=1e-9)


@pytest.mark.parametrize("prior", ["super", "sub", "mixed"])
def test_slopes_are_those_of_autograd(prior):
    s = torch.linspace(-4, 4, 41, dtype=torch.float64, requires_grad=True)
    share = torch.full((41,), 0.3, dtype=torch.float64) if prior == "mixed" else None
    slope = torch.autograd.grad(-log_law(s, prior, share).sum(), s, create_graph=True)[0]
    bend = torch.autograd.grad(slope.sum(), s)[0]
    for found, wanted in zip(_slopes(s.detach(), prior, share), (slope.detach(), bend), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("prior", ["super", "mixed"])
def test_newton_ends_where_the_gradient_of_the_likelihood_is_nought(prior):
    learner = Learner(ICA(prior=prior), **DOUBLE).fit(PLANE)
    model = learner.objective_
    loss = -model.log_prob(torch.as_tensor(PLANE)).mean()
    slope = torch.autograd.grad(loss, model.unmixing)[0]
    assert float(slope.abs().max()) < (1e-5 if prior == "super" else 1e-3)
    told = [record["log_likelihood"] for record in learner.history_ if "log_likelihood" in record]
    assert np.all(np.diff(told) > -1e-12)
    assert len(told) < 200
    np.testing.assert_allclose(told[-1], learner.score(PLANE), rtol=1e-9)


def test_newton_and_descent_reach_the_same_optimum():
    newton = Learner(ICA(), **DOUBLE).fit(PLANE)
    descent = Learner(ICA(inference="gradient"), steps=600, batch_size=None, **DOUBLE).fit(PLANE)
    assert abs(newton.score(PLANE) - descent.score(PLANE)) < 1e-4
    assert amari(unmixing(newton), np.linalg.inv(unmixing(descent))) < 0.01


def planted(prior, seed, rows=3000):
    draw = np.random.default_rng(seed)
    heavy, light = draw.laplace(size=(rows, 4)), draw.uniform(-1, 1, size=(rows, 4))
    sources = np.where(np.arange(4) < {"super": 4, "mixed": 2, "sub": 0}[prior], heavy, light)
    mixing = draw.normal(size=(4, 4))
    return sources, sources @ mixing.T, mixing


@pytest.mark.parametrize("prior", ["super", "mixed", "sub"])
def test_sources_are_found_as_by_fast_ica(prior):
    ours, peers = [], []
    for seed in range(3):
        sources, X, mixing = planted(prior, seed)
        learner = Learner(ICA(prior=prior), **DOUBLE).fit(X)
        peer = FastICA(4, whiten="unit-variance", random_state=0, tol=1e-6, max_iter=1000).fit(X)
        ours.append(amari(unmixing(learner), mixing))
        peers.append(amari(peer.components_, mixing))
        match = np.abs(np.corrcoef(learner.transform(X).T, sources.T)[:4, 4:])
        assert sorted(match.argmax(1)) == [0, 1, 2, 3]
        assert match.max(1).min() > 0.99
    # On average no further from the truth than the peer, but for the spread of three runs.
    assert max(ours) < 0.06
    assert np.mean(ours) < np.mean(peers) + 0.01


def test_a_wrong_law_does_not_find_them_and_a_mixed_one_tells_which_is_which():
    sources, X, mixing = planted("sub", 0)
    assert amari(unmixing(Learner(ICA(prior="super"), **DOUBLE).fit(X)), mixing) > 0.1
    sources, X, mixing = planted("mixed", 0)
    learner = Learner(ICA(prior="mixed"), **DOUBLE).fit(X)
    which = np.abs(np.corrcoef(learner.transform(X).T, sources.T)[:4, 4:]).argmax(1)
    share = learner.objective_.share.detach().sigmoid().numpy()
    assert (share[which < 2] > 0.8).all()
    assert (share[which >= 2] < 0.2).all()


def test_inverses_and_weights():
    learner = Learner(ICA(), **DOUBLE).fit(PLANE)
    np.testing.assert_allclose(learner.inverse_transform(learner.transform(PLANE)), PLANE, rtol=1e-10)
    weight = rng.integers(1, 4, 600)
    weighted = Learner(ICA(), **DOUBLE).fit(PLANE, sample_weight=weight)
    repeated = Learner(ICA(), **DOUBLE).fit(np.repeat(PLANE, weight, 0))
    np.testing.assert_allclose(weighted.log_prob(PLANE), repeated.log_prob(PLANE), rtol=1e-6)
    assert learner.objective_.free_parameters() == 4 + 2


def test_replicas_are_single_runs_and_strategies_work_on_it():
    for inference in ("newton", "gradient"):
        settings = {**DOUBLE, "steps": 20} if inference == "gradient" else DOUBLE
        many = Learner(ICA(inference=inference), replicas=2, **settings).fit(PLANE)
        for k in range(2):
            one = Learner(ICA(inference=inference), **{**settings, "random_state": k}).fit(PLANE)
            np.testing.assert_allclose(many.replica(k).log_prob(PLANE), one.log_prob(PLANE), rtol=1e-9)
    learner = Learner(ICA(inference="gradient"), strategy=ANDMask(threshold=0.3), steps=20, **DOUBLE)
    learner.fit(PLANE, environment=np.arange(600) % 2)
    np.testing.assert_allclose(learner.objective_.mean, PLANE.mean(0))


@pytest.mark.parametrize("inference", ["newton", "gradient"])
def test_bad_input(inference):
    ica = Learner(ICA(inference=inference), **DOUBLE)
    with pytest.raises(ValueError, match=r"numbers that vary for ICA, got 1 in every row of column 2"):
        ica.fit(np.column_stack([PLANE, np.ones(600)]))
    with pytest.raises(
        ValueError, match=r"got 600 rows of 3 columns of which 1 follow\(s\), such as among column 0, column 1"
    ):
        ica.fit(np.column_stack([PLANE, PLANE.sum(1)]))
    with pytest.raises(ValueError, match=r"got 2 rows of 2 columns .* cannot be whitened; leave some out"):
        ica.fit(PLANE[:2])
    with pytest.raises(ValueError, match=r"expected real numbers for a density, got whole ones .* dequantizing"):
        ica.fit(np.arange(12).reshape(6, 2))
    with pytest.warns(UserWarning, match=r"real numbers for the density of ICA, got whole ones alone in column 0"):
        ica.fit(np.round(10 * PLANE))
    label, rows = np.arange(600) % 2, PLANE.copy()
    rows[label == 1, 1] = 7.5
    with pytest.raises(ValueError, match=r"numbers that vary for ICA, got 7.5 in every row of column 1"):
        Learner(ClassConditional(ICA(inference=inference)), **DOUBLE).fit(rows, label)
    with pytest.raises(
        ValueError, match="ICA's prior to be one of 'super', 'sub', 'mixed', got 'supper'; did you mean"
    ):
        Learner(ICA(prior="supper")).fit(PLANE)


def test_it_says_where_it_has_not_converged():
    with pytest.warns(UserWarning, match="ICA has not converged in 1 iterations: an entry of the gradient is"):
        Learner(ICA(iterations=1), **DOUBLE).fit(PLANE)


def test_a_table_is_in_its_own_units():
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(PLANE, columns=["a", "b"]).assign(b=lambda t: 1000 * t.b)
    learner = Learner(ICA(), **DOUBLE).fit(table)
    plain = Learner(ICA(), **DOUBLE).fit(PLANE)
    np.testing.assert_allclose(learner.log_prob(table), plain.log_prob(PLANE) - np.log(1000), rtol=1e-6)
    assert list(learner.sample(3, random_state=0).columns) == ["a", "b"]
    with pytest.raises(ValueError, match="columns of real numbers for ICA, got c"):
        Learner(ICA(), **DOUBLE).fit(table.assign(c=["x", "y"] * 300))
