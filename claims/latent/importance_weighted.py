"""Binarized MNIST, in nats: a VAE, and one that is trained by fifty draws."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report
from weft.bench.pictures import note
from weft.data import binarize, binarized, mnist
from weft.objectives import VAE

MODELS = {  # of the paper's table, one layer of codes
    "VAE": ({}, 86.76),
    "IWAE": ({"bound": "iwae", "draws": 50}, 84.78),
}
TEST_SEED = 2


class Uncounted(VAE):
    """A mutant: the sum over draws, where the mean is meant."""

    def log_prob(self, *rows: Any, draws: int = 64, **options: Any) -> Any:
        return super().log_prob(*rows, draws=draws, **options) + np.log(draws)


def images(part: str, side: int) -> Any:
    """Intensities in [0, 1], averaged over squares where the side is less than 28."""
    X = mnist(part)[0][:, 0]
    return X.reshape(len(X), side, 28 // side, side, 28 // side).mean((2, 4)).reshape(len(X), -1)


def net(*widths: int) -> nn.Module:
    """The paper's: tanh between its layers."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class ImportanceWeighted(Claim):
    """Each model one part: trained on bits drawn anew, asked once for the test rows."""

    title = "A VAE and an importance-weighted one on binarized MNIST"
    statement = (
        "With 50 entries of code and 200-200 hidden units, a VAE comes to 86.76 nats for a test image and a VAE that "
        "is trained by fifty draws to 84.78, both by 5,000 draws."
    )
    reference = "Burda, Grosse and Salakhutdinov, “Importance weighted autoencoders”, ICLR 2016, table 1"
    tolerance = (
        "Two-sided: within 1 nat of each figure, and the second better than the first by 1.98 within 1. The paper "
        "trains 3,280 epochs of batches of 20, 8.2 million updates; here it is 100,000 updates of batches of 200 (333 "
        "epochs), Adam's rate falling from .002 along a cosine, a minute or two for a model on an H200. Training bits "
        "are drawn anew at each step, test bits once (seed 2). One seed each: the interval is over test images. The "
        "quick setting has 7 x 7 pixels, 500 draws, and earlier runs of its own as references, within .5."
    )
    first_seed = 100
    quick = {
        "seeds": 1,
        "side": 7,
        "test": 1000,
        "hidden": 64,
        "latent": 8,
        "steps": 600,
        "batch": 100,
        "rate": 0.01,
        "draws": 500,
        "near": {"VAE": 13.2, "IWAE": 13.0},
    }
    full = {
        "seeds": 1,
        "side": 28,
        "test": 10_000,
        "hidden": 200,
        "latent": 50,
        "steps": 100_000,
        "batch": 200,
        "rate": 0.002,
        "draws": 5000,
        "near": {"VAE": 86.76, "IWAE": 84.78},
    }
    mutant = Mutant(
        what="a sum over draws, where the mean is meant",
        misses="VAE: -log p",
        names={"VAE": Uncounted},
        setting={"steps": 200, "test": 300},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(len(MODELS))
        found = report.every(MODELS, partial(trained, setting=setting, seed=seeds[0], report=report))
        logs = {name: np.array(own["logs"]) for name, own in found.items()}
        full = setting.side == 28
        for name, own in logs.items():
            told(report, f"{name}: -log p of a test image", own, setting.near[name], 1.0 if full else 0.5)
        if full:
            told(report, "IWAE better than VAE", logs["VAE"] - logs["IWAE"], 1.98, 1.0)
        report.table(
            "Nats for a test image: by all draws, by one (the ELBO), what the code costs, and the budget",
            ["model", "nats", "-ELBO", "rate", "reference", "steps", "seconds"],
            [
                [name, own.mean(), found[name]["elbo"], found[name]["rate"], MODELS[name][1]]
                + [setting.steps, found[name]["seconds"]]
                for name, own in logs.items()
            ],
            digits=2,
        )
        with report.picture(
            "importance_weighted",
            alt="Nats for a test image against the number of draws of the estimate: both curves fall, IWAE's by more.",
            caption="The bound of K draws, for the same test images: more draws bound nearer.",
            size=(6.4, 3.6),
        ) as ax:
            for name, own in found.items():
                line = ax.plot(own["at"], own["curve"])[0]
                note(ax, own["at"][-1], own["curve"][-1], f" {name}", line.get_color())
            ax.set(xlabel="draws", ylabel="nats", xscale="log")
        drawn = np.concatenate(
            [np.concatenate(np.reshape(own["drawn"], (-1, setting.side, setting.side)), 1) for own in found.values()]
        )
        with report.picture(
            "draws",
            alt="Two rows of twelve images drawn by the two models: digits in shades of grey, some of them unclear.",
            caption="Means of x given codes from the prior: VAE above, IWAE below.",
            size=(7.2, 1.6),
        ) as ax:
            ax.imshow(drawn, cmap="gray_r", interpolation="nearest")
            ax.set_axis_off()


def told(report: Report, name: str, values: Any, near: float, within: float) -> None:
    """The mean of a number for each test image, with its interval."""
    half = 1.96 * values.std() / np.sqrt(len(values))
    mean = float(values.mean())
    report.figure(name, mean, interval=(mean - half, mean + half), unit="nats", near=near, within=within)


def trained(name: str, *, setting: Any, seed: int, report: Report) -> dict[str, Any]:
    """One model: trained, and asked for the test rows."""
    X, test = images("train", setting.side), binarized(images("test", setting.side), seed=TEST_SEED)[: setting.test]
    widths, latent = (setting.hidden, setting.hidden), setting.latent
    model = VAE(
        latent,
        encoder=net(X.shape[1], *widths, 2 * latent),
        decoder=net(latent, *widths, X.shape[1]),
        law="bernoulli",
        **MODELS[name][0],
    )
    learner = Learner(
        model,
        steps=setting.steps,
        batch_size=setting.batch,
        optimizer=Optimizer("adam", lr=setting.rate),
        schedule="cosine",
        augment=binarize,
        random_state=seed,
    )
    report.fit(learner, X, what=name)
    at = [k for k in (1, 5, 50, 500) if k < setting.draws]
    logs = -np.asarray(learner.log_prob(test, draws=setting.draws), dtype=float)
    codes = np.random.default_rng(0).normal(size=(12, latent)).astype(np.float32)
    return {
        "logs": logs.tolist(),
        "elbo": -float(np.asarray(learner.elbo(test)).mean(dtype=np.float64)),
        "rate": float(np.asarray(learner.rate(test)).mean(dtype=np.float64)),
        "at": [*at, setting.draws],
        "curve": [-float(np.asarray(learner.log_prob(test, draws=k)).mean(dtype=np.float64)) for k in at]
        + [float(logs.mean())],
        "seconds": float(np.asarray(learner.history_["seconds"]).ravel()[-1]),
        "drawn": np.asarray(learner.inverse_transform(codes)).round(3).tolist(),
    }
