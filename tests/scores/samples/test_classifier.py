"""The classifier two-sample test: its level with and without permutations, its power, what it answers."""

import numpy as np
import pytest
from scipy import stats
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LinearRegression
from sklearn.neighbors import KNeighborsClassifier

from weft.scores import c2st
from weft.scores.samples import classifier


def test_a_fold_s_p_value_is_fisher_s():
    rng = np.random.default_rng(0)
    guesses, labels = rng.integers(2, size=30), rng.integers(2, size=30)
    table = [[((guesses == a) & (labels == b)).sum() for b in (1, 0)] for a in (1, 0)]
    assert classifier._fisher(guesses, labels) == pytest.approx(stats.fisher_exact(table, "greater").pvalue)


@pytest.mark.parametrize(("m", "n"), [(10, 10), (8, 24)])
@pytest.mark.parametrize("name", ["logistic", "knn"])
def test_the_level_holds(name, m, n):
    rng = np.random.default_rng(0)
    p = [
        c2st(rng.normal(size=(m, 2)), rng.normal(size=(n, 2)), classifier=name, random_state=i).p_value
        for i in range(150)
    ]
    for level in (0.05, 0.2):
        assert sum(value <= level for value in p) <= stats.binom.ppf(0.9999, len(p), level)


def test_by_permutations_the_level_is_exact():
    rng = np.random.default_rng(0)
    options = {"classifier": KNeighborsClassifier(1), "permutations": 4}
    p = [c2st(rng.normal(size=(6, 1)), rng.normal(size=(9, 1)), random_state=i, **options).p_value for i in range(150)]
    assert sum(value <= 0.2 for value in p) <= stats.binom.ppf(0.9999, len(p), 0.2)
    assert set(np.round(5 * np.array(p), 9)) <= {1, 2, 3, 4, 5}


def test_it_has_power():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    shifted, wider = rng.normal(size=(150, 2)) + 1.0, 3 * rng.normal(size=(150, 2))
    assert c2st(X, shifted).p_value < 1e-3
    assert c2st(X, shifted, permutations=19).p_value == 0.05
    assert c2st(X, wider).p_value > 0.01  # a line cannot tell them
    assert c2st(X, wider, classifier="knn").p_value < 1e-3


def test_the_value_is_balanced_and_that_of_rows_unseen():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(40, 2)), rng.normal(size=(160, 2))
    assert c2st(X, Y, classifier=DummyClassifier()).value == 0.5  # calls all of them Y, right in .8
    assert c2st(X, X + 100).value == 1.0
    found = np.mean(
        [c2st(rng.normal(size=(40, 2)), rng.normal(size=(60, 2)), classifier="knn").value for _ in range(40)]
    )
    assert abs(found - 0.5) < 0.04
    assert abs(c2st(X, Y, classifier=KNeighborsClassifier(1)).value - 0.5) < 0.15  # on rows it has seen it is 1


def test_a_row_is_judged_by_a_classifier_without_it():
    class Memory(KNeighborsClassifier):
        def fit(self, X, y):
            seen.append({tuple(row) for row in X})
            return super().fit(X, y)

        def predict(self, X):
            assert not {tuple(row) for row in X} & seen[-1]
            return super().predict(X)

    seen = []
    rng = np.random.default_rng(0)
    answer = c2st(rng.normal(size=(11, 2)), rng.normal(size=(16, 2)), classifier=Memory(1), folds=3)
    assert [len(rows) for rows in seen] == [17, 18, 19]
    assert "3 folds" in answer.about


def test_what_is_no_classifier_is_told():
    X = np.random.default_rng(0).normal(size=(10, 2))
    with pytest.raises(ValueError, match="one of 'logistic', 'knn', got 'logstic'; did you mean 'logistic'"):
        c2st(X, X, classifier="logstic")
    with pytest.raises(TypeError, match="an estimator with fit and predict, got 3"):
        c2st(X, X, classifier=3)
    with pytest.raises(ValueError, match="predict must give labels, not probabilities"):
        c2st(X, X + 1, classifier=LinearRegression())
    with pytest.raises(ValueError, match="expected folds to be an integer >= 2, got 1"):
        c2st(X, X, folds=1)
    with pytest.raises(ValueError, match="expected at least 22 rows in X, got 10"):
        c2st(X, X, folds=11)
