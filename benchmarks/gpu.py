"""On a GPU: replicas and AND-mask, eager and recorded as CUDA graphs, and the memory that they take.

    python benchmarks/gpu.py [--out FILE]

Needs weft alone, no peers and no data: rows are random. Every time is that of a whole training step, Adam
included. The loop that AND-mask is compared with (one forward and backward for each environment) is plain
PyTorch, eager and recorded; weft's steps are recorded where it can do that (`weft.engine.capture`).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import engine_of, mlp
from rich.console import Console
from rich.table import Table
from torch import Tensor

from weft.objectives import Classification
from weft.sources import Arrays
from weft.strategies import ERM, ANDMask

DEVICE = torch.device("cuda")
ENVIRONMENTS, THRESHOLD, WIDTH = 16, 0.8, 256
Step = Callable[[], Any]


def milliseconds(steps: dict[str, Step], *, rounds: int = 9, times: int = 20) -> dict[str, float]:
    """The median time of each step; they take turns, and the first round warms up."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for k in range(rounds + 1):
        for name, step in steps.items():
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(times):
                step()
            torch.cuda.synchronize()
            if k > 0:
                taken[name].append((time.perf_counter() - started) / times * 1e3)
    return {name: statistics.median(values) for name, values in taken.items()}


def recorded(step: Step) -> Step:
    """A plain PyTorch step as a CUDA graph, as PyTorch's guide does it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def weft_steps(strategy: Any, source: Arrays, hidden: tuple[int, ...], **options: Any) -> dict[str, Step]:
    """Weft's step on one batch: eager and, where weft records steps, recorded."""
    steps: dict[str, Step] = {}
    for way in ("eager", "captured"):
        engine, state = engine_of(Classification(hidden=hidden), strategy, source, device=DEVICE, **options)
        batch = next(engine.batches(source, state))
        if way == "eager":
            steps[way] = lambda engine=engine, state=state, batch=batch: engine.step(state, batch)
            continue
        try:
            from weft.engine.capture import Captured
        except ImportError:
            continue
        runner = Captured(engine, state)
        steps[way] = lambda runner=runner, state=state, batch=batch: runner.step(state, batch)
        for _ in range(5):
            steps[way]()
        if runner.failed:
            print(f"note: weft did not record the step of {strategy!r}")
    return steps


def replicas() -> dict[str, float]:
    """32 replicas of an MLP 64-64-10 in batches of 64, beside one run."""
    x, y = torch.rand(1797, 64, device=DEVICE), torch.randint(10, (1797,), device=DEVICE)
    source = Arrays(x, y, batch_size=64, classes=10)
    steps = {f"one run, {way}": step for way, step in weft_steps(ERM(), source, (64,)).items()}
    many = weft_steps(ERM(), source, (64,), replicas=32)
    return milliseconds(steps | {f"32 replicas, {way}": step for way, step in many.items()})


def and_mask(rows: int, environments: int = ENVIRONMENTS) -> dict[str, float]:
    """So many environments of so many rows, MLP 784-256-256-256-10; with one row each, every example is its own."""
    x = torch.rand(environments, rows, 784, device=DEVICE)
    y = torch.randint(10, (environments, rows), device=DEVICE)
    environment = torch.arange(environments).repeat_interleave(rows)
    source = Arrays(x.flatten(0, 1), y.flatten(), environment=environment, grouped=True, classes=10)
    ours = weft_steps(ANDMask(threshold=THRESHOLD), source, (WIDTH,) * 3)
    loops: dict[str, Step] = {}
    for way in ("eager", "captured"):
        net = mlp(784, *(WIDTH,) * 3, 10).to(DEVICE)
        step = _loop(net, x, y)
        loops[f"loop, {way}"] = recorded(step) if way == "captured" else step
    return milliseconds({f"weft, {way}": step for way, step in ours.items()} | loops)


def _loop(net: Any, x: Tensor, y: Tensor) -> Step:
    params = list(net.parameters())
    optimizer = torch.optim.Adam(params, fused=True, capturable=True)

    def step() -> None:
        pairs = zip(x, y, strict=True)
        each = [torch.autograd.grad(F.cross_entropy(net(rows), labels), params) for rows, labels in pairs]
        for p, gradients in zip(params, zip(*each, strict=True), strict=True):
            g = torch.stack(gradients)
            keep = (g.sign().mean(0).abs() >= THRESHOLD).to(g.dtype)
            p.grad = g.mean(0) * keep / (keep.mean() + 1e-10)
        optimizer.step()

    return step


def memory() -> dict[str, dict[str, float]]:
    """The peak of one step above what was there before it, beside the bound given, in MiB."""
    rows = 256
    x = torch.rand(ENVIRONMENTS * rows, 784, device=DEVICE)
    y = torch.randint(10, (ENVIRONMENTS * rows,), device=DEVICE)
    environment = torch.arange(ENVIRONMENTS).repeat_interleave(rows)
    peaks: dict[str, dict[str, float]] = {}
    for each, bounds in (("environment", (16, 64, 1024)), ("example", (256, 1024, 16384))):
        for bound in bounds:
            source = Arrays(x, y, environment=environment, grouped=True, classes=10)
            strategy, options = ANDMask(threshold=THRESHOLD, each=each), {"memory": bound * 2**20}
            objective = Classification(hidden=(WIDTH,) * 3)
            engine, state = engine_of(objective, strategy, source, device=DEVICE, **options)
            batch = next(engine.batches(source, state))
            engine.step(state, batch)  # makes the optimizer's state
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            engine.step(state, batch)
            peak = (torch.cuda.max_memory_allocated() - before) / 2**20
            peaks.setdefault(f"AND-mask, each {each}, 16 x {rows}", {})[str(bound)] = peak
    return peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "results" / "gpu.json")
    given = parser.parse_args()
    results: dict[str, Any] = {"replicas": replicas()}
    for environments, rows in ((16, 32), (16, 256), (8, 128), (64, 128), (128, 1)):
        results[f"AND-mask, {environments} x {rows}, 3 x {WIDTH}"] = and_mask(rows, environments)
    table = Table("step", "", "ms", title=torch.cuda.get_device_name())
    for name, ways in results.items():
        for way, value in ways.items():
            table.add_row(name, way, f"{value:.3f}")
        table.add_section()
    console = Console(width=120)
    console.print(table)
    peaks = memory()
    told = Table("step", "MiB allowed", "MiB taken at the peak", title="peak memory")
    for name, bounds in peaks.items():
        for bound, peak in bounds.items():
            told.add_row(name, bound, f"{peak:.0f}")
    console.print(told)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "milliseconds": results,
        "peak_mib": peaks,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=1) + "\n")
    console.print(f"written to {given.out}")


if __name__ == "__main__":
    main()
