"""Bayes' rule over densities, and naive Bayes: scikit-learn's, tables by hand, conditions that speak."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits, load_iris
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, GaussianNB

from weft import Learner
from weft.core import capability
from weft.objectives import ICA, ClassConditional, Gaussian, GaussianMixture, Independent, Mixture, NaiveBayes
from weft.objectives.densities import class_conditional
from weft.sources import Arrays
from weft.testing import ContractError, check_density, check_objective, every_row

rng = np.random.default_rng(0)
COMMON = {"random_state": 0, "dtype": "float64", "device": "cpu"}
X, Y = load_iris(return_X_y=True)
LABELS = np.array(["setosa", "versicolor", "virginica"])[Y]
BITS = (rng.random((200, 3)) < 0.5).astype(float)
KIND = (BITS.sum(1) + rng.normal(size=200) > 1.5).astype(int)


def fitted(model, rows=X, y=Y, **settings):
    return Learner(model, **{**COMMON, **settings}).fit(rows, y)


def test_gaussian_naive_bayes_is_scikit_learns():
    digits, label = load_digits(return_X_y=True)  # with pixels that are constant in a class, and some in all
    weight = rng.random(len(label))
    peer = GaussianNB(var_smoothing=1e-3).fit(digits, label, weight)
    # scikit-learn takes the floor of the variance of rows without their weights.
    own = NaiveBayes(floor=1e-3 * digits.var(0).max() / _weighted_variance(digits, weight).max())
    learner = Learner(own, **COMMON).fit(digits, label, sample_weight=weight)
    np.testing.assert_allclose(learner.predict_proba(digits), peer.predict_proba(digits), rtol=1e-6, atol=1e-300)
    np.testing.assert_array_equal(learner.predict(digits), peer.predict(digits))
    plain = GaussianNB().fit(X, Y)
    np.testing.assert_allclose(fitted(NaiveBayes()).predict_proba(X), plain.predict_proba(X), rtol=1e-8, atol=1e-300)


def _weighted_variance(rows, weight):
    mean = np.average(rows, 0, weight)
    return np.average((rows - mean) ** 2, 0, weight)


def test_bernoulli_and_categorical_naive_bayes_are_scikit_learns():
    for smoothing in (1.0, 0.3):
        peer = BernoulliNB(alpha=smoothing).fit(BITS, KIND)
        learner = fitted(NaiveBayes(law="bernoulli", smoothing=smoothing), BITS, KIND)
        np.testing.assert_allclose(learner.predict_proba(BITS), peer.predict_proba(BITS), rtol=1e-9)
        codes = rng.integers(0, 4, (200, 3))
        categorical = CategoricalNB(alpha=smoothing, min_categories=4).fit(codes, KIND)
        learner = fitted(NaiveBayes(law="categorical", classes=4, smoothing=smoothing), codes.astype(float), KIND)
        np.testing.assert_allclose(
            learner.predict_proba(codes.astype(float)), categorical.predict_proba(codes), rtol=1e-9
        )


def test_gaussians_of_each_class_are_quadratic_discriminants():
    learner = fitted(ClassConditional(Gaussian()))
    counts = np.bincount(Y)
    each = [stats.multivariate_normal(X[c == Y].mean(0), np.cov(X[c == Y].T, bias=True)) for c in range(3)]
    logs = np.stack([one.logpdf(X) for one in each], -1)
    np.testing.assert_allclose(learner.log_prob(X, y=Y), logs[np.arange(150), Y], rtol=1e-8)
    joint = np.exp(logs) * counts / counts.sum()
    np.testing.assert_allclose(learner.log_prob(X), np.log(joint.sum(1)), rtol=1e-8)
    np.testing.assert_allclose(learner.predict_proba(X), joint / joint.sum(1, keepdims=True), rtol=1e-6, atol=1e-12)
    peer = QuadraticDiscriminantAnalysis().fit(X, Y)
    assert (learner.predict(X) == peer.predict(X)).mean() > 0.99
    assert learner.score(X, Y) == (learner.predict(X) == Y).mean()


def test_rows_of_a_class_are_drawn_by_its_density():
    learner = fitted(ClassConditional(Gaussian()), y=LABELS)
    drawn = learner.sample(4000, y=np.repeat(["setosa", "virginica"], 2000), random_state=0)
    np.testing.assert_allclose(drawn[:2000].mean(0), X[Y == 0].mean(0), atol=0.05)
    np.testing.assert_allclose(drawn[2000:].mean(0), X[Y == 2].mean(0), atol=0.08)
    np.testing.assert_allclose(learner.sample(6000, random_state=1).mean(0), X.mean(0), atol=0.1)


def test_the_joint_sums_to_one_over_rows_and_classes():
    for model in (NaiveBayes(law="bernoulli"), ClassConditional(Mixture(2, law="bernoulli", tolerance=1e-3))):
        learner = fitted(model, BITS, KIND)
        rows = every_row([2, 2, 2]).astype(float)
        for c in (0, 1):
            assert np.exp(learner.log_prob(rows, y=np.full(8, c))).sum() == pytest.approx(1)
        assert np.exp(learner.log_prob(rows)).sum() == pytest.approx(1)
        check_density(model, BITS, support=every_row([2, 2, 2]), fields={"y": KIND})


@pytest.mark.parametrize("broken", ["prior", "classes"])
def test_mutants_are_caught(monkeypatch, broken):
    if broken == "prior":  # Bayes' rule without p(y)
        monkeypatch.setattr(ClassConditional, "log_joint", lambda self, x, observed: self.log_given(x, observed))
    if broken == "classes":  # rows of all classes for each

        def once(self, state, rows):
            yield from self.source.once(state, rows)

        monkeypatch.setattr(class_conditional._Class, "once", once)
    with pytest.raises(AssertionError):
        test_gaussians_of_each_class_are_quadratic_discriminants()


@pytest.mark.parametrize("model", [NaiveBayes(law="bernoulli"), ClassConditional(Mixture(2, law="bernoulli"))])
@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("marginal", "total probability of 1 by enumeration, as exact says, got 2"),
        ("condition", r"total probability of 1 by enumeration given y = [01]"),
        ("sample", r"samples given y = [01] with the frequencies"),
        ("gaps", "density of what is observed"),
    ],
)
def test_mutants_are_no_densities(monkeypatch, model, broken, told):
    given, joint, right = ClassConditional.log_given, ClassConditional.log_joint, ClassConditional.sample
    if broken == "marginal":  # a sum over classes that all count whole
        monkeypatch.setattr(ClassConditional, "log_joint", given)
    if broken == "condition":  # p(x, y) for p(x | y)
        monkeypatch.setattr(
            ClassConditional, "log_given", lambda self, *told: self.logits.log_softmax(-1) + given(self, *told)
        )
    if broken == "sample":  # of any class, whichever is asked for

        @capability(merge="share", kind="direct", gives="x")
        def sample(self, n, y=None):
            return right(self, n)

        monkeypatch.setattr(ClassConditional, "sample", sample)
    if broken == "gaps":  # taken for 0
        monkeypatch.setattr(ClassConditional, "log_joint", lambda self, x, seen: joint(self, x, torch.ones_like(seen)))
    with pytest.raises(ContractError, match=told):
        check_density(model, BITS, support=every_row([2, 2, 2]), fields={"y": KIND})


def test_gaps_are_left_out_exactly():
    holes = np.where(rng.random(X.shape) < 0.3, np.nan, X)
    learner = fitted(NaiveBayes(), holes)
    means, variances = (np.array([f(holes[c == Y], 0) for c in range(3)]) for f in (np.nanmean, np.nanvar))
    variances += 1e-9 * np.nanvar(holes, 0).max()
    logs = stats.norm(means[:, None], np.sqrt(variances)[:, None]).logpdf(holes)
    joint = np.exp(np.nansum(logs, -1)).T * np.bincount(Y) / 150
    np.testing.assert_allclose(
        learner.predict_proba(holes), joint / joint.sum(1, keepdims=True), rtol=1e-8, atol=1e-300
    )
    assert fitted(ClassConditional(Gaussian()), holes).score(holes, Y) > 0.9


def test_densities_that_are_iterated_or_descended_serve_too():
    mixed = fitted(ClassConditional(GaussianMixture(2, covariance="diagonal", floor=1e-3)))
    assert "log_likelihood of class 2" in mixed.history_[0]
    alone = Learner(GaussianMixture(2, covariance="diagonal", floor=1e-3), **COMMON).fit(X[Y == 1])
    assert mixed.log_prob(X[Y == 1], y=np.ones(50, dtype=int)).mean() == pytest.approx(alone.score(X[Y == 1]), abs=0.2)
    descended = ClassConditional(GaussianMixture(1, inference="gradient", covariance="diagonal"))
    assert not descended.solved
    assert fitted(descended, X - X.mean(0), steps=400, batch_size=None).score(X - X.mean(0), Y) > 0.9


def test_replicas_are_single_runs():
    model = ClassConditional(GaussianMixture(2, covariance="spherical", start="rows", tolerance=1e-4))
    many, one = fitted(model, replicas=3), fitted(model, random_state=2)
    np.testing.assert_allclose(many.replica(2).log_prob(X), one.log_prob(X), rtol=1e-8)
    source = Arrays(torch.as_tensor(X), torch.as_tensor(Y), observed=torch.ones(X.shape) > 0, classes=3)
    check_objective(ClassConditional(Gaussian()), source)
    check_objective(NaiveBayes(), source)


def test_the_flu_table_by_hand():
    """Eight people; flu and headache: P(F | H) = P(H | F) P(F) / P(H) = 2/3."""
    headache, flu = np.array([[1.0]] * 3 + [[0.0]] * 5), np.array([1, 1, 0, 1, 0, 0, 0, 0])
    learner = fitted(NaiveBayes(law="bernoulli", smoothing=0.0), headache, flu)
    assert learner.predict_proba([[1.0]])[0, 1] == pytest.approx(2 / 3)


def test_conditions_that_are_empty_or_unseen_speak():
    learner = fitted(NaiveBayes(), y=LABELS)
    with pytest.raises(ValueError, match=r"expected.*got.*rosa"):
        learner.log_prob(X[:1], y=["rosa"])
    with pytest.raises(ValueError, match=r"expected.*got.*rosa"):
        learner.sample(1, y=["rosa"])
    with pytest.raises(ValueError, match=r"expected 'y' to have a value for each of the 2 rows, got 1"):
        learner.sample(2, y=["setosa"])
    with pytest.raises(ValueError, match=r"rows of every class for NaiveBayes, got none of the class of number 1"):
        Learner(NaiveBayes(), **COMMON).fit(X, Y, sample_weight=(Y != 1).astype(float))
    with pytest.raises(ValueError, match=r"gaps in every row of column 2"):
        fitted(NaiveBayes(), np.where((Y[:, None] == 0) & (np.arange(4) == 2), np.nan, X))
    with pytest.raises(ValueError, match=r"outcome at least once, got one that never came"):
        fitted(NaiveBayes(law="bernoulli", smoothing=0.0), np.zeros((10, 1)), np.arange(10) % 2)
    with pytest.raises(ValueError, match=r"numbers that vary for Independent, got 1 in every row of column 0"):
        Learner(Independent(), **COMMON).fit(np.ones((5, 1)))
    with pytest.raises(ValueError, match=r"expected a density of rows alone"):
        fitted(ClassConditional(NaiveBayes()))


def test_a_density_that_is_descended_has_a_copy_for_each_class():
    """What was given is no part of the model: only its copies are built, reset and trained."""
    y = np.arange(200) % 2
    X = np.random.default_rng(0).laplace(size=(200, 2)) + y[:, None] * [3.0, 0.0]
    learner = Learner(ClassConditional(ICA(inference="gradient")), steps=100, random_state=0, dtype="float64").fit(X, y)
    assert learner.score(X, y) > 0.85
    for c, part in enumerate(learner.module(0).parts):  # each has looked at the rows of its class
        np.testing.assert_allclose(part.mean.numpy(), X[y == c].mean(0))
