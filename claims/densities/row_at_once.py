"""PixelCNN beside PixelRNN: likelihood and time, and that no row of either is drawn in one pass."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

import numpy as np
import torch

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report
from weft.core.random import key_of, keyed, place
from weft.data import mnist
from weft.objectives import PixelCNN, PixelRNN

MODELS = {
    "PixelCNN": lambda own: PixelCNN(layers=own["layers"], width=own["width"], kernel=3),
    "row LSTM": lambda own: PixelRNN(kind="row", layers=own["layers"], width=own["width"]),
    "diagonal BiLSTM": lambda own: PixelRNN(kind="diagonal", layers=own["layers"], width=own["width"]),
}


def images(part: str, side: int, rows: int) -> Any:
    """MNIST pooled to a side, in black and white: bits that neighbours tell of each other."""
    X = mnist(part)[0][:rows]
    return (X.reshape(len(X), 1, side, 28 // side, side, 28 // side).mean((3, 5)) > 0.4).astype(np.float32)


def by_rows(model: Any, n: int) -> Any:
    """Images drawn a row in one pass, each pixel given the rows above and nothing of its own, and log q of them."""
    side, like = model.shape[1], next(model.parameters())
    x, logs = like.new_zeros(n, side * side), like.new_zeros(n)
    for r in range(side):
        own = slice(r * side, (r + 1) * side)
        theta = model.conditionals(model.read(x, None))
        with place("row", r):
            drawn = model.entries.draw(theta, "x")
        logs = logs + model.entries.log_prob(theta, drawn)[:, own].sum(1)
        x = torch.cat([x[:, : own.start], drawn[:, own], x[:, own.stop :]], 1)
    return x.reshape(n, *model.shape), logs


def by_pixels(model: Any, n: int) -> Any:
    """Images drawn as the product says, pixel by pixel, and log p of them."""
    x = model.sample(n)
    return x, model.log_prob(x)


class RowAtOnce(Claim):
    """Three nets on binarized digits: test nats, seconds, and what is lost by drawing rows in one pass."""

    title = "PixelCNN and PixelRNN: a row is not drawn in one pass"
    statement = (
        "A PixelRNN trains row after row, or diagonal after diagonal, a PixelCNN in one pass; each of them draws pixel "
        "after pixel. That a PixelRNN does a row in one pass is wrong: drawn so, pixels of a row do not know of each "
        "other, and the images have another law than the model's."
    )
    reference = (
        "van den Oord, Kalchbrenner and Kavukcuoglu, “Pixel recurrent neural networks”, arXiv 1601.06759 (static "
        "binarized MNIST: diagonal BiLSTM 79.2 nats, row LSTM 80.5, PixelCNN 81.3)"
    )
    tolerance = (
        "For each net, the law q of images drawn a row at once must be at least 1 nat from the model's p (.02 in the "
        "quick setting, of 7 x 7 pixels and few steps) by KL(q || p), the mean of log q - log p over such images, by "
        "its interval; and the cached draws must be the naive ones in at least 99.9 % of images. Nats of test images "
        "(pooled to 14 x 14, black and white) and seconds are told beside each other and not judged: nets, images and "
        "budgets are smaller than the paper's."
    )
    quick = {"seeds": 1, "side": 7, "train": 4000, "test": 500, "draws": 200, "steps": 150, "batch": 50, "lr": 0.01}
    quick |= {"least": 0.02, "net": {"layers": 2, "width": 16}}
    full = {
        "seeds": 1,
        "side": 14,
        "train": 60_000,
        "test": 5000,
        "draws": 500,
        "steps": 1000,
        "batch": 64,
        "lr": 0.005,
    }
    full |= {"least": 1.0, "net": {"layers": 2, "width": 32}}
    mutant = Mutant(
        what="rows that are drawn pixel by pixel after all", misses="row at once", names={"by_rows": by_pixels}
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(len(MODELS))
        found = report.every(MODELS, partial(trained, setting=setting, seed=seeds[0], report=report))
        for name, one in found.items():
            lost, half = one["lost"], one["half"]
            what = f"{name}: nats from the model, drawn a row at once"
            report.figure(what, lost, interval=(lost - half, lost + half), least=setting.least)
            same = 100 * one["same"]
            report.figure(f"{name}: cached draws that are the naive ones", same, unit="%", least=99.9, exact=True)
        report.table(
            "Nats of a test image; passes that follow each other; seconds",
            ["model", "nats", "nats of draws", "passes to train", "passes to draw"]
            + ["a step of training, ms", "draws, cached, s", "draws, naive, s", "parameters"],
            [
                [name, one["nats"], one["own"], passes(name, setting.side), setting.side**2]
                + [1e3 * one["step"], one["cached"], one["naive"], one["parameters"]]
                for name, one in found.items()
            ],
            digits=2,
        )
        with report.picture(
            "row_at_once",
            alt="For each net two lines of digits: those drawn pixel by pixel have strokes, those drawn a row at once "
            "have rows that do not fit together.",
            caption="Above: drawn pixel by pixel; below: drawn a row at once.",
            panels=len(found),
            size=(9.6, 2.2),
        ) as axes:
            for ax, (name, one) in zip(axes, found.items(), strict=True):
                rows = [
                    np.concatenate(np.reshape(one[kind], (-1, setting.side, setting.side)), 1) for kind in ("a", "b")
                ]
                ax.imshow(np.concatenate(rows), cmap="gray_r", interpolation="nearest")
                ax.set(title=name, xticks=[], yticks=[])


def passes(name: str, side: int) -> int:
    """Steps of training's pass that wait for each other, in one layer."""
    return {"PixelCNN": 1, "row LSTM": side, "diagonal BiLSTM": 2 * side - 1}[name]


