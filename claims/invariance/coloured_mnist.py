"""Coloured MNIST: who learns the digit where the colour is the better guess, and who chose the settings."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from _coloured import DRAW, data, make

from weft import Learner
from weft.bench.claims import Claim, Mutant, Report, chosen_by, hits_of, mean_of, mean_over, usual
from weft.bench.pictures import BLUE, GREEN, INK, ORANGE, SOFT, note
from weft.core.strategy import Strategy
from weft.strategies import CORAL, ERM, IRM, MMD, ANDMask, Fishr, GeometricMean, GroupDRO, PCGrad, SANDMask, VREx

LAMBDA = 91257.19  # of IRM's code, as are the full setting's other values, but for these two, which have their own
PUBLISHED = {
    "ERM": {"width": 256, "l2": 0.001, "rate": 0.001},
    "ERM on grey": {"width": 83, "l2": 0.00086028689, "rate": 0.0028171488, "steps": 101},
}
ANNEALS = (50, 100, 200)  # tried by the search where there is a penalty
JUDGED = {  # what IRM's code gives in training and in the test (10 restarts), and how far off we may be
    "ERM": ((87.39, 2.0), (17.07, 2.0)),
    "IRM": ((70.81, 3.0), (66.90, 5.0)),
    "ERM on grey": ((73.50, 1.5), (73.01, 1.5)),
}
LOOSER = {"ERM": {"most": 25.0}, "IRM": {"least": 52.0}, "ERM on grey": {"least": 62.0}}  # at the quick scale
SEARCH = {  # beside the learning rate, uniformly in the logarithm; with two environments there are two thresholds
    "ERM": ("", None),
    "IRM": ("irm__strength", (1e2, 1e6)),
    "V-REx": ("vrex__strength", (1e2, 1e6)),
    "Fishr": ("fishr__strength", (1e4, 1e9)),
    "GroupDRO": ("groupdro__rate", (1e-3, 1e-1)),
    "AND-mask": ("andmask__threshold", None),
    "SAND-mask": ("sandmask__steepness", (1e-3, 1e5)),
    "CORAL": ("coral__strength", (1e-1, 1e3)),
}
RULES = {"training-domain": ORANGE, "leave one out": BLUE, "oracle": GREEN}


def methods(anneal: int, width: int) -> dict[str, Strategy]:
    """Every method at IRM's strength and annealing where it has them, else at its own defaults."""
    return {
        "ERM": ERM(),
        "IRM": IRM(strength=LAMBDA, anneal=anneal),
        # V-REx's code penalizes (L_1 - L_2)^2, which is four variances; Fishr's sums where this one takes means.
        "V-REx": VREx(strength=4 * LAMBDA, before=4.0, anneal=anneal),
        "Fishr": Fishr(strength=(width + 1) * LAMBDA, anneal=anneal, ema=0.0),
        "GroupDRO": GroupDRO(),
        "AND-mask": ANDMask(),
        "SAND-mask": SANDMask(),
        "geometric mean": GeometricMean(),
        "PCGrad": PCGrad(),
        "CORAL": CORAL(),
        "MMD": MMD(),
    }


