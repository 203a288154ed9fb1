"""Choosing by the test set: how much better than the truth the chosen score looks."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats
from sklearn.datasets import load_digits

from weft import Classifier, Optimizer
from weft.bench.claims import Claim, Mutant, Report, mean_of
from weft.bench.pictures import BLUE, INK, ORANGE, note

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
    quick = {"seeds": 6, "settings": 64, "steps": 40, "draws": 500}
    full = {"seeds": 16, "settings": 256, "steps": 40, "draws": 1000}
    mutant = Mutant(
        what="validation rows that are the test's",
        misses="chosen on validation",
        names={"split": leaked},
        setting={"draws": 50, "steps": 20},
    )

    def run(self, setting: Any, seeds: list[int], report: Report) -> None:
        counts = [2**k for k in range(setting.settings.bit_length())]
        report.plan(2 * len(seeds))
        chance = [self.random_labels(seed, counts, setting, report) for seed in seeds]
        digits = [self.true_labels(seed, counts, setting, report) for seed in seeds]
        rose, honest, expected = (100 * np.array([one[key] for one in chance]) for key in ("test", "valid", "expected"))
        m = counts[-1]
        theory = expected[:, -1].mean()
        report.figure(
            f"random labels: best of {m} by test score, over the true 50 %",
            mean_of(rose[:, -1]),
            reference=f"{theory:.2f}, the largest of {m} estimates",
            unit="points",
            near=theory,
            within=theory / 5,
        )
        report.figure(
            "random labels: chosen on validation, over the true 50 %",
            mean_of(honest[:, -1]),
            reference="0",
            unit="points",
            near=0.0,
            within=1.0,
        )
        inflated, fair = (100 * np.array([one[key] for one in digits]) for key in ("test", "valid"))
        real = mean_of(inflated[:, -1])
        report.figure(
            f"digits: best of {m} by test score, over its accuracy on fresh rows",
            real,
            reference="> 0",
            unit="points",
            least=0.0,
        )
        report.figure(
            "digits: chosen on validation, over its accuracy on fresh rows",
            mean_of(fair[:, -1]),
            reference="0",
            unit="points",
            near=0.0,
            within=1.0,
        )
        columns = [rose, expected, honest, inflated, fair]
        report.table(
            f"Inflation in percentage points, mean over {len(seeds)} splits of the data",
            [
                "settings tried",
                "random labels, by test",
                "expected",
                "by validation",
                "digits, by test",
                "by validation",
            ],
            [[m, *(round(float(c[:, i].mean()), 3) for c in columns)] for i, m in enumerate(counts)],
        )
        with report.picture(
            "inflation",
            alt="Two panels over the number of settings tried. The score of the setting with the best test score "
            "rises above the truth, on random labels along the curve expected; chosen on validation it stays at the "
            "truth.",
            caption="How far the reported test score lies above the truth, when the setting with the best test score "
            f"is reported, and when it is chosen on validation. Bands: 95 % intervals over {len(seeds)} splits; test "
            f"sets of {HELD} rows.",
            panels=2,
            size=(9.6, 4.0),
        ) as (left, right):
            draw(left, counts, rose, honest, "random labels", expected)
            draw(right, counts, inflated, fair, "handwritten digits")
            left.set_ylabel("reported score − truth, in points")

    def sweep(self, x: Any, y: Any, rows: Any, seed: int, setting: Any, report: Report, what: str) -> Any:
        """Nets of as many settings (learning rate and seed), trained at once; what each predicts for all rows."""
        random = np.random.default_rng([seed, 1])
        grid = {
            "optimizer__lr": (10 ** random.uniform(-3, -1, setting.settings)).tolist(),
            "random_state": random.integers(2**31, size=setting.settings).tolist(),
        }
        nets = Classifier(
            hidden=(32,), optimizer=Optimizer("adam", lr=0.01), replicas=grid, steps=setting.steps, batch_size=None
        )
        report.fit(nets, x[rows], y[rows], what=what)
        return np.stack([nets.replica(k).predict(x) for k in range(setting.settings)])

    def random_labels(self, seed: int, counts: list[int], setting: Any, report: Report) -> dict[str, list[float]]:
        """Labels are fair coins: whatever was learned, each net is right on half of the rows to come."""
        x, _, (train, valid, test, _) = split(seed)
        random = np.random.default_rng([seed, 2])
        guess = self.sweep(x, random.integers(2, size=len(x)), train, seed, setting, report, "random labels")
        sign = 2.0 * guess - 1.0
        coins = 2.0 * random.integers(2, size=(setting.draws, len(x))) - 1.0
        on_test, on_valid = (0.5 + coins[:, part] @ sign[:, part].T / (2 * HELD) for part in (test, valid))
        alike = sign[:, test] @ sign[:, test].T / HELD
        r = (alike.sum() - len(alike)) / (len(alike) * (len(alike) - 1))
        by_test = [on_test[:, :m].max(1).mean() - 0.5 for m in counts]
        each = np.arange(setting.draws)
        by_valid = [on_test[each, on_valid[:, :m].argmax(1)].mean() - 0.5 for m in counts]
        expected = [np.sqrt((1 - r) / (4 * HELD)) * largest(m) for m in counts]
        return {"test": by_test, "valid": by_valid, "expected": expected}

    def true_labels(self, seed: int, counts: list[int], setting: Any, report: Report) -> dict[str, list[float]]:
        """Digits; the truth is the accuracy on rows that no choice has seen, over many ways to deal the rows out."""
        x, y, (train, *held) = split(seed)
        right = self.sweep(x, y, train, seed, setting, report, "digits") == y
        random = np.random.default_rng([seed, 3])
        total = {"test": np.zeros(len(counts)), "valid": np.zeros(len(counts))}
        for _ in range(setting.draws):
            dealt = np.split(random.permutation(np.concatenate(held)), [HELD, 2 * HELD])
            on_valid, on_test, truth = (right[:, part].mean(1) for part in dealt)
            for how, score in (("test", on_test), ("valid", on_valid)):
                chosen = [int(score[:m].argmax()) for m in counts]
                total[how] += (on_test - truth)[chosen]
        return {how: (sums / setting.draws).tolist() for how, sums in total.items()}


def draw(ax: Any, counts: list[int], by_test: Any, by_valid: Any, title: str, expected: Any = None) -> None:
    """The inflation by the number of settings, for both ways to choose."""
    for values, colour, label in ((by_test, ORANGE, "best test score"), (by_valid, BLUE, "chosen on validation")):
        middle = values.mean(0)
        half = stats.t.ppf(0.975, max(len(values) - 1, 1)) * values.std(0, ddof=min(1, len(values) - 1))
        half = half / np.sqrt(len(values))
        ax.fill_between(counts, middle - half, middle + half, color=colour, alpha=0.18, linewidth=0)
        ax.plot(counts, middle, color=colour, marker="o", markersize=4)
        note(
            ax, counts[-1], middle[-1] + half[-1] + 0.05 * by_test.mean(0).max(), label, colour, ha="right", va="bottom"
        )
    if expected is not None:
        ax.plot(
            counts, expected.mean(0), color=INK, linewidth=1.3, linestyle=(0, (4, 3)), label="expected of a maximum"
        )
        ax.legend(loc="upper left")
    ax.axhline(0, color=INK, linewidth=0.8)
    ax.set_ylim(top=1.3 * float(by_test.mean(0).max()))
    ax.set_xscale("log", base=2)
    ax.set_xticks(counts, [str(m) for m in counts])
    ax.minorticks_off()
    ax.set_xlabel("settings tried")
    ax.set_title(title)
