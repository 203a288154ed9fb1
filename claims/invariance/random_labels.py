"""Random labels: what single examples do not agree on is not memorized."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from torch import Tensor, nn

from weft import Classifier, Optimizer
from weft.bench.claims import Claim, Mutant, Report, mean_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, note
from weft.data import cifar10, random_labels
from weft.nets import MLP
from weft.strategies import ERM, ANDMask

BATCH, TAU, NOISE, CHANCE = 80, 0.2, 0.25, 10.0  # the paper's; of ten classes
CURVES = {"true": "training, true labels", "test": "test, true labels", "random": "training, random labels"}
ROWS = {
    "right": "right labels fitted",
    "wrong": "wrong labels fitted",
    "truth": "true class found\nbehind a wrong label",
    "test": "test accuracy",
}


class RandomLabels(Claim):
    """Plain training (threshold 0) and the mask; each seed draws rows, labels, first weights and batches."""

    title = "Random labels are not memorized"
    statement = (
        "Where every example counts as an environment, the AND-mask keeps a net from memorizing random labels, while "
        "with true labels it generalizes as plain training does; where a quarter of the labels was redrawn at random, "
        "it does not fit the wrong ones, and its test accuracy is higher."
    )
    reference = (
        "Parascandolo, Neitz, Orvieto, Gresele and Schölkopf, “Learning explanations that are hard to vary”, arXiv "
        "2009.00329, section 4.2: CIFAR-10, 50,000 images, 80 epochs"
    )
    tolerance = (
        "The paper shows curves, so the bounds are ours, at its threshold .2 and batch of 80. Plain training must fit "
        "70 % of random and of wrong labels, or nothing is prevented. The mask may fit 40 % of random labels at the "
        "quick setting (24 to 30 % on the seeds on which it was set up) and 30 % at the full one; it must keep "
        "three quarters of plain training's test accuracy above chance with true labels. It may fit 25 % of the wrong "
        "labels (quick: some 50 rows), or chance, 10 % (full). Quick: width and rate were chosen on other seeds, "
        "so that plain training memorizes; their test accuracy was seen. Full: the paper's rates; a net of a quarter "
        "of the authors' widths without BatchNorm, in which an example has no gradient of its own. The sweep has 4,000 "
        "images and a twentieth of the paper's steps; label noise has 20,000 and the paper's epochs. There the gain in "
        "test accuracy is not reproduced: the mask leaves wrong labels unfitted, but many right ones too. Other rates, "
        "thresholds and norms, tried aside with one seed on rows held out, brought no gain worth the name, and showed "
        "that what a threshold prevents depends on the net: with every channel normalized alone .2 prevented little."
    )
    # Images and epochs: of the sweep, and with label noise. Rates: of the sweep; with label noise, of plain training
    # and of the mask. Most: what the mask may fit, in %.
    quick = {"seeds": 3, "data": "digits", "images": (240, 240), "epochs": (100, 100)}
    quick |= {"thresholds": (0.0, 0.1, 0.2, 0.4), "rates": (2e-2, 2e-2, 2e-2), "most": {"random": 40.0, "wrong": 25.0}}
    full = {"seeds": 2, "data": "cifar10", "images": (4000, 20_000), "epochs": (50, 80)}
    full |= {"thresholds": (0.0, 0.1, 0.2, 0.4, 0.8), "rates": (5e-4, 1e-3, 5e-3)}
    full |= {"most": {"random": 30.0, "wrong": 10.0}}
    first_seed = 10
    mutant = Mutant(
        what="no mask",
        misses="random labels fitted by the mask",
        names={"ANDMask": lambda **_: ERM()},
        setting={"thresholds": (0.0, 0.2), "epochs": (100, 20)},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        taus, (rate, *rates) = list(setting.thresholds), setting.rates
        flat = [rate] * len(taus)
        report.plan(len(seeds) * (2 * len(taus) + 2))
        curve: dict[str, Any] = {name: [] for name in CURVES}  # accuracy in %, by seed and threshold
        noise: dict[str, Any] = {name: [] for name in ROWS}  # accuracy in %, by seed; plain training, then the mask
        for seed in seeds:
            (few, many), (short, long) = setting.images, setting.epochs
            scores = partial(self.train, seed=seed, setting=setting, report=report)
            x, y, *test = draw(setting.data, few, seed)
            found = scores(x, y, taus, flat, short, what="true labels", on=[(x, y), test])
            curve["true"].append(found[:, 0])
            curve["test"].append(found[:, 1])
            drawn = random_labels(y, random_state=seed).y
            found = scores(x, drawn, taus, flat, short, what="random labels", on=[(x, drawn)])
            curve["random"].append(found[:, 0])
            x, y, *test = draw(setting.data, many, seed)
            given, _, wrong = random_labels(y, share=NOISE, random_state=seed)
            parts = [(x[~wrong], y[~wrong]), (x[wrong], given[wrong]), (x[wrong], y[wrong]), test]
            found = scores(x, given, [0.0, TAU], rates, long, what="label noise", on=parts)
            for name, column in zip(("right", "wrong", "truth", "test"), found.T, strict=True):
                noise[name].append(column)
        curve, noise = ({name: np.array(values) for name, values in found.items()} for found in (curve, noise))

        plain, mask = curve["random"][:, 0], curve["random"][:, taus.index(TAU)]
        above = curve["test"] - CHANCE
        kept, gain = 100 * above[:, taus.index(TAU)] / above[:, 0], noise["test"][:, 1] - noise["test"][:, 0]
        most, fitted = setting.most, "label noise: wrong labels fitted by"
        report.figure("random labels fitted by plain training", mean_of(plain), reference="100", unit="%", least=70.0)
        report.figure("random labels fitted by the mask", mean_of(mask), unit="%", most=most["random"])
        name = "true labels: the mask's share of plain training's test accuracy above chance"
        report.figure(name, mean_of(kept), unit="%", least=75.0)
        report.figure(f"{fitted} plain training", mean_of(noise["wrong"][:, 0]), unit="%", least=70.0)
        below = "well below chance (10)"
        report.figure(
            f"{fitted} the mask", mean_of(noise["wrong"][:, 1]), reference=below, unit="%", most=most["wrong"]
        )
        name = "label noise: test accuracy, the mask less plain training"
        report.figure(name, mean_of(gain), reference="> 0", unit="points", least=0.0)
        if setting.data == "digits":
            report.not_run("random labels of CIFAR-10 fitted by the mask", unit="%")
        report.table(
            "Accuracy in % by threshold, mean and 95 % interval over seeds",
            ["threshold", *CURVES.values()],
            [[tau, *(told(curve[name][:, k]) for name in CURVES)] for k, tau in enumerate(taus)],
        )
        report.table(
            f"A quarter of the labels redrawn, threshold {TAU}: accuracy in %, mean and 95 % interval over seeds",
            ["rows", "plain training", "AND-mask"],
            [[text.replace("\n", " "), *map(told, noise[name].T)] for name, text in ROWS.items()],
        )
        with report.picture(
            "random_labels",
            alt="Left, accuracy over the mask's threshold, from 0, plain training, upwards: training accuracy on "
            "random labels beside training and test accuracy with true labels. Right, a quarter of the labels redrawn: "
            f"for plain training and the mask, {', '.join(ROWS.values())}.".replace("\n", " "),
            caption="Every example its own environment. Left: what is learned of true and of random labels, by "
            "threshold (0 is plain training). Right: a quarter of the labels redrawn, plain training against the mask "
            f"at {TAU}. Large points are means over {len(seeds)} seeds, small ones the seeds.",
            panels=2,
            size=(10.2, 4.4),
            width_ratios=(1.3, 1),
        ) as (left, right):
            sweep(left, taus, curve)
            dumbbells(right, noise)

    def train(
        self,
        x: Any,
        y: Any,
        taus: Any,
        rates: Any,
        epochs: int,
        *,
        on: Any,
        seed: int,
        setting: Any,
        report: Report,
        what: str,
    ) -> Any:
        """A net for each threshold, with the same first weights and batches: its accuracy in % on some rows."""

        def trained(tau: float, rate: float) -> list[float]:
            net = Classifier(
                (lambda inputs, outputs: MLP(inputs, outputs, hidden=(64,))) if setting.data == "digits" else ResNet,
                strategy=ANDMask(threshold=tau, each="example") if tau else ERM(),
                optimizer=Optimizer("adam", lr=rate),
                schedule=lambda progress: 0.1 ** ((progress >= 1 / 2) + (progress >= 3 / 4)),
                steps=epochs * len(x) // BATCH,
                batch_size=BATCH,
                random_state=seed,
            )
            name = f"{what}, threshold {tau:g}"
            report.fit(net, x, y, what=name)
            return [100 * float(net.score(*rows)) for rows in on]

        works = {f"{what}, {tau:g}, seed {seed}": partial(trained, tau, r) for tau, r in zip(taus, rates, strict=True)}
        return np.array(list(report.parts(works).values()))


class ResNet(nn.Module):
    """The authors' residual net, a quarter as wide, normalized within each image and without scales to learn.

    All parameters are those of convolutions and of a linear layer: one backward gives every example's gradient.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(convolution(3, 16), convolution(16, 32), nn.MaxPool2d(2))
        self.second = nn.Sequential(convolution(32, 32), convolution(32, 32))
        self.third = nn.Sequential(convolution(32, 64), nn.MaxPool2d(2), convolution(64, 128), nn.MaxPool2d(2))
        self.fourth = nn.Sequential(convolution(128, 128), convolution(128, 128))
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = self.third(h + self.second(h))
        return self.head((h + self.fourth(h)).amax((-2, -1)))


