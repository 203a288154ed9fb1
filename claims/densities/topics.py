"""LDA: planted topics are found, and held-out perplexity stops falling at their number."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from weft import Learner
from weft.bench.claims import Claim, Mutant, Report, altered, mean_of, stacked
from weft.bench.pictures import BLUE, INK
from weft.objectives import LDA

PLANTED, VOCABULARY, LENGTH = 4, 30, 60
NUMBERS = (1, 2, 4, 6)
STARTS = 2


def corpus(seed: int, learned: int, held: int) -> tuple[Any, Any, Any]:
    """Four topics over 30 words, and documents to learn from and to hold out."""
    random = np.random.default_rng(seed)
    topics = random.dirichlet([0.1] * VOCABULARY, PLANTED)
    shares = random.dirichlet([0.25] * PLANTED, learned + held)
    counts = np.array([random.multinomial(LENGTH, share @ topics) for share in shares])
    return topics, counts[:learned], counts[learned:]


def distance(found: Any, topics: Any) -> float:
    """The mean total variation between planted topics and those found that match them best."""
    apart = np.abs(found[:, None] - topics).sum(-1) / 2
    return float(apart[linear_sum_assignment(apart)].mean())


class Topics(Claim):
    """Documents of four planted topics, learned with one to six."""

    title = "Planted topics are found, and no more than there are"
    statement = (
        "Latent Dirichlet allocation recovers topics that documents were drawn from, up to their order; the perplexity "
        "of documents held out falls up to the planted number of topics, and hardly beyond it."
    )
    reference = (
        "Blei, Ng and Jordan, “Latent Dirichlet allocation”, JMLR 3, 2003; Griffiths and Steyvers, “Finding scientific "
        "topics”, PNAS 101, 2004"
    )
    tolerance = (
        "With four topics over 30 words and documents of 60 words, the best of two starts by its own bound: topics "
        "found are within .1 of the planted ones in total variation, in the mean. In nats for each word held out, by "
        "the bound with the topics fixed, the step from 1 to 2 and from 2 to 4 topics must gain at least .05 each, and "
        "that from 4 to 6 at most .01."
    )
    quick = {"seeds": 5, "learned": 120, "held": 60, "iterations": 25}
    full = {"seeds": 12, "learned": 400, "held": 200, "iterations": 150}
    mutant = Mutant(
        what="inference that ends after one turn", misses="total variation", names={"LDA": altered(LDA, iterations=1)}
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        found = stacked([trial(seed, setting) for seed in report.each(seeds, "corpora")])
        report.spend(trainings=(1 + (len(NUMBERS) - 1) * STARTS) * len(seeds))
        apart = mean_of(found["distance"])
        report.figure("total variation between planted topics and those found", apart, most=0.1)
        logs = found["perplexity"]  # (corpora, numbers)
        for i, bound in enumerate(({"least": 0.05}, {"least": 0.05}, {"most": 0.01})):
            gain = mean_of(logs[:, i] - logs[:, i + 1])
            report.figure(f"gain from {NUMBERS[i]} to {NUMBERS[i + 1]} topics", gain, unit="nats per word", **bound)
        report.table(
            "Perplexity of documents held out",
            ["topics", "perplexity"],
            [[k, float(np.exp(logs[:, i]).mean())] for i, k in enumerate(NUMBERS)],
            digits=2,
        )
        with report.picture(
            "topics",
            alt="Perplexity of documents held out over the number of topics: it falls steeply to four and stays there.",
            caption=f"Perplexity of documents held out, a line for each of {len(seeds)} corpora of four topics.",
        ) as ax:
            ax.plot(NUMBERS, np.exp(logs).T, color=BLUE, linewidth=0.8)
            ax.axvline(PLANTED, color=INK, linestyle=":", linewidth=0.8)
            ax.set(xlabel="topics", ylabel="perplexity", xticks=NUMBERS)


def trial(seed: int, setting: Any) -> dict[str, Any]:
    """Of a corpus, the log-perplexity for each number of topics, and how far those found with four are off."""
    topics, X, held = corpus(seed, setting.learned, setting.held)
    logs, apart = [], 0.0
    for k in NUMBERS:
        starts = []
        for start in range(STARTS if k > 1 else 1):
            model = LDA(components=k, iterations=setting.iterations, doc_prior=0.25, word_prior=0.1)
            learner = Learner(model, random_state=start, dtype="float64").fit(X)
            bound = np.asarray(learner.history_["bound"])
            starts.append((float(bound[np.isfinite(bound)][-1]), start, learner))
        learner = max(starts)[2]
        logs.append(-float(learner.words_log_prob(held).sum()) / float(held.sum()))
        if k == PLANTED:
            apart = distance(learner.objective_.topics.detach().numpy(), topics)
    return {"perplexity": np.array(logs), "distance": apart}
