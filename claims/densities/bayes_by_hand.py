"""Bayes' rule and the chain rule on tables small enough to be done by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import Learner
from weft.bench.claims import Claim, Mutant, Report
from weft.bench.pictures import BLUE, ORANGE
from weft.objectives import Independent, NaiveBayes

FLU = np.array([[4, 1], [1, 2]])  # people without and with flu, by row; without and with a headache, by column
COINS = np.array([[1, 1], [1, 1]])
BITS = [(0, 0), (0, 1), (1, 0), (1, 1)]


def people(table: Any) -> tuple[Any, Any]:
    """A row for each person: the second variable as x, the first as y."""
    y, x = (np.repeat(np.array(BITS)[:, i], table.reshape(-1)) for i in (0, 1))
    return x[:, None].astype(float), y


def given(table: Any, report: Report, what: str) -> Any:
    """p(y = 1 | x = 1) by Bayes' rule over a density of x for each y, and log p(x | y) for each of both."""
    x, y = people(table)
    learner = Learner(NaiveBayes(law="bernoulli", smoothing=0.0), dtype="float64", random_state=0)
    report.fit(learner, x, y, what=what)
    bits = np.array(BITS)
    return float(learner.predict_proba([[1.0]])[0, 1]), np.exp(
        learner.log_prob(bits[:, 1:].astype(float), y=bits[:, 0])
    )


def alone(table: Any, report: Report, axis: int) -> Any:
    """p of one variable alone, for each of the four pairs."""
    x, y = people(table)
    own = y[:, None].astype(float) if axis == 0 else x
    learner = Learner(Independent(law="bernoulli", smoothing=0.0), dtype="float64", random_state=0)
    report.fit(learner, own, what="alone")
    return np.exp(learner.log_prob(np.array(BITS)[:, axis : axis + 1].astype(float)))


class BayesByHand(Claim):
    """The flu table, two coins, and random tables, by fitted densities beside counting."""

    title = "Bayes by hand"
    statement = (
        "Of eight people three have a headache, two of these with flu: Bayes' rule says P(flu | headache) = 2/3, as "
        "counting does. The chain rule p(a) p(b | a) sums to 1; with every variable's own p beside its conditional, "
        "p(a) p(a | b) p(b) p(b | a), it sums to 1/4 on two coins."
    )
    reference = "Bayes, “An essay towards solving a problem in the doctrine of chances”, Phil. Trans. 53, 1763"
    tolerance = "Identities: to rounding, 1e-12, in double precision; of the random tables the furthest counts."
    quick = {"seeds": 2, "tables": 3}
    full = {"seeds": 2, "tables": 50}
    mutant = Mutant(what="people counted the other way round", misses="flu", names={"FLU": FLU[::-1]})

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        flu, likelihood = given(FLU, report, "flu")
        report.figure("P(flu | headache)", flu, reference="2/3", near=2 / 3, within=1e-12, exact=True)
        _, b_given_a = given(COINS, report, "coins")
        _, swapped = given(COINS.T, report, "coins")
        a_given_b = swapped.reshape(2, 2).T.reshape(-1)
        a, b = alone(COINS, report, 0), alone(COINS, report, 1)
        right, wrong = a * b_given_a, a * a_given_b * b * b_given_a
        report.figure("chain rule: sum over two coins", right.sum(), reference="1", near=1, within=1e-12, exact=True)
        report.figure(
            "done wrong: sum over two coins", wrong.sum(), reference="1/4", near=0.25, within=1e-12, exact=True
        )
        off = []
        for seed in seeds:
            for table in np.random.default_rng(seed).integers(1, 20, (setting.tables, 2, 2)):
                found, conditional = given(table, report, "random table")
                counted = table[1, 1] / table[:, 1].sum()
                total = (alone(table, report, 0) * conditional).sum()
                off += [found - counted, total - 1, *(conditional - (table / table.sum(1, keepdims=True)).reshape(-1))]
        report.worst("random tables: furthest from counting", off, most=1e-12)
        report.table(
            "Two coins, by outcome",
            ["outcome", "p(a) p(b | a)", "p(a) p(a | b) p(b) p(b | a)"],
            [[f"{i}, {j}", right[k], wrong[k]] for k, (i, j) in enumerate(BITS)],
            digits=5,
        )
        with report.picture(
            "coins",
            alt="Bars for the four outcomes of two coins: by the chain rule a quarter each, done wrong a sixteenth.",
            caption="What each outcome of two fair coins is said to have: by the chain rule, and done wrong.",
            size=(6.0, 3.4),
        ) as ax:
            place = np.arange(4)
            ax.bar(place - 0.2, right, 0.38, color=BLUE, label="p(a) p(b | a)")
            ax.bar(place + 0.2, wrong, 0.38, color=ORANGE, label="p(a) p(a | b) p(b) p(b | a)")
            ax.set(xticks=place, xticklabels=[f"{i}, {j}" for i, j in BITS], ylabel="probability", ylim=(0, 0.36))
            ax.legend(frameon=False)
        report.table(
            "The flu table: P(headache | flu)", ["flu", "headache", "p"], [[*BITS[k], likelihood[k]] for k in range(4)]
        )
