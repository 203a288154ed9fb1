"""Inference of topics from counts of words: the bound that all of it shares, variational ascent, and a Gibbs chain."""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor

from weft.core.objective import Told
from weft.core.random import fold, keyed, unit
from weft.core.state import State
from weft.objectives.densities.dirichlet import expected_logs, log_normalizer, log_shares

__all__ = ["bound_of", "gibbs", "sweep", "tokens", "variational", "weigh"]

_INNER = 20  # turns of the documents' ascent in each of the corpus's, which goes on from where the last one ended
Topics = Generator[Told, None, Tensor]


def weigh(x: Tensor, topics: Tensor, prior: float, start: Tensor, turns: int) -> Tensor:
    """The concentrations of each document's shares, by coordinate ascent.

        c_k = a + sum_v n_v share of topic k in word v,   which is in proportion to exp(E log theta_k) topic_kv

    Args:
        x: counts, `(n, words)`.
        topics: the share of each word in each topic, or the exponential of its expected logarithm.
        prior: a.
        start: where to begin, `(n, topics)`.
        turns: how often.
    """
    for _ in range(turns):
        theta = expected_logs(start).exp()
        start = prior + theta * ((x / _mixed(theta, topics)) @ topics.T)
    return start


def _mixed(theta: Tensor, topics: Tensor) -> Tensor:
    return (theta @ topics).clamp_min(torch.finfo(topics.dtype).tiny)


def _log_mixed(log_theta: Tensor, topics: Tensor) -> Tensor:
    """log sum_k exp(log theta_k) topic_kv, where theta itself may be smaller than any number."""
    top = log_theta.amax(-1, keepdim=True)
    return _mixed((log_theta - top).exp(), topics).log() + top


def bound_of(x: Tensor, topics: Tensor, prior: float, found: Tensor) -> Tensor:
    """The variational lower bound of log p(words | topics) of each document, its words' topics being at their best.

        sum_v n_v log sum_k exp(E log theta_k) topic_kv + E log p(theta) - E log q(theta)

    It holds for any concentrations `found`.
    """
    logs = expected_logs(found)
    words = (x * _log_mixed(logs, topics)).sum(1)
    return (
        words + ((prior - found) * logs).sum(1) + log_normalizer(found) - log_normalizer(torch.full_like(found, prior))
    )


def variational(
    x: Tensor, weight: Tensor, a: float, b: float, k: int, iterations: int, tolerance: float, state: State
) -> Topics:
    """Topics in the mean of their Dirichlets, after ascent of the bound of the corpus, which never falls."""
    n, words = len(x), (weight * x.sum(1)).sum()
    held = x[_seeds(x, weight, k, state.key("topics"))] + weight @ x / weight.sum() + b
    found, last = x.new_ones(n, k), -torch.inf
    for _ in range(iterations):
        logs = expected_logs(held)
        topics = logs.exp()
        found = weigh(x, topics, a, found, _INNER)
        prior = log_normalizer(torch.full_like(held, b))
        own = ((b - held) * logs).sum(1) + log_normalizer(held) - prior
        bound = float(((weight * bound_of(x, topics, a, found)).sum() + own.sum()) / words)
        theta = expected_logs(found).exp()
        held = b + topics * (theta.T @ (weight[:, None] * x / _mixed(theta, topics)))
        yield {"bound": bound}
        if bound - last < tolerance:
            break
        last = bound
    return held / held.sum(1, keepdim=True)


def _seeds(x: Tensor, weight: Tensor, k: int, key: Tensor) -> list[int]:
    """Documents that topics begin at, each by chance far from those before (k-means++, in Hellinger's distance)."""
    roots = (x / x.sum(1, keepdim=True)).sqrt()
    chosen: list[int] = []
    far = torch.ones_like(weight)
    for u in unit(key, (k,), torch.float64).tolist():
        mass = weight * far if bool((weight * far).sum() > 0) else weight
        upto = mass.cumsum(0)
        chosen.append(int((upto <= u * upto[-1]).sum().clamp_max(len(x) - 1)))
        away = (roots - roots[chosen[-1]]).square().sum(1)
        far = away if len(chosen) == 1 else torch.minimum(far, away)
    return chosen


def gibbs(
    x: Tensor, weight: Tensor, a: float, b: float, k: int, iterations: int, tolerance: float, state: State
) -> Topics:
    """Topics in the mean over the second half of a chain."""
    words, there = tokens(x)
    key = state.key("gibbs")
    z = (unit(fold(key, "start"), words.shape) * k).long().clamp_max(k - 1).to(x.device)
    mean, kept = x.new_zeros(k, x.shape[1]), 0
    for turn in range(iterations):
        z = sweep(z, words, there, a, b, k, x.shape[1], fold(key, turn))
        in_topics, in_documents = _counts(z, words, there, k, x.shape[1])
        joint = log_normalizer(in_topics + b).sum() - k * log_normalizer(x.new_full((x.shape[1],), b))
        joint = joint + log_normalizer(in_documents + a).sum() - len(x) * log_normalizer(x.new_full((k,), a))
        yield {"log_joint": float(joint / x.sum())}
        if turn >= iterations // 2:
            held = in_topics + b
            mean, kept = mean + held / held.sum(1, keepdim=True), kept + 1
    return mean / kept


def sweep(z: Tensor, words: Tensor, there: Tensor, a: float, b: float, k: int, vocabulary: int, key: Tensor) -> Tensor:
    """A turn of the chain: the topics given all words, then each word's given its topics and the document's others.

    Args:
        z: the topic of each word, `(documents, longest)`.
        words: which word it is.
        there: whether there is one.
        a, b: the priors.
        k: how many topics.
        vocabulary: how many words.
        key: of this turn.
    """
    in_topics, in_documents = _counts(z, words, there, k, vocabulary)
    with keyed(fold(key, "topics"), torch.arange(k, device=z.device)):
        topics = log_shares(in_topics + b, "topics").exp()  # not 0 where a word is held
    given = topics.T[words].unbind(1)
    u = unit(fold(key, "words"), words.shape, torch.float64).to(z.device)
    z = z.clone()
    for i in range(words.shape[1]):  # documents are independent given the topics; the words of one are not
        held = there[:, i].double()[:, None]
        in_documents.scatter_add_(1, z[:, i : i + 1], -held)
        upto = ((in_documents + a) * given[i]).cumsum(1)
        z[:, i] = (upto <= u[:, i : i + 1] * upto[:, -1:]).sum(1).clamp_max(k - 1)
        in_documents.scatter_add_(1, z[:, i : i + 1], held)
    return z


def tokens(x: Tensor) -> tuple[Tensor, Tensor]:
    """The words of each document one after another, and whether there is one at a place: `(documents, longest)`."""
    lengths = x.sum(1).long()
    there = torch.arange(int(lengths.max()), device=x.device) < lengths[:, None]
    words = torch.zeros(there.shape, dtype=torch.int64, device=x.device)
    each = torch.arange(x.shape[1], device=x.device).expand(x.shape)
    words[there] = torch.repeat_interleave(each.reshape(-1), x.long().reshape(-1))
    return words, there


def _counts(z: Tensor, words: Tensor, there: Tensor, k: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """How often each word is of each topic, and how many words of each document are."""
    held = there.double()
    flat = (z * vocabulary + words).reshape(-1)
    in_topics = held.new_zeros(k * vocabulary).index_add(0, flat, held.reshape(-1)).reshape(k, vocabulary)
    return in_topics, held.new_zeros(len(z), k).scatter_add(1, z, held)
