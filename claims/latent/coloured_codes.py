"""A head on a VAE's codes against a supervised net of equal size, on coloured digits: attacked, or in other colours."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import nn

from weft import Classifier, Learner, Optimizer
from weft.attacks import PGD
from weft.bench.claims import Claim, Mutant, Report, mean_of, usual
from weft.bench.pictures import BLUE, GREEN, ORANGE
from weft.core.objective import Output
from weft.core.random import key_of, keyed
from weft.data import coloured_mnist, mnist
from weft.objectives import VAE, Autoencoder

SUPERVISED, CODES, PLAIN = "supervised", "VAE codes", "autoencoder codes"
COLOURS = {SUPERVISED: ORANGE, CODES: BLUE, PLAIN: GREEN}
WIDE, LATENT, NARROW, PIXELS = 256, 16, 64, 196  # of an encoder, its codes and a head; of one colour's channel
EPS, MOST, DRAW = 0.1, 0.5, 0
TRIED = (0.0, 0.02, 0.05, EPS, 0.15, 0.2, 0.3, MOST)


def data(part: str, images: int, flip: float = 0.9) -> tuple[Any, Any]:
    """Bits of coloured digits, and labels; the colour is wrong in 20 and 10 % of the training rows."""
    X, y = mnist("train")
    X, y, _ = coloured_mnist(part, data=(X[:images], y[:images]), test_flip=flip, random_state=DRAW)
    return (X.reshape(len(X), -1) >= 0.2).astype(np.float32), y


def whole(inputs: int, outputs: int) -> nn.Module:
    """The supervised net: the layers of an encoder, then those of a head."""
    encoder = [nn.Linear(inputs, WIDE), nn.ReLU(), nn.Linear(WIDE, LATENT)]
    return nn.Sequential(*encoder, nn.Linear(LATENT, NARROW), nn.ReLU(), nn.Linear(NARROW, outputs))


def codes(learner: Any, x: Any) -> Any:
    """The codes of rows, through which a gradient comes back; of a VAE their means."""
    model = learner.objective_
    return model.guess(x).mean if isinstance(model, VAE) else model.encoded(x)


def held(learner: Any, x: Any) -> Any:
    """A mutant: no gradient comes back through the codes."""
    return codes(learner, x).detach()


read = codes


def composed(learner: Any, head: Any) -> Any:
    """The net from rows to logits: a frozen encoder, and the head that was trained on its codes."""
    return lambda x: head.objective_.net(read(learner, x))


def right(net: Any, x: Any, y: Any) -> Any:
    """Of each row whether the answer is its label."""
    with torch.no_grad():
        return net(torch.as_tensor(x)).argmax(-1).numpy() == y


def attacked(net: Any, x: Any, y: Any, eps: float, seed: int, *, steps: int = 20, starts: int = 1) -> float:
    """Accuracy in % under PGD within [0, 1]; of several starts, each row's worst."""
    rows = {"x": torch.as_tensor(x), "y": torch.as_tensor(y)}

    def loss(params: Any, batch: Any) -> Output:
        return Output(nn.functional.cross_entropy(net(batch["x"]), batch["y"], reduction="none"))

    attack, well = PGD(eps=eps, steps=steps, start="random", bounds=(0.0, 1.0)), right(net, x, y)
    for start in range(starts if eps else 0):
        with keyed(key_of(100 * seed + start), torch.arange(len(x))):
            well = well & right(net, attack(loss, {}, rows), y)
    return 100 * float(well.mean())


