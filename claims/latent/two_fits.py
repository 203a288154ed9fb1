"""Which of two divergences maximum likelihood makes least: two fits of a law with two hills by one normal law."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import optimize, special, stats

from weft import Learner
from weft.bench.claims import Claim, Mutant, Report, mean_of, stacked
from weft.bench.pictures import BLUE, INK, ORANGE, note
from weft.objectives import Gaussian

AT = np.linspace(-12.0, 12.0, 6001)
STEP = AT[1] - AT[0]
HILLS = {"share": (0.4, 0.6), "mean": (-3.0, 3.0), "deviation": (0.6, 0.8)}
P = sum(w * stats.norm.pdf(AT, m, s) for w, m, s in zip(*HILLS.values(), strict=True))
MEAN = float((P * AT).sum() * STEP)
SPREAD = float(np.sqrt((P * (AT - MEAN) ** 2).sum() * STEP))


def drawn(n: int, seed: int) -> Any:
    """Rows of p."""
    random = np.random.default_rng(seed)
    which = (random.random(n) < HILLS["share"][1]).astype(int)
    return random.normal(np.array(HILLS["mean"])[which], np.array(HILLS["deviation"])[which])[:, None]


def logs(mean: float, deviation: float) -> Any:
    """log p_theta on the grid."""
    return stats.norm.logpdf(AT, mean, deviation)


def forward(mean: float, deviation: float) -> float:
    """KL(p || p_theta) = -entropy of p - E_p log p_theta: the second part is what maximum likelihood raises."""
    return float((special.xlogy(P, P) - P * logs(mean, deviation)).sum() * STEP)


def reverse(mean: float, deviation: float) -> float:
    """KL(p_theta || p)."""
    own = logs(mean, deviation)
    return float((np.exp(own) * (own - np.log(P))).sum() * STEP)


def least(divergence: Any, start: tuple[float, float]) -> tuple[float, float]:
    """Mean and deviation at the least divergence that is found from there."""
    found = optimize.minimize(lambda v: divergence(v[0], np.exp(v[1])), [start[0], np.log(start[1])], tol=1e-10)
    return float(found.x[0]), float(np.exp(found.x[1]))


def likeliest(x: Any, seed: int, report: Report) -> tuple[float, float]:
    """Mean and deviation by maximum likelihood."""
    learner = report.fit(Learner(Gaussian(), dtype="float64", random_state=seed), x, what="maximum likelihood")
    at = np.array([[-1.0], [0.0], [1.0]])
    low, middle, high = np.asarray(learner.log_prob(at), dtype=float)  # a parabola: its bend and its slope are all
    bend = 2 * middle - low - high
    return float((high - low) / 2 / bend), float(1 / np.sqrt(bend))


def to_a_hill(x: Any, seed: int, report: Report) -> tuple[float, float]:
    """The mutant: the reverse divergence made least, as maximum likelihood is sometimes said to do."""
    report.spend(trainings=1)
    return least(reverse, (float(np.median(x)), 1.0))


class TwoFits(Claim):
    """A mixture of two normal laws, known on a grid, fitted by one: from rows, and by either divergence."""

    title = "Maximum likelihood covers both hills"
    statement = (
        "Maximum likelihood makes KL(p || p_θ) least, not KL(p_θ || p) as is sometimes printed. Fitted to a p with two "
        "hills, one normal law by maximum likelihood has the mean and variance of p and lies over both and the valley "
        "between, where p has next to nothing; the reverse divergence is least on one hill alone."
    )
    reference = (
        "Bishop, “Pattern recognition and machine learning”, 2006, section 10.1.2; Minka, “Divergence measures and "
        "message passing”, 2005"
    )
    tolerance = (
        "p is known: 40 % around −3 (deviation .6) and 60 % around 3 (.8). The fit to rows is within 5 % (10 at the "
        "quick setting) of p's deviation from p's mean and deviation, its KL(p || p_θ) at most .01 (.05) nats above "
        "the least that there is, and its KL(p_θ || p) at least 1 nat above its least. The least of KL(p || p_θ) by "
        "search is at p's moments to 1e-3; that of KL(p_θ || p), from either side, within .1 of a hill's mean "
        "and deviation, at -log of the hill's share to .01. Share of p_θ's mass where p is below .01: at least 30 % by "
        "maximum likelihood, at most 5 % on the hill."
    )
    quick = {"seeds": 6, "rows": 2000, "near": 0.1, "above": 0.05}
    full = {"seeds": 30, "rows": 20_000, "near": 0.05, "above": 0.01}
    mutant = Mutant(
        what="the reverse divergence in place of the likelihood",
        misses="maximum likelihood: KL(p || p_θ) above its least",
        names={"likeliest": to_a_hill},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(len(seeds))
        covering = least(forward, (1.0, 2.0))
        hills = [least(reverse, (m, 1.0)) for m in HILLS["mean"]]
        report.worst("least KL(p || p_θ): from p's moments", np.subtract(covering, (MEAN, SPREAD)), most=1e-3)
        known = np.array([HILLS["mean"], HILLS["deviation"]]).T
        report.worst("least KL(p_θ || p): from a hill's mean and deviation", np.array(hills) - known, most=0.1)
        floor = [reverse(*hill) + np.log(w) for hill, w in zip(hills, HILLS["share"], strict=True)]
        report.worst("least KL(p_θ || p): from -log of the hill's share", floor, most=0.01, unit="nats")
        best = min(hills, key=lambda hill: reverse(*hill))
        found = stacked(self.measure(likeliest(drawn(setting.rows, seed), seed, report)) for seed in seeds)
        for name, exact in (("mean", MEAN), ("deviation", SPREAD)):
            report.figure(f"maximum likelihood: {name}", mean_of(found[name]), near=exact, within=setting.near * SPREAD)
        above = mean_of(found["forward"] - forward(*covering))
        report.figure("maximum likelihood: KL(p || p_θ) above its least", above, unit="nats", most=setting.above)
        above = mean_of(found["reverse"] - reverse(*best))
        report.figure("maximum likelihood: KL(p_θ || p) above its least", above, unit="nats", least=1.0)
        report.figure("maximum likelihood: mass where p is below .01", mean_of(found["empty"]), unit="%", least=30.0)
        empty = self.measure(best)["empty"]
        report.figure("on a hill: mass where p is below .01", empty, unit="%", most=5.0, exact=True)
        rows = [["maximum likelihood", *(mean_of(found[key]) for key in found)]]
        rows += [["least KL(p || p_θ)", *self.measure(covering).values()]]
        for side, hill in zip(("left", "right"), hills, strict=True):
            rows += [[f"least KL(p_θ || p), {side} hill", *self.measure(hill).values()]]
        report.table(
            "The fits: moments, both divergences in nats, and the mass where p is below .01",
            ["fit", "mean", "deviation", "KL(p || p_θ)", "KL(p_θ || p)", "mass, %"],
            rows,
            digits=3,
        )
        with report.picture(
            "two_fits",
            alt="A density with two hills, a wide low normal law over both of them and the valley between, and a "
            "narrow normal law that is on the right hill alone.",
            caption="In grey p; the normal law by maximum likelihood (every seed), and that of least KL(p_θ || p).",
            size=(6.8, 3.6),
        ) as ax:
            ax.fill_between(AT[::10], P[::10], color=INK, alpha=0.25, linewidth=0)
            for mean, deviation in zip(found["mean"], found["deviation"], strict=True):
                ax.plot(AT[::25], np.exp(logs(mean, deviation))[::25], color=BLUE, linewidth=1, alpha=0.6)
            ax.plot(AT, np.exp(logs(*best)), color=ORANGE)
            note(ax, -8.2, 0.1, "maximum likelihood", BLUE)
            note(ax, 4.2, 0.4, "least KL(p_θ || p)", ORANGE)
            ax.set(xlabel="x", ylabel="density", xlim=(-9, 9), ylim=(0, None))

    def measure(self, fit: tuple[float, float]) -> dict[str, float]:
        """Of a normal law with this mean and deviation."""
        empty = 100.0 * float((np.exp(logs(*fit)) * (P < 0.01)).sum() * STEP)
        named = {"mean": fit[0], "deviation": fit[1]}
        return {**named, "forward": forward(*fit), "reverse": reverse(*fit), "empty": empty}