class ColouredMNIST(Claim):
    """The published setting for every method, then a search whose settings are chosen by three rules."""

    title = "The digit or its colour"
    statement = (
        "Where the colour of a digit tells the label better than its shape in training, and misleads in the test, ERM "
        "goes by the colour (87 % in training, 17 % in the test) and IRM by the shape (71 and 67 %), near what can be "
        "learned from grey images (73 %). IRM's settings were chosen with the test environment in view; chosen by "
        "accuracy in the training environments it is far worse."
    )
    reference = (
        "Arjovsky, Bottou, Gulrajani and Lopez-Paz, “Invariant risk minimization”, arXiv 1907.02893, section 5.2, and "
        "its code; on selection: Gulrajani and Lopez-Paz, “In search of lost domain generalization”, arXiv 2007.01434"
    )
    tolerance = (
        "Full: the settings of IRM's code, for ERM and for grey images their own. About three of the reference's "
        "deviations between restarts for ERM and grey images (2 and 1.5 points: restarts share one draw of the data "
        "here), two for IRM (5 points; 3 in training). What the oracle chooses for IRM must be 20 points above what "
        "training environments choose (DomainBed: 48). Quick: 15,000 rows of 7 x 7 pixels, 64 units and 100 large "
        "steps, where IRM gets less far: it must be better than guessing in the test, by 2 points, where ERM may be "
        "right in 25 % and grey images must give 62 %. That setting was chosen among about twenty with test accuracy "
        "in view."
    )
    quick = {"seeds": 1, "images": 18_000, "pixels": 7, "width": 64, "l2": 0.00110794568, "steps": 100}
    quick |= {"rate": 0.01, "anneal": 50}
    full = {"seeds": 10, "images": 60_000, "pixels": 14, "width": 390, "l2": 0.00110794568, "steps": 501}
    full |= {"rate": 0.00048985, "anneal": 190, "trials": 6, "searched_width": 256, "refits": 3}
    mutant = Mutant(
        what="ERM in IRM's place",
        misses="IRM, test",
        names={"IRM": lambda **_: ERM()},
        setting={"images": 6_000, "steps": 60},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        whole = setting.scale == "full"
        names = [*methods(0, 0), "DANN", "ERM on grey"] if whole else list(JUDGED)
        report.plan(len(names) + whole * 9 * len(SEARCH))
        given = {"setting": setting, "seeds": seeds, "report": report}
        found = report.every(names, partial(published, **given))
        means = {name: (mean_of(one["train"]), mean_over(one["test"])) for name, one in found.items()}
        for name, bounds in JUDGED.items():
            for where, mean, (expected, within) in zip(("train", "test"), means[name], bounds, strict=True):
                looser = LOOSER[name] if where == "test" else {}
                judged = {"near": expected, "within": within} if whole else looser
                report.figure(f"{name}, {where}", mean, reference=f"{expected}", unit="%", **judged)
        report.table(
            "Accuracy in % at the published setting (chosen with the test environment in view), with 95 % intervals",
            ["method", "train", "test"],
            [[name, *pair] for name, pair in means.items()],
            digits=1,
        )
        gap, told_gap = "IRM: the oracle's choice above the training-domain one's", {"reference": "48 (DomainBed)"}
        chosen = report.every(SEARCH, partial(choose, **given)) if whole else {}
        if whole:
            of = chosen["IRM"]
            apart = mean_over(of["oracle"]["right"].astype(float) - of["training-domain"]["right"])
            report.figure(gap, apart, unit="points", least=20.0, **told_gap)
            report.table(
                f"Accuracy in % by rule of selection, the best of {setting.trials} settings",
                ["method", "rule", "setting chosen", "its score by the rule", "test"],
                [
                    [n, r, o["setting"], o["score"], mean_over(o["right"])]
                    for n, by in chosen.items()
                    for r, o in by.items()
                ],
                digits=1,
            )
        else:
            report.not_run(gap, unit="points", **told_gap)
        draw(report, found, chosen, setting)


def published(name: str, *, setting: Any, seeds: list[int], report: Report) -> dict[str, Any]:
    """A method as its authors set it: accuracy in training by restart, which test rows are right, and the history."""
    train, test = data(setting, grey=name == "ERM on grey")
    own = PUBLISHED.get(name, {}) if setting.scale == "full" else {}
    strategy = methods(setting.anneal, setting.width).get(name, ERM())
    net = make(name, strategy, SimpleNamespace(**{**vars(setting), **own}), len(seeds))
    net.set_params(random_state=seeds[0])
    curves = name in ("ERM", "IRM")
    if curves:
        net.set_params(validation=test[:2])  # for the curves only: nothing is chosen by it
    report.fit(net, train[0], train[1], environment=train[2], what=name)
    kept = {key: net.history_[key] for key in ("step", "accuracy", "valid_accuracy") if curves}
    return {"train": hits_of(net, *train[:2]).mean(1), "test": hits_of(net, *test[:2]).astype(np.int8), **kept}


def choose(name: str, *, setting: Any, seeds: list[int], report: Report) -> dict[str, dict[str, Any]]:
    """What the three rules choose of the same random settings; see `chosen_by`."""
    refits = range(seeds[-1] + 1, seeds[-1] + 1 + setting.refits)
    narrow = SimpleNamespace(**{**vars(setting), "width": setting.searched_width})

    def made(lists: Any) -> Learner:
        return make(name, methods(setting.anneal, narrow.width)[name], narrow, lists)

    return chosen_by(made, draws(name, setting.trials), *data(setting), refits, report, what=f"choosing for {name}")


def draws(name: str, count: int) -> list[dict[str, Any]]:
    """Settings drawn at random."""
    random, found = np.random.default_rng([DRAW, list(SEARCH).index(name)]), []
    key, limits = SEARCH[name]
    for k in range(count):
        found.append({"optimizer__lr": 10 ** random.uniform(-3.5, -2.5), "random_state": k})
        if key:
            drawn = 10 ** random.uniform(*np.log10(limits)) if limits else float(k % 2)
            found[-1][f"strategy__{key}"] = drawn
        if name in ("IRM", "V-REx", "Fishr"):
            found[-1][f"strategy__{key.replace('strength', 'anneal')}"] = ANNEALS[k % 3]
    return found


def draw(report: Report, found: dict[str, Any], chosen: dict[str, Any], setting: Any) -> None:
    """Some digits, ERM and IRM while they learn, and accuracy by environment and by rule of selection."""
    train, test = data(setting)
    with report.picture(
        "accuracy",
        alt="Handwritten digits in two colours; in training most digits of a label share a colour, in the test most "
        "have the other one. Then ERM's test accuracy, which falls below a quarter, and IRM's, which rises once its "
        "penalty sets in; each method's training and test accuracy, far apart for ERM, close for IRM; and, where it "
        "was searched, its test accuracy with settings chosen by three rules, of which the oracle is the best.",
        caption="The data (images of one label); test accuracy (solid) and training accuracy (dashed) of each restart, "
        f"the penalty at full strength from step {setting.anneal} on; and the mean over restarts, with rings where the "
        "reference is. Nothing that holds in all environments is better than 75 %. Where settings were searched: the "
        "best of the same random ones by three rules; the oracle looks at labelled rows of the test environment, which "
        "nobody has who needs the method.",
        panels=3 + bool(chosen),
        size=(12.0 + 4.0 * bool(chosen), 3.2 + 0.09 * len(found)),
        width_ratios=(0.8, 1.2, 1.2, 1.2)[: 3 + bool(chosen)],
    ) as (left, centre, *charts):
        images = {}
        for (x, y, environment), e in ((train, 0), (train, 1), (test, 2)):
            x, y = x[environment == e], y[environment == e]
            share = 100 * (x[:, 1].any(axis=(1, 2)) == y).mean()
            images[f"{'test' if e == 2 else f'training {e + 1}'}: colour right in {share:.0f} %"] = x[y == 1]
        usual.sheets(left, images)
        for name, colour in (("ERM", ORANGE), ("IRM", GREEN)):
            one = found[name]
            for key, style in (("valid_accuracy", "-"), ("accuracy", "--")):
                usual.curve(centre, one["step"], 100 * one[key].T, colour, style, seeds=style, linewidth=1.2)
            note(centre, one["step"][-1], one["test"].mean() + (4 if name == "ERM" else -9), name, colour, ha="right")
        centre.axvline(setting.anneal, color=SOFT, linewidth=0.9, linestyle=":")
        centre.set(ylim=(0, 100), xlabel="step", ylabel="accuracy in %", title="while they learn")
        rows = {name: {"training": one["train"], "test": one["test"].mean(1)} for name, one in found.items()}
        rows = dict(sorted(rows.items(), key=lambda row: -row[1]["test"].mean()))
        usual.dumbbells(charts[0], rows, {"training": INK, "test": GREEN})
        for row, name in enumerate(rows):
            at = [expected for expected, _ in JUDGED.get(name, ())]
            charts[0].plot(at, [row] * len(at), "o", markersize=13, markerfacecolor="none", markeredgecolor=SOFT)
        if chosen:
            by = {n: {rule: o["right"].mean(1) for rule, o in rules.items()} for n, rules in chosen.items()}
            usual.dumbbells(charts[1], dict(sorted(by.items(), key=lambda row: -row[1]["oracle"].mean())), RULES)
        for ax in charts:
            ax.axvline(75, color=SOFT, linewidth=0.9)
            ax.set(xlim=(0, 100), xlabel="accuracy in %")
