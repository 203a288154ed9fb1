"""A prior helps where rows are few, and is forgotten where they are many."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from weft import Learner
from weft.bench.claims import Claim, Mutant, Report, median_of
from weft.bench.pictures import BLUE, GREEN, ORANGE
from weft.objectives import Gaussian, GaussianMixture, Independent

PRIOR = 2.0  # imagined rows, or draws of each outcome
NEARLY = 1e-3  # of maximum likelihood too: an outcome that never came has some probability, a variance a floor
COLOURS = {"coin": BLUE, "Gaussian": ORANGE, "mixture": GREEN}


def flips(rows: int, random: np.random.Generator) -> Any:
    """Columns are coins, 500 of them, with biases around a half."""
    bias = np.random.default_rng(0).beta(5, 5, 500)
    return (random.random((rows, 500)) < bias).astype(float)


def normals(rows: int, random: np.random.Generator) -> Any:
    """Five columns that depend on each other."""
    return random.normal(size=(rows, 5)) @ (np.eye(5) + 0.5 * np.tri(5, k=-1)).T / 1.5


def mixed(rows: int, random: np.random.Generator) -> Any:
    """Three round Gaussians in the plane."""
    centres = np.array([[-2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    return centres[random.integers(0, 3, rows)] + random.normal(size=(rows, 2))


def models(prior: float) -> dict[str, tuple[Any, Any]]:
    """By name how rows are drawn, and a model with so much of a prior."""
    mixture = GaussianMixture(3, covariance="diagonal", floor=NEARLY, prior=prior, tolerance=1e-5, iterations=500)
    return {
        "coin": (flips, Independent(law="bernoulli", smoothing=prior or NEARLY)),
        "Gaussian": (normals, Gaussian(floor=NEARLY, prior=prior)),
        "mixture": (mixed, mixture),
    }


class MAPAndML(Claim):
    """Held-out log-likelihood of both, over growing numbers of rows."""

    title = "A prior is worth most where rows are few"
    statement = (
        "Maximum likelihood overfits few rows: it is better on them than on fresh ones, and worse there than the most "
        "probable parameters under a prior (MAP); as rows grow, MAP goes to maximum likelihood."
    )
    reference = "Bishop, “Pattern recognition and machine learning”, 2006, chapters 2 and 9"
    tolerance = (
        "With the fewest rows, for each of a coin, a Gaussian and a mixture, the whole interval of the median over the "
        "seeds (whose tails are heavy) must say that maximum likelihood is better on its own rows than on fresh ones, "
        "and that MAP beats it there, each by .01 nats a row (of a coin: a flip), which no rounding makes. With the "
        "most rows the two may differ by .02."
    )
    quick = {"seeds": 6, "sizes": (10, 1000)}
    full = {"seeds": 30, "sizes": (10, 30, 100, 300, 1000, 3000, 10_000)}
    mutant = Mutant(what="no prior", misses="MAP", names={"PRIOR": 0.0}, setting={"sizes": (10, 30)})

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(len(seeds) * len(setting.sizes) * 6)
        found = np.stack(list(report.every(seeds, lambda seed: self.measure(seed, setting.sizes, report)).values()))
        few, most = setting.sizes[0], setting.sizes[-1]
        for i, name in enumerate(COLOURS):  # (seeds, models, sizes, ML train, ML fresh, MAP fresh)
            own = found[:, i]
            what = f"{name}, {few} rows:"
            gap = median_of(own[:, 0, 0] - own[:, 0, 1])
            report.figure(f"{what} ML on its rows above fresh ones", gap, unit="nats", least=0.01)
            report.figure(
                f"{what} MAP above ML on fresh rows", median_of(own[:, 0, 2] - own[:, 0, 1]), unit="nats", least=0.01
            )
            apart = median_of(np.abs(own[:, -1, 2] - own[:, -1, 1]))
            report.figure(f"{name}, {most:,} rows: MAP and ML apart", apart, unit="nats", most=0.02)
        mean = found.mean(0)
        report.table(
            "Mean log-likelihood of a row",
            ["model", "rows", "ML, its rows", "ML, fresh", "MAP, fresh"],
            [[name, n, *mean[i, j]] for i, name in enumerate(COLOURS) for j, n in enumerate(setting.sizes)],
            digits=4,
        )
        with report.picture(
            "prior",
            alt="Log-likelihood of fresh rows over the number of rows learned from, of a coin, a Gaussian, a mixture: "
            "maximum likelihood (dashed) lies far below MAP (solid) at ten rows and meets it at thousands.",
            caption="Fresh rows, relative to MAP with the most rows. Solid: MAP. Dashed: maximum likelihood.",
            size=(7.2, 4.2),
        ) as ax:
            for i, (name, colour) in enumerate(COLOURS.items()):
                ax.plot(setting.sizes, mean[i, :, 2] - mean[i, -1, 2], color=colour, label=name)
                ax.plot(setting.sizes, mean[i, :, 1] - mean[i, -1, 2], color=colour, linestyle=(0, (4, 3)))
            ax.set(xscale="log", yscale="symlog", xlabel="rows", ylabel="nats a row")
            ax.legend(frameon=False)

    def measure(self, seed: int, sizes: tuple[int, ...], report: Report) -> Any:
        """For each model and number of rows: ML on its rows and on fresh ones, MAP on fresh ones."""
        found = []
        for name in COLOURS:
            for n in sizes:
                random = np.random.default_rng((seed, n))
                draw = models(0.0)[name][0]
                rows, fresh = draw(n, random), draw(2000, random)
                each = rows.shape[1] if name == "coin" else 1
                scores = []
                for prior in (0.0, PRIOR):
                    own = models(prior)[name][1]
                    with warnings.catch_warnings():  # ten rows for three Gaussians: that some collapse is the point
                        warnings.simplefilter("ignore", UserWarning)
                        learner = report.fit(
                            Learner(own, dtype="float64", random_state=seed), rows, what=f"{name}, {n}"
                        )
                    scores.append([float(learner.score(rows)) / each, float(learner.score(fresh)) / each])
                found.append([scores[0][0], scores[0][1], scores[1][1]])
        return np.array(found).reshape(len(COLOURS), len(sizes), 3)
