"""Choosing by the test set: how much better than the truth the chosen score looks."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats
from sklearn.datasets import load_digits

from weft import Classifier, Optimizer
from weft.bench.claims import Claim, Mutant, Report, bands, mean_of, stacked
from weft.bench.pictures import BLUE, INK, ORANGE

LABELS = ("random labels", "digits")
COLOURS = {"by test": ORANGE, "expected": INK, "by validation": BLUE}
TRAIN, HELD = 150, 200  # rows to learn from; rows of the validation and of the test set


def largest(m: int) -> float:
    """The expectation of the largest of m standard normals."""
    z = np.linspace(-10, 10, 20_001)
    return float(np.trapezoid(z * m * stats.norm.pdf(z) * stats.norm.cdf(z) ** (m - 1), z))


def split(seed: int) -> tuple[Any, Any, list[Any]]:
    """The digits, and rows to learn from, to validate, to test, and fresh ones."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    return (x / 16).astype(np.float32), y, np.split(order, [TRAIN, TRAIN + HELD, TRAIN + 2 * HELD])


def leaked(seed: int, right: Any = split) -> tuple[Any, Any, list[Any]]:
    """A mutant of `split`: the test rows serve for validation too."""
    x, y, (train, _, test, fresh) = right(seed)
    return x, y, [train, test, test, fresh]


class TestSetTuning(Claim):
    """Nets of many settings, chosen by test score or by validation score, on random and on true labels."""

    title = "Tuning on the test set"
    statement = (
        "The best test score among m settings is better than the truth, and the more so the larger m is: where nothing "
        "can be learned it rises like the largest of m noisy estimates. A setting chosen on validation rows keeps an "
        "honest test score."
    )
    reference = (
        "Cawley and Talbot, “On over-fitting in model selection and subsequent selection bias in performance "
        "evaluation”, JMLR 11, 2010"
    )
    tolerance = (
        "On random labels the truth is 50 % exactly. The expectation for m equally correlated normal estimates, "
        "sqrt(1 - r) sd E[max of m normals], is an approximation (scores are counts, correlations are not all "
        "equal), so the measured inflation may differ by a fifth of it. Scores of settings chosen on validation must "
        "be honest to 1 percentage point."
    )
    quick = {"seeds": 6, "settings": 32, "steps": 40, "draws": 200}
    full = {"seeds": 16, "settings": 256, "steps": 40, "draws": 1000}
    mutant = Mutant(what="validation rows that are the test's", misses="chosen on validation", names={"split": leaked})

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        counts = [2**k for k in range(setting.settings.bit_length())]
        report.plan(2 * len(seeds))

        def inflation(on: str, seed: int) -> dict[str, Any]:
            return (random_labels if on == "random labels" else true_labels)(seed, counts, setting, report)

        found = report.every([(on, seed) for on in LABELS for seed in seeds], inflation)
        both = {on: stacked(found[on, seed] for seed in seeds) for on in LABELS}  # (splits, settings tried)
        chance, digits, m = both["random labels"], both["digits"], counts[-1]
        theory = chance["expected"][:, -1].mean()
        maximum = {"reference": f"{theory:.2f}, the largest of {m} estimates", "near": theory, "within": theory / 5}
        more = {"reference": "> 0", "least": 0.0}
        honest = {"reference": "0", "near": 0.0, "within": 1.0}
        for name, values, bounds in (
            (f"random labels: best of {m} by test score, over the true 50 %", chance["by test"], maximum),
            ("random labels: chosen on validation, over the true 50 %", chance["by validation"], honest),
            (f"digits: best of {m} by test score, over its accuracy on fresh rows", digits["by test"], more),
            ("digits: chosen on validation, over its accuracy on fresh rows", digits["by validation"], honest),
        ):
            report.figure(name, mean_of(values[:, -1]), unit="points", **bounds)
        columns = {f"{on}, {how}": values for on, by in both.items() for how, values in by.items()}
        report.table(
            f"Inflation in percentage points, mean over {len(seeds)} splits of the data",
            ["settings tried", *columns],
            [[tried, *(values[:, i].mean() for values in columns.values())] for i, tried in enumerate(counts)],
            digits=3,
        )
        with report.picture(
            "inflation",
            alt="Over the number of settings tried, the score of the one with the best test score rises above the "
            "truth, on random labels along the curve expected; chosen on validation it stays at the truth.",
            caption="How far the reported score lies above the truth, where the setting with the best test score is "
            f"taken and where it is chosen on validation. Bands: the middle half of {len(seeds)} splits.",
            panels=2,
            size=(9.6, 4.0),
        ) as axes:
            for ax, (on, by) in zip(axes, both.items(), strict=True):
                for how, values in by.items():
                    bands(ax, counts, values, COLOURS[how], between=(0.25, 0.75), marker="o", markersize=4, label=how)
                ax.axhline(0, color=INK, linewidth=0.8)
                ax.set(title=on, xlabel="settings tried", xscale="log", xticks=counts, xticklabels=counts)
                ax.minorticks_off()
                ax.legend(loc="upper left")
            axes[0].set_ylabel("reported score − truth, in points")


