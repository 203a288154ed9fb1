"""The memory of group gradients and of tasks learned, on the CPU.

    python benchmarks/memory.py [--out FILE]

Group gradients: what a step takes at its peak, beside the bound that it was given. AND-mask over 16 x 256 rows (784
features, random), MLP 784-256-256-256-10: with an environment's gradient at a time under the bound, and with every
example its own environment; and the latter through batch normalization, with the nets of `coupled.py`. Peaks are of
tensors, as PyTorch's profiler records them, above what was there before the step, so that the parameters, the
optimizer's state and the batch do not count; the sums over the groups do, and so a bound below a few
gradients cannot be kept.

Tasks: what the strategy keeps after 1 to 10 tasks, and what a step of the next one takes at its peak, for a
posterior with a diagonal and one with Kronecker factors, MLP 784-400-400-10. `latest` and `online` shall keep as much
after ten tasks as after one, but for a scalar that marks each task as seen; `per_task` grows by a task's share each.
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
from coupled import NETS
from coupled import ROWS as BATCH
from harness import engine_of
from rich.console import Console
from rich.table import Table

from weft.core.trees import tree_leaves
from weft.objectives import Classification
from weft.sources import Arrays
from weft.strategies import ANDMask, Laplace

ENVIRONMENTS, ROWS, WIDTH, THRESHOLD = 16, 256, 256, 0.8
BOUNDS = {"environment": (16, 64, 1024), "example": (64, 256, 1024)}  # MiB
COUPLED = {"mlp 3x64": (8, 16, 64), "convnet": (32, 64, 256)}
TASKS, HIDDEN = 10, (400, 400)


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
    return _step(Classification(hidden=(WIDTH,) * 3), ANDMask(threshold=THRESHOLD, each=each), source, bound)


def coupled(net: str, bound: int) -> float:
    """The peak of one step in MiB, every example its own environment in a net with batch normalization."""
    torch.manual_seed(0)
    source = Arrays(torch.rand(BATCH, 1, 28, 28), torch.randint(10, (BATCH,)), batch_size=BATCH, classes=10)
    objective = Classification(lambda inputs, outputs: NETS[net]())
    return _step(objective, ANDMask(threshold=THRESHOLD, each="example"), source, bound)


def _step(objective: Any, strategy: Any, source: Any, bound: int) -> float:
    engine, state = engine_of(objective, strategy, source, memory=bound * 2**20)
    batch = next(engine.batches(source, state))
    engine.step(state, batch)  # looks at the layers, and makes the optimizer's state
    return peak(lambda: engine.step(state, batch)) / 2**20


def kept(curvature: str, penalties: str) -> dict[str, list[int]]:
    """Bytes of the strategy's state and of a step's peak, after each task."""
    torch.manual_seed(0)
    source = Arrays(torch.rand(1024, 784), torch.randint(10, (1024,)), batch_size=128, classes=10)
    strategy = Laplace(curvature=curvature, penalties=penalties)
    engine, state = engine_of(Classification(hidden=HIDDEN), strategy, source, optimizer="sgd")
    batch = next(engine.batches(source, state))
    sizes: dict[str, list[int]] = {"state": [], "step": []}
    for task in range(TASKS):
        engine.consolidate(state, source, str(task))
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tree_leaves(state.strategy)}
        sizes["state"].append(sum(storages.values()))
        engine.step(state, batch)
        sizes["step"].append(int(peak(lambda: engine.step(state, batch))))
    return sizes


def tasks_table(tasks: dict[str, dict[str, list[int]]]) -> Table:
    columns = ("curvature, penalties", "kept after 1", f"after {TASKS}", "constant", "a step's peak after 1")
    table = Table(*columns, f"after {TASKS}", title="memory of tasks, MiB")
    for name, memory in tasks.items():
        state, step = memory["state"], memory["step"]
        constant = state[-1] - state[0] <= 8 * (TASKS - 1)
        wanted = not name.endswith("per_task")
        told = ("[green]" if wanted else "") + "yes" if constant else ("[red]" if wanted else "") + "no"
        mib = [f"{size / 2**20:.2f}" for size in (state[0], state[-1], step[0], step[-1])]
        table.add_row(name, *mib[:2], told, *mib[2:])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "results" / "memory.json")
    given = parser.parse_args()
    measured = {
        f"AND-mask, each {each}, {ENVIRONMENTS} x {ROWS}": {str(bound): measure(each, bound) for bound in bounds}
        for each, bounds in BOUNDS.items()
    }
    measured |= {
        f"AND-mask, each example, {net} with batch normalization, {BATCH}": {str(b): coupled(net, b) for b in bounds}
        for net, bounds in COUPLED.items()
    }
    table = Table("step", "MiB allowed", "MiB taken at the peak", "within", title="peak memory, CPU")
    for name, peaks in measured.items():
        for bound, taken in peaks.items():
            table.add_row(name, bound, f"{taken:.0f}", "[green]yes" if taken <= int(bound) else "[red]no")
    tasks = {
        f"{curvature}, {penalties}": kept(curvature, penalties)
        for curvature in ("diagonal", "kronecker")
        for penalties in ("per_task", "latest", "online")
    }
    Console(width=120).print(table)
    Console(width=120).print(tasks_table(tasks))
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "peak_mib": measured,
        "tasks_bytes": tasks,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written to {given.out}")


if __name__ == "__main__":
    main()
