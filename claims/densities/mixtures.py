"""EM never falls, and reaches where a gradient leads from the same start."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, altered, mean_of
from weft.bench.pictures import BLUE, ORANGE
from weft.objectives import GaussianMixture

COMPONENTS = 3


def planted(rows: int, seed: int) -> Any:
    """Rows of three Gaussians that overlap."""
    random = np.random.default_rng(seed)
    centres = np.array([[-2.0, 0.0], [2.0, 0.0], [0.0, 2.5]])
    return centres[random.integers(0, COMPONENTS, rows)] + random.normal(size=(rows, 2)) * [1.0, 0.7]


class Mixtures(Claim):
    """Gaussian mixtures by EM and by Adam, from what k-means++ and one iteration give."""

    title = "EM climbs, and a gradient arrives at the same place"
    statement = (
        "No iteration of EM lowers the likelihood of a mixture; from the same start EM and gradient descent of the "
        "same joint density reach the same optimum."
    )
    reference = (
        "Dempster, Laird and Rubin, “Maximum likelihood from incomplete data via the EM algorithm”, JRSS B 39, 1977; "
        "Xu and Jordan, “On convergence properties of the EM algorithm for Gaussian mixtures”, Neural Computation 8, "
        "1996"
    )
    tolerance = (
        "EM may fall by rounding: 1e-10 nats a row, in double precision, over all iterations of all seeds. EM and "
        "gradient must agree in mean log-likelihood: the mean of the gap's size over the seeds, with its interval, "
        "at most .01 nats a row (.002 at the full setting, which descends longer)."
    )
    quick = {"seeds": 5, "rows": 200, "iterations": 150, "steps": 300, "apart": 0.01}
    full = {"seeds": 8, "rows": 300, "iterations": 200, "steps": 500, "apart": 0.002}
    mutant = Mutant(
        what="EM that adds a fifth to every variance",
        misses="EM and gradient",
        names={"GaussianMixture": altered(GaussianMixture, floor=0.2)},
        setting={"steps": 100},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(3 * len(seeds))
        found = list(report.every(seeds, lambda seed: self.both(seed, setting, report)).values())
        falls = [float(np.minimum(np.diff(one["climb"]), 0).min()) for one in found]
        report.worst("largest fall of EM in an iteration", falls, most=1e-10, unit="nats")
        gaps = [abs(one["em"] - one["gradient"]) for one in found]
        report.figure("EM and gradient: how far apart", mean_of(gaps), unit="nats", reference="0", most=setting.apart)
        report.figure("gain over the start", mean_of([one["em"] - one["climb"][0] for one in found]), unit="nats")
        report.table(
            "Mean log-likelihood of each seed's rows",
            ["seed", "start", "EM", "gradient"],
            [[seed, one["climb"][0], one["em"], one["gradient"]] for seed, one in zip(seeds, found, strict=True)],
            digits=5,
        )
        with report.picture(
            "climb",
            alt="Mean log-likelihood over iterations of EM, a curve for each seed that rises steeply and levels off; a "
            "dot at the right end of each is where the gradient arrived, on the curve.",
            caption="Lines: EM, an iteration at a time. Dots: where gradient descent from the same start ends.",
            size=(7.2, 4.0),
        ) as ax:
            for one in found[:6]:
                turns = np.arange(1, len(one["climb"]) + 1)
                ax.plot(turns, one["climb"], color=BLUE, linewidth=1.2)
                ax.plot(turns[-1], one["gradient"], "o", color=ORANGE, markersize=4.5)
            ax.set(xscale="log", xlabel="iterations of EM", ylabel="mean log-likelihood, nats")

    def both(self, seed: int, setting: Any, report: Report) -> dict[str, Any]:
        """The climb of EM, and where both end."""
        rows = planted(setting.rows, seed)
        common = {"dtype": "float64", "random_state": seed}
        first = GaussianMixture(COMPONENTS, start="k-means++", floor=0.0, iterations=1, tolerance=0.0)
        begun = report.fit(Learner(first, **common), rows, what="start").module()
        start = {name: value.tolist() for name, value in begun.state_dict().items()}
        model = GaussianMixture(COMPONENTS, start=start, floor=0.0, iterations=setting.iterations, tolerance=0.0)
        em = report.fit(Learner(model, **common), rows, what="EM")
        descent = GaussianMixture(COMPONENTS, start=start, inference="gradient")
        optimizer = Optimizer("adam", lr=0.03)
        learner = Learner(descent, steps=setting.steps, batch_size=None, optimizer=optimizer, **common)
        gradient = report.fit(learner, rows, what="gradient")
        climb = np.asarray(em.history_["log_likelihood"])[:-1]
        return {"climb": climb, "em": float(em.score(rows)), "gradient": float(gradient.score(rows))}
