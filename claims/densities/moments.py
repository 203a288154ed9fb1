"""Two laws with the same moments of every order, told apart by a kernel and not by their moments."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from weft.bench.claims import Claim, Mutant, Report, altered, share_of, stacked
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, note
from weft.scores import c2st, mmd

ORDERS = np.arange(1, 9)
SCALES = (0.1, 0.3, 1.0)  # of the median distance
LEVEL, PERMUTATIONS = 0.05, 99
TESTS = {
    "MMD": (BLUE, "MMD, lognormal and twin"),
    "nearest neighbours": (GREEN, "nearest neighbours, likewise"),
    "moments": (ORANGE, "moments of order 1 to 4, likewise"),
    "MMD, one law": (INK, "MMD, lognormal twice"),
}


def ripple(t: Any) -> Any:
    """The twin's density over the lognormal's, at t = log x."""
    return 1.0 + np.sin(2.0 * np.pi * t)


def lognormal(n: int, random: np.random.Generator) -> Any:
    """The standard one."""
    return np.exp(random.normal(size=n))


def twin(n: int, random: np.random.Generator) -> Any:
    """Exactly, by rejection: a lognormal row stays with chance (1 + sin(2 pi log x)) / 2."""
    kept: list[Any] = []
    while sum(map(len, kept)) < n:
        t = random.normal(size=2 * n)
        kept.append(np.exp(t[2.0 * random.uniform(size=2 * n) < ripple(t)]))
    return np.concatenate(kept)[:n]


def by_moments(x: Any, y: Any, random: np.random.Generator) -> float:
    """The p-value, by permutation, of the largest standardized difference of the means of x, x^2, x^3 and x^4."""
    powers = np.r_[x, y][:, None] ** np.arange(1, 5)
    powers = (powers - powers.mean(0)) / powers.std(0)
    orders = np.array([np.arange(len(powers)), *(random.permutation(len(powers)) for _ in range(PERMUTATIONS))])
    found = np.abs(powers[orders[:, : len(x)]].mean(1) - powers[orders[:, len(x) :]].mean(1)).max(1)
    return float((found >= found[0] - 1e-12).mean())


class Moments(Claim):
    """A lognormal beside its rippled twin, by MMD, by nearest neighbours and by moments."""

    title = "Equal in all moments, and told apart"
    statement = (
        "The lognormal law and its twin of density f(x)(1 + sin(2π log x)) have the same moments of every order. A "
        "test of moments cannot tell samples of them apart; the maximum mean discrepancy of a Gaussian kernel, which "
        "is 0 only where two laws are equal, can."
    )
    reference = (
        "Heyde, “On a property of the lognormal distribution”, JRSS B 25, 1963; Gretton, Borgwardt, Rasch, Schölkopf "
        "and Smola, “A kernel two-sample test”, JMLR 13, 2012"
    )
    tolerance = (
        "The moments of order 1 to 8 are equal by quadrature to 1e-9. At 5 %, with 400 rows of each law, MMD must tell "
        "them apart in at least 90 % of the trials (80 at the quick setting), the test of the first four moments in at "
        "most 10 % (25), and of two samples of one law MMD may call at most 8 % (25) different: what 500 (40) trials "
        "of a true 5 % can look like. Rows, kernel widths (0.1, 0.3 and 1 times the median distance) and bounds were "
        "chosen by a pilot with other seeds: at the median distance alone MMD needs 1,000 rows."
    )
    quick = {"seeds": 40, "rows": (400,), "power": 80.0, "moments": 25.0, "level": 25.0}
    full = {"seeds": 500, "rows": (50, 100, 200, 400), "power": 90.0, "moments": 10.0, "level": 8.0}
    mutant = Mutant(
        what="a kernel so wide that it sees little but the first moments",
        misses="told apart by MMD",
        names={"mmd": altered(mmd, bandwidth=1000.0, scales=(1.0,))},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(len(setting.rows))
        t = np.linspace(-14.0, 22.0, 360_001)
        weights = np.exp(-(t**2) / 2 + ORDERS[:, None] * t) / np.sqrt(2 * np.pi) * (t[1] - t[0])
        apart = (weights * ripple(t)).sum(1) / np.exp(ORDERS**2 / 2) - 1.0
        report.worst("moments of order 1 to 8 of the twin, relative difference from the lognormal's", apart, most=1e-9)
        found = report.every(setting.rows, partial(trials, seeds=seeds, report=report))
        n = setting.rows[-1]
        for name, what, bound in (
            ("MMD", f"told apart by MMD, {n} rows each", {"least": setting.power}),
            ("moments", f"told apart by moments of order 1 to 4, {n} rows each", {"most": setting.moments}),
            ("MMD, one law", f"two samples of the lognormal told apart by MMD, {n} rows each", {"most": setting.level}),
            ("nearest neighbours", f"told apart by a classifier of nearest neighbours, {n} rows each", {}),
        ):
            report.figure(what, share_of(found[n][name]), unit="%", **bound)
        report.table(
            f"Trials in which p is at most {LEVEL:g}, in %",
            ["rows of each", *TESTS],
            [[n, *(100 * found[n][name].mean() for name in TESTS)] for n in setting.rows],
            digits=1,
        )
        with report.picture(
            "moments",
            alt="Left, two densities over x on a logarithmic axis: a smooth hill, and one that swings around it, from "
            "nothing to twice its height. Right, over the number of rows, the share of trials in which MMD tells the "
            "laws apart rises to all of them; that of the moments stays near 5 %.",
            caption="The two laws, and how often each test tells them apart at 5 %; in grey MMD with two samples of "
            f"one law. {len(seeds)} trials at each number of rows.",
            panels=2,
            size=(9.6, 3.8),
        ) as (laws, tests):
            at = np.linspace(-3, 3, 600)
            hill = np.exp(-(at**2) / 2) / np.sqrt(2 * np.pi)
            laws.plot(np.exp(at), hill * ripple(at), color=BLUE)
            laws.plot(np.exp(at), hill, color=INK)
            laws.set(xscale="log", xlabel="x", ylabel="density of log x", title="Equal moments")
            note(laws, 6.0, 0.6, "twin", BLUE)
            note(laws, 0.06, 0.3, "lognormal", INK)
            for name, (colour, label) in TESTS.items():
                shares = [100 * found[n][name].mean() for n in setting.rows]
                tests.plot(setting.rows, shares, "o-", color=colour, markersize=4, label=label)
            tests.axhline(100 * LEVEL, color=INK, linewidth=0.8, linestyle=":")
            tests.set(xlabel="rows of each sample", ylabel="told apart, %", ylim=(-3, 103), title="Tests at 5 %")
            tests.legend(loc="center right")


def trials(n: int, *, seeds: list[int], report: Report) -> dict[str, Any]:
    """Which tests tell samples of n rows apart, by seed."""
    found = []
    for seed in report.each(seeds, f"{n} rows"):
        random = np.random.default_rng([seed, n])
        x, y, again = lognormal(n, random), twin(n, random), lognormal(n, random)
        kernel = {"scales": SCALES, "permutations": PERMUTATIONS, "random_state": seed}
        p = {
            "MMD": mmd(x, y, **kernel).p_value,
            "MMD, one law": mmd(x, again, **kernel).p_value,
            "nearest neighbours": c2st(x, y, classifier="knn", random_state=seed).p_value,
            "moments": by_moments(x, y, random),
        }
        found.append({name: value <= LEVEL for name, value in p.items()})
    report.spend(trainings=2 * len(seeds))  # a classifier for each fold
    return stacked(found)
