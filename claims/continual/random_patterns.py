"""Random patterns: how the memory of the first one fades as others are learned after it."""

from __future__ import annotations

from typing import Any

import numpy as np
from _linear import unit
from _patterns import asked, exact, learned, ratio, retained, simulated

from weft import Optimizer
from weft.bench.claims import Claim, Mutant, Report, altered, exponents, resampled
from weft.bench.pictures import BLUE, GREEN, ORANGE, SOFT, note
from weft.strategies import EWC

KINDS = {"EWC": GREEN, "descent, rate 1": ORANGE, "descent, rate ½": BLUE}
SMALL, MANY = 24, 2  # synapses of the nets that weft trains, and patterns as a multiple of them
PROBES, TIMES = 180, 28  # patterns that are asked for later, and moments at which they are


class RandomPatterns(Claim):
    """A linear unit learns one random pattern after another, each seen once, with EWC and without."""

    title = "Random patterns fade by a power law"
    statement = (
        "A linear unit associates random binary patterns with random signs, one after another. Under EWC the "
        "signal-to-noise ratio of recalling the first pattern falls as a power of the number of patterns learned "
        "since, with exponent -1/2 below the unit's capacity and beyond it; under gradient descent it falls "
        "exponentially beyond capacity, whatever the learning rate, and at capacity fewer patterns are retained."
    )
    reference = (
        "Kirkpatrick et al., “Overcoming catastrophic forgetting in neural networks”, arXiv 1612.00796, “Random "
        "patterns”, equations S1 to S33 and figures S1 and S2"
    )
    tolerance = (
        "Exponents within .15 of -1/2, three standard errors beyond capacity; the exact ones are -.52 before it and "
        "-.48 after. Descent's must be steeper than -.6. The paper's noise is an approximation; ours follows from "
        "second moments without one, so that a measured ratio may differ from it only by chance: by 4.5 of its "
        "standard errors, for 3 curves at 30 moments. weft's own training, by descent, may be off the closed form of "
        "a step by 1e-8. Retained shares are judged at capacity, where EWC's must be 10 points above either rate's. "
        "Beyond twice the capacity all of EWC's patterns have a ratio below 1, while descent retains the latest; that "
        "is told: the paper names no such limit."
    )
    quick = {"seeds": 1600, "synapses": 104}
    full = {"seeds": 800, "synapses": 1000}  # the paper has 400 units of 1,000 synapses
    mutant = Mutant(
        what="EWC half as strong",
        misses="weft's EWC, off the closed form",
        names={"EWC": altered(EWC, strength=0.5)},
        setting={"seeds": 100, "synapses": 24},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(3)
        n, count = setting.synapses, len(seeds)
        for name, off in trained(seeds[0], report).items():
            report.worst(f"weft's {name}, off the closed form of each step", off, most=1e-8)
        rates = {"EWC": n / (n + np.arange(10 * n + 1)), "descent, rate 1": np.ones(10 * n + 1)}
        rates["descent, rate ½"] = rates["descent, rate 1"] / 2
        times = np.unique([*np.geomspace(2, 10 * n, TIMES).astype(int), n, 3 * n])
        probes = np.linspace(0, 3 * n, PROBES).astype(int)
        recall = simulated(n, seeds, rates, times, probes, report)
        truth = {name: exact(n, rate) for name, rate in rates.items()}

        draws = np.random.default_rng(seeds[0]).multinomial(count, [1 / count] * count, 400)
        draws[0] = 1  # the units as they are, then drawn anew
        snr = {name: ratio(r[:, 0], draws) for name, r in recall.items()}

        def exponent(name: str, low: float, high: float) -> Any:
            inside = (times >= low * n) & (times <= high * n)
            return resampled(exponents(times[inside], np.maximum(snr[name][:, inside], 1e-3)), count)

        for what, low, high in (("before capacity", 0.03, 0.4), ("beyond capacity", 1, 10), ("in all", 0.03, 10)):
            one = exponent("EWC", low, high)
            report.figure(f"EWC, exponent {what}", one, reference="-1/2", near=-0.5, within=0.15)
        for name in KINDS:
            one = exponent(name, 1, 2.2)  # later too little is left of descent's signal to be measured
            bound = {} if name == "EWC" else {"reference": "falling without bound", "most": -0.6}
            report.figure(f"{name}, exponent between 1 and 2.2 times the capacity", one, **bound)
        expected = {name: signal[0, times] / noise[0, times] for name, (signal, noise) in truth.items()}
        error = {name: np.sqrt((1 + e**2 / 2) / count) for name, e in expected.items()}  # for normal answers
        off = [(snr[name][0] - e) / error[name] for name, e in expected.items()]
        report.worst("measured ratios off the exact ones, in standard errors", off, most=4.5)

        for multiple in (1, 3):
            at = int(np.flatnonzero(times == multiple * n)[0])
            shares = {name: 100 * asked(probes, times[at], recall[name][at], draws) for name in KINDS}
            for name in KINDS:
                judged = multiple == 1 and name != "EWC"
                # Both shares vary with the units: the bound's own part of that is put into the interval.
                varied = shares[name] - judged * (shares["EWC"] - shares["EWC"][0])
                report.figure(
                    f"{name}: patterns retained after {multiple} times the capacity",
                    resampled(varied, count),
                    reference=f"{100 * retained(*truth[name])[times[at]]:.0f} by the exact noise",
                    unit="%",
                    most=shares["EWC"][0] - 10 if judged else None,
                )
        report.table(
            "Recall of the first pattern, signal to noise: measured (exact)",
            ["patterns since, of the capacity", *KINDS],
            [
                [t / n, *(f"{snr[name][0, i]:.3f} ({expected[name][i]:.3f})" for name in KINDS)]
                for i, t in enumerate(times)
            ],
        )
        with report.picture(
            "patterns",
            alt="Left, on logarithmic axes: recall of the first pattern falls along a straight line of slope minus one "
            "half under EWC, and bends down beyond capacity under gradient descent at either rate. Right: the share "
            "of patterns retained is larger under EWC until one and a half times the capacity, then smaller.",
            caption=f"{n} synapses. Left: signal-to-noise ratio of recalling the first pattern; dots are measured over "
            f"{count} units, lines are exact, grey is the slope -1/2. Right: of the patterns learned, the share whose "
            "ratio exceeds 1; dots are measured on up to 180 of them.",
            panels=2,
            size=(9.6, 4.1),
        ) as (left, right):
            left.plot(times / n, np.sqrt(n / times), color=SOFT, linewidth=7, alpha=0.3)
            once, few = np.ones((1, count)), (times > n / 4) & (times <= 3 * n)
            for name, colour in KINDS.items():
                seen = snr[name][0] > 0.03
                left.plot(times / n, expected[name], color=colour, linewidth=1.4)
                left.plot(times[seen] / n, snr[name][0][seen], "o", color=colour, markersize=4, label=name)
                right.plot(np.arange(3 * n) / n, 100 * retained(*truth[name])[: 3 * n], color=colour, linewidth=1.4)
                kept = [100 * asked(probes, times[i], recall[name][i], once)[0] for i in np.flatnonzero(few)]
                right.plot(times[few] / n, kept, "o", color=colour, markersize=4)
            left.set(xscale="log", yscale="log", ylim=(0.03, None), title="Recall of the first pattern")
            left.set(xlabel="patterns learned since, of the capacity", ylabel="signal / noise")
            left.legend(loc="lower left")
            right.set(ylim=(-3, 105), title="Patterns retained", xlabel="patterns learned, of the capacity")
            right.set(ylabel="share with signal / noise > 1, %")
            for at, name in (((1.35, 66), "EWC"), ((0.35, 22), "descent, rate 1"), ((2.05, 31), "descent, rate ½")):
                note(right, *at, name, KINDS[name])


def trained(seed: int, report: Report) -> dict[str, Any]:
    """weft's own EWC and plain training, one pattern a task, and how far each strays from `learned`."""
    random = np.random.default_rng([seed, 1])
    x = random.choice([-1.0, 1.0], (MANY * SMALL, SMALL)) / np.sqrt(SMALL)
    y = random.choice([-1.0, 1.0], len(x))
    tasks = [(x[t : t + 1], y[t : t + 1]) for t in range(len(x))]
    off = {}
    for name, strategy in (("EWC", EWC(strength=1.0, normalize=False, penalties="latest")), ("plain training", None)):
        one = unit(SMALL, strategy, Optimizer("sgd", lr=2 / (2 + MANY)), 30)  # curvatures are between 1 and 1 + MANY
        seen = report.in_turn(one, tasks, lambda learner: learner.predict(np.eye(SMALL)), f"weft's {name}")
        w = [np.zeros(SMALL)]
        for t in range(len(x)):
            w.append(learned(w[t], x[t], y[t], 1.0 if strategy is None else SMALL / (SMALL + t)))
        off[name] = np.array(seen) - w[1:]
    return off
