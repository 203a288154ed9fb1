"""Why plain training takes shortcuts: what it sees of them, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.spatial import cKDTree
from sklearn.svm import LinearSVC

from weft import Classifier, Optimizer
from weft.bench.claims import Claim, Mutant, Report, altered, mean_of, median_of
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, note
from weft.data import spirals, spirals_test
from weft.measures import environment_gradients, feature_signal
from weft.nets import MLP
from weft.strategies import ANDMask

DRAW, PRESET = 20, "readme"  # the setting of the authors' README: 16 environments, 16 shortcuts N(0, 1)
SPIRAL = [0, 1]  # the features of the mechanism
GONE = 0.01  # a training loss that is gone
NOISE = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
EARLY = (0, 5, 10)  # steps at which gradients are looked at


class Shortcuts(Claim):
    """One net by ERM on all features, one on the spirals alone, and the gradients of both kinds of features."""

    title = "Why plain training takes the shortcut"
    statement = (
        "The shortcut of every environment is linear, has the larger margin, withstands more noise and shows no gap "
        "between training rows and new rows of the same environments. The loss is gone before the mechanism could be "
        "learned. The averaged gradient does hold the mechanism's part, but it is far smaller than the shortcuts'; "
        "the AND-mask keeps the one and removes the other."
    )
    reference = (
        "Parascandolo, Neitz, Orvieto, Gresele and Schölkopf, “Learning explanations that are hard to vary”, arXiv "
        "2009.00329, sections 1 and 4.1"
    )
    tolerance = (
        "The paper says this in words, so the bounds are ours: orders, not sizes. A margin or a number of steps is "
        "larger where it is at least twice the other; there is no gap where it is below 1 %; the mechanism's part is "
        "held where its direction has a cosine of .5 or more with that of rows whose shortcuts are noise; it is far "
        "smaller where it is at most half of the shortcuts'."
    )
    quick = {"seeds": 3, "rows": 128, "width": 64, "steps": 300}
    full = {"seeds": 16, "rows": 512, "width": 128, "steps": 600}
    mutant = Mutant(
        what="a mask that lets everything pass",
        misses="share of the masked gradient",
        names={"ANDMask": altered(ANDMask, threshold=0.0)},
        setting={"steps": 20},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(3)
        x, y, environment = spirals(2 * setting.rows, preset=PRESET, random_state=DRAW)
        kept = np.arange(len(x)) % (2 * setting.rows) < setting.rows  # of each environment one half; the other is new
        test = spirals_test(preset=PRESET, random_state=DRAW)

        linear, margin = separated(x, y, environment)
        arms = cKDTree(x[y == 0][:, SPIRAL]).query(x[y == 1][:, SPIRAL])[0].min() / 2
        report.figure(
            "a linear map of the shortcuts, accuracy", 100 * linear, reference="100", unit="%", least=100, exact=True
        )
        report.figure(
            "margin of that map to half the way between spirals", margin / arms, reference="> 1", least=2, exact=True
        )

        def net(columns: Any, steps: int, count: list[int]) -> Classifier:
            return Classifier(
                lambda i, o: MLP(i, o, hidden=(setting.width,) * 3, activation="leaky_relu", init="kaiming"),
                optimizer=Optimizer("adam", lr=0.01),
                steps=steps,
                batch_size=None,
                validation=(test[0][:, columns], test[1]),
                replicas={"random_state": count},
            )

        everything, alone = list(range(x.shape[1])), SPIRAL
        nets = {
            name: report.fit(net(columns, setting.steps, seeds), x[kept][:, columns], y[kept], what=name)
            for name, columns in (("all features", everything), ("spirals alone", alone))
        }
        gone = {name: np.array([first_below(learner, k) for k in range(len(seeds))]) for name, learner in nets.items()}
        report.figure("steps until the loss is gone, all features", median_of(gone["all features"]))
        report.figure(
            "how many times as long the spirals alone take",
            median_of(gone["spirals alone"] / gone["all features"]),
            reference="> 1",
            least=2,
        )
        when = [at(nets["all features"], "valid_accuracy", gone["all features"][k], k) for k in range(len(seeds))]
        report.figure(
            "accuracy without shortcuts when the loss is gone", mean_of(100 * np.array(when)), unit="%", most=60
        )
        each = [nets["all features"].replica(k) for k in range(len(seeds))]
        gap = [100 * (n.score(x[kept], y[kept]) - n.score(x[~kept], y[~kept])) for n in each]
        report.figure("gap to new rows of the same environments", mean_of(gap), reference="0", unit="%", most=1)
        robust = self.noise(nets, x[~kept], y[~kept], len(seeds))
        half = [np.array([tolerated(one) for one in robust[name]]) for name in nets]
        name = "noise at which accuracy falls below 90 %, to that of the spirals"
        report.figure(name, median_of(half[0] / half[1]), least=2)

        parts, cosine = self.gradients(net, x[kept], y[kept], environment[kept], test, seeds, report)
        report.figure(
            "mechanism's part to the shortcuts' in the averaged gradient",
            mean_of((parts["mean"][:, :, 0] / parts["mean"][:, :, 1]).mean(1)),
            reference="< 1",
            most=0.5,
        )
        report.figure(
            "cosine of the mechanism's part to that without shortcuts, untrained",
            mean_of(cosine[:, 0]),
            reference="> 0",
            least=0.5,
        )
        squares = (parts["mask"] ** 2).sum(1)
        left = squares[squares.sum(1) > 0]  # the mask may remove a seed's whole gradient
        report.figure(
            "mechanism's share of the masked gradient, all seeds and steps",
            mean_of(100 * left[:, 0] / left.sum(1)),
            unit="%",
            least=90,
        )
        report.table(
            "Norms of the first layer's gradient, mean over seeds: what is about the spirals, what about the shortcuts",
            ["step", "spirals", "shortcuts", "spirals, masked", "shortcuts, masked", "cosine"],
            [
                [step, *(parts[way][:, i, j].mean() for way in ("mean", "mask") for j in (0, 1)), cosine[:, i].mean()]
                for i, step in enumerate(EARLY)
            ],
        )
        with report.picture(
            "shortcuts",
            alt="Left: with all features the training loss vanishes within a few dozen steps while accuracy without "
            "shortcuts stays at a half; the spirals alone take hundreds. Middle: accuracy under noise, which the "
            "spirals lose first. Right: the averaged gradient's parts; the shortcuts' is several times the spirals'.",
            caption="The loss of a net that has the shortcuts is gone before one that has the spirals alone begins to "
            "learn; noise that hides the spirals leaves the shortcuts; and the gradient's mean over environments is "
            "mostly about shortcuts, that after the mask is not.",
            panels=3,
            size=(12.2, 3.7),
        ) as (left, centre, right):
            for (name, learner), colour in zip(nets.items(), (ORANGE, BLUE), strict=True):
                step, loss = learner.history_["step"], np.maximum(learner.history_["loss"], 1e-5)
                left.plot(step, loss, color=colour, alpha=0.3, linewidth=1)
                left.plot(step, np.median(loss, axis=1), color=colour, label=name)
                centre.plot(NOISE, 100 * robust[name].mean(0), "o-", color=colour, label=name, markersize=4)
            left.axhline(GONE, color=INK, linewidth=0.8, linestyle=":")
            note(left, setting.steps, GONE * 1.2, "gone", INK, ha="right")
            left.set(yscale="log", xlabel="step", ylabel="training loss", xlim=(0, setting.steps))
            left.set_title("the loss is gone early")
            left.legend(loc="lower right", bbox_to_anchor=(1, 0.08))
            centre.set(xlabel="noise, standard deviation", ylabel="accuracy in %", ylim=(45, 101))
            centre.set_title("known environments, with noise")
            bars(right, parts)

    def noise(self, nets: dict[str, Any], x: Any, y: Any, count: int) -> dict[str, Any]:
        """Accuracy in known environments by the noise added to every feature; seeds by levels of noise."""
        found = {}
        drawn = np.random.default_rng(1).standard_normal(x.shape).astype(np.float32)
        for name, learner in nets.items():
            columns = SPIRAL if name == "spirals alone" else slice(None)
            one = [learner.replica(k) for k in range(count)]
            found[name] = np.array([[n.score((x + s * drawn)[:, columns], y) for s in NOISE] for n in one])
        return found

    def gradients(
        self, net: Any, x: Any, y: Any, environment: Any, test: Any, seeds: list[int], report: Report
    ) -> tuple[dict[str, Any], Any]:
        """Norms of the gradient's parts by seed, step and part (mechanism, shortcuts), and the mechanism's cosine."""
        parts = {way: np.zeros((len(seeds), len(EARLY), 2)) for way in ("mean", "mask")}
        cosine = np.zeros((len(seeds), len(EARLY)))
        ways = {"mean": None, "mask": ANDMask(rescale=False)}
        for k, seed in enumerate(report.each(seeds, "gradients")):
            for i, step in enumerate(EARLY):
                report.saw(x, y)
                learner = net(list(range(x.shape[1])), step, [seed]).fit(x, y).replica(0)
                report.spend(trainings=1, steps=step)
                for way, strategy in ways.items():
                    signal = feature_signal(learner, x, y, features=SPIRAL, environment=environment, strategy=strategy)
                    parts[way][k, i] = signal.norm, signal.rest
                a, b = (
                    next(g.mean(0) for name, g in gradients.items() if name.endswith("weight"))[:, SPIRAL].flatten()
                    for gradients in (
                        environment_gradients(learner, x, y, environment=environment),
                        environment_gradients(learner, *test, environment=np.zeros(len(test[1]))),
                    )
                )
                cosine[k, i] = float(a @ b / (a.norm() * b.norm()))
        return parts, cosine


def separated(x: Any, y: Any, environment: Any) -> tuple[float, float]:
    """The accuracy of the widest linear separation of the shortcuts, and its margin."""
    first = [np.flatnonzero((environment == e) & (y == 1))[0] for e in np.unique(environment)]
    signatures = x[first, 2:].astype(float)  # every row of an environment has its signature, times the label's sign
    labels = np.repeat([1, -1], len(signatures))
    svm = LinearSVC(C=1e6, fit_intercept=False, max_iter=1_000_000, random_state=0)
    weights = svm.fit(np.concatenate([signatures, -signatures]), labels).coef_[0]
    distances = signatures @ weights / np.linalg.norm(weights)
    return float((distances > 0).mean()), float(distances.min())


def first_below(learner: Any, k: int) -> float:
    """The step at which a replica's training loss is first gone; the last one if it never is."""
    below = learner.history_["loss"][:, k] < GONE
    return float(learner.history_["step"][int(below.argmax()) if below.any() else -1])


