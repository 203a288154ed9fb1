"""Why predictions blur: the mean of two futures happens never, and a code keeps them apart."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, altered, each_of, mean_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, PINK, blank, note
from weft.objectives import VAE, ClassConditional, GaussianMixture, Regression

PLACES, SIDE, ASKED = 4, 8, 400
NAMES = {"squared error": ORANGE, "code": BLUE, "code, noise too large": PINK, "mixture": GREEN}
WORLDS: dict[str, dict[str, float]] = {  # noise, what a model takes it for, and too large; how near a future is one
    "points": {"noise": 0.1, "assumed": 0.3, "large": 2.0, "near": 0.4},
    "bars": {"noise": 0.05, "assumed": 0.5, "large": 3.0, "near": 1.0},
}


def futures(world: str) -> Any:
    """Both futures of each place, (places, 2, entries): a point that turns left or right, a bar that moves so."""
    if world == "points":
        return np.array([[[c - 1.0, 1.0], [c + 1.0, -1.0]] for c in (-0.6, -0.2, 0.2, 0.6)])
    bars = np.eye(SIDE)  # a bar fills a column
    both = np.array([[bars[k], bars[k + 4]] for k in range(PLACES)])
    return np.repeat(both[:, :, None], SIDE, 2).reshape(PLACES, 2, -1)


def rows(world: str, n: int, seed: int) -> tuple[Any, Any]:
    """Futures, and the place that each began at."""
    random = np.random.default_rng(seed)
    y = random.integers(0, PLACES, n)
    x = futures(world)[y, random.integers(0, 2, n)]
    return x + WORLDS[world]["noise"] * random.normal(size=x.shape), y


def model(name: str, world: str) -> Any:
    """What predicts a future of a place."""
    if name == "squared error":
        return Regression(hidden=(32,))
    if name == "mixture":
        return ClassConditional(GaussianMixture(2, covariance="diagonal", floor=1e-4))
    noise = WORLDS[world]["large" if "large" in name else "assumed"]
    return VAE(1, hidden=(32, 32), law="normal", noise=noise, conditional=True)


class TwoFutures(Claim):
    """A point that turns, and a bar that moves, to the left or to the right with equal chances."""

    title = "The mean of two futures never happens"
    statement = (
        "Where a present has two futures, the least squared error is at their mean, which never happens: in images it "
        "is a blur. A model with a latent code (a conditional VAE) or a mixture keeps both and predicts one of them at "
        "a time, at a larger squared error. The blur comes from the noise that is assumed, not from the net: a VAE "
        "with too large a noise does not use its code, and predicts the mean as well."
    )
    reference = "Mathieu, Couprie and LeCun, “Deep multi-scale video prediction beyond mean square error”, ICLR 2016"
    tolerance = (
        "Real is a prediction within .4 of one of the two futures of its place (points, noise .1, the futures 2 "
        "apart) or within 1 (bars of 8 × 8 pixels, noise .05, the futures 4 apart). By squared error at most 1 % are "
        "real; of means given a drawn code at least 80 % (a continuous code has a way between the two; 50 % at the "
        "quick setting), of a mixture's draws at least 95 %; of a code under too large a noise at most 5 %. Of the "
        "real ones half are to the left, within 15 %. The squared error of drawn predictions is at least 1.5 times "
        "that of the mean (2 by the law). Bounds set after a pilot with other seeds. A first full run, with ten other "
        "seeds, left one of twelve figures not settled and failed none."
    )
    first_seed = 200
    quick = {"seeds": 5, "rows": 1000, "steps": 300, "real": 50.0}
    full = {"seeds": 24, "rows": 4000, "steps": 2000, "real": 80.0}
    mutant = Mutant(
        what="a code that is charged so much that it tells nothing",
        misses="code: real",
        names={"VAE": altered(VAE, beta=1e5)},
        setting={"steps": 200},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        keys = [(world, name) for world in WORLDS for name in NAMES]
        report.plan(len(keys))
        found = report.every(keys, partial(measured, setting=setting, seeds=seeds, report=report))
        limits: dict[str, Any] = {
            "squared error": {"most": 1.0},
            "code": {"least": setting.real},
            "mixture": {"least": 95.0},
        }
        for world in WORLDS:
            for name in NAMES:
                real = mean_of(found[world, name][0])
                report.figure(f"{world}, {name}: real", real, unit="%", **limits.get(name, {"most": 5.0}))
            left = mean_of(found[world, "code"][1])
            report.figure(f"{world}, code: to the left, of the real", left, unit="%", near=50.0, within=15.0)
            ratio = mean_of(found[world, "code"][2] / found[world, "squared error"][2])
            report.figure(f"{world}: squared error of the code's over the mean's", ratio, reference="2", least=1.5)
        report.table(
            "Predictions: real ones in %, and the squared error against a future that came",
            ["world", "by", "real, %", "squared error"],
            [[*key, mean_of(own[0]), mean_of(own[2])] for key, own in found.items()],
            digits=2,
        )
        with report.picture(
            "points",
            alt="Four panels with a circle at the upper left and one at the lower right. Predictions by squared error, "
            "and by a code under too large a noise, stand in the middle between the circles; those of the code and of "
            "the mixture in both circles, the code's with some on the way between.",
            caption="Predictions, seen from their place: the two futures are the grey circles.",
            panels=4,
            size=(10.4, 2.9),
            sharey=True,
        ) as axes:
            for ax, (name, colour) in zip(axes, NAMES.items(), strict=True):
                _, _, _, drawn, asked = found["points", name]
                away = drawn - futures("points")[asked].mean(1)
                ax.plot([-1, 1], [1, -1], "o", color=INK, markersize=18, alpha=0.25)
                ax.plot(away[:150, 0], away[:150, 1], "o", color=colour, markersize=3, alpha=0.5)
                ax.set(title=name, xlim=(-2, 2), ylim=(-2, 2), aspect="equal")
        with report.picture(
            "bars",
            alt="Rows of small images with bars. By squared error every image has two grey bars; by the code and by "
            "the mixture each has one black bar, to the left or to the right; with too large a noise two grey bars.",
            caption="Eight predictions of each method for one place, whose bar goes to the left or to the right.",
            size=(7.2, 4.2),
        ) as ax:
            blank(ax)
            for i, name in enumerate(NAMES):
                own = found["bars", name]
                for j, image in enumerate(own[3][own[4] == 1][:8].reshape(-1, SIDE, SIDE)):
                    extent = (1.15 * j, 1.15 * j + 1, -1.5 * i - 1, -1.5 * i)
                    ax.imshow(image, cmap="gray_r", vmin=0, vmax=1, extent=extent, interpolation="nearest")
                note(ax, 0, -1.5 * i + 0.1, name, NAMES[name])
            ax.set(xlim=(-0.1, 9.2), ylim=(-5.7, 0.5), aspect="equal")


def measured(world: str, name: str, *, setting: Any, seeds: list[int], report: Report) -> tuple[Any, ...]:
    """Of every seed: real predictions and those to the left of them in %, squared error; and some predictions."""
    x, y = rows(world, setting.rows, 0)
    fresh, asked = rows(world, ASKED, 1)
    descent: dict[str, Any] = {"steps": setting.steps, "batch_size": 100, "schedule": "cosine"}
    descent["optimizer"] = Optimizer("adam", lr=0.01)
    learner = Learner(
        model(name, world),
        replicas=len(seeds),
        random_state=seeds[0],
        **({} if name == "mixture" else descent),
    )
    data = (np.eye(PLACES)[y], x) if name == "squared error" else (x, y)
    report.fit(learner, *data, what=f"{world}, {name}")

    def predicted(one: Learner) -> Any:
        if name == "squared error":
            return one.predict(np.eye(PLACES)[asked])
        if name == "mixture":
            return one.sample(ASKED, y=asked, random_state=0)
        codes = np.random.default_rng(0).normal(size=(ASKED, 1)).astype(np.float32)
        return one.inverse_transform(codes, y=asked)

    drawn = each_of(learner, lambda one: np.asarray(predicted(one)), lost=np.full(fresh.shape, np.nan))
    away = np.linalg.norm(drawn[:, :, None] - futures(world)[asked], axis=-1)  # (seeds, rows, 2)
    near = away < WORLDS[world]["near"]
    real = near.any(-1)
    left = 100 * near[..., 0].sum(1) / np.maximum(real.sum(1), 1)
    return 100 * real.mean(1), left, ((drawn - fresh) ** 2).sum(-1).mean(1), drawn[0], asked
