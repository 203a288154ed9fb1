"""Latent Dirichlet allocation: documents as mixtures of topics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from weft.core.configured import Range
from weft.core.corpus import Corpus
from weft.core.legal import Choice, Number, Whole
from weft.core.objective import Iterations, capability
from weft.core.random import uniform
from weft.core.source import Batch, Source, Spec
from weft.core.state import State
from weft.objectives.densities.density import Density
from weft.objectives.densities.dirichlet import log_shares
from weft.objectives.densities.held_out import drawn_shares, halves, log_completed, log_words
from weft.objectives.densities.laws import Laws, laws_of
from weft.objectives.densities.rows import all_rows, weights_of
from weft.objectives.densities.topics import bound_of, gibbs, variational, weigh

__all__ = ["LDA"]

_TURNS = 100  # of a document's coordinate ascent: the same for all, so that a row's answer is its own
_DRAWS = 64  # of a document's shares, for the records


class LDA(Density):
    """Latent Dirichlet allocation: each word of a document is of a topic, and each document has its shares of topics.

        theta ~ Dirichlet(a, ..., a),   z_i ~ theta,   w_i ~ topic z_i,   topic_k ~ Dirichlet(b, ..., b)

    A row is a document: how often each word of the vocabulary is in it, one column for each. `log_prob` is that of the
    counts given how many words there are, with the topics as they were found: the variational bound, which is a *lower*
    bound of log p. `sampled_log_prob` estimates log p itself. `words_log_prob` is the same bound for the words in
    their order, without the multinomial coefficient: what a perplexity is made of,

        perplexity = exp(-sum of words_log_prob / number of words) = `valid_perplexity` of the records,

    of documents that were held out, the topics fixed. (It takes nothing for the topics' own prior, which would
    be counted anew for every set of documents that is asked about.) `completed_log_prob` splits each document's words
    in two halves by chance and gives log p(second half | first half), an estimate: what was learned of the topics is
    used to know a document by its first words. `valid_completion_perplexity` is the perplexity of second halves.

    Args:
        components: how many topics.
        inference: `variational`: coordinate ascent of a bound, with a Dirichlet for each topic and each document;
            records tell the `bound` of the corpus, in nats for each word. `gibbs`: a Markov chain of the words' topics,
            the documents' shares integrated out and the topics drawn, so that a turn goes through all documents at once
            and is exact; the topics are the mean over the second half of the chain, records tell `log_joint`. Either
            way documents are then judged by the variational bound.
        doc_prior: a, None for 1 / components.
        word_prior: b, None for 1 / components.
        iterations: passes over all documents, at most.
        tolerance: of `variational`, the gain in nats for each word under which it ends.

    References:
        Blei, Ng and Jordan, "Latent Dirichlet allocation", JMLR 3, 2003. Hoffman, Blei and Bach, "Online learning for
        latent Dirichlet allocation", NIPS 2010 (the bound). Griffiths and Steyvers, "Finding scientific topics", PNAS
        101, 2004 (Gibbs). Magnusson, Jonsson, Villani and Broman, "Sparse partially collapsed MCMC for parallel
        inference in topic models", JCGS 27, 2018 (topics drawn). Wallach, Murray, Salakhutdinov and Mimno, "Evaluation
        methods for topic models", ICML 2009 (held-out documents, whole and by their completion).

    Example:
        >>> import numpy as np
        >>> from weft import Learner
        >>> X = np.repeat([[5, 4, 0, 0], [4, 6, 0, 0], [0, 0, 3, 7], [0, 0, 6, 4]], 5, axis=0)
        >>> topics = Learner(LDA(components=2), random_state=0).fit(X)
        >>> bool(topics.transform([[9, 9, 0, 0], [0, 0, 9, 9]]).max(1).min() > 0.9)  # each of one topic
        True
        >>> topics.sample(2, length=30).sum(1)
        array([30., 30.], dtype=float32)
    """

    length: Tensor
    entries: Laws
    solved = True
    progress = ("perplexity", "min")
    space = {"components": Range(2, 50, log=True, whole=True)}
    legal = {
        "components": Whole(1),
        "inference": Choice("variational", "gibbs"),
        "doc_prior": Number(0, ends="()") | None,
        "word_prior": Number(0, ends="()") | None,
        "iterations": Whole(1),
        "tolerance": Number(0),
    }

    def __init__(
        self,
        *,
        components: int = 10,
        inference: str = "variational",
        doc_prior: float | None = None,
        word_prior: float | None = None,
        iterations: int = 200,
        tolerance: float = 1e-5,
    ) -> None:
        super().__init__()
        self.components = components
        self.inference = inference
        self.doc_prior = doc_prior
        self.word_prior = word_prior
        self.iterations = iterations
        self.tolerance = tolerance

    @property
    def priors(self) -> tuple[float, float]:
        """a and b."""
        usual = 1 / self.components
        return self.doc_prior or usual, self.word_prior or usual

    def build(self, spec: Spec) -> None:
        field = spec["x"]
        self.entries = laws_of(field, "auto" if field.columns else "poisson")
        odd = next((j for j, law in enumerate(self.entries.laws) if law.name != "poisson"), None)
        if odd is not None:
            raise ValueError(
                f"expected how often each word is in a document for LDA, got {self.entries.names[odd]}, of kind "
                f"{field.columns[odd].kind!r}; give whole numbers"
            )
        self.log_topics = nn.Parameter(torch.full((self.components, len(self.entries)), -math.log(len(self.entries))))
        self.register_buffer("length", torch.tensor(0, dtype=torch.int64))

    @property
    def topics(self) -> Tensor:
        """The share of each word in each topic, `(components, words)`."""
        return self.log_topics.softmax(-1)

    def solve(self, source: Source, state: State) -> Iterations:
        given = all_rows(source, state)
        x, weight = given["x"].double(), weights_of({**given, "x": given["x"].double()})
        self._refuse(x, weight)
        find = variational if self.inference == "variational" else gibbs
        topics = yield from find(x, weight, *self.priors, self.components, self.iterations, self.tolerance, state)
        mean = (weight * x.sum(1)).sum() / weight.sum()
        return {"log_topics": topics.log(), "length": mean.round().long()}

    def _refuse(self, x: Tensor, weight: Tensor) -> None:
        empty = torch.nonzero(x.sum(1) == 0).flatten()
        if len(empty):
            raise ValueError(
                f"expected words in every document, got {len(empty)} of {len(x)} without any, row {int(empty[0])} the "
                "first; leave them out"
            )
        if self.inference == "gibbs" and not bool((weight == 1).all()):
            raise ValueError(
                "expected documents that count alike for inference='gibbs', got weights; repeat documents, or set "
                "inference='variational'"
            )
        if self.components > len(x):
            warnings.warn(
                f"{self.components} topics for {len(x)} documents: expected fewer topics than documents; some of them "
                "will hold the prior only",
                stacklevel=2,
            )

    def _judged(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The concentrations of each document's shares, and the bound for its words."""
        x, topics = x.double(), self._topics()
        prior = self.priors[0]
        found = weigh(x, topics, prior, torch.ones_like(x[:, :1]).expand(-1, self.components), _TURNS)
        return found, bound_of(x, topics, prior, found)

    def _topics(self) -> Tensor:
        return self.log_topics.double().softmax(-1)

    def measure(self, batch: Batch) -> Mapping[str, Tensor | Corpus]:
        x = batch["x"]
        words, count = self.words_log_prob(x), x.sum(1)
        second, later = self._completed(x, _DRAWS)
        halves = {"log_prob": second.to(words.dtype), "words": later.to(count.dtype)}
        return {
            "loss": -(words + _orders(x).to(words.dtype)),
            "perplexity": Corpus(sums={"log_prob": words, "words": count}, conclude=_perplexity),
            "completion_perplexity": Corpus(sums=halves, conclude=_perplexity),
        }

    def _completed(self, x: Tensor, draws: int) -> tuple[Tensor, Tensor]:
        """log p(second half | first half) of each document, and how many words the second has."""
        first, second = halves(x.double())
        near = self._judged(first)[0]
        return log_completed(first, second, self._topics(), self.priors[0], near, draws), second.sum(1)

    @capability(merge="logmeanexp", kind="lower bound", gives="density")
    def log_prob(self, x: Tensor) -> Tensor:
        """A lower bound of log p of the counts, given how many words there are."""
        return (self._judged(x)[1] + _orders(x)).to(self.log_topics.dtype)

    @capability(merge="logmeanexp", kind="lower bound", gives="")
    def words_log_prob(self, x: Tensor) -> Tensor:
        """A lower bound of log p of the words in their order: without the number of orders with the same counts."""
        return self._judged(x)[1].to(self.log_topics.dtype)

    @capability(merge="logmeanexp", kind="estimate", gives="density")
    def sampled_log_prob(self, x: Tensor, *, draws: int = 256) -> Tensor:
        """An estimate of log p of the counts: the log of an unbiased mean over draws of a document's shares.

        Half of the draws are by the variational law, half by the prior: see `held_out.drawn_shares`.
        """
        Whole(2).check(draws, "the draws of sampled_log_prob")
        log_theta, weight = drawn_shares(self._judged(x)[0], self.priors[0], draws)
        logs = weight + log_words(x.double(), log_theta, self._topics())
        return (torch.logsumexp(logs, 1) + _orders(x)).to(self.log_topics.dtype)

    @capability(merge="logmeanexp", kind="estimate", gives="")
    def completed_log_prob(self, x: Tensor, *, draws: int = 256) -> Tensor:
        """An estimate of log p(second half | first half) of each document's words, halved by chance."""
        Whole(2).check(draws, "the draws of completed_log_prob")
        return self._completed(x, draws)[0].to(self.log_topics.dtype)

    @capability(merge="refuse")
    def transform(self, x: Tensor) -> Tensor:
        """Each document's shares of the topics, in the mean: `(n, components)`."""
        found = self._judged(x)[0]
        return (found / found.sum(-1, keepdim=True)).to(self.log_topics.dtype)

    @capability(merge="share", kind="direct")
    def sample(self, n: int, *, length: int | None = None) -> Tensor:
        """Documents of so many words; None for the mean length of those learned from."""
        size = int(self.length) if length is None else length
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"expected a length of whole words >= 0, got {length!r}")
        topics = self._topics()
        theta = log_shares(topics.new_full((n, self.components), self.priors[0]), "shares").exp()
        upto = (theta @ topics).cumsum(-1)
        u = uniform((n, size), place="words", dtype=torch.float64) * upto[:, -1:]
        word = torch.searchsorted(upto, u, right=True).clamp_max(upto.shape[1] - 1)
        drawn = torch.zeros_like(upto).scatter_add(1, word, torch.ones_like(u))
        return drawn.to(self.log_topics.dtype)

    def free_parameters(self) -> int:
        """The shares of the words, which sum to 1 in each topic."""
        return self.components * (len(self.entries) - 1)


def _orders(x: Tensor) -> Tensor:
    """log of how many orders of words have the same counts."""
    x = x.double()
    return torch.lgamma(x.sum(1) + 1) - torch.lgamma(x + 1).sum(1)


def _perplexity(sums: Mapping[str, Tensor]) -> Tensor:
    return torch.exp(-sums["log_prob"] / sums["words"])
