"""The memory of group gradients on the CPU: what a step takes at its peak, beside the bound that it was given.

    python benchmarks/memory.py [--out FILE]

AND-mask over 16 x 256 rows (784 features, random), MLP 784-256-256-256-10: with an environment's gradient at a
time under the bound, and with every example its own environment. Peaks are of tensors, as PyTorch's profiler
records them, above what was there before the step, so that the parameters, the optimizer's state and the batch
do not count; the sums over the groups do, and so a bound below a few gradients cannot be kept.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from harness import engine_of
from rich.console import Console
from rich.table import Table

from weft.objectives import Classification
from weft.sources import Arrays
from weft.strategies import ANDMask

ENVIRONMENTS, ROWS, WIDTH, THRESHOLD = 16, 256, 256, 0.8
BOUNDS = {"environment": (16, 64, 1024), "example": (64, 256, 1024)}  # MiB


def peak(work: Callable[[], Any]) -> float:
    """The most bytes of tensors alive during the work, above those before it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
    alive = highest = 0
    for _, change in changes:
        alive += change
        highest = max(highest, alive)
    return highest


def measure(each: str, bound: int) -> float:
    """The peak of one step in MiB."""
    torch.manual_seed(0)
    count = ENVIRONMENTS * ROWS
    x, y = torch.rand(count, 784), torch.randint(10, (count,))
    environment = torch.arange(ENVIRONMENTS).repeat_interleave(ROWS)
    source = Arrays(x, y, environment=environment, grouped=True, classes=10)
    strategy = ANDMask(threshold=THRESHOLD, each=each)
    engine, state = engine_of(Classification(hidden=(WIDTH,) * 3), strategy, source, memory=bound * 2**20)
    batch = next(engine.batches(source, state))
    engine.step(state, batch)  # looks at the layers, and makes the optimizer's state
    return peak(lambda: engine.step(state, batch)) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "results" / "memory.json")
    given = parser.parse_args()
    found = {
        f"AND-mask, each {each}, {ENVIRONMENTS} x {ROWS}": {str(bound): measure(each, bound) for bound in bounds}
        for each, bounds in BOUNDS.items()
    }
    table = Table("step", "MiB allowed", "MiB taken at the peak", "within", title="peak memory, CPU")
    for name, peaks in found.items():
        for bound, taken in peaks.items():
            table.add_row(name, bound, f"{taken:.0f}", "[green]yes" if taken <= int(bound) else "[red]no")
    Console(width=120).print(table)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "peak_mib": found,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