class ColouredCodes(Claim):
    """The same layers twice: as one net that learns labels, and as an encoder that learned rows and a head on it."""

    title = "Codes of a VAE withstand small attacks, and not another colour"
    statement = (
        "Where a digit's colour tells its label in 85 % of the rows and its shape in 75 %, a head on a VAE's codes is "
        "right under PGD on the pixels in far more rows than a supervised net of equal size, the more so the longer "
        "both learn from labels. That is not the generative model's doing: a plain autoencoder's codes withstand as "
        "much. And with the colours flipped the head is no better: what it holds on to is the colour."
    )
    reference = (
        "Madry et al., “Towards deep learning models resistant to adversarial attacks”, ICLR 2018 (PGD); Arjovsky et "
        "al., “Invariant risk minimization”, arXiv 1907.02893 (the digits); Athalye, Carlini and Wagner, “Obfuscated "
        "gradients give a false sense of security”, ICML 2018 (how an attack is checked)"
    )
    tolerance = (
        "Rows are 2 x 14 x 14 bits; PGD in the maximum norm, 20 steps from a random start, within [0, 1], on rows not "
        "trained on, through encoder and head at once. At ε = .1 the head on a VAE's codes must be right in at least "
        "15 % more of the rows than the supervised net after few steps with labels, 30 after many, and within 10 of "
        "that on a plain autoencoder's. Without attack it may be worse by 3, with 90 % of the colours wrong better by "
        "3. A masked gradient is kept out: at ε = .5 all must be right in at most 2 %, and 100 steps from three starts "
        "may take at most 5 % more at ε = .1. Bounds by a pilot with two other seeds, which came to 36 and 58 % more "
        "at ε = .1; with twice the rows and 600 steps it was 13. A first full run, with five other seeds, left one "
        "figure not settled and failed none. The quick setting asks for less."
    )
    first_seed = 200
    quick = {"seeds": 5, "images": 3600, "rows": 300, "steps": 200, "labels": (100, 600), "gain": (-5, 15), "less": 6}
    quick |= {"hard": 30}
    full = {
        "seeds": 12,
        "images": 12_000,
        "rows": 1000,
        "steps": 1000,
        "labels": (400, 1600),
        "gain": (15, 30),
        "less": 3,
    }
    full |= {"hard": 100}
    mutant = Mutant(what="no gradient through the encoder", misses=f"PGD of ε = {MOST:g}", names={"read": held})

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        (X, y), (other, label) = data("train", setting.images), data("test", setting.images)
        same, known = data("test", setting.images, 0.15)
        same, known = same[: setting.rows], known[: setting.rows]
        own = {"batch_size": 128, "optimizer": Optimizer("adam", lr=2e-3), "schedule": "cosine"}
        many = {**own, "replicas": len(seeds), "random_state": seeds[0]}
        report.plan(5)
        encoders = {
            CODES: Learner(VAE(LATENT, hidden=(WIDE,), law="bernoulli"), steps=setting.steps, **many),
            PLAIN: Learner(Autoencoder(LATENT, hidden=(WIDE,), loss="bernoulli"), steps=setting.steps, **many),
        }
        for name, learner in encoders.items():
            report.fit(learner, X, what=name)
        nets: dict[tuple[str, int], list[Any]] = {}
        for long, steps in enumerate(setting.labels):
            net = report.fit(Classifier(whole, steps=steps, **many), X, y, what=SUPERVISED)
            nets |= {(SUPERVISED, long): [net.replica(k).objective_.net for k in range(len(seeds))]}
            nets |= {(CODES, long): [], (PLAIN, long): []}
        apart = []
        for k in report.each(range(len(seeds)), "heads"):
            for (name, learner), (long, steps) in itertools.product(encoders.items(), enumerate(setting.labels)):
                one = learner.replica(k)
                head = Classifier(hidden=(NARROW,), steps=steps, random_state=seeds[k], **own).fit(one.transform(X), y)
                report.spend(trainings=1, steps=steps)
                net = composed(one, head)
                apart.append((right(net, same, known) != (head.predict(one.transform(same)) == known)).mean())
                nets[name, long].append(net)
        hit = {
            name: np.array(
                [[attacked(net, same, known, eps, s) for eps in TRIED] for net, s in zip(those, seeds, strict=True)]
            )
            for name, those in nets.items()
        }
        colour = (same[:, PIXELS:].sum(1) > 0).astype(int)
        flipped, follows = (
            {name: np.array([100 * right(net, *rows).mean() for net in those]) for name, those in nets.items()}
            for rows in ((other, label), (same, colour))
        )
        tell, points = report.figure, {"unit": "%"}
        gained = {
            (who, long): {eps: hit[who, long][:, i] - hit[SUPERVISED, long][:, i] for i, eps in enumerate(TRIED)}
            for who, long in itertools.product((CODES, PLAIN), (0, 1))
        }
        for long, (word, least) in enumerate(zip(("briefly", "long"), setting.gain, strict=True)):
            name = f"{{}} less supervised, learned {word}: right under PGD of ε = {EPS:g}"
            tell(name.format(CODES), mean_of(gained[CODES, long][EPS]), least=least, **points)
            tell(name.format(PLAIN), mean_of(gained[PLAIN, long][EPS]), **points)
            name = f"{CODES} less supervised, learned {word}"
            clean, away = gained[CODES, long][0.0], flipped[CODES, long] - flipped[SUPERVISED, long]
            tell(f"{name}: right without attack", mean_of(clean), least=-setting.less, **points)
            tell(f"{name}: right with colours flipped", mean_of(away), most=setting.less, **points)
        mine = gained[CODES, 1][EPS] - gained[PLAIN, 1][EPS]
        name = f"VAE codes less autoencoder codes, learned long: right under PGD of ε = {EPS:g}"
        tell(name, mean_of(mine), near=0.0, within=10, **points)
        for who in COLOURS:
            tell(f"{who}, right under PGD of ε = {MOST:g}", mean_of(hit[who, 1][:, -1]), most=2, **points)
        again = [
            attacked(net, same, known, EPS, s, steps=setting.hard, starts=3)
            for net, s in zip(nets[CODES, 1], seeds, strict=True)
        ]
        lost = mean_of(hit[CODES, 1][:, TRIED.index(EPS)] - np.array(again))
        tell(f"VAE codes: what a harder attack of ε = {EPS:g} takes more", lost, most=5, **points)
        report.worst("answers of the attacked net unlike the learners' own, share of rows", apart, most=0.0)
        report.table(
            "Right answers in %, by the largest change of a pixel; with colours flipped; answers that are the colour",
            ["net", "steps with labels", *(f"ε = {eps:g}" for eps in TRIED), "flipped", "as the colour"],
            [
                [who, setting.labels[long], *found.mean(0), flipped[who, long].mean(), follows[who, long].mean()]
                for (who, long), found in hit.items()
            ],
            digits=1,
        )
        with report.picture(
            "coloured_codes",
            alt="Two panels of accuracy against the size of the attack, for nets that saw labels briefly and long: the "
            "supervised net's falls first, the more so where it learned long; all end at zero.",
            caption="Right answers under PGD, each seed faintly; left with few steps on labels, right with many. "
            "Crosses: with the colours flipped.",
            panels=2,
            size=(9.6, 3.8),
        ) as axes:
            for (who, long), found in hit.items():
                usual.curve(axes[long], TRIED, found, COLOURS[who], "o-", seeds="-", label=who)
                left = np.full(len(seeds), -0.02)
                axes[long].plot(left, flipped[who, long], "x", color=COLOURS[who], markersize=5, alpha=0.6)
            for ax, steps in zip(axes, setting.labels, strict=True):
                ax.set(xlabel="ε, the largest change of a pixel", title=f"{steps} steps with labels", ylim=(-2, 100))
            axes[0].set(ylabel="right answers, %")
            axes[1].legend(loc="upper right")
