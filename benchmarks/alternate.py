"""The speed of two revisions of weft, side by side: is the new one slower than the old one?

    python benchmarks/alternate.py --before REV [--after REV] [--times 20] [NAME ...]

Each turn is a pair of fresh processes of this one file, in which `weft` is the code of one revision (`git archive`
into out/alternate/REV; the working tree where `--after` is left out). Both prepare their data and run the work once
unmeasured; then they are called in turn, `CALLS` times each, who is first being swapped every time, so that a machine
that warms up or gets busy slows both down alike. The one that waits sleeps. A turn tells the median of each.

The settings are shorter than those of the full benchmarks, so that a turn measures for about a second; what a change
of the code costs shows in the calls around the arithmetic, and those are the same. Only public names are used, which
every revision has.

What is told is the ratio of the medians, new / old, with a 95 % interval (a bootstrap over the pairs of turns), and a
verdict by its bounds: `holds` where the upper one is at most `LIMIT`, `fails` where the lower one is above it, else
`not settled`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LIMIT, DRAWS, CALLS = 1.03, 10_000, 6
Work = Callable[[], object]


# --- what is measured, in the process of one revision --------------------------------------------------


def mnist_epoch() -> Work:
    """A whole `fit` of an MLP 784-256-256-10 on 12,800 images: 100 batches of 128, the fused Adam."""
    from harness import mnist

    from weft import Learner, Optimizer
    from weft.objectives import Classification

    x, y = (rows[:12_800].clone() for rows in mnist())
    options: dict[str, Any] = {"optimizer": Optimizer("adam", lr=1e-3), "epochs": 1, "batch_size": 128, "device": "cpu"}
    return lambda: Learner(Classification(hidden=(256, 256)), random_state=0, **options).fit(x, y)


def and_mask() -> Work:
    """100 steps under the AND-mask: 16 environments of 32 images each, 3 x 64 hidden units."""
    from harness import mnist

    from weft import Learner
    from weft.objectives import Classification
    from weft.strategies import ANDMask

    x, y = (rows[:512].clone() for rows in mnist())
    environment = np.arange(512) // 32
    options: dict[str, Any] = {"steps": 100, "batch_size": None, "device": "cpu", "random_state": 0}
    return lambda: Learner(Classification(hidden=(64,) * 3), strategy=ANDMask(threshold=0.8), **options).fit(
        x, y, environment=environment
    )


def replicas() -> Work:
    """16 replicas of 64-64-10 on the digits, five epochs in batches of 64."""
    from sklearn.datasets import load_digits

    from weft import Learner
    from weft.objectives import Classification

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    options: dict[str, Any] = {"epochs": 5, "batch_size": 64, "replicas": 16, "random_state": 0, "device": "cpu"}
    return lambda: Learner(Classification(hidden=(64,)), **options).fit(x, y)


def fisher() -> Work:
    """The true diagonal Fisher information of an MLP 784-400-400-10 over 2,000 images, in double precision."""
    from harness import mnist

    from weft import Learner, measures
    from weft.objectives import Classification

    x, y = (rows[:2_000].clone() for rows in mnist())
    learner = Learner(Classification(hidden=(400, 400)), steps=1, random_state=0, device="cpu").fit(x, y)
    return lambda: measures.fisher(learner, x, y)


BENCHMARKS = {work.__name__: work for work in (mnist_epoch, and_mask, replicas, fisher)}


def serve(name: str, code: Path) -> None:
    """Does the work once to warm up, then once for each line that comes in, and tells its seconds; in this process."""
    import torch
    from harness import THREADS

    import weft

    if Path(weft.__file__).resolve().parent != code / "src" / "weft":
        raise RuntimeError(f"expected weft from {code}, got {weft.__file__}")
    torch.set_num_threads(THREADS)
    work = BENCHMARKS[name]()
    work()
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        work()
        print(time.perf_counter() - started, flush=True)


# --- the turns -----------------------------------------------------------------------------------------


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def checked_out(revision: str | None) -> tuple[str, Path]:
    """A revision by its full name, and the folder that holds its code; the working tree for None."""
    if revision is None:
        head, changed = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", "src", "benchmarks")
        return f"{head}{' with changes' if changed else ''} (working tree)", ROOT
    commit = git("rev-parse", "--verify", f"{revision}^{{commit}}")
    folder = ROOT / "out" / "alternate" / commit
    if not folder.exists():
        unpacked = folder.with_name(f"{commit}.part")
        unpacked.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "archive", commit, "src", "benchmarks"], cwd=ROOT, check=True, stdout=-1)
        subprocess.run(["tar", "-x", "-C", str(unpacked)], input=archive.stdout, check=True)
        unpacked.rename(folder)
    return commit, folder


class Worker:
    """A fresh process with weft and the harness of the code given; this file is the same for all."""

    def __init__(self, name: str, code: Path, settings: dict[str, str]) -> None:
        paths = os.pathsep.join(str(code / part) for part in ("src", "benchmarks"))
        # -P: not the folder of this file, whose harness is that of the working tree
        command = [sys.executable, "-P", "-W", "ignore", str(Path(__file__).resolve()), "--serve", name, str(code)]
        environment = {**os.environ, **settings, "PYTHONPATH": paths}
        self.what = f"{name} with the code in {code}"
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def hear(self) -> str:
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise RuntimeError(f"{self.what} failed; its errors are above")
        return line.strip()

    def call(self) -> float:
        """The seconds of one call."""
        if self.process.stdin is not None:
            self.process.stdin.write("again\n")
            self.process.stdin.flush()
        return float(self.hear())

    def end(self) -> None:
        self.process.communicate()


def turn(name: str, trees: dict[str, Path], settings: dict[str, str]) -> dict[str, float]:
    """The median seconds of both, called alternately."""
    workers = {which: Worker(name, code, settings) for which, code in trees.items()}
    for worker in workers.values():
        worker.hear()
    seconds: dict[str, list[float]] = {which: [] for which in trees}
    for k in range(CALLS):
        for which in list(trees) if k % 2 == 0 else list(trees)[::-1]:
            seconds[which].append(workers[which].call())
    for worker in workers.values():
        worker.end()
    return {which: statistics.median(values) for which, values in seconds.items()}


def judged(before: list[float], after: list[float]) -> dict[str, Any]:
    """The ratio of the medians, its interval over the pairs of turns, and the verdict.

    >>> judged([1.0, 1.1, 1.2], [1.0, 1.1, 1.2])["verdict"], judged([1.0, 1.0], [1.1, 1.1])["verdict"]
    ('holds', 'fails')
    """
    old, new = np.array(before), np.array(after)
    drawn = np.random.default_rng(0).integers(len(old), size=(DRAWS, len(old)))
    ratios = np.median(new[drawn], axis=1) / np.median(old[drawn], axis=1)
    low, high = (float(bound) for bound in np.quantile(ratios, (0.025, 0.975)))
    verdict = "holds" if high <= LIMIT else "fails" if low > LIMIT else "not settled"
    ratio = statistics.median(after) / statistics.median(before)
    return {"ratio": ratio, "interval": [low, high], "limit": LIMIT, "verdict": verdict}


def compare(name: str, trees: dict[str, Path], times: int, patience: float) -> dict[str, Any]:
    """One benchmark: every turn of both, and what they say."""
    from run import SETTINGS, busy, wait_for_quiet

    seconds: dict[str, list[float]] = {which: [] for which in trees}
    shares = []
    for k in range(times):
        wait_for_quiet(patience)
        started, before = time.monotonic(), busy()
        for which, value in turn(name, trees if k % 2 == 0 else dict(reversed(trees.items())), SETTINGS).items():
            seconds[which].append(value)
        shares.append(round((busy() - before) / (time.monotonic() - started) / (os.cpu_count() or 1), 3))
    result = judged(seconds["before"], seconds["after"])
    old, new = (1e3 * statistics.median(seconds[which]) for which in ("before", "after"))
    low, high = result["interval"]
    print(
        f"{name:12} {old:7.0f} ms -> {new:7.0f} ms   {result['ratio']:.3f} [{low:.3f}, {high:.3f}]   "
        f"{result['verdict']}",
        flush=True,
    )
    return {**result, "seconds": seconds, "busy": shares}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(BENCHMARKS)}")
    parser.add_argument("--before", required=True, metavar="REV", help="the old revision")
    parser.add_argument("--after", metavar="REV", help="the new one; default: the working tree")
    parser.add_argument("--times", type=int, default=20, help="how many turns each has")
    parser.add_argument("--patience", type=float, default=10.0, help="seconds a turn may wait for a quiet machine")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "alternate.json")
    given = parser.parse_args()
    unknown = sorted(set(given.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"expected benchmarks among {', '.join(BENCHMARKS)}, got {', '.join(unknown)}")
    if given.times < 1:
        parser.error(f"expected --times of at least 1, got {given.times}")
    try:
        (old, before), (new, after) = checked_out(given.before), checked_out(given.after)
    except subprocess.CalledProcessError as error:
        parser.error(error.stderr.strip() if isinstance(error.stderr, str) else str(error))
    from run import SETTINGS, processor

    trees = {"before": before, "after": after}
    record = {
        "command": " ".join(["python", "benchmarks/alternate.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "before": old,
        "after": new,
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "settings": SETTINGS,
        "calls": CALLS,
        "benchmarks": {
            name: compare(name, trees, given.times, given.patience) for name in given.names or list(BENCHMARKS)
        },
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written to {given.out}")
    return int(any(result["verdict"] == "fails" for result in record["benchmarks"].values()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.exit(main())
