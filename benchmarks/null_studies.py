"""Studies in which no method is better than another: how often `weft compare` claims one, and what its intervals hold.

    python benchmarks/null_studies.py [--trials N] [--out FILE] [--page FILE]

Every cell draws thousands of studies whose truth is known (every method's mean score is 0) and puts them through the
functions that `weft compare` and `weft reproduce` use, all trials of a cell at once. A score is the sum of an effect
of the training (standard deviation as a share of a single score's, skewed towards failures), one of the test point
(skewed alike) and one of both together. `alike` methods all vary so; in `mixed` studies every other method is steady
and the rest vary, so that their differences are skewed too. The bounds stood before the first run; a cell in which
they were missed would have to be refused by the rule (`weft.bench.statistics.lacking`).
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import sys
import time
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.bench import statistics
from weft.bench.claims import estimates

HERE = Path(__file__).resolve().parent
RESULT, PAGE = HERE / "results" / "statistics.json", HERE.parent / "docs" / "statistics.md"
SEEDS, POINTS, SPREADS, SKEWS, METHODS = (3, 5, 8, 16), (20, 100, 1000), (0.0, 0.05, 0.2, 1.0), (0, 1, 2), (2, 4)
DESIGNS = ("alike", "mixed")
RIGHT = (0.5, 0.9, 0.97, 0.99)
LEVEL, MOST_CLAIMS, LEAST_COVERAGE, LEAST_JUDGED = 0.95, 0.06, 0.93, 0.5
Drawn = NDArray[np.float64]


def effects(random: np.random.Generator, shape: tuple[int, ...], skew: float) -> Drawn:
    """Of mean 0 and variance 1; normal, or gamma with its long tail below."""
    if not skew:
        return random.standard_normal(shape, dtype=np.float32)
    k = 4 / skew**2
    return (k - random.standard_gamma(k, shape, dtype=np.float32)) / np.float32(np.sqrt(k))


def studies(
    random: np.random.Generator,
    trials: int,
    methods: int,
    seeds: int,
    points: int,
    spread: float,
    skew: float,
    mixed: bool,
) -> tuple[Drawn, Drawn]:
    """The means by seed and by point, shapes (trials, methods, seeds) and (trials, methods, points).

    What seed and point make together is normal, so that its means by seed, by point and in all are independent but for
    their common part: they are drawn as such, and the whole tables need not be.
    """
    seed = spread * effects(random, (trials, methods, seeds), skew)
    point = np.sqrt(0.5) * effects(random, (trials, methods, points), skew)
    if mixed:
        seed[:, ::2] = 0
        point[:, ::2] = 0

    def apart(count: int, over: int) -> Drawn:
        x = np.sqrt(0.5 / over) * random.standard_normal((trials, methods, count), dtype=np.float32)
        return x - x.mean(-1, keepdims=True)

    common = np.sqrt(0.5 / (seeds * points)) * random.standard_normal((trials, methods, 1))
    rows = seed + point.mean(-1, keepdims=True) + common + apart(seeds, points)
    return rows, seed.mean(-1, keepdims=True) + point + common + apart(points, seeds)


def cell(rows: Drawn, columns: Drawn) -> dict[str, float]:
    """What the program makes of these studies: shares of trials."""
    judged = not statistics.lacking(rows.shape[-1], columns.shape[-1])
    found = statistics.differences(rows, columns, LEVEL)
    inside = np.abs(rows.mean(-1)) <= statistics.half_width(rows, columns, 1 - LEVEL)
    return {
        "judged": float(judged),
        "false_claims": float(found.sure(LEVEL).any(-1).mean()),
        "coverage": float(inside.mean(0).min()),
        "coverage_of_differences": float(((found.low <= 0) & (found.high >= 0)).all(-1).mean()),
    }


def grid(trials: int, seeds: tuple[int, ...] = SEEDS, points: tuple[int, ...] = POINTS) -> list[dict[str, Any]]:
    """All cells; those of 2 methods are the first two of the 4."""
    cells = []
    every = list(product(seeds, points, SPREADS, SKEWS, DESIGNS))
    for number, (s, n, spread, skew, design) in enumerate(every):
        random = np.random.default_rng([15, s, n, round(100 * spread), skew, DESIGNS.index(design)])
        rows, columns = studies(random, trials, max(METHODS), s, n, spread, skew, design == "mixed")
        for m in METHODS:
            about = {"seeds": s, "points": n, "spread": spread, "skew": skew, "design": design, "methods": m}
            cells.append({**about, **cell(rows[:, :m], columns[:, :m])})
        if sys.stderr.isatty():
            print(f"\r{number + 1} of {len(every)}", end="", file=sys.stderr, flush=True)
    return cells


def claims(trials: int) -> list[dict[str, Any]]:
    """The intervals of claims: of means and medians over replicas by drawing, of shares exactly."""
    told = []
    for s, skew in product(SEEDS, SKEWS):
        random = np.random.default_rng([16, s, skew])
        x = effects(random, (trials, s), skew).astype(float)
        middle = float(np.median(effects(random, (1_000_000,), skew)))
        mean = np.abs(x.mean(-1)) <= statistics.half_width(x, None, 1 - LEVEL)
        k = estimates.rank(s)
        ordered = np.sort(x, -1)
        median = (ordered[:, k - 1] <= middle) & (middle <= ordered[:, -k]) if k else np.zeros(trials, dtype=bool)
        told.append(
            {
                "seeds": s,
                "skew": skew,
                "mean": float(mean.mean()) if not statistics.lacking(s) else None,
                "median": float(median.mean()) if k else None,
                "share": _share(s),
            }
        )
    return told


def _share(count: int) -> float:
    """The least coverage of the interval for a share, over all shares."""
    from scipy import stats

    spans = [estimates.share_of(np.arange(count) < hits).interval for hits in range(count + 1)]
    shares = np.linspace(0.005, 0.995, 199)
    inside = np.array([[low <= 100 * p <= high for low, high in spans] for p in shares])
    return float((stats.binom.pmf(np.arange(count + 1), count, shares[:, None]) * inside).sum(1).min())


def accuracies(trials: int) -> list[dict[str, Any]]:
    """Scores that are right or wrong, of whole tables: every seed is right on the same points, or seeds vary."""
    told = []
    for s, n, right, alike in product(SEEDS[1:], POINTS, RIGHT, (True, False)):
        random = np.random.default_rng([18, s, n, round(100 * right), alike])
        parts = []
        for _ in range(0, trials, 500):
            if alike:
                scores = np.repeat(random.random((500, 2, 1, n)) < right, s, axis=2)
            else:  # a seed's own share of errors: exponential, of skewness 2; near one half, gamma
                k = 1.0 if right >= 0.9 else 16.0
                wrong = (1 - right) / k * random.standard_gamma(k, (500, 2, s, 1))
                scores = random.random((500, 2, s, n), dtype=np.float32) >= wrong
            parts.append((scores.mean(-1), scores.mean(-2)))
        rows, columns = (np.concatenate(side) for side in zip(*parts, strict=True))
        half = statistics.half_width(rows, statistics.eased(columns), 1 - LEVEL)
        told.append(
            {
                "seeds": s,
                "points": n,
                "right": right,
                "design": "same points" if alike else "seeds vary",
                "false_claims": float(statistics.differences(rows, columns, LEVEL).sure(LEVEL).any(-1).mean()),
                "coverage": float((np.abs(rows.mean(-1) - right) <= half).mean(0).min()),
            }
        )
    return told


def collapses(trials: int) -> list[dict[str, Any]]:
    """Beyond any rule: one training in ten collapses, which few seeds need not show. Told, and not promised."""
    told = []
    for s in SEEDS:
        random = np.random.default_rng([17, s])
        x = 0.1 * random.standard_normal((trials, s)) - (random.random((trials, s)) < 0.1) + 0.1
        inside = np.abs(x.mean(-1)) <= statistics.half_width(x, None, 1 - LEVEL)
        told.append({"seeds": s, "coverage": float(inside.mean()), "unseen": 0.9**s})
    return told


def digest() -> str:
    """Of the code that is tried: a result with another one is of other code."""
    parts = (
        statistics.lacking,
        statistics._reach,
        statistics._error,
        statistics.half_width,
        statistics.p_value,
        statistics.holm,
        statistics.differences,
        statistics.eased,
        estimates.rank,
        estimates.share_of,
        studies,
        cell,
        claims,
        accuracies,
        collapses,
    )
    values = (statistics.FEWEST_SEEDS, statistics.FEWEST_POINTS, statistics.SKEW)
    return hashlib.sha256("\n".join([*map(inspect.getsource, parts), str(values)]).encode()).hexdigest()[:16]


def missed(result: dict[str, Any]) -> list[str]:
    """Every bound that does not hold where the program judges."""
    told = []
    for c in result["cells"]:
        where = ", ".join(f"{name} {c[name]}" for name in ("seeds", "points", "spread", "skew", "design", "methods"))
        if c["judged"] and c["false_claims"] > MOST_CLAIMS:
            told.append(f"{c['false_claims']:.1%} false claims ({where})")
        if c["judged"] and min(c["coverage"], c["coverage_of_differences"]) < LEAST_COVERAGE:
            told.append(f"coverage {min(c['coverage'], c['coverage_of_differences']):.1%} ({where})")
    for c in result["accuracies"]:
        where = ", ".join(f"{name} {c[name]}" for name in ("seeds", "points", "right", "design"))
        if c["false_claims"] > MOST_CLAIMS or c["coverage"] < LEAST_COVERAGE:
            told.append(f"{c['false_claims']:.1%} false claims, coverage {c['coverage']:.1%} ({where})")
    eight = [c["judged"] for c in result["cells"] if c["seeds"] == 8]
    if eight and np.mean(eight) < LEAST_JUDGED:
        told.append(f"{np.mean(eight):.0%} judged at 8 seeds")
    for c in result["claims"]:
        for what in ("mean", "median", "share"):
            if c[what] is not None and c[what] < LEAST_COVERAGE:
                told.append(f"coverage {c[what]:.1%} of a {what} ({c['seeds']} seeds, skew {c['skew']})")
    return told


def page(result: dict[str, Any]) -> str:
    """The page of the documentation that tells the result."""
    lines = [
        "| seeds | methods | skew | judged | false claims | coverage, a method | coverage, all differences |",
        "|---|---|---|---|---|---|---|",
    ]
    for s, m, skew in product(SEEDS, METHODS, SKEWS):
        some = [c for c in result["cells"] if (c["seeds"], c["methods"], c["skew"]) == (s, m, skew)]
        worst = (max(c["false_claims"] for c in some), *(min(c[k] for c in some) for k in COVERAGES))
        told = [f"{100 * w:.1f} %" for w in worst] if some[0]["judged"] else ["–"] * 3
        lines.append(f"| {s} | {m} | {skew} | {'yes' if some[0]['judged'] else 'no'} | {' | '.join(told)} |")
    kinds = ["| replicas | skew | mean | median | share |", "|---|---|---|---|---|"]
    for c in result["claims"]:
        values = [f"{100 * c[k]:.1f} %" if c[k] is not None else "–" for k in ("mean", "median", "share")]
        kinds.append(f"| {c['seeds']} | {c['skew']} | {' | '.join(values)} |")
    binary = [
        "| seeds | right | false claims | coverage, a method |",
        "|---|---|---|---|",
    ]
    for s, right in product(SEEDS[1:], RIGHT):
        some = [c for c in result["accuracies"] if (c["seeds"], c["right"]) == (s, right)]
        worst = max(c["false_claims"] for c in some), min(c["coverage"] for c in some)
        binary.append(f"| {s} | {right:.0%} | {100 * worst[0]:.1f} % | {100 * worst[1]:.1f} % |")
    rare = "; ".join(
        f"{100 * c['coverage']:.0f} % at {c['seeds']}"
        for c in result["collapses"]
        if not statistics.lacking(c["seeds"])
    )
    return TEXT.format(
        table="\n".join(lines),
        claims="\n".join(kinds),
        binary="\n".join(binary),
        rare=rare,
        trials=f"{result['trials']:,}",
        cells=len(result["cells"]),
        error=f"{100 * np.sqrt(0.05 * 0.95 / result['trials']):.1f}",
        command=result["command"],
        seeds=statistics.FEWEST_SEEDS,
        points=statistics.FEWEST_POINTS,
    )


COVERAGES = ("coverage", "coverage_of_differences")
TEXT = """# What a comparison may claim

