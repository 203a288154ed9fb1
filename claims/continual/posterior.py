"""The posterior identity behind elastic weight consolidation, on models whose posterior is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from _linear import ROWS, apart, carried, distance, joint, normalizers, pair, prior, task, tied

from weft.bench.claims import Claim, Mutant, Report, altered, mean_of, median_of, stacked
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, PINK, blank
from weft.strategies import EWC, Laplace

KINDS: dict[str, dict[str, Any]] = {
    "full": {"curvature": "full"},
    "Kronecker": {"curvature": "kronecker"},
    **{f"low rank, {rank}": {"curvature": "low_rank", "rank": rank} for rank in (4, 2, 1)},
    "diagonal": {"curvature": "diagonal"},
}
EXACT = ("full", "Kronecker", "low rank, 4")
SHARED = (0.0, 0.5, 0.9)  # correlations between the noise of two tasks


class Posterior(Claim):
    """Linear regressions in sequence, by carried posteriors, beside all rows at once in closed form."""

    title = "Tasks in sequence, one posterior"
    statement = (
        "The posterior of earlier tasks, used as the prior of the next, gives the posterior of all tasks at once. "
        "Carried with its full curvature it is that to rounding; EWC's diagonal is where parameters are not "
        "correlated, and an approximation elsewhere. Taking p(D₂ | D₁) for p(D₂) changes the normalizer and not the "
        "maximum. Data that depend on each other given the parameters break the identity."
    )
    reference = (
        "Kirkpatrick et al., “Overcoming catastrophic forgetting in neural networks”, arXiv 1612.00796, equations 1 "
        "and 2; Huszár, “On quadratic penalties in elastic weight consolidation”, arXiv 1712.03847"
    )
    tolerance = (
        "Where the identity is exact only the descent's rounding is allowed: 1e-6, of a posterior standard deviation "
        "for means, relative for precisions, of a nat for densities. One linear layer with one noise has a Kronecker "
        "product as its Fisher information, and rank 4 is all of 4 weights, so both are exact here too. How far the "
        "approximations are is told; that they, and a shared noise, are off by more than a tenth of a standard "
        "deviation, at the median of the draws, is judged."
    )
    quick = {"seeds": 3, "tasks": 2, "steps": 60}
    full = {"seeds": 16, "tasks": 4, "steps": 100}
    mutant = Mutant(
        what="EWC switched off",
        misses="EWC's maximum to the joint one",
        names={"EWC": altered(EWC, strength=0.0)},
        setting={"seeds": 2},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(len(seeds) * (2 + len(KINDS) + len(SHARED)))
        found = stacked(report.every(seeds, lambda seed: learned(seed, setting.tasks, setting.steps, report)).values())
        for i, what in enumerate(("maximum", "precision")):
            report.worst(f"EWC's {what} to the joint one, orthogonal columns", found["orthogonal"][:, i], most=1e-6)
        for name in EXACT:
            mean, precision, _ = found[name].T
            report.worst(f"{name}: mean off the joint posterior's", mean, unit="sd", most=1e-6)
            report.worst(f"{name}: precision off the joint posterior's", precision, most=1e-6)
        for name in [name for name in KINDS if name not in EXACT]:
            mean, _, nats = (median_of(values) for values in found[name].T)
            bound = {"reference": "> 0", "least": 0.1} if name == "diagonal" else {}
            report.figure(f"{name}: mean off the joint posterior's", mean, unit="sd", **bound)
            report.figure(f"{name}: divergence from the joint posterior", nats, unit="nats")
        report.worst("log p(θ | D₁, D₂) by the identity, off", found["identity"], unit="nats", most=1e-6)
        shift = mean_of(found["shift"])
        report.figure("p(D₂) for p(D₂ | D₁): shift of log p(θ | D₁, D₂)", shift, unit="nats", least=0.1)
        one = "0: one maximum"
        report.worst("that shift's spread over θ", found["spread"], unit="nats", most=1e-6, reference=one)
        for rho, off in zip(SHARED, found["shared"].T, strict=True):
            name = f"noise of two tasks correlated by {rho:g}: mean off the joint posterior's"
            if rho:
                report.figure(
                    name, median_of(off), reference="> 0", unit="sd", least=0.1 if rho == SHARED[-1] else None
                )
            else:
                report.worst(name, off, unit="sd", most=1e-6)
        report.table(
            f"After {setting.tasks} tasks: off the joint posterior, medians over the draws",
            ["curvature", "mean, sd", "precision, relative", "divergence, nats"],
            [[name, *np.median(found[name], axis=0)] for name in KINDS],
        )
        with report.picture(
            "posterior",
            alt="Three panels. Ellipses in the plane of two weights: with correlated columns EWC ends beside the joint "
            "maximum. Bars: full, Kronecker and all-rank precision are off by nothing but rounding, low ranks and the "
            "diagonal by tenths. Dots that rise with the correlation of noise.",
            caption="From the left: posteriors of two tasks and of both (95 %), and EWC's way from the first optimum; "
            "distances of carried means to the joint one (bars are medians over draws, dots are draws; what is exact "
            "is at rounding); two tasks whose noise is correlated, row by row.",
            panels=3,
            size=(11.6, 3.9),
            width_ratios=[1.15, 1.15, 1],
        ) as (left, kinds, shared):
            draw_plane(left, pair(seeds[0], 0.9), found["way"][0])
            for at, name in enumerate(KINDS):
                off, colour = np.maximum(found[name][:, 0], 1e-17), GREEN if name in EXACT else ORANGE
                kinds.barh(-at, np.median(off), left=1e-17, color=colour, alpha=0.35, height=0.62)
                kinds.plot(off, [-at] * len(off), "o", color=colour, markersize=4)
            kinds.set(xscale="log", xlim=(1e-17, 30), yticks=-np.arange(len(KINDS)), yticklabels=list(KINDS))
            kinds.set(title="Carried to the joint", xlabel="mean off, sd", xticks=[1e-15, 1e-10, 1e-5, 1])
            shared.plot(SHARED, found["shared"].T, "o", color=PINK, alpha=0.5, markersize=5)
            shared.plot(SHARED, np.median(found["shared"], axis=0), color=PINK)
            shared.set(title="Noise in common", xlabel="correlation of two tasks' noise", ylabel="mean off, sd")


def learned(seed: int, count: int, steps: int, report: Report) -> dict[str, Any]:
    """One draw of every problem: how far what is carried is from what all rows at once give."""
    bayes: dict[str, Any] = {"strength": 1 / ROWS, "normalize": False, "penalties": "latest"}
    ways = {tilt: carried(EWC(**bayes), pair(seed, tilt), steps, report) for tilt in (0.0, 0.9)}
    tasks = [prior(), *(task(seed, k) for k in range(count))]
    exact = [joint(tasks[: k + 1]) for k in range(len(tasks))]
    paths = {name: carried(Laplace(**kind, **bayes), tasks, steps, report) for name, kind in KINDS.items()}
    off, moved = normalizers(paths["full"][1], tasks)
    broken = []
    for rho in SHARED:
        both, truth = tied(seed, rho)
        broken.append(distance(carried(Laplace(curvature="full", **bayes), both, steps, report)[-1][0], *truth))
    return {
        "orthogonal": apart(ways[0.0][-1:], [joint(pair(seed, 0.0))])[:2],
        "way": [mean for mean, _ in ways[0.9]],
        **{name: apart(path, exact) for name, path in paths.items()},
        "identity": np.abs(off).max(),
        "spread": np.ptp(moved),
        "shift": moved.mean(),
        "shared": broken,
    }


def draw_plane(ax: Any, tasks: list[Any], way: Any) -> None:
    """The posteriors of each task and of both as ellipses, and where EWC ends."""
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.sqrt(5.991) * np.stack([np.cos(angle), np.sin(angle)])
    posteriors = {"first task": tasks[:1], "second task": tasks[1:], "both": tasks}
    for (name, rows), colour in zip(posteriors.items(), (BLUE, ORANGE, GREEN), strict=True):
        mean, precision = joint(rows)
        edge = mean[:, None] + np.linalg.inv(np.linalg.cholesky(precision)).T @ circle
        ax.fill(*edge, color=colour, alpha=0.16, linewidth=0)
        ax.plot(*edge, color=colour, linewidth=1.4, label=name)
    ax.annotate("", way[1], way[0], arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 1.4})
    ax.plot(*way[1], "o", markersize=11, markerfacecolor="none", markeredgecolor=INK, label="EWC")
    blank(ax)
    ax.set_title("Correlated columns, diagonal")
    ax.legend(loc="best", fontsize=8)
