"""Random gradients: what the AND-mask leaves of noise, and of a component that environments share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import special, stats

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, altered, mean_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, PINK, note
from weft.objectives import Classification
from weft.strategies import ERM, ANDMask, GeometricMean

SHARED = 2.0  # mean over deviation of a component that environments share
RIGHT = stats.norm.cdf(SHARED)  # the chance that its sign is right, .977
COUNTS = {1.0: (2, 3, 4, 6, 8, 10, 12), 0.6: (5, 10, 15, 20, 25, 30, 35)}  # environments, by threshold


def survives(d: Any, threshold: float, right: float = 0.5) -> Any:
    """The chance that at least t = d (threshold + 1) / 2 of d signs agree, each `right` or not."""
    t = np.ceil(np.asarray(d) * (threshold + 1) / 2 - 1e-4)
    return stats.binom.sf(t - 1, d, right) + stats.binom.cdf(d - t, d, right)


def masked_square(d: int, threshold: float) -> float:
    """E (m g)^2 for the mean g of d standard normals and its mask m.

    Given k positive signs, magnitudes are independent half-normals of mean square 1 and squared mean 2 / pi, so that
    E (sum)^2 = d (1 - 2 / pi) + (2 k - d)^2 2 / pi. The paper bounds it by (d - t) binom(d, t) 2^(1 - d), which is of
    the right order for t < d but zero, one term short, for t = d.
    """
    k = np.arange(d + 1)
    kept = np.abs(2 * k - d) >= np.ceil(threshold * d - 1e-4)
    given = (d * (1 - 2 / np.pi) + (2 * k - d) ** 2 * 2 / np.pi) / d**2
    return float((stats.binom.pmf(k, d, 0.5) * given)[kept].sum())


def product_square(d: int) -> float:
    """The same for the geometric mean where all signs agree: 2^(1 - d) (E |g|^(2 / d))^d."""
    return float(2 ** (1 - d) * (2 ** (1 / d) * special.gamma(1 / d + 0.5) / np.sqrt(np.pi)) ** d)


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
    quick = {"seeds": 4, "parameters": 150_000, "environments": (2, 8, 32), "steps": 150}
    full = {"seeds": 32, "parameters": 300_000, "environments": (2, 4, 8, 16, 32), "steps": 300}
    mutant = Mutant(
        what="a mask that lets everything pass",
        misses="survivors off their binomial law",
        names={"ANDMask": altered(ANDMask, threshold=0.0)},
        setting={"seeds": 2, "parameters": 20_000, "steps": 5},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(1 + 4 * len(setting.environments))
        drawn = {
            (threshold, d): np.array([sample(d, threshold, seed, setting.parameters) for seed in seeds])
            for threshold, d in report.each([(t, d) for t, ds in COUNTS.items() for d in ds], "random gradients")
        }
        rows, far, off = [], [], []
        total = len(seeds) * setting.parameters
        for (threshold, d), found in drawn.items():
            kept, squares = found[:, :2].mean(0), found[:, 2:5].mean(0)
            chance = np.array([survives(d, threshold), survives(d, threshold, RIGHT)])
            spread = np.sqrt(total * chance * (1 - chance) + 1)  # one count more, where hardly any is lost or left
            far.append(total * np.abs(kept - chance) / spread)
            exact = np.array([1 / d, masked_square(d, threshold), product_square(d)])
            z = np.abs(squares - exact) / np.sqrt(found[:, 5:].sum(0) / len(seeds) ** 2 + 1e-30)
            off.append(z if threshold == 1 else z[:2])  # elsewhere too few products are left to tell
            rows.append([threshold, d, *np.stack([[*kept, *squares], [*chance, *exact]], 1).reshape(-1)])
        for what, worst in (("survivors off their binomial law", far), ("squared norms off their expectation", off)):
            report.figure(f"{what}, furthest", max(map(max, worst)), unit="standard errors", most=5.0, exact=True)
        for threshold, near in ((1.0, -np.log(2)), (0.6, None)):
            ds = np.array(COUNTS[threshold])
            shares = np.array([drawn[threshold, d][:, 0] for d in ds]).T
            law = slope(ds, survives(ds, threshold))
            told = "2^-d: −0.693" if near else f"the exact law over these d: {law:.3f}; −0.193 as d grows"
            name = f"slope of log survival in d, threshold {threshold:g}"
            report.figure(name, mean_of([slope(ds, s) for s in shares]), reference=told, near=near or law, within=0.02)
        ds = sorted({d for ds in COUNTS.values() for d in ds})
        means = np.array([next(v for (_, e), v in drawn.items() if e == d)[:, 2] for d in ds]).T
        power = [np.polyfit(np.log(ds), np.log(m), 1)[0] for m in means]
        name = "slope of the mean's log squared norm in log d"
        report.figure(name, mean_of(power), reference="1 / d: −1", near=-1, within=0.02)
        for threshold, bound in ((0.6, {"least": 99.0}), (1.0, {})):
            d = COUNTS[threshold][-1]
            kept = mean_of(100 * drawn[threshold, d][:, 1])
            law = f"exactly {100 * survives(d, threshold, RIGHT):.1f}"
            name = f"shared component kept, {d} environments, threshold {threshold:g}"
            report.figure(name, kept, reference=law, unit="%", **bound)
        accuracy = {
            (kind, name): [self.train(kind, name, d, setting, seeds, report) for d in setting.environments]
            for kind in ("random", "shared")
            for name in ("mean", "mask")
        }
        last = setting.environments[-1]
        bounds = ({"least": 85.0}, {"most": 60.0}, {"least": 95.0}, {"least": 95.0})
        for (kind, name), bound in zip(accuracy, bounds, strict=True):
            what = f"a net's training accuracy, {kind} labels, {last} environments, by the {name}"
            report.figure(what, mean_of(accuracy[kind, name][-1]), unit="%", **bound)
        names = ("noise kept", "shared kept", "mean²", "mask²", "geometric mean²")
        report.table(
            "Shares of components kept and mean squares of what they become, each beside its exact value",
            ["threshold", "d", *(column for name in names for column in (name, "exact"))],
            [[*row[:2], *(float(f"{value:.4g}") for value in row[2:])] for row in rows],
        )
        with report.picture(
            "random_gradients",
            alt="Three panels over the number of environments. Left: the share of components kept falls on straight "
            "lines in a logarithmic scale for noise and stays near one for a shared component. Middle: squared norms "
            "of masked gradients fall as lines, that of the mean hardly. Right: with the mask a net stops fitting "
            "random labels, and goes on fitting shared ones.",
            caption="Dots are measured and lines exact. Left: components kept by the AND-mask; τ = 1 asks all signs to "
            "agree, τ = .6 asks for 80 %. Middle: what a step is made of. Right: training accuracy of a small net "
            f"with the mask (τ = .6, solid) and without it (dotted); bars are intervals over {len(seeds)} seeds.",
            panels=3,
            size=(13.2, 4.1),
        ) as panels:
            draw(panels, rows, setting.environments, accuracy)

    def train(self, kind: str, name: str, d: int, setting: Any, seeds: list[int], report: Report) -> Any:
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
        return 100 * np.array([learner.replica(k).score(x, y) for k in range(len(seeds))])


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


def draw(panels: Any, rows: list[Any], environments: Any, accuracy: dict[Any, Any]) -> None:
    """Shares kept, squared norms, and the net's training accuracy."""
    left, middle, right = panels
    table = {t: np.array([row[1:] for row in rows if row[0] == t]).T for t in (1.0, 0.6)}
    table[0.0] = np.array(sorted(row[1:] for row in rows)).T
    for ax, threshold, column, colour in (
        (left, 1.0, 1, ORANGE),
        (left, 1.0, 3, PINK),
        (left, 0.6, 1, BLUE),
        (left, 0.6, 3, GREEN),
        (middle, 0.0, 5, GREEN),
        (middle, 1.0, 7, ORANGE),
        (middle, 0.6, 7, BLUE),
        (middle, 1.0, 9, PINK),
    ):
        d, *values = table[threshold]
        ax.semilogy(d, values[column - 1], "o", color=colour, markersize=4.5)
        ax.semilogy(d, values[column], color=colour, linewidth=1.2)
    note(left, 35, 0.4, "shared, τ = .6", GREEN, ha="right")
    note(left, 13, 0.9, "shared, τ = 1", PINK, va="top")
    note(left, 24, 0.01, "noise, τ = .6", BLUE)
    note(left, 12.5, 5e-4, "noise, τ = 1", ORANGE)
    note(middle, 35, 0.06, "mean", GREEN, ha="right")
    note(middle, 24, 3e-3, "mask, τ = .6", BLUE)
    note(middle, 12.5, 6e-4, "mask, τ = 1", ORANGE)
    note(middle, 12.5, 1.6e-4, "geometric mean, τ = 1", PINK)
    middle.set_ylim(6e-5, 1)
    left.set(title="Components kept", xlabel="environments d", ylabel="share")
    middle.set(title="Squared step", xlabel="environments d", ylabel="mean square of a component")
    for (kind, name), values in accuracy.items():
        low, high = np.array([mean_of(v).interval or (np.nan, np.nan) for v in values]).T
        at, colour = np.mean(values, 1), BLUE if kind == "random" else GREEN
        look = "o-" if name == "mask" else "o:"
        right.errorbar(environments, at, [at - low, high - at], fmt=look, color=colour, markersize=5)
    note(right, environments[0], 58, "random labels,\nwith the mask", BLUE)
    note(right, environments[-1], 88, "shared labels,\nwith the mask", GREEN, ha="right")
    right.axhline(50, color=INK, linewidth=0.8, linestyle="--")
    note(right, environments[0], 51, "chance")
    right.set_xscale("log")
    right.minorticks_off()
    right.set(xticks=environments, xticklabels=[str(d) for d in environments], ylim=(45, 103))
    right.set(title="A net", xlabel="environments d", ylabel="training accuracy, %")
