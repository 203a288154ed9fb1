"""What keyed draws cost, beside PyTorch's own generator.

    python benchmarks/draws.py [--out FILE]

Uniforms, normals and dropout's zeros and ones of 256 x 784 and 32 x 64 x 64 numbers, keyed by row, on one thread of the
CPU in turns with `torch.rand` and `torch.randn`; where there is a GPU, both again recorded in a CUDA graph of 20 draws.
The ratio is the median over the rounds of that round's ratio; the aim is 2. The bound of arithmetic is the time to fill
as much memory once.
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

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from weft.core.random import fold, gauss, key_of, unit

SHAPES = ((256, 784), (32, 4096))
ROUNDS, TURNS, RECORDED, AIM = 60, 10, 20, 2.0
DRAWS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "uniform": (unit, torch.rand),
    "normal": (gauss, torch.randn),
    "dropout's mask": (lambda *given: unit(*given) >= 0.5, lambda *given, **on: torch.rand(*given, **on) >= 0.5),
}


def seconds(work: Callable[[], object], device: str) -> float:
    """One turn's time."""
    if device == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(TURNS):
        work()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) / TURNS


def recorded(work: Callable[[], object]) -> Callable[[], object]:
    """The work, many times over, as a CUDA graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(RECORDED):
            work()
    return graph.replay


def measure(device: str) -> list[dict[str, object]]:
    """A line for each draw and shape."""
    lines = []
    for shape in SHAPES:
        keys = fold(key_of(0, device=device), torch.arange(shape[0], device=device))
        memory = torch.empty(shape, device=device)
        for name, (ours, theirs) in DRAWS.items():
            contestants: list[Callable[[], object]] = [
                lambda ours=ours, shape=shape, keys=keys: ours(keys, shape[1:]),
                lambda theirs=theirs, shape=shape: theirs(shape, device=device),
                lambda memory=memory: memory.fill_(1.0),
            ]
            if device == "cuda":
                contestants = [recorded(work) for work in contestants]
            rounds = [[seconds(work, device) for work in contestants] for _ in range(ROUNDS + 5)][5:]
            mine, torchs, bound = (1e3 * statistics.median(column) for column in zip(*rounds, strict=True))
            each = RECORDED if device == "cuda" else 1
            ratio = statistics.median(a / b for a, b, _ in rounds)
            lines.append(
                {
                    "where": "CUDA graph" if device == "cuda" else "CPU, one thread",
                    "draw": f"{name}, {shape[0]} x {shape[1]}",
                    "weft, ms": mine / each,
                    "torch, ms": torchs / each,
                    "memory once, ms": bound / each,
                    "ratio": ratio,
                    "met": ratio <= AIM,
                }
            )
    return lines


def main() -> None:
    """Measures, prints a table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "draws.json")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    lines = [line for device in devices for line in measure(device)]
    table = Table(*lines[0], title=f"Draws; the aim is a ratio of {AIM:g}")
    for line in lines:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in line.values()))
    Console(width=140).print(table)
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": platform.processor() or "cpu"}
    about |= {"gpu": card, "torch": torch.__version__, "command": "python benchmarks/draws.py"}
    out.write_text(json.dumps({**about, "lines": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
