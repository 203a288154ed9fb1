"""LDA against enumeration of all topics of all words, scikit-learn's steps, and planted topics."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln, logsumexp
from sklearn.decomposition import LatentDirichletAllocation

from weft import Learner
from weft.core.random import fold, key_of, keyed
from weft.objectives import LDA
from weft.objectives.densities import lda
from weft.objectives.densities.dirichlet import expected_logs, log_gammas
from weft.objectives.densities.held_out import halves
from weft.objectives.densities.topics import sweep, weigh
from weft.testing import ContractError, check_density

COMMON = {"dtype": "float64", "random_state": 0}
rng = np.random.default_rng(0)
PLANTED = rng.dirichlet([0.1] * 12, 3)


def documents(n, length=40, share=0.3, planted=PLANTED):
    theta = rng.dirichlet([share] * len(planted), n)
    return np.array([rng.multinomial(length, t @ planted) for t in theta])


X, NEW = documents(120), documents(60)
FEW = rng.dirichlet([0.5] * 3, 2)
TINY, NEWER = documents(40, 4, 0.5, FEW), documents(30, 4, 0.5, FEW)
EVERY = np.array([row for row in itertools.product(range(5), repeat=3) if sum(row) == 4])
EVERY_HALF = np.array([row for row in itertools.product(range(3), repeat=3) if sum(row) == 2])


def fitted(X, weight=None, *, seed=0, **given):
    return Learner(LDA(**given), dtype="float64", random_state=seed).fit(X, sample_weight=weight)


def enumerated(x, topics, a):
    """log p of counts: over all topics of all words, their shares integrated out."""
    words = np.repeat(np.arange(len(x)), np.asarray(x, int))
    k, n = len(topics), len(words)
    logs = []
    for z in itertools.product(range(k), repeat=n):
        held = np.bincount(z, minlength=k) if n else np.zeros(k)
        prior = gammaln(k * a) - gammaln(n + k * a) + (gammaln(held + a) - gammaln(a)).sum()
        logs.append(prior + np.log(topics[list(z), words]).sum() if n else 0.0)
    return logsumexp(logs) + gammaln(n + 1) - gammaln(np.asarray(x) + 1).sum()


@pytest.mark.parametrize("inference", ["variational", "gibbs"])
def test_the_bound_is_below_and_the_estimate_at_the_enumerated_probability(inference):
    settings = {"components": 2, "inference": inference, "iterations": 40}
    held = {}

    def exact(rows):
        model = held["learner"].objective_
        return np.array([enumerated(row, model.topics.detach().numpy(), model.priors[0]) for row in rows])

    held["learner"] = fitted(TINY, **settings)
    learner = check_density(LDA(**settings), TINY, support=EVERY, exact=exact)
    wanted = exact(EVERY)
    assert abs(np.exp(wanted).sum() - 1) < 1e-9  # of counts, given how many words there are
    assert (learner.log_prob(EVERY) < wanted + 1e-9).all()
    assert (wanted - learner.log_prob(EVERY)).mean() < 1
    told = learner.sampled_log_prob(EVERY, draws=1500)
    np.testing.assert_allclose(told, wanted, atol=0.15)
    assert abs((told - wanted).mean()) < 0.03
    assert learner.sampled_log_prob.kind == "estimate"


def test_samples_have_the_enumerated_frequencies():
    learner = fitted(TINY, components=2)
    topics, a = learner.objective_.topics.detach().numpy(), learner.objective_.priors[0]
    wanted = np.exp([enumerated(row, topics, a) for row in EVERY]) * 4000
    drawn = learner.sample(4000, length=4, random_state=1)
    seen = np.array([(drawn == row).all(1).sum() for row in EVERY])
    assert seen.sum() == 4000
    assert ((seen - wanted) ** 2 / wanted).sum() < 14 + 5 * math.sqrt(28)
    assert learner.sample(3).sum(1).tolist() == [4.0] * 3  # as long as those learned from


class Forgets(LDA):
    """The entropy of the shares is dropped, so that it is no bound."""

    def log_prob(self, x):
        found = self._judged(x)[0]
        words = (x * (expected_logs(found).exp() @ self.topics).log()).sum(1)
        return words + torch.lgamma(x.sum(1) + 1) - torch.lgamma(x + 1).sum(1)


class PointOfTheShares(LDA):
    """log of the mean for the mean of logs: shares at their mean, as if they were known."""

    def log_prob(self, x):
        found = self._judged(x)[0]
        theta = found / found.sum(1, keepdim=True)
        return (x * (theta @ self.topics).log()).sum(1) + torch.lgamma(x.sum(1) + 1) - torch.lgamma(x + 1).sum(1)


@pytest.mark.parametrize("mutant", [Forgets, PointOfTheShares])
def test_mutants_are_caught(mutant):
    model = fitted(TINY, components=2).objective_

    def exact(rows):
        return np.array([enumerated(row, model.topics.detach().numpy(), model.priors[0]) for row in rows])

    with pytest.raises(ContractError, match=r"as lower bound says|at most 1"):
        check_density(mutant(components=2), TINY, support=EVERY, exact=exact)


def test_the_documents_step_is_scikit_learns():
    peer = LatentDirichletAllocation(3, max_doc_update_iter=2000, mean_change_tol=1e-12, random_state=0).fit(X)
    topics = expected_logs(torch.tensor(peer.components_)).exp()
    ours = weigh(torch.tensor(NEW).double(), topics, 1 / 3, torch.ones(len(NEW), 3).double(), 2000).numpy()
    np.testing.assert_allclose(ours / ours.sum(1, keepdims=True), peer.transform(NEW), atol=1e-8)


def test_the_bound_of_the_corpus_never_falls_and_is_scikit_learns():
    learner = fitted(X, components=3, tolerance=1e-7, iterations=100)
    bound = np.asarray(learner.history_["bound"])
    bound = bound[np.isfinite(bound)]
    assert len(bound) > 10
    assert (np.diff(bound) > -1e-10).all()
    peer = LatentDirichletAllocation(3, max_iter=60, max_doc_update_iter=50, mean_change_tol=1e-4, random_state=0)
    assert peer.fit(X).score(X) / X.sum() == pytest.approx(bound[-1], abs=2e-3)


def test_perplexity_is_that_of_words_and_scikit_learns_is_not():
    learner = fitted(X, components=3)

    def ours(rows):
        return float(np.exp(-learner.words_log_prob(rows).sum() / rows.sum()))

    a, b = NEW[:3], NEW[3:9]
    whole, share = np.r_[a, b], a.sum() / (a.sum() + b.sum())
    assert np.log(ours(whole)) == pytest.approx(share * np.log(ours(a)) + (1 - share) * np.log(ours(b)))
    peer = LatentDirichletAllocation(3, max_iter=60, random_state=0)
    peer.fit(X)
    logs = [np.log(peer.perplexity(rows)) for rows in (a, b, whole)]
    # It takes the topics' divergence from their prior anew for each set that is asked about: its issue 20032.
    assert logs[2] < share * logs[0] + (1 - share) * logs[1] - 0.1
    assert logs[0] - np.log(ours(a)) > 0.2 > abs(np.log(peer.perplexity(np.repeat(a, 99, 0))) - np.log(ours(a)))
    held = Learner(LDA(components=3), validation=(NEW, None), **COMMON).fit(X)
    assert held.history_["valid_perplexity"][-1] == pytest.approx(ours(NEW), rel=1e-9)


def test_perplexity_is_the_enumerated_one_within_the_bound():
    learner = fitted(TINY, components=2)
    model, rows = learner.objective_, TINY[:15]
    orders = gammaln(5) - gammaln(rows + 1).sum(1)
    exact = sum(enumerated(row, model.topics.detach().numpy(), model.priors[0]) for row in rows) - orders.sum()
    ours = np.exp(-learner.words_log_prob(rows).sum() / rows.sum())
    assert np.exp(-exact / rows.sum()) < ours < 1.1 * np.exp(-exact / rows.sum())
    one_topic = fitted(TINY, components=1)  # whose bound is the value
    logs = np.log(one_topic.objective_.topics.detach().numpy()[0])
    np.testing.assert_allclose(one_topic.words_log_prob(rows), rows @ logs, rtol=1e-9)


def words_log_prob(x, model):
    """log p of words in their order, by enumeration of their topics."""
    orders = gammaln(np.sum(x) + 1) - gammaln(np.asarray(x) + 1).sum()
    return enumerated(x, model.topics.detach().numpy(), model.priors[0]) - orders


@pytest.mark.parametrize("leaks", [False, True])
def test_completion_is_the_enumerated_probability_of_the_second_half(monkeypatch, leaks):
    learner = fitted(TINY, components=2, doc_prior=0.5)
    model = learner.objective_
    splits = [(first, row - first) for row in EVERY for first in EVERY_HALF if (first <= row).all()]
    first, second = (torch.tensor(np.array(each)).double() for each in zip(*splits, strict=True))
    monkeypatch.setattr(lda, "halves", lambda x: (first + (second if leaks else 0), second))
    told = learner.completed_log_prob((first + second).numpy(), draws=2000)
    wanted = np.array([words_log_prob(a + b, model) - words_log_prob(a, model) for a, b in splits])
    assert (np.abs(told - wanted).max() < 0.15) != leaks  # a mutant that has seen the second half is found
    assert (abs((told - wanted).mean()) < 0.01) != leaks
    assert learner.completed_log_prob.kind == "estimate"


def test_the_perplexity_of_completion_is_that_of_the_second_halves(monkeypatch):
    seen = []

    def spied(x):
        seen.append(halves(x))
        return seen[-1]

    monkeypatch.setattr(lda, "halves", spied)
    learner = Learner(LDA(components=2, doc_prior=0.5), validation=(NEWER, None), **COMMON).fit(TINY)
    for rows, name in ((TINY, "completion_perplexity"), (NEWER, "valid_completion_perplexity")):
        own = [split for split in seen if torch.equal(split[0] + split[1], torch.tensor(rows).double())][-1]
        second = [
            words_log_prob((a + b).numpy(), learner.objective_) - words_log_prob(a.numpy(), learner.objective_)
            for a, b in zip(*own, strict=True)
        ]
        assert learner.history_[name][-1] == pytest.approx(np.exp(-np.sum(second) / own[1].sum().item()), rel=0.02)
    assert len({tuple(a.tolist()) for a in own[0]}) > 3  # not the first words of all


def test_halves_are_drawn_without_regard_to_the_words():
    rows = torch.tensor([[3.0, 0, 2, 0], [0, 1, 0, 0], [0, 0, 0, 0], [4, 4, 4, 9]])
    many = rows.repeat_interleave(3000, 0)
    with keyed(key_of(0), torch.arange(len(many))):
        first, second = halves(many)
    assert torch.equal(first + second, many)
    assert bool((first >= 0).all() & (second >= 0).all())
    assert first.sum(1).reshape(4, 3000).unique(dim=1).flatten().tolist() == [2, 0, 0, 10]
    seen = torch.bincount(first[:3000, 0].long(), minlength=3).numpy()
    assert stats.chisquare(seen, 3000 * stats.hypergeom.pmf([0, 1, 2], 5, 3, 2)).pvalue > 1e-3
    seen = torch.bincount(first[9000:, 3].long(), minlength=10).numpy()
    law = stats.hypergeom.pmf(np.arange(10), 21, 9, 10)
    some = law * 3000 > 5
    assert stats.chisquare(seen[some], law[some] / law[some].sum() * seen[some].sum()).pvalue > 1e-3
    with keyed(key_of(0), torch.arange(3)):  # a row's halves are its own, whatever the longest of the others is
        alone, _ = halves(many[:3])
    assert torch.equal(alone, first[:3])


@pytest.mark.parametrize("inference", ["variational", "gibbs"])
def test_planted_topics_are_found(inference):
    learner = fitted(X, components=3, inference=inference, iterations=80)
    found = learner.objective_.topics.detach().numpy()
    apart = np.abs(found[:, None] - PLANTED).sum(-1) / 2
    assert apart[linear_sum_assignment(apart)].max() < 0.1
    assert learner.transform(NEW).shape == (60, 3)
    np.testing.assert_allclose(learner.transform(NEW).sum(1), 1.0)


def test_the_chain_has_the_posterior_of_all_words_topics():
    """Two documents, five words, two topics: the probability of each way to tell which words are of one topic."""
    words, there = torch.tensor([[0, 1, 1], [0, 2, 0]]), torch.tensor([[True] * 3, [True, True, False]])
    a, b, k, v = 0.7, 0.4, 2, 3
    place = [(d, i) for d in range(2) for i in range(3) if there[d, i]]
    logs = []
    for z in itertools.product(range(k), repeat=5):
        in_topic, in_document = np.zeros((k, v)), np.zeros((2, k))
        for (d, i), topic in zip(place, z, strict=True):
            in_topic[topic, words[d, i]] += 1
            in_document[d, topic] += 1
        logs.append(
            (gammaln(in_topic + b).sum(1) - gammaln(in_topic.sum(1) + v * b)).sum() + gammaln(in_document + a).sum()
        )
    wanted = np.exp(logs - logsumexp(logs))
    states = np.array(list(itertools.product(range(k), repeat=5)))
    alike = states[:, :, None] == states[:, None]
    z, seen = torch.zeros(2, 3, dtype=torch.int64), np.zeros((5, 5))
    for turn in range(1000):
        z = sweep(z, words, there, a, b, k, v, fold(key_of(0), turn))
        own = z[there].numpy()
        seen += own[:, None] == own
    np.testing.assert_allclose(seen / 1000, np.einsum("s,sij->ij", wanted, alike), atol=0.05)


@pytest.mark.parametrize("shape", [0.05, 0.7, 1.0, 9.0])
def test_gammas_are_drawn_by_their_law(shape):
    with keyed(key_of(0), torch.arange(4000)):
        drawn = log_gammas(torch.full((4000,), shape), "x").numpy()
    assert stats.kstest(drawn, lambda t: stats.gamma.cdf(np.exp(t), shape)).pvalue > 1e-3


def test_weight_2_is_the_document_twice():
    weight = rng.integers(0, 3, len(X))
    given = {"components": 3, "tolerance": 0.0, "iterations": 5}
    one, two = fitted(X, weight, **given), fitted(np.repeat(X, weight, axis=0), **given)
    np.testing.assert_allclose(one.log_prob(NEW), two.log_prob(NEW), rtol=1e-6)
    with pytest.raises(ValueError, match="count alike for inference='gibbs'"):
        fitted(X, weight, components=3, inference="gibbs")


def test_tables_of_counts_are_read_and_words_never_seen_cost_something():
    table = pd.DataFrame(X, columns=[f"word {j}" for j in range(12)])
    np.testing.assert_allclose(fitted(table, components=3).log_prob(table), fitted(X, components=3).log_prob(X))
    unseen = X.copy()
    unseen[:, 0] = 0
    learner = fitted(unseen, components=3)
    told = learner.log_prob(np.eye(12, dtype=int) * 2)
    assert np.isfinite(told).all()
    assert told[0] < told.max() - 2  # by the prior alone
    assert learner.log_prob(np.zeros((1, 12), int))[0] == pytest.approx(0)  # no words: certain, given their number
    np.testing.assert_allclose(learner.transform(np.zeros((1, 12), int)), 1 / 3)
    for ask in (learner.log_prob, learner.words_log_prob, learner.completed_log_prob, learner.transform):
        with pytest.raises(ValueError, match=r"expected counts 0, 1, 2, .* got -1; 12 of 12 rows are outside"):
            ask(-np.eye(12, dtype=int))


def test_what_are_no_documents_is_told():
    with pytest.raises(ValueError, match=r"counts 0, 1, 2, ... in column 1.*got -1; 1 of 120 rows"):
        fitted(np.where(np.arange(1440).reshape(120, 12) == 1, -1, X))
    with pytest.raises(ValueError, match=r"got \d\.5"):
        fitted(X + 0.5)
    with pytest.raises(ValueError, match=r"words in every document, got 2 of 120 without any, row 5 the first"):
        fitted(np.where(np.isin(np.arange(120), [5, 9])[:, None], 0, X))
    with pytest.raises(ValueError, match=r"got size, of kind 'number'"):
        fitted(pd.DataFrame({"word": [1, 2, 3], "size": [0.5, 1.5, 2.25]}))
    with pytest.warns(UserWarning, match="5 topics for 4 documents"):
        fitted(X[:4], components=5, iterations=3)
    with pytest.raises(ValueError, match="the draws of sampled_log_prob to be an integer >= 2, got 1"):
        fitted(X, components=2, iterations=2).sampled_log_prob(NEW, draws=1)
    with pytest.raises(ValueError, match="length of whole words"):
        fitted(X, components=2, iterations=2).sample(2, length=-1)
    with pytest.raises(ValueError, match="doc_prior to be a number > 0 or None"):
        fitted(X, doc_prior=0.0)
