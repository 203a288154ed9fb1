"""WaveNet on spoken words, in bits a sample, beside counted contexts; and how far back it has to look."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from _counted import counted

from weft import Learner, Optimizer
from weft.bench.claims import Claim, Mutant, Report
from weft.bench.pictures import BLUE, INK
from weft.data import speech
from weft.objectives import WaveNet
from weft.objectives.densities.wavenet import companded

HELD = 2  # words at the end of the list, of which nothing is trained on; the one before them says when to stop
ORDERS = range(4)


def hummed(seed: int, samples: int = 4000) -> Any:
    """A tone of some harmonics whose pitch wavers, for where there is no speech."""
    random = np.random.default_rng(seed)
    t = np.arange(samples) / 2000
    phase = 2 * np.pi * (random.uniform(90, 140) * t + 0.5 * np.sin(2 * np.pi * random.uniform(2, 4) * t))
    wave = sum(random.uniform(0.3, 1) / k * np.sin(k * phase) for k in range(1, 4)) + random.normal(size=samples) * 0.02
    return 0.7 * wave / np.abs(wave).max()


def words(setting: Any) -> list[Any]:
    """Waves in [-1, 1], each scaled by its largest amplitude."""
    if setting.rate is None:
        return [hummed(seed) for seed in range(8)]
    return [0.9 * wave / np.abs(wave).max() for wave in speech(rate=setting.rate).values()]


def cut(waves: list[Any], size: int) -> Any:
    """Windows side by side."""
    return np.concatenate([wave[: len(wave) // size * size].reshape(-1, size) for wave in waves])


def loudest(wave: Any, size: int) -> Any:
    """The window whose first quarter ends at the largest amplitude."""
    first = int(np.abs(wave[size // 4 : -size]).argmax())
    return wave[first : first + size]


def shuffled(waves: list[Any], size: int, right: Any = cut) -> Any:
    """A mutant: the samples of a window in a random order."""
    return np.random.default_rng(0).permuted(right(waves, size), axis=1)


class SpokenWords(Claim):
    """Waves quantized by the mu-law; two words are held out."""

    title = "WaveNet on spoken words, in bits a sample"
    statement = (
        "Dilated convolutions that look back over hundreds of samples code speech in far fewer bits a sample than "
        "counts of what followed the last few, and than the same net that looks back over few."
    )
    reference = (
        "van den Oord et al., “WaveNet: a generative model for raw audio”, arXiv 1609.03499, which gives no bits; the "
        "spoken words are those of Debian's package alsa-utils"
    )
    tolerance = (
        "On two words that were not trained on, quantized to 256 levels of the mu-law: at least half a bit a sample "
        "less than the best order of counted contexts, and at least .1 less than the net of two layers. A third word "
        "says when to stop (a first run without one, of a larger net, learned its six words by heart: 19 bits). "
        "Intervals are over windows, of their own differences, of one seed. The quick setting has humming that is "
        "made here, 32 levels, and asks for a tenth of a bit and for .05."
    )
    quick = {"seeds": 1, "rate": None, "levels": 32, "window": 64, "batch": 16, "steps": 120, "lr": 0.01, "records": 4}
    quick |= {"width": 16, "layers": {"far": 6, "near": 2}, "stacks": 1, "less": 0.1, "nearer": 0.05}
    full = {
        "seeds": 1,
        "rate": 8000,
        "levels": 256,
        "window": 1024,
        "batch": 8,
        "steps": 1500,
        "lr": 0.003,
        "records": 20,
    }
    full |= {"width": 32, "layers": {"far": 9, "near": 2}, "stacks": 1, "less": 0.5, "nearer": 0.1}
    mutant = Mutant(what="samples in a random order", misses="fewer than counted contexts", names={"cut": shuffled})

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        waves, length = words(setting), setting.window
        report.plan(len(setting.layers))
        train, test = (
            companded(torch.as_tensor(cut(part, length)).flatten(), setting.levels).tolist()
            for part in (waves[: -HELD - 1], waves[-HELD:])
        )
        bits = [by_window(counted(train, test, n), n, length) for n in ORDERS]
        best = min(bits, key=np.mean)
        found = report.every(setting.layers, partial(trained, setting=setting, seed=seeds[0], report=report))
        own, near = np.array(found["far"]["bits"]), np.array(found["near"]["bits"])
        report.figure("WaveNet: bits a sample", **over(own))
        report.figure("counted contexts of the best order: bits a sample", **over(best))
        report.figure("WaveNet: bits fewer than counted contexts", **over(best - own), least=setting.less)
        report.figure("WaveNet: bits fewer than with two layers", **over(near - own), least=setting.nearer)
        report.table(
            "Bits a sample of the words held out",
            ["model", "bits"],
            [[f"contexts of {n}", float(value.mean())] for n, value in zip(ORDERS, bits, strict=True)]
            + [
                [f"WaveNet, {found[name]['reach']} samples back", float(np.mean(found[name]["bits"]))] for name in found
            ],
            digits=3,
        )
        with report.picture(
            "waves",
            alt="Two waves one above the other: the first is a word that was spoken, the second one that was drawn.",
            caption="A word held out, and a draw of the same length that goes on from its first samples.",
            panels=2,
            size=(9.6, 3.0),
        ) as axes:
            for ax, wave, title in zip(
                axes, (loudest(waves[-1], length), found["far"]["drawn"]), ("held out", "drawn"), strict=True
            ):
                ax.plot(wave, color=INK if title == "held out" else BLUE, linewidth=0.6)
                ax.set(title=title, ylim=(-1, 1), xlabel="sample")


def by_window(nats: Any, order: int, length: int) -> Any:
    """Bits a sample of each window; the first few samples, which have no such context, count as their mean."""
    whole = np.concatenate([np.full(order, nats.mean()), nats])
    return whole.reshape(-1, length).mean(1) / math.log(2)


def over(values: Any) -> dict[str, Any]:
    """The mean over windows, with its interval."""
    half = 1.96 * float(values.std(ddof=1)) / math.sqrt(len(values))
    mean = float(values.mean())
    return {"measured": mean, "interval": (mean - half, mean + half)}


def trained(name: str, *, setting: Any, seed: int, report: Report) -> dict[str, Any]:
    """One net: bits a sample of each window of the words held out, and a draw."""
    waves, length = words(setting), setting.window
    model = WaveNet(
        levels=setting.levels, width=setting.width, layers=setting.layers[name], stacks=setting.stacks, dropout=0.1
    )
    learner = Learner(
        model,
        steps=setting.steps,
        batch_size=setting.batch,
        optimizer=Optimizer("adam", lr=setting.lr),
        schedule="cosine",
        every=setting.steps // setting.records,
        validation=cut(waves[-HELD - 1 : -HELD], length),
        patience=6,
        random_state=seed,
    )
    report.fit(learner, cut(waves[: -HELD - 1], length), what=f"WaveNet, {setting.layers[name]} layers")
    test = cut(waves[-HELD:], length)
    word, begun = loudest(waves[-1], length), length // 4
    drawn = learner.forecast(word[None, :begun], steps=length - begun, random_state=0)[0]
    return {
        "bits": (-learner.log_prob(test) / (length * math.log(2))).astype(float).tolist(),
        "reach": learner.objective_.net.reach,
        "drawn": [*word[:begun].astype(float).tolist(), *drawn.astype(float).tolist()],
    }