def at(learner: Any, measure: str, step: float, k: int) -> float:
    """A replica's measure recorded at a step."""
    return float(learner.history_[measure][np.searchsorted(learner.history_["step"], step), k])


def tolerated(accuracy: Any) -> float:
    """The noise at which accuracy falls below 90 %, between the levels tried; the last one if it never does."""
    below = np.flatnonzero(accuracy < 0.9)
    if not len(below) or below[0] == 0:
        return NOISE[-1] if not len(below) else NOISE[1] / 2
    i = below[0]
    share = (accuracy[i - 1] - 0.9) / (accuracy[i - 1] - accuracy[i])
    return NOISE[i - 1] + float(share) * (NOISE[i] - NOISE[i - 1])


def bars(ax: Any, parts: dict[str, Any]) -> None:
    """The gradient's norm about each kind of feature, at the early steps, averaged and masked."""
    kinds = [("mean", 0, BLUE, "spirals"), ("mean", 1, ORANGE, "shortcuts"), ("mask", 0, GREEN, "spirals, masked")]
    for j, (way, part, colour, label) in enumerate(kinds):
        height = parts[way][:, :, part].mean(0)
        ax.bar(np.arange(len(EARLY)) + 0.26 * (j - 1), height, width=0.24, color=colour, label=label)
    ax.set_xticks(range(len(EARLY)), [f"step {step}" for step in EARLY])
    ax.set(ylabel="norm of the gradient")
    ax.set_title("first layer's gradient")
    ax.legend(loc="upper right")