def sweep(x: Any, y: Any, rows: Any, seed: int, setting: Any, report: Report, what: str) -> Any:
    """What nets of many settings (learning rate and seed) predict for all rows."""
    random = np.random.default_rng([seed, 1])
    grid = {"optimizer__lr": (10 ** random.uniform(-3, -1, setting.settings)).tolist()}
    grid["random_state"] = random.integers(2**31, size=setting.settings).tolist()
    adam = Optimizer("adam", lr=0.01)
    nets = Classifier(hidden=(32,), optimizer=adam, replicas=grid, steps=setting.steps, batch_size=None)
    report.fit(nets, x[rows], y[rows], what=what)
    return np.stack([nets.replica(k).predict(x) for k in range(setting.settings)])


def random_labels(seed: int, counts: list[int], setting: Any, report: Report) -> dict[str, Any]:
    """In points. Labels are fair coins: whatever was learned, each net is right on half of the rows to come."""
    x, _, (train, valid, test, _) = split(seed)
    random = np.random.default_rng([seed, 2])
    guess = sweep(x, random.integers(2, size=len(x)), train, seed, setting, report, "random labels")
    sign = 2.0 * guess - 1.0
    coins = 2.0 * random.integers(2, size=(setting.draws, len(x))) - 1.0
    on_test, on_valid = (0.5 + coins[:, part] @ sign[:, part].T / (2 * HELD) for part in (test, valid))
    alike = sign[:, test] @ sign[:, test].T / HELD
    r = (alike.sum() - len(alike)) / (len(alike) * (len(alike) - 1))
    each = np.arange(setting.draws)
    return {
        "by test": [100 * on_test[:, :m].max(1).mean() - 50 for m in counts],
        "expected": [100 * np.sqrt((1 - r) / (4 * HELD)) * largest(m) for m in counts],
        "by validation": [100 * on_test[each, on_valid[:, :m].argmax(1)].mean() - 50 for m in counts],
    }


def true_labels(seed: int, counts: list[int], setting: Any, report: Report) -> dict[str, Any]:
    """Likewise on digits; the truth is the accuracy on rows no choice has seen, over many ways to deal them out."""
    x, y, (train, *held) = split(seed)
    right = sweep(x, y, train, seed, setting, report, "digits") == y
    random = np.random.default_rng([seed, 3])
    found: dict[str, Any] = {"by test": np.zeros(len(counts)), "by validation": np.zeros(len(counts))}
    for _ in range(setting.draws):
        dealt = np.split(random.permutation(np.concatenate(held)), [HELD, 2 * HELD])
        on_valid, on_test, truth = (right[:, part].mean(1) for part in dealt)
        for how, score in (("by test", on_test), ("by validation", on_valid)):
            chosen = [int(score[:m].argmax()) for m in counts]
            found[how] += 100 * (on_test - truth)[chosen] / setting.draws
    return found
