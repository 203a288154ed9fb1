"""Bias and variance of least squares and ridge, measured over resampled data and in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import Learner
from weft.bench.claims import Claim, Mutant, Report, altered, mean_of, stacked
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, note
from weft.objectives import LeastSquares

FEATURES, NOISE = 20, 1.0
COLOURS = {"squared bias": ORANGE, "variance": BLUE, "squared error": GREEN}


def design(rows: int, random: np.random.Generator) -> Any:
    """Correlated columns: neighbours share most of their variance, so that some directions are badly determined."""
    correlation = 0.9 ** np.abs(np.subtract.outer(np.arange(FEATURES), np.arange(FEATURES)))
    return random.normal(size=(rows, FEATURES)) @ np.linalg.cholesky(correlation).T


def closed_form(x: Any, at: Any, truth: Any, ridge: float) -> tuple[float, float]:
    """Squared bias and variance of the prediction, averaged over the points `at`, for a fixed design x.

    With centred x and S = x'x: E[w] = (S + ridge I)^-1 S truth, Cov[w] = NOISE^2 (S + ridge I)^-1 S (S + ridge I)^-1,
    and the mean of y adds NOISE^2 / n.
    """
    centre = x.mean(0)
    square = (x - centre).T @ (x - centre)
    inverse = np.linalg.inv(square + ridge * np.eye(FEATURES))
    seen = at - centre
    bias = seen @ (inverse @ square @ truth - truth)
    covariance = NOISE**2 * inverse @ square @ inverse
    variance = np.einsum("ij,jk,ik->i", seen, covariance, seen) + NOISE**2 / len(x)
    return float((bias**2).mean()), float(variance.mean())


class BiasVariance(Claim):
    """Ridge by penalty, on many data sets that share a design, beside the closed form."""

    title = "Error is bias, variance and noise"
    statement = (
        "The expected squared error of a prediction is squared bias plus variance plus noise; least squares has no "
        "bias, and some ridge penalty always has less error, since it takes more variance away than it adds in bias."
    )
    reference = (
        "Hoerl and Kennard, “Ridge regression: biased estimation for nonorthogonal problems”, Technometrics 12, 1970"
    )
    tolerance = (
        "Bias, variance and error are means over resampled data sets, with a known standard error: each must lie "
        "within 4 of its standard errors of the closed form (one in 16,000 would not by chance), for every penalty "
        "and design."
    )
    quick = {"seeds": 6, "sets": 1000, "rows": 40, "penalties": 13}
    full = {"seeds": 10, "sets": 20_000, "rows": 40, "penalties": 25}
    mutant = Mutant(
        what="a penalty of 1, whatever is asked for",
        misses="variance: furthest",
        names={"LeastSquares": altered(LeastSquares, ridge=1.0)},
        setting={"seeds": 2},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        penalties = [0.0, *np.geomspace(0.03, 1000, setting.penalties - 1)]
        report.plan(len(seeds) * len(penalties))
        found = stacked(report.every(seeds, lambda seed: self.measure(seed, penalties, setting, report)).values())
        value, error, exact = (found[key] for key in ("value", "error", "exact"))  # (designs, penalties, 3)

        for i, name in enumerate(COLOURS):
            off = (value[..., i] - exact[..., i]) / error[..., i]
            report.worst(f"{name}: furthest from the closed form, in standard errors", off, most=4.0)
        report.figure("least squares' squared bias", mean_of(value[:, 0, 0]), reference="0", near=0.0, within=0.01)
        best = int(exact[..., 2].mean(0).argmin())
        gain = value[:, 0, 2] - value[:, best, 2]
        report.figure(
            f"least squares' error less that of ridge {penalties[best]:.2g}, smallest of the designs",
            gain.min(),
            reference=f"{(exact[:, 0, 2] - exact[:, best, 2]).min():.3f} in closed form",
            holds=bool((gain > 4 * np.hypot(error[:, 0, 2], error[:, best, 2])).all()),
        )
        report.table(
            f"The first design: measured over {setting.sets:,} data sets, and in closed form",
            ["ridge", *(f"{n}, {how}" for n in ("bias²", "variance", "error") for how in ("measured", "exact"))],
            [
                [float(f"{r:.3g}"), *np.column_stack([v, e]).reshape(-1)]
                for r, v, e in zip(penalties, value[0], exact[0], strict=True)
            ],
            digits=5,
        )
        with report.picture(
            "decomposition",
            alt="Curves over the ridge penalty: squared bias rises, variance falls, and their sum with the noise, "
            "the error, has its minimum between; measured points lie on the curves of the closed form.",
            caption="Lines: the closed form. Points: measured over resampled data; those at 0 are least squares.",
            size=(7.6, 4.2),
        ) as ax:
            draw(ax, [found[key][0] for key in ("x", "at", "truth")], penalties, value[0])

    def measure(self, seed: int, penalties: list[float], setting: Any, report: Report) -> dict[str, Any]:
        """One design: bias, variance and error by penalty, over data sets that differ in their noise."""
        random = np.random.default_rng(seed)
        x, at = design(setting.rows, random), design(200, random)
        truth = random.normal(size=FEATURES) / 4
        # Each column of y is a data set of its own: the same rows, measured again with fresh noise.
        y = (x @ truth)[:, None] + NOISE * random.normal(size=(setting.rows, setting.sets))
        fresh = (at @ truth)[:, None] + NOISE * random.normal(size=(len(at), setting.sets))
        found = []
        for ridge in penalties:
            fitted = report.fit(Learner(LeastSquares(ridge=ridge), dtype="float64"), x, y, what=f"ridge {ridge:.2g}")
            found.append(measured(fitted.predict(at), at @ truth, fresh))
        report.spend(trainings=len(penalties) * (setting.sets - 1))
        exact = np.array([closed_form(x, at, truth, ridge) for ridge in penalties])
        value, error = np.moveaxis(found, -1, 0)
        exact = np.column_stack([exact, exact.sum(1) + NOISE**2])
        return {"value": value, "error": error, "exact": exact, "x": x, "at": at, "truth": truth}


def measured(predicted: Any, truth: Any, fresh: Any) -> list[tuple[float, float]]:
    """Squared bias, variance and error over data sets (columns), each with its standard error."""
    sets = predicted.shape[1]
    off = predicted.mean(1) - truth
    around = (predicted - predicted.mean(1, keepdims=True)) * np.sqrt(sets / (sets - 1))
    spread = (around**2).mean(0)  # for each data set, over points
    squares = ((predicted - fresh) ** 2).mean(0)
    # The mean prediction has a variance of its own, which adds itself to the squared bias.
    own = spread.mean() / sets
    lean, *errors = (v.std(ddof=1) / np.sqrt(sets) for v in ((around * off[:, None]).mean(0), spread, squares))
    values = ((off**2).mean() - own, spread.mean(), squares.mean())
    return list(zip(values, (2 * lean + np.sqrt(2.0) * own, *errors), strict=True))


def draw(ax: Any, problem: Any, penalties: list[float], value: Any) -> None:
    """The closed form as lines, what was measured as points."""
    fine = np.geomspace(0.022, 1000, 160)
    exact = np.array([closed_form(*problem, ridge) for ridge in fine])
    lines = np.column_stack([exact, exact.sum(1) + NOISE**2])
    where = np.array([0.01, *penalties[1:]])  # least squares stands at the left edge
    for i, (name, colour) in enumerate(COLOURS.items()):
        ax.plot(fine, lines[:, i], color=colour)
        ax.plot(where, value[:, i], "o", color=colour, markersize=4.5)
        at_x = (40, 0.03, 0.03)[i]
        note(ax, at_x, np.interp(at_x, fine, lines[:, i]) + 0.06, name, colour, ha="right" if i == 0 else "left")
    ax.axhline(NOISE**2, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
    note(ax, 0.012, NOISE**2 - 0.04, "noise", INK, va="top")
    ax.set(xscale="log", ylim=(0, float(lines[:, 2].max()) * 1.12), xlim=(0.0085, 1100))
    ax.set(xlabel="ridge penalty", ylabel="mean over test points")
    ax.set_xticks([0.01, 0.1, 1, 10, 100, 1000], ["0", "0.1", "1", "10", "100", "1,000"])
    ax.minorticks_off()
