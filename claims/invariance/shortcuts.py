"""Why plain training takes shortcuts: what it sees of them, and when."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.spatial import cKDTree
from sklearn.svm import LinearSVC

from weft import Classifier, Optimizer
from weft.bench.claims import Claim, Mutant, Report, altered, each_of, mean_of, median_of, usual
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, note
from weft.data import spirals, spirals_test
from weft.measures import environment_gradients, feature_signal
from weft.nets import MLP
from weft.strategies import ANDMask

DRAW, PRESET = 20, "readme"  # the setting of the authors' README: 16 environments, 16 shortcuts N(0, 1)
SPIRAL = [0, 1]  # the features of the mechanism
COLUMNS = {"all features": slice(None), "spirals alone": slice(2)}
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
    quick = {"seeds": 3, "rows": 128, "width": 64, "steps": 80}
    full = {"seeds": 16, "rows": 512, "width": 128, "steps": 600}
    mutant = Mutant(
        what="a mask that lets everything pass",
        misses="share of the masked gradient",
        names={"ANDMask": altered(ANDMask, threshold=0.0)},
        setting={"steps": 20},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        report.plan(2 + len(seeds))
        given = {"setting": setting, "report": report}
        nets = report.every(COLUMNS, partial(learned, seeds=seeds, **given))
        signals = report.every(seeds, partial(gradients, **given))
        parts = {way: np.stack([one[way] for one in signals.values()]) for way in ("mean", "mask")}
        cosine = np.stack([one["cosine"] for one in signals.values()])
        plain, alone = nets.values()
        tell, linear, margin = report.figure, *separated(setting)
        name = "a linear map of the shortcuts, accuracy"
        tell(name, 100 * linear, reference="100", unit="%", least=100, exact=True)
        tell("margin of that map to half the way between spirals", margin, reference="> 1", least=2, exact=True)
        tell("steps until the loss is gone, all features", median_of(plain["gone"]))
        longer = median_of(alone["gone"] / plain["gone"])
        tell("how many times as long the spirals alone take", longer, reference="> 1", least=2)
        then, gap = mean_of(100 * plain["then"]), mean_of(plain["gap"])
        tell("accuracy without shortcuts when the loss is gone", then, unit="%", least=40, most=60)
        tell("gap to new rows of the same environments", gap, reference="0", unit="%", least=-1, most=1)
        half = [np.array([tolerated(one) for one in net["robust"]]) for net in (plain, alone)]
        name = "noise at which accuracy falls below 90 %, to that of the spirals"
        tell(name, median_of(half[0] / half[1]), least=2)
        smaller = mean_of((parts["mean"][:, :, 0] / parts["mean"][:, :, 1]).mean(1))
        tell("mechanism's part to the shortcuts' in the averaged gradient", smaller, reference="< 1", most=0.5)
        name = "cosine of the mechanism's part to that without shortcuts, untrained"
        tell(name, mean_of(cosine[:, 0]), reference="> 0", least=0.5)
        squares = (parts["mask"] ** 2).sum(1)
        left = squares[squares.sum(1) > 0]  # the mask may remove a seed's whole gradient
        name = "mechanism's share of the masked gradient, all seeds and steps"
        tell(name, mean_of(100 * left[:, 0] / left.sum(1)), unit="%", least=90)
        norms = [parts[way][:, :, j].mean(0) for way in ("mean", "mask") for j in (0, 1)]
        report.table(
            "Norms of the first layer's gradient, mean over seeds: what is about the spirals, what about the shortcuts",
            ["step", "spirals", "shortcuts", "spirals, masked", "shortcuts, masked", "cosine"],
            zip(EARLY, *norms, cosine.mean(0), strict=True),
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
            for (name, net), colour in zip(nets.items(), (ORANGE, BLUE), strict=True):
                loss = np.maximum(net["loss"].T, 1e-5)
                usual.curve(left, net["step"], loss, colour, seeds="-", middle=np.median, label=name)
                usual.curve(centre, NOISE, 100 * net["robust"], colour, "o-")
            left.axhline(GONE, color=INK, linewidth=0.8, linestyle=":")
            note(left, setting.steps, GONE * 1.2, "gone", INK, ha="right")
            left.set(yscale="log", xlabel="step", ylabel="training loss", xlim=(0, setting.steps))
            left.set_title("the loss is gone early")
            left.legend(loc="lower right", bbox_to_anchor=(1, 0.08))
            centre.set(xlabel="noise, standard deviation", ylabel="accuracy in %", ylim=(45, 101))
            centre.set_title("known environments, with noise")
            shown = [
                ("mean", 0, BLUE, "spirals"),
                ("mean", 1, ORANGE, "shortcuts"),
                ("mask", 0, GREEN, "spirals, masked"),
            ]
            for way, part, colour, label in shown:
                usual.curve(right, EARLY, parts[way][:, :, part], colour, "o-", label=label)
            right.set(xlabel="step", xticks=EARLY, ylabel="norm", title="first layer's gradient")
            right.legend(loc="upper right")


def rows(setting: Any) -> tuple[Any, Any, Any]:
    """Rows, labels and environments: of each environment one half to learn from, then the other, which is new; test."""
    x, y, environment = spirals(2 * setting.rows, preset=PRESET, random_state=DRAW)
    kept = np.arange(len(x)) % (2 * setting.rows) < setting.rows
    halves = ((x[here], y[here], environment[here]) for here in (kept, ~kept))
    return *halves, spirals_test(preset=PRESET, random_state=DRAW)


def make(columns: slice, steps: int, seeds: list[int], setting: Any) -> Classifier:
    """A net that sees some columns; test rows are evaluated for the curves only."""
    x, y = spirals_test(preset=PRESET, random_state=DRAW)
    return Classifier(
        partial(MLP, hidden=(setting.width,) * 3, activation="leaky_relu", init="kaiming"),
        optimizer=Optimizer("adam", lr=0.01),
        steps=steps,
        batch_size=None,
        validation=(x[:, columns], y),
        replicas={"random_state": seeds},
    )


def learned(name: str, *, setting: Any, seeds: list[int], report: Report) -> dict[str, Any]:
    """For each seed: the loss, when it is gone and what is right then, the gap to new rows, accuracy by noise."""
    (x, y, _), (new, label, _), _ = rows(setting)
    see = COLUMNS[name]
    learner = report.fit(make(see, setting.steps, seeds, setting), x[:, see], y, what=name)
    history = {key: learner.history_[key] for key in ("step", "loss", "valid_accuracy")}
    below = history["loss"] < GONE
    first = np.where(below.any(0), below.argmax(0), -1)  # the last record where it never is
    drawn = np.random.default_rng(1).standard_normal(new.shape).astype(np.float32)
    noisy = [(new + s * drawn)[:, see] for s in NOISE]
    gap = each_of(learner, lambda n: 100 * (n.score(x[:, see], y) - n.score(new[:, see], label)), lost=np.nan)
    robust = each_of(learner, lambda n: [n.score(z, label) for z in noisy], lost=[np.nan] * len(NOISE))
    then = history["valid_accuracy"][first, np.arange(len(seeds))]
    return {**history, "gone": history["step"][first].astype(float), "then": then, "gap": gap, "robust": robust}


def gradients(seed: int, *, setting: Any, report: Report) -> dict[str, Any]:
    """Norms of the gradient's parts by step and part (mechanism, shortcuts), and the mechanism's cosine."""
    (x, y, environment), _, test = rows(setting)
    found: dict[str, list[Any]] = {"mean": [], "mask": [], "cosine": []}
    for step in report.each(EARLY, "gradients"):
        report.saw(x, y)
        learner = make(slice(None), step, [seed], setting).fit(x, y).replica(0)
        report.spend(trainings=1, steps=step)
        for way, strategy in (("mean", None), ("mask", ANDMask(rescale=False))):
            signal = feature_signal(learner, x, y, features=SPIRAL, environment=environment, strategy=strategy)
            found[way].append([signal.norm, signal.rest])
        a, b = (
            next(g.mean(0) for name, g in slopes.items() if name.endswith("weight"))[:, SPIRAL].flatten()
            for slopes in (
                environment_gradients(learner, x, y, environment=environment),
                environment_gradients(learner, *test, environment=np.zeros(len(test[1]))),
            )
        )
        found["cosine"].append(float(a @ b / (a.norm() * b.norm())))
    return {name: np.array(values) for name, values in found.items()}


def separated(setting: Any) -> tuple[float, float]:
    """The accuracy of the widest linear separation of the shortcuts, and its margin to half the way between spirals."""
    x, y, environment = spirals(2 * setting.rows, preset=PRESET, random_state=DRAW)
    first = [np.flatnonzero((environment == e) & (y == 1))[0] for e in np.unique(environment)]
    signatures = x[first, 2:].astype(float)  # every row of an environment has its signature, times the label's sign
    labels = np.repeat([1, -1], len(signatures))
    svm = LinearSVC(C=1e6, fit_intercept=False, max_iter=1_000_000, random_state=0)
    weights = svm.fit(np.concatenate([signatures, -signatures]), labels).coef_[0]
    distances = signatures @ weights / np.linalg.norm(weights)
    arms = cKDTree(x[y == 0][:, SPIRAL]).query(x[y == 1][:, SPIRAL])[0].min() / 2
    return float((distances > 0).mean()), float(distances.min()) / arms


def tolerated(accuracy: Any) -> float:
    """The noise at which accuracy falls below 90 %, between the levels tried; the last one if it never does."""
    below = np.flatnonzero(accuracy < 0.9)
    if not len(below) or below[0] == 0:
        return NOISE[-1] if not len(below) else NOISE[1] / 2
    i = below[0]
    share = (accuracy[i - 1] - 0.9) / (accuracy[i - 1] - accuracy[i])
    return NOISE[i - 1] + float(share) * (NOISE[i] - NOISE[i - 1])
