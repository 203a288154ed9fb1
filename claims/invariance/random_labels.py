"""Random labels: what single examples do not agree on is not memorized."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from torch import Tensor, nn

from weft import Classifier, Optimizer
from weft.bench.claims import Claim, Mutant, Report, mean_of, usual
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, note
from weft.data import cifar10, random_labels
from weft.nets import MLP
from weft.strategies import ERM, ANDMask

BATCH, TAU, NOISE, CHANCE = 80, 0.2, 0.25, 10.0  # the paper's; of ten classes
CURVES = {"true": "training, true labels", "test": "test, true labels", "random": "training, random labels"}
ROWS = {
    "right": "right labels fitted",
    "wrong": "wrong labels fitted",
    "truth": "true class found behind a wrong label",
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
    quick |= {"thresholds": (0.0, 0.2), "rates": (2e-2, 2e-2, 2e-2), "most": {"random": 40.0, "wrong": 25.0}}
    full = {"seeds": 2, "data": "cifar10", "images": (4000, 20_000), "epochs": (50, 80)}
    full |= {"thresholds": (0.0, 0.1, 0.2, 0.4, 0.8), "rates": (5e-4, 1e-3, 5e-3)}
    full |= {"most": {"random": 30.0, "wrong": 10.0}}
    first_seed = 10
    mutant = Mutant(
        what="no mask",
        misses="random labels fitted by the mask",
        names={"ANDMask": lambda **_: ERM()},
        setting={"epochs": (100, 20)},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        taus, most = list(setting.thresholds), setting.most
        keys = [*product(seeds, ("true labels", "random labels"), taus), *product(seeds, ["label noise"], (0.0, TAU))]
        report.plan(len(keys))
        found = report.every(keys, partial(trained, setting=setting, report=report))

        def scores(kind: str, name: str, thresholds: Any) -> Any:
            """Accuracy in %, by seed and threshold."""
            return np.array([[found[seed, kind, tau][name] for tau in thresholds] for seed in seeds])

        curve = {name: scores("random labels" if name == "random" else "true labels", name, taus) for name in CURVES}
        noise = {name: scores("label noise", name, (0.0, TAU)) for name in ROWS}
        at = taus.index(TAU)
        above, wrong = curve["test"] - CHANCE, noise["wrong"]
        plain, mask = (mean_of(curve["random"][:, k]) for k in (0, at))
        report.figure("random labels fitted by plain training", plain, reference="100", unit="%", least=70.0)
        report.figure("random labels fitted by the mask", mask, unit="%", most=most["random"])
        name = "true labels: the mask's share of plain training's test accuracy above chance"
        report.figure(name, mean_of(100 * above[:, at] / above[:, 0]), unit="%", least=75.0)
        name = "label noise: wrong labels fitted by"
        report.figure(f"{name} plain training", mean_of(wrong[:, 0]), unit="%", least=70.0)
        bound = {"reference": "well below chance (10)", "most": most["wrong"]}
        report.figure(f"{name} the mask", mean_of(wrong[:, 1]), unit="%", **bound)
        name, gain = "label noise: test accuracy, the mask less plain training", np.diff(noise["test"])
        report.figure(name, mean_of(gain), reference="> 0", unit="points", least=0.0)
        if setting.data == "digits":
            report.not_run("random labels of CIFAR-10 fitted by the mask", unit="%")
        report.table(
            "Accuracy in % by threshold, mean and 95 % interval over seeds",
            ["threshold", *CURVES.values()],
            [[tau, *(mean_of(curve[name][:, k]) for name in CURVES)] for k, tau in enumerate(taus)],
            digits=1,
        )
        report.table(
            f"A quarter of the labels redrawn, threshold {TAU}: accuracy in %, mean and 95 % interval over seeds",
            ["rows", "plain training", "AND-mask"],
            [[text, *map(mean_of, noise[name].T)] for name, text in ROWS.items()],
            digits=1,
        )
        with report.picture(
            "random_labels",
            alt="Left, accuracy over the mask's threshold, from 0, plain training, upwards: training accuracy on "
            "random labels beside training and test accuracy with true labels. Right, a quarter of the labels redrawn: "
            f"for plain training and the mask, {', '.join(ROWS.values())}.",
            caption="Every example its own environment. Left: what is learned of true and of random labels, by "
            "threshold (0 is plain training). Right: a quarter of the labels redrawn, plain training against the mask "
            f"at {TAU}. Large points are means over {len(seeds)} seeds, small ones the seeds.",
            panels=2,
            size=(11.4, 4.2),
            width_ratios=(1.3, 1),
        ) as (left, right):
            left.axhline(CHANCE, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
            note(left, len(taus) - 1, CHANCE - 2, "chance", INK, ha="right", va="top", fontweight="normal")
            left.axvspan(at - 0.2, at + 0.2, color=INK, alpha=0.1, linewidth=0)
            for name, colour, style in (("true", BLUE, "o-"), ("test", BLUE, "s:"), ("random", ORANGE, "o-")):
                usual.curve(left, range(len(taus)), curve[name], colour, style, label=CURVES[name])
            left.set_xticks(range(len(taus)), [f"{tau:g}" for tau in taus])
            left.set(ylim=(0, 104), xlabel="the mask's threshold", ylabel="accuracy in %")
            left.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, columnspacing=1.0, handlelength=1.6)
            kinds = {"plain training": ORANGE, "AND-mask": GREEN}
            rows = {text: dict(zip(kinds, noise[name].T, strict=True)) for name, text in ROWS.items()}
            usual.dumbbells(right, rows, kinds)
            right.set(xlim=(-4, 104), xlabel="% of the rows")


def trained(seed: int, what: str, tau: float, *, setting: Any, report: Report) -> dict[str, float]:
    """A net at a threshold, with a seed's first weights and batches: its accuracy in % on several kinds of rows."""
    noisy = what == "label noise"
    rates = setting.rates
    x, y, *test = draw(setting.data, setting.images[noisy], seed)
    given, _, wrong = random_labels(y, share=NOISE if noisy else 1.0, random_state=seed)
    net = Classifier(
        partial(MLP, hidden=(64,)) if setting.data == "digits" else ResNet,
        strategy=ANDMask(threshold=tau, each="example") if tau else ERM(),
        optimizer=Optimizer("adam", lr=rates[1 + (tau > 0)] if noisy else rates[0]),
        schedule=lambda progress: 0.1 ** ((progress >= 1 / 2) + (progress >= 3 / 4)),
        steps=setting.epochs[noisy] * len(x) // BATCH,
        batch_size=BATCH,
        random_state=seed,
    )
    report.fit(net, x, y if what == "true labels" else given, what=f"{what}, threshold {tau:g}")
    on = {"true": (x, y), "test": test} if what == "true labels" else {"random": (x, given)}
    if noisy:
        right, of = (x[~wrong], y[~wrong]), x[wrong]
        on = {"right": right, "wrong": (of, given[wrong]), "truth": (of, y[wrong]), "test": test}
    return {name: 100 * float(net.score(*rows)) for name, rows in on.items()}


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
