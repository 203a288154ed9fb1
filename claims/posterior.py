"""The two-task posterior identity behind elastic weight consolidation."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Report, mean_of, median_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, blank
from weft.objectives import Regression
from weft.strategies import EWC

FIRST, SECOND = 30, 50  # rows of the two tasks
TRUTH = np.array([1.0, -0.5])


def task(seed: int, rows: int, tilt: float) -> tuple[Any, Any]:
    """A linear regression with unit noise; at tilt 0 its columns are orthogonal: a posterior without correlations."""
    random = np.random.default_rng(seed)
    q, _ = np.linalg.qr(np.column_stack([np.ones(rows), random.normal(size=(rows, 2))]))
    x = q[:, 1:] * random.uniform(0.7, 1.3, size=2) * np.sqrt(rows)
    x = x @ np.array([[1.0, tilt], [0.0, 1.0]])
    return x, x @ TRUTH + random.normal(size=rows)


def least_squares(x: Any, y: Any) -> Any:
    """The weights, without the intercept."""
    return np.linalg.lstsq(np.column_stack([np.ones(len(x)), x]), y, rcond=None)[0][1:]


class Posterior(Claim):
    """Two linear regressions in sequence by EWC, beside both at once in closed form."""

    title = "Two tasks, one posterior"
    statement = (
        "The posterior of a first task, used as the prior of a second, has the same maximum as training on both tasks "
        "at once; EWC's penalty is that prior where the posterior is Gaussian and has no correlations."
    )
    reference = (
        "Kirkpatrick et al., “Overcoming catastrophic forgetting in neural networks”, arXiv 1612.00796, "
        "equations 2 and 3"
    )
    tolerance = (
        "On orthogonal designs the identity is exact, so only the descent's rounding is allowed: 1e-6 of the distance "
        "between the second task's optimum and the joint one. Where columns are correlated the diagonal is an "
        "approximation; that distance is told, not judged."
    )
    quick = {"seeds": 6, "steps": 300}
    full = {"seeds": 64, "steps": 300}

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(2)
        found = {
            tilt: [self.compare(seed, tilt, setting.steps, report) for seed in report.each(seeds, what)]
            for tilt, what in ((0.0, "orthogonal designs"), (0.8, "correlated designs"))
        }
        gap = {tilt: np.array([one["gap"] for one in rows]) for tilt, rows in found.items()}
        sequence, precision = (np.array([one[key] for one in found[0.0]]) for key in ("sequence", "precision"))
        report.figure("EWC's maximum to the joint one, worst draw", sequence.max(), reference="0", most=1e-6)
        report.figure("EWC's precision to the joint one, worst draw", precision.max(), reference="0", most=1e-6)
        report.figure(
            "the second task alone, distance to the joint maximum", median_of(gap[0.0]), reference="> 0", least=0.01
        )
        tilted = [one["sequence"] for one in found[0.8]]
        report.figure("correlated columns, where the diagonal is not exact", mean_of(tilted), reference="> 0 expected")
        report.table(
            "Distances to the joint maximum, by draw (orthogonal designs)",
            ["draw", "second task alone", "EWC, as a share of that"],
            [[seed, one["gap"], one["sequence"]] for seed, one in zip(seeds, found[0.0], strict=True)],
        )
        with report.picture(
            "posterior",
            alt="Two panels of ellipses in the plane of the two weights. Left: the point EWC ends at is the joint "
            "maximum. Right, with correlated columns, it is a little beside it.",
            caption="Ellipses hold 95 % of each posterior; the arrow goes from the first task's optimum to where "
            "EWC ends: without correlations the joint maximum, with them a point beside it. Of the draws, the one "
            "whose tasks are the middle distance apart.",
            panels=2,
            size=(9.2, 4.2),
        ) as panels:
            for ax, tilt, title in zip(panels, found, ("orthogonal columns", "correlated columns"), strict=True):
                draw(ax, found[tilt][int(np.argsort(gap[tilt])[len(seeds) // 2])], title, legend=tilt > 0)

    def compare(self, seed: int, tilt: float, steps: int, report: Report) -> dict[str, Any]:
        """EWC over two tasks in sequence beside the closed form for both at once."""
        (x1, y1), (x2, y2) = task(2 * seed, FIRST, tilt), task(2 * seed + 1, SECOND, tilt)
        learner = Learner(
            Regression("linear"),
            # The loss is a mean over the second task's rows, the Fisher information a sum over the first one's.
            strategy=EWC(strength=1 / SECOND, normalize=False),
            optimizer=Optimizer("sgd", lr=0.15),
            steps=steps,
            batch_size=None,
            dtype="float64",
            random_state=seed,
            device="cpu",
        )
        path = []
        for name, x, y in (("first", x1, y1), ("second", x2, y2)):
            learner.partial_fit(x, y, task=name)
            path.append(learner.predict(np.eye(2)) - learner.predict(np.zeros((2, 2))))
        report.spend(trainings=1, steps=learner.n_steps_)
        joint = least_squares(np.concatenate([x1, x2]), np.concatenate([y1, y2]))
        alone = least_squares(x2, y2)
        kept = learner._runs[0][1].strategy[""]["tasks"].values()
        total = sum(t["precision"]["net.1.weight"][0].numpy() for t in kept)
        exact = np.diag(x1.T @ x1 + x2.T @ x2)
        gap = np.linalg.norm(alone - joint)
        return {
            "gap": gap,
            "sequence": np.linalg.norm(path[-1] - joint) / gap,
            "precision": np.abs(total / exact - 1).max(),
            "path": path,
            "points": {"first task": path[0], "second task": alone, "both at once": joint},
            "squares": {"first task": x1.T @ x1, "second task": x2.T @ x2, "both at once": x1.T @ x1 + x2.T @ x2},
        }


def draw(ax: Any, one: dict[str, Any], title: str, *, legend: bool) -> None:
    """The three posteriors as ellipses, and where EWC ends."""
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.sqrt(5.991) * np.stack([np.cos(angle), np.sin(angle)])
    for (name, square), colour in zip(one["squares"].items(), (BLUE, ORANGE, GREEN), strict=True):
        edge = one["points"][name][:, None] + np.linalg.inv(np.linalg.cholesky(square)).T @ circle
        ax.fill(*edge, color=colour, alpha=0.16, linewidth=0)
        ax.plot(*edge, color=colour, linewidth=1.4, label=name)
        ax.plot(*one["points"][name], "o", color=colour, markersize=5)
    ax.annotate("", one["path"][1], one["path"][0], arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 1.4})
    ax.plot(*one["path"][1], "o", markersize=11, markerfacecolor="none", markeredgecolor=INK, markeredgewidth=1.6)
    blank(ax)
    ax.set_aspect("equal", adjustable="datalim")
    ax.set_title(title)
    ax.annotate("EWC", one["path"][1], (10, 9), textcoords="offset points", fontsize=9.5, fontweight="bold")
    if legend:
        ax.legend(loc="best")
