"""Predictive checks: tail probabilities hold their level, planted misfits are found, and wrong use speaks."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from weft import Classifier, Learner
from weft.measures import checks as room
from weft.measures import predictive_check
from weft.objectives import VAE, ClassConditional, Gaussian, Independent, ProbabilisticPCA

NORMAL = np.random.default_rng(0).normal(size=(100_000, 2))
STATISTICS = {
    "mean": lambda x: x[:, 0].mean(),
    "deviation": lambda x: x[:, 1].std(),
    "largest": lambda x: x.max(),
    "product": lambda x: x[:, 0] * x[:, 1],  # of each row
}


@pytest.fixture(scope="module")
def right():
    """A model whose law is the data's, for all that few rows can tell."""
    return Learner(Independent(), random_state=0).fit(NORMAL)


def tails(learner, count=150, rows=40, draws=99):
    random = np.random.default_rng(1)
    found = [
        predictive_check(learner, random.normal(size=(rows, 2)), STATISTICS, draws=draws, random_state=k)
        for k in range(count)
    ]
    return np.array([[line.p_value for line in one.table] for one in found])


def far_from_uniform(p):
    return [stats.kstest(own, "uniform").pvalue < 1e-3 for own in p.T]


@pytest.mark.filterwarnings("ignore:expected draws of at least")
def test_tail_probabilities_are_uniform_for_a_right_model(right):
    p = tails(right)
    assert not any(far_from_uniform(p))
    assert (p <= 0.1).mean(0) == pytest.approx(0.1, abs=0.08)
    assert p.min() >= 2 / 100


@pytest.mark.filterwarnings("ignore:expected draws of at least")
def test_a_one_sided_count_is_no_tail_probability(right, monkeypatch):
    """A mutant: doubled without taking the lesser side, it is 1 for half of the data sets."""
    monkeypatch.setattr(room, "tail", lambda v, drawn, upper: min(1.0, 2 * (1 + (drawn >= v).sum()) / (1 + len(drawn))))
    assert all(far_from_uniform(tails(right)))


@pytest.mark.filterwarnings("ignore:expected draws of at least")
def test_data_sets_of_another_size_are_another_distribution(right, monkeypatch):
    """A mutant: the statistic of four times as many rows varies less, and its largest value is larger."""
    honest = room._Data.drawn

    def larger(self, sets, place="sets"):
        parts = list(honest(self, 4 * sets, place))
        return (np.concatenate(parts[4 * k : 4 * k + 4]) for k in range(sets))

    monkeypatch.setattr(room._Data, "drawn", larger)
    monkeypatch.setattr(room, "_number", lambda test, rows, count: float(np.mean(test.function(rows))))
    assert all(far_from_uniform(tails(right, count=100)))


def test_the_usual_statistics_hold_their_level_and_find_what_is_planted(right):
    random = np.random.default_rng(2)
    wrong = [predictive_check(right, random.normal(size=(100, 2)), draws=499).misfits for _ in range(12)]
    assert sum(map(bool, wrong)) <= 4  # at 5 % that is one in a thousand
    skewed = np.stack([random.normal(size=300), (random.gamma(2.0, size=300) - 2) / np.sqrt(2)], 1)
    assert "skewness of column 2" in predictive_check(right, skewed, draws=499).misfits
    tied = random.normal(size=(300, 2)) @ np.array([[1.0, 0.5], [0.0, np.sqrt(0.75)]])
    assert predictive_check(right, tied, draws=499).misfits == ("correlation of the furthest pair",)


@pytest.mark.parametrize("columns", [3, 8])
def test_a_missing_correlation_is_found_and_named_and_a_model_that_has_it_passes(columns):
    random = np.random.default_rng(3)
    X = random.normal(size=(20_000, columns))
    X[:, 2] += 0.7 * X[:, 1]
    blind = predictive_check(Learner(Independent(), random_state=0).fit(X), X[:400], draws=799)
    assert blind.misfits == ("correlation of the furthest pair",)
    assert blind.table[-1].about == "column 2 and column 3"
    assert not predictive_check(Learner(Gaussian(), random_state=0).fit(X), X[:400], draws=799).misfits


def test_rows_of_the_fit_are_said_to_be_conservative():
    X = np.random.default_rng(4).normal(size=(200, 6))
    learner = Learner(Independent(), random_state=0).fit(X)
    own = predictive_check(learner, X, draws=199, trained=True)
    assert not own.misfits  # its means are those of the model, which is no misfit
    assert own.table[0].p_value > 0.9
    assert "conservative" in own.conclusion
    assert "not fitted to" in predictive_check(learner, X[:50] + 0.01, draws=199).conclusion


def test_a_table_is_checked_in_its_own_columns():
    random = np.random.default_rng(5)
    frame = pd.DataFrame(
        {"a": random.normal(5, 2, 300), "leaf": random.choice(["long", "round"], 300), "n": random.poisson(3, 300)}
    )
    learner = Learner(Independent(), random_state=0).fit(frame)
    gaps = frame.copy()
    gaps.loc[:100, "a"] = np.nan
    gaps.loc[50:90, "leaf"] = None
    learner = Learner(Independent(), random_state=0).fit(gaps)
    found = predictive_check(learner, gaps, draws=499, trained=True)
    assert not found.misfits
    named = found.to_frame().index
    assert {"mean of a", "largest of n"} < set(named)
    assert any(name.startswith("share of") and name.endswith("in leaf") for name in named)
    other = gaps.assign(leaf=np.where(random.random(300) < 0.9, "long", "round"))
    assert any("in leaf" in name for name in predictive_check(learner, other, draws=499).misfits)
    seen = {"observed": lambda t: t["a"].notna().sum(), "u": lambda t: (t["leaf"] == "long").mean()}
    with pytest.warns(UserWarning, match="'observed' is not checked: it is the same in the data and in all"):
        own = predictive_check(learner, gaps, seen, draws=199).to_frame()
    assert own.value["observed"] == 199  # what is drawn has the gaps of the data
    assert own.p_value["u"] > 0.05


