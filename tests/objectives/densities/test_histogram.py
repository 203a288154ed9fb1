"""Histograms against NumPy's; a density with and without tails."""

import numpy as np
import pandas as pd
import pytest

from weft import Learner
from weft.objectives import Histogram
from weft.testing import ContractError, check_density

rng = np.random.default_rng(0)
X = rng.gamma(2.0, size=(300, 1))
PLANE = rng.normal(size=(400, 2)) * [1, 100]
COMMON = {"dtype": "float64", "random_state": 0}


def fitted(X, weight=None, **given):
    return Learner(Histogram(**given), **COMMON).fit(X, sample_weight=weight)


@pytest.mark.parametrize(
    ("rule", "peer"), [("freedman-diaconis", "fd"), ("scott", "scott"), ("sturges", "sturges"), (17, 17)]
)
def test_it_is_numpys(rule, peer):
    density, edges = np.histogram(X[:, 0], peer, density=True)
    learner = fitted(X, bins=rule)
    middle = (edges[1:] + edges[:-1])[:, None] / 2
    np.testing.assert_allclose(np.exp(learner.log_prob(middle)), density, rtol=1e-9)
    assert learner.objective_.free_parameters() == len(density) - 1
    np.testing.assert_array_equal(learner.log_prob([[edges[0] - 1e-3], [edges[-1] + 1e-3]]), -np.inf)
    assert np.isfinite(learner.log_prob(X)).all()  # the last edge too


def test_a_product_of_columns_is_numpys():
    density, edges = np.histogramdd(PLANE, (6, 6), density=True)
    places = np.stack(np.meshgrid(*[(e[1:] + e[:-1]) / 2 for e in edges], indexing="ij"), -1).reshape(-1, 2)
    np.testing.assert_allclose(np.exp(fitted(PLANE, bins=6).log_prob(places)), density.reshape(-1), rtol=1e-9)


def test_widths_know_the_dimension():
    deviation, n = PLANE.std(0), len(PLANE)
    wide = (24 * np.sqrt(np.pi)) ** (1 / 3) * deviation * n**-0.25
    bins = np.ceil(np.ptp(PLANE, 0) / wide)
    assert fitted(PLANE, bins="scott").objective_.counts.tolist() == bins.tolist()
    quartiles = np.subtract(*np.quantile(PLANE, [0.75, 0.25], axis=0))
    bins = np.ceil(np.ptp(PLANE, 0) / (2 * quartiles * n**-0.25))
    assert fitted(PLANE).objective_.counts.tolist() == bins.tolist()


@pytest.mark.parametrize("rule", ["freedman-diaconis", "scott", "sturges", 5])
def test_weight_2_is_the_row_twice(rule):
    weight = rng.integers(0, 4, len(X))
    weight[[X.argmin(), X.argmax()]] = 1
    one, two = fitted(X, weight, bins=rule), fitted(np.repeat(X, weight, axis=0), bins=rule)
    np.testing.assert_allclose(one.log_prob(X), two.log_prob(X), rtol=1e-9)


def test_a_table_is_in_its_own_units():
    table = pd.DataFrame(PLANE, columns=["a", "b"])
    np.testing.assert_allclose(fitted(table, bins=6).log_prob(table), fitted(PLANE, bins=6).log_prob(PLANE), rtol=1e-6)


@pytest.mark.parametrize("tails", [0.0, 0.2])
def test_it_is_a_density_and_draws_by_it(tails):
    learner = check_density(Histogram(bins=6, tails=tails), X, box=[(-12, 22)])
    assert np.isfinite(learner.log_prob([[-5.0], [30.0]])).all() == (tails > 0)
    check_density(Histogram(bins=4, tails=tails), PLANE / [1, 100], box=[(-6, 6), (-6, 6)])


class NoVolume(Histogram):
    def log_prob(self, x):
        return super().log_prob(x) + self.width.log().sum()


class Transposed(Histogram):
    def sample(self, n):
        return super().sample(n).flip(1)


def test_mutants_are_caught():
    with pytest.raises(ContractError, match="total probability of 1"):
        check_density(NoVolume(bins=6), X, box=[(-2, 22)])
    skewed = rng.random((400, 2)) ** [1, 2]
    with pytest.raises(ContractError, match="samples with the frequencies"):
        check_density(Transposed(bins=4), skewed, box=list(zip(skewed.min(0), skewed.max(0), strict=True)))


def test_what_cannot_be_counted_is_told():
    with pytest.raises(ValueError, match=r"at most 10,000,000 cells, got 1,000,000,000 for 9 columns; set bins"):
        fitted(rng.normal(size=(50, 9)), bins=10)
    with pytest.raises(ValueError, match=r"half of the rows are equal; choose bins='scott'"):
        fitted(np.r_[np.zeros((90, 1)), X[:10]])
    with pytest.raises(ValueError, match=r"numbers that vary for Histogram, got 1 in every row"):
        fitted(np.ones((9, 1)))
    with pytest.raises(ValueError, match=r"whole ones.*dequantizing"):
        fitted(np.arange(9)[:, None])
    for wrong in (0, "fd"):
        with pytest.raises(ValueError, match="expected Histogram's bins to be"):
            fitted(X, bins=wrong)
    with pytest.raises(ValueError, match=r"tails to be a number in \[0, 1\)"):
        fitted(X, tails=1.0)