def convolution(inputs: int, outputs: int) -> nn.Sequential:
    """3 x 3, then normalized over groups of eight channels."""
    norm = nn.GroupNorm(outputs // 8, outputs, affine=False)
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), norm, nn.ReLU())


def draw(data: str, images: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Rows to learn from, drawn by the seed, and test rows: the digits left over, or CIFAR-10's own."""
    x, y = load_digits(return_X_y=True) if data == "digits" else cifar10("train")
    train, rest = np.split(np.random.default_rng(seed).permutation(len(x)), [images])
    if data == "digits":
        x = (x / 16).astype(np.float32)
        return x[train], y[train], x[rest], y[rest]
    test, labels = cifar10("test")
    return 4 * x[train] - 2, y[train], 4 * test - 2, labels


def told(values: Any) -> str:
    """A mean and its interval, for a table."""
    found = mean_of(values)
    return f"{found.value:.1f}" + (" [{:.1f}, {:.1f}]".format(*found.interval) if found.interval else "")


def sweep(ax: Any, taus: list[float], curve: dict[str, Any]) -> None:
    """Accuracy over the threshold, with true and with random labels."""
    place = np.arange(len(taus))
    ax.axhline(CHANCE, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    note(ax, place[-1], CHANCE - 2, "chance", INK, ha="right", va="top", fontweight="normal")
    ax.axvspan(taus.index(TAU) - 0.2, taus.index(TAU) + 0.2, color=INK, alpha=0.1, linewidth=0)
    for name, colour, style in (("true", BLUE, "o-"), ("test", BLUE, "s:"), ("random", ORANGE, "o-")):
        ax.plot(place, curve[name].T, "o", color=colour, markersize=3, alpha=0.4)
        ax.plot(place, curve[name].mean(0), style, color=colour, markersize=5.5, label=CURVES[name])
    ax.legend(loc="lower left", bbox_to_anchor=(-0.12, -0.34), ncols=3, columnspacing=1.0, handlelength=1.6)
    ax.set_xticks(place, [f"{tau:g}" for tau in taus])
    ax.set(ylim=(0, 104), xlabel="the mask's threshold", ylabel="accuracy in %")
    ax.set_title("what is learned")


def dumbbells(ax: Any, noise: dict[str, Any]) -> None:
    """Plain training and the mask as two points on one line, for each kind of rows."""
    for place, name in enumerate(reversed(ROWS)):
        middle = noise[name].mean(0)
        ax.plot(middle, [place, place], color=INK, alpha=0.4, linewidth=2.4)
        near = abs(middle[0] - middle[1]) < 9
        for k, (colour, label) in enumerate(((ORANGE, "plain training"), (GREEN, "AND-mask"))):
            ax.plot(noise[name][:, k], np.full(len(noise[name]), place), "o", color=colour, markersize=3, alpha=0.5)
            ax.plot(middle[k], place, "o", color=colour, markersize=10, label=None if place else label)
            side = ("left" if middle[k] >= middle[1 - k] else "right") if near else "center"
            note(ax, middle[k], place + 0.17, f"{middle[k]:.0f}", colour, ha=side, va="bottom")
    ax.set_yticks(range(len(ROWS)), list(reversed(ROWS.values())))
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")
    ax.set(xlim=(-4, 108), ylim=(-0.5, len(ROWS) - 0.3), xlabel="% of the rows")
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, -0.34), ncols=2, markerscale=0.8)
    ax.set_title("a quarter of the labels redrawn")