Made by `{command}`.

`weft compare` trains each method's chosen setting with S fresh seeds and scores them on the same N test points.
Two things vary: the training, and which points are in the test. With U the variance of the seeds' mean scores
divided by S, and W that of the points' mean scores divided by N, the interval for a mean, or for a difference
of two methods on the same seeds and points, is

    mean ± sqrt(q(S)² U + q(N)² W)

where q(n) is Student's quantile with n − 1 degrees of freedom, each part having its own. Trainings are often
skewed: most end well, a few end badly. Student's interval then misses more often, by an amount that falls as
1/n; so its tail is taken smaller by 1 + 30/n. That costs width (at 8 seeds about 1.5 times Student's) and keeps
the level for skewness up to 2. Where test rows belong to groups, a group counts as one point.

A difference is claimed where its p-value, corrected by Holm's procedure for the number of pairs, is 5 % or
less. Intervals of differences hold all together (Bonferroni). With fewer than {seeds} seeds, or fewer than
{points} test points, nothing is judged, and the sentence says how many are needed. At 5 seeds a difference must
be large to be seen; 8 or more are better, 16 better still.

- **A training that diverged counts**: with 0 for every test row where classes are predicted, and for values
  with the largest squared error that any method makes on that row, at least that of the base rate. It is said
  in the sentence.
- **The base rate** (the most frequent class of the training rows, or their mean) stands in every table.
- **Warned of in the sentences**: validation no better than the base rate, a chosen setting at the edge of its
  range, and a budget too small to tell.

## The simulation

{cells} kinds of studies in which no method is better than another, {trials} studies of each: {{3, 5, 8, 16}}
seeds, {{20, 100, 1000}} test points, {{2, 4}} methods, a spread between seeds of {{0, 0.05, 0.2, 1}} of a
single score's, skewness {{0, 1, 2}} of seeds and points, all methods alike or every other one steady. The code
is that of the program. The bounds stood before the run: where it judges, at most 6 % of studies with a false
claim, intervals said to be 95 % that hold the truth in at least 93 %, at 8 seeds at least half of all studies
judged. The 30 was chosen on other draws before. A line has the worst cell over points, spread and design; the
standard error of a cell is {error} percentage points.

{table}

Accuracies are means of 0 and 1, and their spread cannot be seen where every answer is right; so the interval of a
method counts two right and two wrong answers more, for its width only, and ends at 0 and 1. Studies of two
methods that are equally often right, every seed on the same points or each with its own share of errors (skewness
2), the worst over {{20, 100, 1000}} points:

{binary}

## Claims

The figures of [the gallery](gallery.md) go through the same functions: a mean over replicas as above, a median
between two order statistics, a share by Clopper and Pearson's interval. Where there is a dash no interval is
given, and `lacks` of the estimate says what one needs.

{claims}

## What no interval can see

Where one training in ten collapses, few seeds may show none of them, and then nothing observable tells.
Intervals for the mean, of 95 % by name, hold it in {rare} seeds.
What is promised above ends at skewness 2; if a method might go beyond, train many more seeds.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5000, help="studies of each cell")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    begun = time.perf_counter()
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python benchmarks/null_studies.py",
        "digest": digest(),
        "trials": given.trials,
        "bounds": {
            "false_claims": MOST_CLAIMS,
            "coverage": LEAST_COVERAGE,
            "judged_at_8_seeds": LEAST_JUDGED,
        },
        "cells": grid(given.trials),
        "claims": claims(4 * given.trials),
        "accuracies": accuracies(given.trials),
        "collapses": collapses(4 * given.trials),
    }
    result["missed"] = missed(result)
    result["seconds"] = round(time.perf_counter() - begun, 1)
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    given.page.write_text(page(result), encoding="utf-8")
    print("\n".join(result["missed"]) or "every bound holds")
    print(f"written to {given.out} and {given.page}")
    return int(bool(result["missed"]))


if __name__ == "__main__":
    sys.exit(main())
