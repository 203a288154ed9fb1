"""The classifier two-sample test: can a classifier tell whose a row is that it has not seen?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone

from weft.core.legal import Choice, Whole
from weft.core.random import bits, fold, key_of, permutation
from weft.scores.samples.reading import Samples, TwoSample, pair, seeded

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["c2st"]

Labels = NDArray[np.int64]
Array = NDArray[np.float64]
_NAMED = ("logistic", "knn")


class Classifying(Protocol):
    """What is asked of a classifier: scikit-learn's `fit` and `predict`."""

    def fit(self, X: Array, y: Labels) -> object:
        """Learns."""

    def predict(self, X: Array) -> Labels:
        """Gives 0 or 1 for each row."""


def c2st(
    X: Samples,
    Y: Samples,
    *,
    classifier: str | Classifying = "logistic",
    folds: int = 2,
    permutations: int = 0,
    random_state: int = 0,
) -> TwoSample:
    """How well a classifier tells rows of X from rows of Y (C2ST), each judged by one that was trained without it:

        value = (share of X's rows called X + share of Y's rows called Y) / 2,

    the balanced accuracy over all folds: 1/2 where it cannot, whatever the sizes; 1 where the samples lie apart.

    The usual binomial p-value takes cross-fitted answers for independent throws, which they are not, and a chance of
    1/2, which it is not where the samples differ in size. Here:

    - without permutations, each fold has its exact test: given the classifier's answers for the fold's rows, who of
      them is X's is by chance, so the right answers follow the hypergeometric law (Fisher's exact test, one-sided).
      p is the least of the folds' p-values times their number (Bonferroni's bound);
    - with B permutations, everything is trained anew for each, p = (1 + #{as good}) / (1 + B): more powerful, and
      B times as dear.

    Either way P(p <= a) <= a under one law, at every number of rows; with few rows the former stays far below a, since
    counts take few values. What it can see is what the classifier can: logistic regression sees little but shifts of
    the mean.

    Args:
        X, Y: the samples, (m, ...) and (n, ...).
        classifier: `logistic` (standardized, with balanced weights), `knn` (standardized; sqrt of the rows as
            neighbours), or any of scikit-learn's manners; it is cloned for each fold.
        folds: parts into which each sample is cut.
        permutations: 0 for the exact tests by fold.
        random_state: the seed of folds and permutations.

    References:
        Lopez-Paz and Oquab, "Revisiting classifier two-sample tests", arXiv 1610.06545; Kim, Ramdas, Singh and
        Wasserman, "Classification accuracy as a proxy for two-sample testing", arXiv 1602.02210.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X, Y = rng.normal(size=(200, 2)), rng.normal(size=(200, 2)) + [1.0, 0.0]
        >>> answer = c2st(X, Y)
        >>> 0.6 < answer.value < 0.8, answer.p_value < 1e-4
        (True, True)
        >>> c2st(X[:100], X[100:]).p_value > 0.05
        True
    """
    Whole(2).check(folds, "folds", 2)
    Whole(0).check(permutations, "permutations", 0)
    left, right = pair(X, Y, least=max(4, 2 * folds))
    rows = torch.cat([left, right]).cpu().numpy().astype(np.float64)
    labels = np.r_[np.zeros(len(left), np.int64), np.ones(len(right), np.int64)]
    maker = _maker(classifier)
    key = fold(key_of(seeded(random_state)), "classifier test")
    guesses, part = _answers(rows, labels, maker, folds, fold(key, "folds"))
    value = _balanced(guesses, labels)
    if permutations:
        others = 0
        for number in range(permutations):
            mixed = labels[permutation(fold(key, "permutations", number), len(labels)).numpy()]
            answers, _ = _answers(rows, mixed, maker, folds, fold(key, "folds", number + 1))
            others += _balanced(answers, mixed) >= value - 1e-12
        p = (1 + others) / (1 + permutations)
        how = f"{permutations:,} permutations, trained anew in each"
    else:
        p = min(1.0, folds * min(_fisher(guesses[part == f], labels[part == f]) for f in range(folds)))
        how = "exact test of each fold"
    name = classifier if isinstance(classifier, str) else type(classifier).__name__
    return TwoSample("classifier accuracy", value, p, f"{name}, balanced, {folds} folds; {how}")


def _maker(classifier: str | Classifying) -> Classifying:
    if isinstance(classifier, str):
        Choice(*_NAMED).check(classifier, "classifier", "logistic")
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        last = LogisticRegression(class_weight="balanced", max_iter=1000) if classifier == "logistic" else _Neighbours()
        made: Classifying = make_pipeline(StandardScaler(), last)
        return made
    if not (hasattr(classifier, "fit") and hasattr(classifier, "predict")):
        raise TypeError(
            f"expected classifier to be 'logistic', 'knn' or an estimator with fit and predict, got {classifier!r}"
        )
    return classifier


class _Neighbours(ClassifierMixin, BaseEstimator):
    """A vote of the sqrt(n) nearest rows: whose share among them exceeds that among all."""

    def fit(self, X: Array, y: Labels) -> _Neighbours:
        from sklearn.neighbors import NearestNeighbors

        self.near_ = NearestNeighbors(n_neighbors=max(1, round(len(X) ** 0.5))).fit(X)
        self.labels_, self.classes_ = y, np.array([0, 1])
        return self

    def predict(self, X: Array) -> Labels:
        votes = self.labels_[self.near_.kneighbors(X, return_distance=False)].mean(1)
        return (votes > self.labels_.mean()).astype(np.int64)


def _answers(rows: Array, labels: Labels, maker: Classifying, folds: int, key: Tensor) -> tuple[Labels, Labels]:
    """What is said of each row by a classifier that was trained on the other folds, and which fold each is in."""
    part = np.empty(len(labels), np.int64)
    for label in (0, 1):
        mine = np.flatnonzero(labels == label)
        part[mine[np.argsort(bits(fold(key, label), (len(mine),)).numpy())]] = np.arange(len(mine)) % folds
    guesses = np.empty(len(labels), np.int64)
    for f in range(folds):
        held = part == f
        fitted = clone(maker)
        fitted.fit(rows[~held], labels[~held])
        said = np.asarray(fitted.predict(rows[held]))
        if said.shape != (held.sum(),) or not np.isin(said, (0, 1)).all():
            raise ValueError(
                f"expected the classifier to answer 0 or 1 for each of {held.sum()} rows, got shape {said.shape} with "
                f"{np.unique(said)[:4]}; predict must give labels, not probabilities"
            )
        guesses[held] = said
    return guesses, part


def _balanced(guesses: Labels, labels: Labels) -> float:
    return float(((guesses[labels == 0] == 0).mean() + (guesses[labels == 1] == 1).mean()) / 2.0)


def _fisher(guesses: Labels, labels: Labels) -> float:
    """The chance of as many right answers or more, had the labels been dealt out at random."""
    from scipy.stats import hypergeom

    right = int((guesses[labels == 1] == 1).sum())
    return float(hypergeom.sf(right - 1, len(labels), int(labels.sum()), int((guesses == 1).sum())))
