"""Four environments that share one weak feature: where the mean of gradients, the mask and the geometric mean end."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from _quadratic import combined
from torch import nn

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, altered
from weft.bench.pictures import BLUE, GREEN, ORANGE
from weft.objectives import Regression
from weft.strategies import ERM, ANDMask, GeometricMean

SCALE, WEAK, DECAY, RATE = 3.0, 0.1, 0.01, 0.3
COUNT = 4
X = SCALE * np.concatenate([np.eye(COUNT), np.full((COUNT, 1), WEAK)], 1)
NEW = SCALE * np.array([[0.0] * COUNT + [WEAK]])  # an environment whose own feature nobody has seen
WAYS = {
    "mean": (ERM(), ORANGE),
    "AND-mask": (ANDMask(rescale=False), GREEN),
    "geometric mean": (GeometricMean(), BLUE),
}


def fixed() -> tuple[float, float]:
    """Where the mean gradient ends in closed form: the weight of an own feature, and of the shared one."""
    own, shared = SCALE, SCALE * WEAK
    matrix = [[own**2 / COUNT + DECAY, own * shared / COUNT], [shared * own, shared**2 + DECAY]]
    a, b = np.linalg.solve(matrix, [own / COUNT, shared])
    return float(a), float(b)


class SharedFeature(Claim):
    """Descent from random weights to its end, by three strategies, beside closed forms; and means of two numbers."""

    title = "One weak feature that all share"
    statement = (
        "Each of four environments has a strong feature of its own, and all share one of a tenth of its size. The mean "
        "gradient spreads the answer over all of them; the AND-mask and the geometric mean keep only the shared one, "
        "whose weight ends at .3 / (.09 + .01) = 3, so that a new environment is answered by .9 in place of .04. That "
        "arithmetic means are a logical OR and geometric ones an AND is true of signs and of zeros alone: of positive "
        "numbers, 1,000,000 and .001 have a larger geometric mean, 31.6, than 1 and 1."
    )
    reference = (
        "Parascandolo, Neitz, Orvieto, Gresele and Schölkopf, “Learning explanations that are hard to vary”, arXiv "
        "2009.00329, sections 2.2 and 2.3, and the linear example of the authors' notebook"
    )
    tolerance = (
        "Closed forms in double precision: 1e-6 for where the descent ends, from random weights, the worst over seeds "
        "(1e-4 at the quick setting, which descends for less long); 1e-9 for means of two numbers. The own features of "
        "the mask decay by the weight decay alone: to 1e-6 as well. The geometric mean's gradient is that of all four "
        "environments where they agree in sign."
    )
    quick = {"seeds": 2, "steps": 4000, "off": 1e-4}
    full = {"seeds": 16, "steps": 6000, "off": 1e-6}
    mutant = Mutant(
        what="a mask that lets everything pass",
        misses="AND-mask: furthest",
        names={"WAYS": {**WAYS, "AND-mask": (altered(ANDMask, threshold=0.0, rescale=False)(), GREEN)}},
        setting={"steps": 500},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(len(WAYS))
        found = report.every(WAYS, partial(learned, setting=setting, seeds=seeds, report=report))
        spread = fixed()
        ends = {"mean": [spread[0]] * COUNT + [spread[1]]}
        for name, each in found.items():
            off = np.abs(np.array(each) - ends.get(name, [0.0] * COUNT + [3.0])).max(1)
            where = "its closed form" if name in ends else "0 and 3"
            report.worst(f"{name}: furthest from {where}, all weights and seeds", off, most=setting.off)
        answers = {name: float((NEW @ np.mean(each, 0))[0]) for name, each in found.items()}
        about: dict[str, Any] = {"within": setting.off, "exact": True}
        report.figure("mean, answer to a new environment", answers["mean"], near=spread[1] * SCALE * WEAK, **about)
        for name in ("AND-mask", "geometric mean"):
            report.figure(f"{name}, answer to a new environment", answers[name], reference=".9", near=0.9, **about)
        pairs = {"10⁶ and 10⁻³": (1e6, 1e-3), "1 and 1": (1.0, 1.0), "1 and 0": (1.0, 0.0), "1 and -1": (1.0, -1.0)}
        rows = [[name, *(mean(way, both) for way, _ in WAYS.values())] for name, both in pairs.items()]
        report.table("What becomes of the gradients of two environments", ["gradients", *WAYS], rows, digits=4)
        geometric = {row[0]: row[3] for row in rows}
        name = "geometric mean of 10⁶ and 10⁻³, of 1 and 1 one"
        about = {"within": 1e-9, "exact": True}
        report.figure(
            name, geometric["10⁶ and 10⁻³"] / geometric["1 and 1"], reference="√1000", near=1000**0.5, **about
        )
        for name in ("1 and 0", "1 and -1"):
            report.figure(f"geometric mean of {name}", geometric[name], reference="0", near=0.0, **about)
        with report.picture(
            "weights",
            alt="Bars of five weights for three ways of combining gradients: the mean gives each environment's own "
            "feature about .32 and the shared one .13; the mask and the geometric mean give 0 to those and 3 to this.",
            caption="The weights at the end, mean over seeds: four of one environment each, and the shared one.",
            size=(6.4, 3.4),
        ) as ax:
            place = np.arange(COUNT + 1)
            for i, (name, each) in enumerate(found.items()):
                ax.bar(place + 0.27 * (i - 1), np.mean(each, 0), 0.25, color=WAYS[name][1], label=name)
            ax.set(xticks=place, xticklabels=[*(f"own {k + 1}" for k in range(COUNT)), "shared"], ylabel="weight")
            ax.legend(loc="upper left")


def learned(name: str, *, setting: Any, seeds: list[int], report: Report) -> list[list[float]]:
    """By seed: the weights at the end, from random ones."""
    net = nn.Linear(COUNT + 1, 1, bias=False)
    learner = Learner(
        Regression(net),
        strategy=WAYS[name][0],
        optimizer=Optimizer("sgd", lr=RATE, weight_decay=DECAY),
        steps=setting.steps,
        batch_size=None,
        every=setting.steps,
        dtype="float64",
        replicas=len(seeds),
        random_state=seeds[0],
        device="cpu",
    )
    report.fit(learner, X, np.ones(COUNT), environment=np.arange(COUNT), what=name)
    unit = np.eye(COUNT + 1)
    return [np.asarray(learner.replica(k).predict(unit), dtype=float).tolist() for k in range(len(seeds))]


def mean(strategy: Any, both: tuple[float, float]) -> float:
    """What a strategy makes of two environments' gradients of one number."""
    g = torch.tensor(both, dtype=torch.float64).unsqueeze(1)
    return float(g.mean() if isinstance(strategy, ERM) else combined(strategy, g))