def trained(name: str, *, setting: Any, seed: int, report: Report) -> dict[str, Any]:
    """One net: its test nats, its draws both ways, and the time of each."""
    learner = Learner(
        MODELS[name](setting.net),
        steps=setting.steps,
        batch_size=setting.batch,
        optimizer=Optimizer("adam", lr=setting.lr),
        schedule="cosine",
        every=max(1, setting.steps // 4),
        random_state=seed,
    )
    begun = time.perf_counter()
    report.fit(learner, images("train", setting.side, setting.train), what=name)
    taken = (time.perf_counter() - begun) / setting.steps
    test = images("test", setting.side, setting.test)
    model, found = learner.module(0), {}
    where = next(model.parameters()).device
    logs, nats, seconds = {}, {}, {}
    for kind, draw in {"a": by_pixels, "b": by_rows}.items():
        with torch.no_grad(), keyed(key_of(seed, where), torch.arange(setting.draws, device=where)):
            begun = time.perf_counter()
            x, own = draw(model, setting.draws)
            found[kind] = x[:6].cpu().numpy().astype(int).reshape(-1).tolist()
            seconds[kind] = time.perf_counter() - begun
            logs[kind] = (own - model.log_prob(x)).double().cpu().numpy()
            nats[kind] = -model.log_prob(x).double().mean().item()
    few = min(setting.draws, 200)
    with torch.no_grad(), keyed(key_of(seed, where), torch.arange(few, device=where)):
        begun = time.perf_counter()
        naive = model.sample(few, cached=False)
        slow = time.perf_counter() - begun
    with torch.no_grad(), keyed(key_of(seed, where), torch.arange(few, device=where)):
        same = float((naive == model.sample(few)).flatten(1).all(1).double().mean())
    return found | {
        "nats": float(-learner.log_prob(test).mean(dtype=np.float64)),
        "own": nats["a"],
        "lost": float(logs["b"].mean()),
        "half": 1.96 * float(logs["b"].std(ddof=1)) / math.sqrt(setting.draws),
        "same": same,
        "step": taken,
        "cached": seconds["a"],
        "naive": slow * setting.draws / few,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
