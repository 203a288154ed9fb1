"""Everything sums to one, by enumeration; what is made of averaged logits does not, and looks better for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, mean_of
from weft.bench.pictures import BLUE, ORANGE, note
from weft.objectives import FVBN, MADE, NADE, NeuralBelief
from weft.testing import every_row

BITS, ENTRIES = 8, 5
BIT, THREE = {"law": "bernoulli"}, {"law": "categorical", "classes": 3}
LEVELS = {"law": "logistic-mixture", "classes": 3, "parts": 2}
MODELS: dict[str, Any] = {
    "FVBN": FVBN,
    "NeuralBelief": lambda **law: NeuralBelief(4, **law),
    "NADE": lambda **law: NADE(16, **law),
    "MADE": lambda **law: MADE((32, 32), **law),
    "MADE, random order": lambda **law: MADE((32,), order="random", **law),
    "MADE, 4 masks": lambda **law: MADE((32,), masks=4, **law),
    "MADE, 4 orders": lambda **law: MADE((32,), orderings=4, **law),
    "MADE, any order": lambda **law: MADE((32,), agnostic=True, orderings=4, **law),
    # Models of images and of sequences are added here, with rows of eight bits in their shape.
}
STAYS = (0.5, 0.6, 0.7, 0.8, 0.9)


def chain(n: int, stay: float, entries: int = BITS, outcomes: int = 2) -> Any:
    """Rows along which a value stays with some probability, and else is drawn anew among the others."""
    random = np.random.default_rng(0)
    x = random.integers(0, outcomes, (n, entries))
    for j in range(1, entries):
        moved = (x[:, j - 1] + random.integers(1, outcomes, n)) % outcomes
        x[:, j] = np.where(random.random(n) < stay, x[:, j - 1], moved)
    return x.astype(np.float64)


@torch.no_grad()
def log_rows(model: Any, rows: Any) -> Any:
    """log p of rows: over several orders the mean is of probabilities."""
    return model.log_prob(torch.as_tensor(rows)).numpy()


@torch.no_grad()
def by_logits(model: Any, rows: Any) -> Any:
    """The mutant: over several orders the mean is of logits, before they become probabilities."""
    x = torch.as_tensor(rows)
    inputs = model.read(x, None)
    logits = torch.stack([model.conditionals(inputs, m) for m in range(model.members)]).mean(0)
    return model.log_given(logits, x, None).numpy()


class SumsToOne(Claim):
    """Trained models over every row that there is: 256 of eight bits, 243 of five numbers 0, 1, 2."""

    title = "Everything sums to one, but not what is made of averaged logits"
    statement = (
        "The probabilities that an autoregressive model gives to all possible rows sum to one, whatever the net, the "
        "order and the law, and so do means of probabilities over several orders. If the logits of several orders are "
        "averaged in place of the probabilities, the sum is above one (1.08 was seen on eight bits), so that the "
        "likelihood looks better than it is."
    )
    reference = "Germain, Gregor, Murray and Larochelle, “MADE”, ICML 2015; the sum by enumeration"
    tolerance = (
        "Sums in double precision may be off by 1e-9. Of averaged logits no exact figure is known: on a chain of eight "
        "bits that stay with probability .9 the sum must be above 1.05, and the log-likelihood of the training rows "
        "better than that of the mean of probabilities. Where bits are independent (.5) they may be within .03 of 1: "
        "orders then agree. At which strength of dependence 1.08 arises is told."
    )
    quick = {"seeds": 5, "rows": 400, "steps": 20, "longer": 100}
    full = {"seeds": 10, "rows": 2000, "steps": 300, "longer": 1000}
    mutant = Mutant(
        what="logits averaged over the orders in place of probabilities",
        misses="furthest sum from one",
        names={"log_rows": by_logits},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        laws = {"bits": (BIT, 2, BITS), "classes": (THREE, 3, ENTRIES), "levels": (LEVELS, 3, ENTRIES)}
        report.plan(len(MODELS) * len(laws) + len(STAYS))
        off: dict[str, list[float]] = {}
        for what, (law, outcomes, entries) in laws.items():
            X, every = chain(setting.rows, 0.9, entries, outcomes), every_row([outcomes] * entries).astype(np.float64)
            for name, kind in MODELS.items():
                learner = report.fit(self.learner(kind(**law), seeds, setting.steps), X, what=f"{name}, {what}")
                sums = [np.exp(log_rows(learner.replica(k).objective_, every)).sum() for k in range(len(seeds))]
                off.setdefault(name, []).append(float(np.abs(np.array(sums) - 1).max()))
        report.worst("furthest sum from one, of all models, laws and seeds", [*off.values()], most=1e-9)
        report.table(
            "Furthest sum from one over the seeds",
            ["model", *laws],
            [[name, *(f"{each:.1e}" for each in found)] for name, found in off.items()],
        )
        every = every_row([2] * BITS).astype(np.float64)
        masses, gains = {}, {}
        for stay in STAYS:
            X = chain(setting.rows, stay)
            learner = report.fit(
                self.learner(MODELS["MADE, 4 orders"](**BIT), seeds, setting.longer), X, what=f"stay {stay}"
            )
            each = [learner.replica(k).objective_ for k in range(len(seeds))]
            masses[stay] = np.array([np.exp(by_logits(one, every)).sum() for one in each])
            gains[stay] = np.array([(by_logits(one, X) - one_by_one(one, X)).mean() for one in each])
            bound: dict[str, Any] = (
                {"least": 1.05} if stay == 0.9 else {"near": 1.0, "within": 0.03} if stay == 0.5 else {}
            )
            report.figure(
                f"averaged logits, bits stay with {stay:g}: sum", mean_of(masses[stay]), reference="1.08", **bound
            )
        report.figure(
            "averaged logits, bits stay with 0.9: log-likelihood too good by", mean_of(gains[0.9]), unit="nats", least=0
        )
        report.table(
            "Averaged logits of four orders: sum over all rows, and how much too good the log-likelihood looks",
            ["bits stay with", "sum", "nats"],
            [[stay, mean_of(masses[stay]), mean_of(gains[stay])] for stay in STAYS],
            digits=3,
        )
        with report.picture(
            "sums_to_one",
            alt="A curve of the sum over all rows against the probability with which a bit stays: at one for "
            "independent bits, rising to more than one and a half where bits depend on each other strongly; a flat "
            "line at one for the mean of probabilities.",
            caption="The sum over all rows of eight bits, of averaged logits and of averaged probabilities.",
            size=(6.4, 3.6),
        ) as ax:
            ax.plot(STAYS, [masses[stay].mean() for stay in STAYS], color=ORANGE)
            for stay in STAYS:
                ax.plot(np.full(len(seeds), stay), masses[stay], "o", color=ORANGE, markersize=3)
            ax.axhline(1, color=BLUE)
            note(ax, STAYS[0], 1.0, "probabilities averaged", BLUE)
            note(ax, STAYS[-2], masses[STAYS[-2]].mean(), "logits averaged", ORANGE)
            ax.set(xlabel="probability with which a bit is the one before", ylabel="sum over all rows")

    def learner(self, model: Any, seeds: list[int], steps: int) -> Learner:
        """All seeds at once, in double precision."""
        return Learner(
            model,
            steps=steps,
            batch_size=100,
            optimizer=Optimizer("adam", lr=0.02),
            replicas=len(seeds),
            random_state=seeds[0],
            dtype="float64",
        )


@torch.no_grad()
def one_by_one(model: Any, rows: Any) -> Any:
    """log p as the model gives it."""
    return model.log_prob(torch.as_tensor(rows)).numpy()
