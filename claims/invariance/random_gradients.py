"""Random gradients: what the AND-mask leaves of noise, and of a component that environments share."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from _laws import SHARED, law, survives

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, altered, mean_of, scores_of, usual
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, PINK, note
from weft.objectives import Classification
from weft.strategies import ERM, ANDMask, GeometricMean

COUNTS = {1.0: (2, 3, 4, 6, 8, 10, 12), 0.6: (5, 10, 15, 20, 25, 30, 35)}  # environments, by threshold
KINDS = ("noise kept", "shared kept", "mean²", "mask²", "geometric mean²")
# What is drawn: by panel, threshold and kind its colour, its name and where that stands.
SERIES = {
    (0, 1.0, 0): (ORANGE, "noise, τ = 1", 12.5, 5e-4),
    (0, 1.0, 1): (PINK, "shared, τ = 1", 13, 0.6),
    (0, 0.6, 0): (BLUE, "noise, τ = .6", 24, 0.01),
    (0, 0.6, 1): (GREEN, "shared, τ = .6", 25, 0.4),
    (1, 0.6, 2): (GREEN, "mean", 32, 0.06),
    (1, 1.0, 3): (ORANGE, "mask, τ = 1", 12.5, 6e-4),
    (1, 0.6, 3): (BLUE, "mask, τ = .6", 24, 3e-3),
    (1, 1.0, 4): (PINK, "geometric mean, τ = 1", 12.5, 1.6e-4),
}


class RandomGradients(Claim):
    """Gaussian gradients through weft's own strategies beside closed forms, and a net with random labels."""

    title = "Random gradients vanish"
    statement = (
        "Where the gradients of d environments are random, the squared norm of the AND-masked gradient falls "
        "exponentially in d (as 2^-d where all signs must agree), that of the mean only as 1 / d, while a component "
        "that environments share survives."
    )
    reference = (
        "Parascandolo, Neitz, Orvieto, Gresele and Schölkopf, “Learning explanations that are hard to vary”, arXiv "
        "2009.00329, proposition 2 and figure 4"
    )
    tolerance = (
        "Survivors are counts with a known binomial law, and squared norms means with a known expectation: the "
        "furthest of all may be 5 standard errors off. The slope at threshold 1 must be that of 2^-d within .02; at "
        "threshold .6 (the paper's figure, t = .8 d) it must be that of the exact law over the same d within .02. A "
        "shared component with noise outlives the mask where its signs are right more often than the threshold asks; "
        "where all must agree it falls too, as .977^d, which is told. A net whose labels are random in each "
        "environment must fit them by the mean (85 %) and not with the mask (60 %, chance is 50), and labels that all "
        "share in both cases (95 %): the proposition says nothing of nets, so these bounds only tell the two apart."
    )
    quick = {"seeds": 6, "parameters": 40_000, "environments": (2, 32), "steps": 100}
    full = {"seeds": 32, "parameters": 300_000, "environments": (2, 4, 8, 16, 32), "steps": 300}
    mutant = Mutant(
        what="a mask that lets everything pass",
        misses="survivors off their binomial law",
        names={"ANDMask": altered(ANDMask, threshold=0.0)},
        setting={"seeds": 2, "parameters": 20_000, "steps": 5},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(4 * len(setting.environments))
        pairs = [(threshold, d) for threshold, ds in COUNTS.items() for d in ds]
        drawn = report.every(pairs, partial(samples, seeds=seeds, n=setting.parameters))
        exact = {pair: law(*pair) for pair in pairs}
        total, far, off = len(seeds) * setting.parameters, [], []
        for (threshold, d), found in drawn.items():
            measured, right = found[:, :5].mean(0), exact[threshold, d]
            spread = np.sqrt(total * right[:2] * (1 - right[:2]) + 1)  # one more, where hardly any is lost or left
            far.append(total * np.abs(measured - right)[:2] / spread)
            z = np.abs(measured - right)[2:] / np.sqrt(found[:, 5:].sum(0) / len(seeds) ** 2 + 1e-30)
            off.append(z if threshold == 1 else z[:2])  # elsewhere too few products are left to tell
        for what, worst in (("survivors off their binomial law", far), ("squared norms off their expectation", off)):
            report.figure(f"{what}, furthest", max(map(max, worst)), unit="standard errors", most=5.0, exact=True)
        for threshold, near in ((1.0, -np.log(2)), (0.6, None)):
            ds = np.array(COUNTS[threshold])
            shares = np.array([drawn[threshold, d][:, 0] for d in ds]).T
            lawful = slope(ds, survives(ds, threshold))
            told = "2^-d: −0.693" if near else f"the exact law over these d: {lawful:.3f}; −0.193 as d grows"
            name, found = f"slope of log survival in d, threshold {threshold:g}", [slope(ds, s) for s in shares]
            report.figure(name, mean_of(found), reference=told, near=near or lawful, within=0.02)
        means = {d: found[:, 2] for (_, d), found in reversed(drawn.items())}  # of both thresholds the first
        ds = np.array(sorted(means))
        power = [np.polyfit(np.log(ds), np.log(m), 1)[0] for m in np.array([means[d] for d in ds]).T]
        name = "slope of the mean's log squared norm in log d"
        report.figure(name, mean_of(power), reference="1 / d: −1", near=-1, within=0.02)
        for threshold, bound in ((0.6, {"least": 99.0}), (1.0, {})):
            d = COUNTS[threshold][-1]
            kept, told = mean_of(100 * drawn[threshold, d][:, 1]), f"exactly {100 * exact[threshold, d][1]:.1f}"
            name = f"shared component kept, {d} environments, threshold {threshold:g}"
            report.figure(name, kept, reference=told, unit="%", **bound)
        ways = list(product(("random", "shared"), ("mean", "mask")))
        keys = [(*way, d) for way in ways for d in setting.environments]
        accuracy = report.every(keys, partial(trained, setting=setting, seeds=seeds, report=report))
        last = setting.environments[-1]
        bounds = ({"least": 85.0}, {"most": 60.0}, {"least": 95.0}, {"least": 95.0})
        for (kind, name), bound in zip(ways, bounds, strict=True):
            what = f"a net's training accuracy, {kind} labels, {last} environments, by the {name}"
            report.figure(what, mean_of(accuracy[kind, name, last]), unit="%", **bound)
        report.table(
            "Shares of components kept and mean squares of what they become, each beside its exact value",
            ["threshold", "d", *(column for name in KINDS for column in (name, "exact"))],
            [[*p, *np.stack([drawn[p][:, :5].mean(0), exact[p]], 1).reshape(-1).tolist()] for p in pairs],
            digits=6,
        )
        with report.picture(
            "random_gradients",
            alt="Three panels over the number of environments. Left: the share of components kept falls on straight "
            "lines in a logarithmic scale for noise and stays near one for a shared component. Middle: squared norms "
            "of masked gradients fall as lines, that of the mean hardly. Right: with the mask a net stops fitting "
            "random labels, and goes on fitting shared ones.",
            caption="Dots are measured and lines exact. Left: components kept by the AND-mask; τ = 1 asks all signs to "
            "agree, τ = .6 asks for 80 %. Middle: what a step is made of. Right: training accuracy of a small net "
            f"with the mask (τ = .6, solid) and without it (dotted), every one of {len(seeds)} seeds and their mean.",
            panels=3,
            size=(13.2, 4.1),
        ) as panels:
            for (panel, threshold, kind), (colour, name, *place) in SERIES.items():
                ds, ax = COUNTS[threshold], panels[panel]
                ax.semilogy(ds, [drawn[threshold, d][:, kind].mean() for d in ds], "o", color=colour, markersize=4.5)
                ax.semilogy(ds, [exact[threshold, d][kind] for d in ds], color=colour, linewidth=1.2)
                note(ax, *place, name, colour)
            panels[0].set(title="Components kept", xlabel="environments d", ylabel="share")
            panels[1].set(title="Squared step", xlabel="environments d", ylabel="mean square of a component")
            panels[1].set_ylim(6e-5, 1)
            right, at = panels[2], list(setting.environments)
            for (kind, name), style in zip(ways, ("o:", "o-", "o:", "o-"), strict=True):
                values = np.array([accuracy[kind, name, d] for d in at]).T
                usual.curve(right, at, values, BLUE if kind == "random" else GREEN, style)
            note(right, at[0], 58, "random labels,\nwith the mask", BLUE)
            note(right, at[-1], 88, "shared labels,\nwith the mask", GREEN, ha="right")
            right.axhline(50, color=INK, linewidth=0.8, linestyle="--")
            note(right, at[0], 51, "chance")
            right.set(xscale="log", title="A net", xlabel="environments d", ylabel="training accuracy, %")
            right.minorticks_off()
            right.set_xticks(at, [str(d) for d in at])


def trained(kind: str, name: str, d: int, *, setting: Any, seeds: list[int], report: Report) -> Any:
    """Training accuracy in %, by seed, where labels are random in each environment or follow one rule in all."""
    random = np.random.default_rng([seeds[0], d])
    x, environment = random.normal(size=(32 * d, 10)), np.repeat(np.arange(d), 32)
    y = random.integers(0, 2, len(x)) if kind == "random" else (x[:, 0] + x[:, 1] > 0).astype(int)
    learner = Learner(
        Classification(hidden=(64,)),
        strategy=ERM() if name == "mean" else ANDMask(threshold=0.6, rescale=False),
        optimizer=Optimizer("adam", lr=0.02),
        steps=setting.steps,
        batch_size=None,
        replicas=len(seeds),
        random_state=seeds[0],
    )
    report.fit(learner, x, y, environment=environment, what=f"{kind} labels, {d} environments")
    return scores_of(learner, x, y, lost=float("nan"))


def samples(threshold: float, d: int, *, seeds: list[int], n: int) -> Any:
    """What `sample` finds for every seed."""
    return np.array([sample(d, threshold, seed, n) for seed in seeds])


def sample(d: int, threshold: float, seed: int, n: int) -> list[float]:
    """Shares kept of noise and of a shared component; squares by mean, mask and product; the variances of those."""
    g = torch.randn(d, n, generator=torch.Generator().manual_seed(100_000 * seed + 1_000 * d + int(10 * threshold)))
    weights = torch.full((d,), 1 / d)

    def by(strategy: Any, gradients: Any) -> Any:
        return strategy.combine({"": gradients}, weights, weights, {})[0][""].double()

    mask = ANDMask(threshold=threshold, rescale=False)
    masked = by(mask, g)
    squares = [by(ERM(), g) ** 2, masked**2, by(GeometricMean(), g) ** 2]
    kept = [float((found != 0).double().mean()) for found in (masked, by(mask, g + SHARED))]
    return [*kept, *(float(s.mean()) for s in squares), *(float(s.var() / n) for s in squares)]


def slope(d: Any, share: Any) -> float:
    """Of log share in d, by least squares with the weights that counts have."""
    return float(np.polyfit(d, np.log(share), 1, w=np.sqrt(share))[0])
