"""Gradients through choices, side by side on one model: how far from the exact one, how noisy, and where they lead."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report, mean_of, median_of
from weft.bench.pictures import note
from weft.core.random import key_of, keyed
from weft.core.source import Field
from weft.objectives import DiscreteVAE

LATENT, DRAWS = 6, 4
COLD = 0.2
WAYS: dict[str, dict[str, Any]] = {
    "enumeration": {"gradient": "enumeration"},
    "score": {"gradient": "score", "draws": DRAWS},
    "relaxation": {"gradient": "relaxation", "draws": DRAWS},
    "relaxation, cold": {"gradient": "relaxation", "draws": DRAWS, "temperature": COLD},
    "straight-through": {"gradient": "straight-through", "draws": DRAWS},
}


class OwnBaseline(DiscreteVAE):
    """A mutant: each draw is compared with the mean of all of them, its own among them."""

    def _scored(self, x: Any, q: Any, draws: int, observed: Any, y: Any) -> Any:
        z = q.draw(draws, "z")
        given, logs = self.log_given(x, z, observed, y), q.log_prob(z)
        value = given.detach()
        surrogate = (given + (value - value.mean(-1, keepdim=True)) * logs).mean(-1)
        return value.mean(-1) + surrogate - surrogate.detach()


def made(way: str) -> DiscreteVAE:
    """The model, which learns this way."""
    return DiscreteVAE(LATENT, hidden=(32,), law="bernoulli", **WAYS[way])


def slopes(trained: Any, way: str, x: Any, keys: int, seed: int) -> Any:
    """Gradients of the mean loss of some rows in the encoder, of the trained parameters, one for each key."""
    model = made(way)
    model.build({"x": Field((x.shape[1],), x.dtype)})
    model = model.double().train()
    params = {name: p.detach().double() for name, p in trained.named_parameters()}
    first = {name: p for name, p in params.items() if name.startswith("recognition")}

    def loss(own: Any, rows: Any) -> Any:
        with keyed(key_of(seed), rows):
            return torch.func.functional_call(model, {**params, **own}, ({"x": x},)).losses.mean()

    grad = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0), chunk_size=250)
    found = grad(first, torch.arange(keys * len(x)).reshape(keys, len(x)))
    return torch.cat([part.flatten(1) for part in found.values()], 1)


class DiscreteGradients(Claim):
    """A model of digits in bits with 64 codes, of which enumeration tells everything exactly."""

    title = "Gradients through choices, beside the exact one"
    statement = (
        "The score-function gradient with the other draws as baseline has no bias; those of relaxed codes and straight "
        "through have, and less noise. As a relaxed code cools its bias falls and its noise rises."
    )
    reference = (
        "Maddison, Mnih and Teh, “The concrete distribution”, ICLR 2017; Jang, Gu and Poole, “Categorical "
        "reparameterization with Gumbel-softmax”, ICLR 2017; Kool, van Hoof and Welling, “Buy 4 REINFORCE samples, get "
        "a baseline for free”, 2019"
    )
    tolerance = (
        "The papers give no figures for this model. Bias and noise are squared lengths relative to the exact "
        "gradient's, in the encoder of a model that enumeration has trained for a while, at 16 rows and 4 draws: the "
        "score's squared bias within .02 of 0 (an estimate free of the noise's own share), the biased ones' at least "
        ".02, the cold one's at most a half of the warm one's, the score's noise at least 2 times the relaxed one's. "
        "Trained by the score a model must end within 0.5 nats of one trained by enumeration, by exact likelihoods of "
        "test rows; where the others end is told, not judged. The full setting's bounds were set before the first run. "
        "After a first quick one medians over seeds are told of bias and noise, whose shares of a small gradient are "
        "skewed, the full setting was made smaller for time, and the quick one allows 3 nats, as it stops early."
    )
    quick = {"seeds": 6, "steps": 100, "before": 100, "keys": 400, "rate": 0.01, "within": 3.0}
    full = {"seeds": 8, "steps": 600, "before": 200, "keys": 3000, "rate": 0.01, "within": 0.5}
    mutant = Mutant(
        what="a baseline that has the draw itself in it",
        misses="score: squared bias",
        names={"DiscreteVAE": OwnBaseline},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        X = (load_digits().data > 7).astype(np.float64)
        train, test = X[:1400], X[1400:]
        common = {
            "batch_size": 64,
            "optimizer": Optimizer("adam", lr=setting.rate),
            "replicas": len(seeds),
            "random_state": seeds[0],
        }
        early = Learner(made("enumeration"), steps=setting.before, **common)
        report.fit(early, train, what="for a while")
        rows = torch.as_tensor(train[:16])
        bias: dict[str, list[float]] = {way: [] for way in list(WAYS)[1:]}
        noise: dict[str, list[float]] = {way: [] for way in bias}
        for k, seed in enumerate(seeds):
            trained = early.module(k)
            exact = slopes(trained, "enumeration", rows, 1, seed)[0]
            size = (exact**2).sum()
            for way in bias:
                drawn = slopes(trained, way, rows, setting.keys, seed)
                spread = drawn.var(0).sum()
                apart = ((drawn.mean(0) - exact) ** 2).sum() - spread / setting.keys
                bias[way].append(float(apart / size))
                noise[way].append(float(spread / size))
        nats = {}
        for way in WAYS:
            learner = Learner(made(way), steps=setting.steps, **common)
            report.fit(learner, train, what=way)
            each = [-np.asarray(learner.replica(k).log_prob(test)).mean() for k in range(len(seeds))]
            nats[way] = np.array(each, dtype=float)
        report.figure("score: squared bias", median_of(bias["score"]), near=0, within=0.02)
        report.figure("relaxation: squared bias", median_of(bias["relaxation"]), least=0.02)
        report.figure("straight-through: squared bias", median_of(bias["straight-through"]), least=0.02)
        cooled = np.array(bias["relaxation, cold"]) / np.array(bias["relaxation"])
        report.figure("bias of the cold one, of the warm one's", median_of(cooled), most=0.5)
        warmed = np.array(noise["score"]) / np.array(noise["relaxation"])
        report.figure("noise of the score, of the relaxed one's", median_of(warmed), least=2)
        for way in list(WAYS)[1:]:
            limit: dict[str, float] = {"near": 0, "within": setting.within} if way == "score" else {}
            worse = nats[way] - nats["enumeration"]
            report.figure(f"{way}: nats worse than enumeration", mean_of(worse), unit="nats", **limit)
        report.table(
            "Squared bias and noise of the gradient, relative to the exact one's; nats of a test row after training",
            ["gradient", "squared bias", "noise", "nats", "steps"],
            [
                [way, np.median(bias.get(way, 0)), np.median(noise.get(way, 0)), nats[way].mean(), setting.steps]
                for way in WAYS
            ],
            digits=3,
        )
        with report.picture(
            "discrete_gradients",
            alt="Squared bias against noise of four gradients: the score without bias, relaxed ones with bias.",
            caption="Squared bias and noise of each gradient, one point for each seed, relative to the exact gradient.",
            size=(6.4, 3.8),
        ) as ax:
            for way in bias:
                points = ax.plot(noise[way], bias[way], "o", ms=4)[0]
                low = 0.4 if way == "score" else 0.0  # below its points, as another name stands beside them
                note(ax, np.median(noise[way]), np.median(bias[way]) - low, f"  {way}", points.get_color())
            ax.axhline(0, lw=0.8, color="gray")
            ax.set(xlabel="noise", ylabel="squared bias", xscale="log")
