"""Data that a density cannot be learned from, or asked about: each is told, before training and at the question."""

import warnings

import numpy as np
import pandas as pd
import pytest

from weft import Learner
from weft.objectives import GAN, Gaussian, GaussianMixture, Independent, Mixture, NaiveBayes, Regression

rng = np.random.default_rng(0)
COUNTS = rng.poisson(3.0, size=(40, 3)).astype(float)
REAL = rng.normal(size=(40, 3))
BAD = COUNTS.copy()
BAD[[3, 7], 1] = -1.0
BAD[9, 2] = 0.5
OUTSIDE = (
    r"expected counts 0, 1, 2, \.\.\. in column 1, whose law is 'poisson', got -1; 3 of 40 rows are outside of the "
    "support, in column 1, column 2: choose another law, or mend those rows"
)
MODELS = {
    "independent": Independent(law="poisson"),
    "mixture by em": Mixture(law="poisson", components=2),
    "mixture by gradient": Mixture(law="poisson", components=2, inference="gradient"),
}


def fitted(objective, X, y=None, **settings):
    return Learner(objective, random_state=0, dtype="float64", **settings).fit(X, y)


@pytest.mark.parametrize("objective", MODELS.values(), ids=MODELS)
def test_rows_outside_of_the_support_are_counted_and_their_columns_named(objective):
    settings = {} if objective.solved else {"steps": 2}
    with pytest.raises(ValueError, match=OUTSIDE):
        fitted(objective, BAD, **settings)
    with pytest.raises(ValueError, match=OUTSIDE):
        fitted(objective, COUNTS, validation=(BAD, None), **settings)
    learner = fitted(objective, COUNTS, **settings)
    for ask in (learner.log_prob, learner.impute, learner.score):
        with pytest.raises(ValueError, match=OUTSIDE):
            ask(BAD)
    assert np.isfinite(learner.log_prob(COUNTS)).all()


def test_rows_of_classes_too():
    y = np.arange(40) % 2
    with pytest.raises(ValueError, match=OUTSIDE):
        fitted(NaiveBayes(law="poisson"), BAD, y)
    learner = fitted(NaiveBayes(law="poisson"), COUNTS, y)
    for ask in (learner.predict, learner.predict_proba, learner.log_prob):
        with pytest.raises(ValueError, match=OUTSIDE):
            ask(BAD)


def test_a_gap_is_outside_of_nothing():
    gaps = COUNTS.copy()
    gaps[0, 0] = np.nan
    learner = fitted(Independent(law="poisson"), gaps)
    assert np.isfinite(learner.log_prob(gaps)).all()


@pytest.mark.parametrize("objective", [Independent(), Gaussian(), GaussianMixture(components=2)], ids=repr)
def test_columns_that_do_not_vary(objective):
    X = REAL.copy()
    X[:, 2] = 7.5
    X[0, 2] = np.nan  # a gap is no variation
    with pytest.raises(ValueError, match=r"expected numbers that vary for \w+, got 7.5 in every row of column 2"):
        fitted(objective, X)
    with pytest.raises(ValueError, match=r"expected numbers that vary in column 'b', .* got 1 throughout"):
        fitted(objective, pd.DataFrame({"a": REAL[:, 0], "b": np.ones(40)}))


def test_a_floor_bounds_the_density_of_one_that_does_not():
    X = np.column_stack([REAL[:, 0], np.full(40, 7.5)])
    learner = fitted(Independent(floor=0.01), X)
    assert learner.objective_.theta[2:].detach().numpy() == pytest.approx([7.5, np.log(0.1)])


def test_whole_numbers_for_a_continuous_density():
    X = rng.integers(0, 256, size=(40, 2))
    told = r"got whole ones alone in column 0, column 1, which have probabilities: name their law .* dequantizing"
    for given in (X, X.astype(float)):  # a cast makes no density of it
        with pytest.warns(UserWarning, match=told):
            fitted(Independent(), given)
    with pytest.warns(UserWarning, match="whole ones alone in column 1, which"):
        fitted(Gaussian(), np.column_stack([REAL[:, 0], X[:, 1]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(Independent(), X + rng.random(X.shape))
        fitted(Independent(law="poisson"), X)


def test_gaps_where_a_model_cannot_have_them():
    class Whole(Independent):
        gaps = False

    gaps = REAL.copy()
    gaps[4, 1] = np.nan
    with pytest.raises(ValueError, match=r"contains NaN.*first in row 4.*impute or drop"):
        fitted(Whole(), gaps)
    table = pd.DataFrame(gaps, columns=list("abc"))
    with pytest.raises(ValueError, match=r"a value of column 'b' in every row, got none in row 5.*gaps = True"):
        fitted(Whole(), table)


@pytest.mark.parametrize(
    ("objective", "name", "message"),
    [
        (
            GAN(),
            "log_prob",
            r"GAN tells no density of a row, .* Independent\(\) or Mixture\(\), or compare its samples",
        ),
        (GAN(), "impute", r"GAN does not fill in what is missing; .*; GAN offers discriminate, ratio, sample$"),
        (
            Regression(),
            "log_prob",
            r"Regression tells no density of a row, .* or Mixture\(\); Regression offers predict$",
        ),
        (Regression(), "sample", "Regression draws no rows; take an objective that models the rows"),
    ],
    ids=["gan, log_prob", "gan, impute", "regression, log_prob", "regression, sample"],
)
def test_what_has_no_density_says_what_to_do(objective, name, message):
    learner = Learner(objective)
    assert not hasattr(learner, name)
    with pytest.raises(AttributeError, match=message):
        getattr(learner, name)


def test_classes_are_told_apart_by_whole_numbers_without_a_warning():
    X, y = rng.integers(0, 17, size=(40, 2)), np.arange(40) % 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(NaiveBayes(), X, y)