def test_models_with_latent_variables_and_replicas():
    random = np.random.default_rng(6)
    z = random.normal(size=(4000, 1))
    X = z @ np.ones((1, 3)) + 0.5 * random.normal(size=(4000, 3))
    assert not predictive_check(Learner(ProbabilisticPCA(1), random_state=0).fit(X), X[:300], draws=799).misfits
    apart = Learner(Independent(), random_state=0, replicas=2, validation=None).fit(X)
    assert predictive_check(apart, X[:300], draws=799).misfits == ("correlation of the furthest pair",)


def test_a_model_given_classes_is_checked_for_those_of_the_rows():
    random = np.random.default_rng(8)
    y = np.where(random.random(1000) < 0.5, "left", "right")
    X = 3.0 * (y == "right")[:, None] + random.normal(size=(1000, 1))
    learner, first = Learner(ClassConditional(Independent()), random_state=0).fit(X, y), {"mean": lambda x: x.mean()}
    found, blind = (predictive_check(learner, X[:50], first, draws=99, **given) for given in ({"y": y[:50]}, {}))
    assert not found.misfits
    width = [one.table[0].high - one.table[0].low for one in (found, blind)]
    assert width[1] > 1.4 * width[0]  # whose classes vary from data set to data set
    assert predictive_check(learner, X[:50], first, draws=99, y=["right"] * 50).misfits == ("mean",)
    with pytest.raises(ValueError, match="expected 'y' to have a value for each of 50 rows, got 49"):
        predictive_check(learner, X[:50], first, draws=99, y=y[:49])
    two = Learner(VAE(1, hidden=(4,), conditional=True), steps=1, random_state=0, replicas=2).fit(X, y)
    with pytest.raises(ValueError, match="expected one replica to draw for given y, got 2"):
        predictive_check(two, X[:50], first, draws=99, y=y[:50])


def test_rows_that_the_model_drew_by_the_same_seed_are_not_drawn_again(right):
    X = right.sample(50, random_state=0)
    data = room._Data.of(right, X, {}, 0)
    assert all(not np.isin(X, own).any() for own in data.drawn(20))


class TwoReplicas:
    """Draws as two replicas do: the first half of the rows is the first's."""

    def _answering(self):
        return [0, 1]

    def sample(self, n, random_state):
        return np.repeat([0.0, 1.0], [n // 2, n - n // 2])[:, None]


def test_replicas_are_mixed_in_each_data_set(monkeypatch):
    data = room._Data(TwoReplicas(), np.zeros((50, 1)), 50, None, {}, 0)
    assert all(0.2 < own.mean() < 0.8 for own in data.drawn(20))
    monkeypatch.setattr(room, "permutation", lambda key, n: torch.arange(n))
    assert any(own.mean() in (0, 1) for own in data.drawn(20))


def test_what_cannot_be_checked_says_so(right):
    X = NORMAL[:30]
    with pytest.warns(UserWarning, match="'gone' is not checked: it is nan for the data"):
        gone = predictive_check(right, X, {"gone": lambda x: np.nan, "mean": lambda x: x.mean()}, draws=99)
    assert gone.table[0].p_value is None
    assert gone.table[1].holm == gone.table[1].p_value  # corrected for one
    with pytest.warns(UserWarning, match=r"not finite for \d+ of the 99 data sets"):
        predictive_check(right, X, {"log": lambda x: np.log(max(x[0, 0] + 1e-9, 0.0) or np.nan)}, draws=99)
    with pytest.warns(UserWarning, match="expected draws of at least 440 for 11 statistics, got 99"):
        predictive_check(right, X, draws=99)


def test_a_constant_that_the_model_never_gives_is_a_misfit(right):
    X = np.round(NORMAL[:50])
    whole = {"whole numbers": lambda x: (x == np.round(x)).mean()}
    assert predictive_check(right, X, whole, draws=99).misfits == ("whole numbers",)


def test_bad_input_is_told(right):
    X = NORMAL[:30]
    with pytest.raises(ValueError, match=r"from the statistic 'both', or one for each of 30 rows, got shape \(2,\)"):
        predictive_check(right, X, {"both": lambda x: x.mean(0)})
    with pytest.raises(
        ValueError, match=r"'both', or one for each row, got shape \(2,\) for 2 rows and \(2,\) for one"
    ):
        predictive_check(right, X[:2], {"both": lambda x: x.mean(0)})
    with pytest.raises(TypeError, match="expected numbers from the statistic 'word', got"):
        predictive_check(right, X, {"word": lambda x: "a"})
    with pytest.raises(TypeError, match="expected a function of rows as the statistic 'one', got int"):
        predictive_check(right, X, {"one": 1})
    with pytest.raises(TypeError, match="dictionary of names and functions of rows, got function"):
        predictive_check(right, X, lambda x: x.mean())
    with pytest.raises(TypeError, match="dictionary of names and functions of rows, got dict without any"):
        predictive_check(right, X, {})
    with pytest.raises(ValueError, match="expected draws to be an integer >= 19, got 0"):
        predictive_check(right, X, draws=0)
    with pytest.raises(ValueError, match="at least 2 rows to check, got 1"):
        predictive_check(right, X[:1])
    labelled = Classifier(steps=1, random_state=0).fit(X, (X[:, 0] > 0).astype(int))
    with pytest.raises(TypeError, match=r"expected a learner that draws rows, with sample\(n\), got one of Classif"):
        predictive_check(labelled, X)
