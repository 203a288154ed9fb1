"""Whole numbers under densities of real ones: the bound against its closed form and the mass of each cell."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from weft import Learner
from weft.objectives import ICA, Dequantized, Gaussian, GaussianMixture, Mixture, NaiveBayes
from weft.scores import bits_per_dimension
from weft.testing import check_density, every_row

rng = np.random.default_rng(0)
X = rng.binomial(15, [0.3, 0.6], size=(800, 2))
EVERY = every_row([16, 16])


def fitted(density, X=X, draws=1, **settings):
    objective = Dequantized(density, levels=16, draws=draws)
    return Learner(objective, **{"random_state": 0, "dtype": "float64", **settings}).fit(X)


def cells(learner):
    """Mean and deviation of the normals beneath, in levels."""
    module = learner.module(0).inner
    return 16 * module.mean.detach().numpy(), 16 * np.exp(module.scale.detach().numpy())


def masses(learner, rows):
    """log P of rows: the mass of each cell, by scipy; what is outside of all goes to the nearest."""
    mean, scale = cells(learner)
    low = np.where(rows == 0, -np.inf, rows)
    high = np.where(rows == 15, np.inf, rows + 1.0)
    return np.log(stats.norm.cdf(high, mean, scale) - stats.norm.cdf(low, mean, scale)).sum(1)


def test_the_bound_is_the_mean_over_the_cell_and_below_its_mass():
    learner = fitted(Gaussian(covariance="diagonal"), draws=300)
    mean, scale = cells(learner)
    square = (EVERY + 0.5 - mean) ** 2 + 1 / 12  # E_u (x + u - mean)^2
    wanted = (-square / (2 * scale**2) - np.log(scale * np.sqrt(2 * np.pi))).sum(1)
    told = learner.log_prob(EVERY)
    assert np.mean(told - wanted) == pytest.approx(0, abs=0.02)
    np.testing.assert_allclose(told, wanted, atol=0.5)
    assert (wanted < masses(learner, EVERY)).all()
    assert learner.log_prob.kind == "lower bound"
    assert "by uniform dequantization" in repr(bits_per_dimension(told, 2, dequantized="uniform"))


@pytest.mark.parametrize("density", [Gaussian(covariance="diagonal"), GaussianMixture(2)], ids=["solved", "iterated"])
def test_it_is_a_density(density):
    check_density(Dequantized(density, levels=16, draws=4), X, support=EVERY)


class Summed(Dequantized):
    """A mutant: the units of the cells are left out."""

    def log_prob(self, x, observed=None):
        return super().log_prob(x, observed) + 2 * np.log(16)


def test_units_that_are_left_out_are_caught():
    with pytest.raises(AssertionError, match="probability"):
        check_density(Summed(Gaussian(), levels=16), X, support=EVERY)


def test_samples_are_levels_with_the_frequencies_of_the_cells():
    learner = fitted(Gaussian(covariance="diagonal"))
    drawn = learner.sample(4000, random_state=1)
    assert set(np.unique(drawn)) <= set(range(16))
    share = np.exp(masses(learner, EVERY)).reshape(16, 16).sum(1)
    full = share * 4000 > 5
    seen = np.bincount(drawn[:, 0].astype(int), minlength=16)[full]
    assert stats.chisquare(seen, share[full] / share[full].sum() * seen.sum()).pvalue > 1e-3


def test_what_is_descended_is_descended_on_fresh_cells():
    learner = fitted(ICA(inference="gradient"), steps=200, batch_size=100)
    assert learner.score(X) > fitted(ICA(inference="gradient"), steps=1, batch_size=100).score(X) - 0.05
    assert learner.score(X) < stats.binom.logpmf(X, 15, [0.3, 0.6]).sum(1).mean()


def test_replicas_spread_rows_each_its_own_way():
    several = fitted(Gaussian(), replicas=2)
    means = [several.module(k).inner.mean.detach().numpy() for k in range(2)]
    assert not np.array_equal(*means)
    np.testing.assert_allclose(means[0] * 16, X.mean(0) + 0.5, atol=0.05)


def test_gaps_cost_nothing():
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]}).astype(float)
    table.loc[::3, "b"] = np.nan
    learner = fitted(Gaussian(), X=table.to_numpy(), draws=50)
    told = learner.log_prob([[4.0, np.nan], [np.nan, np.nan]])
    assert told[1] == 0
    assert -3.5 < told[0] < 0


def test_rows_outside_are_refused():
    learner = fitted(Gaussian())
    for wrong, got in ((16.0, "got 16"), (0.5, r"got 0\.5"), (-1.0, "got -1")):
        with pytest.raises(ValueError, match=rf"expected whole numbers 0\.\.15 in column 1, .*{got}"):
            learner.log_prob([[0.0, wrong]])
        with pytest.raises(ValueError, match=got):
            fitted(Gaussian(), X=np.vstack([X, [0.0, wrong]]))
    for inference in ("em", "gradient"):
        inner = Mixture(2, law="poisson", inference=inference)
        with pytest.raises(
            ValueError, match=r"expected a density of real numbers for Dequantized, got Mixture\(law='p"
        ):
            fitted(inner)
    with pytest.raises(
        ValueError, match=r"expected a density of rows alone for Dequantized, got NaiveBayes, which reads"
    ):
        fitted(NaiveBayes())
