"""On a GPU: ResNet-18 in float32 and with `precision="bf16"` beside bare loops, and replicas of a small convnet.

    python benchmarks/precision.py [--compiled] [--out FILE]

Rows are random: 20,000 x 3 x 32 x 32, batches of 256, Adam. The bare loops are plain PyTorch on the same rows, already
on the device: eager, compiled, and recorded as a CUDA graph, each in float32 and with autocast to bfloat16, channels
first and last. The bound is the fastest of them. 16 replicas of two convolutions of 16 and 32 channels are beside one
run of it, both recorded.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.nn.functional as F
from gpu import DEVICE, milliseconds, recorded
from harness import engine_of
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from weft.engine.capture import Captured
from weft.objectives import Classification
from weft.sources import Arrays
from weft.strategies import ERM

ROWS, BATCH, REPLICAS = 20_000, 256, 16


def resnet(outputs: int = 10) -> nn.Module:
    """ResNet-18 for small images: a stem of 3 x 3, no pooling behind it."""
    import torchvision

    net: nn.Module = torchvision.models.resnet18(num_classes=outputs)
    net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return net


def convnet(outputs: int = 10) -> nn.Module:
    """Two convolutions, of 16 and 32 channels."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(2048, outputs)),
    )


def rows() -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, 3, 32, 32, device=DEVICE), torch.randint(10, (ROWS,), device=DEVICE)


def bare(way: str, *, low: bool, last: bool) -> Callable[[], None]:
    """An epoch of a plain loop."""
    layout = torch.channels_last if last else torch.contiguous_format
    net = resnet().to(DEVICE, memory_format=layout)
    x, y = rows()
    x = x.contiguous(memory_format=layout)
    optimizer = torch.optim.Adam(net.parameters(), fused=True, capturable=True)
    run = torch.compile(net) if way == "compiled" else net
    inputs, labels = x[:BATCH].clone(memory_format=layout), y[:BATCH].clone()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=low):
            loss = F.cross_entropy(run(inputs), labels)
        loss.backward()
        optimizer.step()

    act = recorded(step) if way == "recorded" else step

    def epoch() -> None:
        order = torch.randperm(ROWS, device=DEVICE)
        for start in range(0, ROWS - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            inputs.copy_(x[chosen])
            labels.copy_(y[chosen])
            act()

    return epoch


def weft(*, low: bool) -> Callable[[], None]:
    """An epoch as the Learner makes it: the source's batches, steps recorded."""
    x, y = rows()
    source = Arrays(x, y, batch_size=BATCH, classes=10)
    options = {"lowered": torch.bfloat16} if low else {}
    engine, state = engine_of(Classification(resnet()), ERM(), source, device=DEVICE, **options)
    stream, runner = engine.batches(source, state), Captured(engine, state)

    def epoch() -> None:
        for _ in range(ROWS // BATCH):
            runner.step(state, next(stream))

    return epoch


def seconds(epoch: Callable[[], None], times: int = 3) -> float:
    epoch()  # kernels are chosen, graphs recorded
    taken = []
    for _ in range(times):
        torch.cuda.synchronize()
        started = time.perf_counter()
        epoch()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def replicas() -> dict[str, float]:
    """Milliseconds of a step of one run and of 16 replicas, batches of 64."""
    x, y = rows()
    steps = {}
    for name, low in (("float32", None), ("bf16", torch.bfloat16)):
        for count in (None, REPLICAS):
            source = Arrays(x[:4096], y[:4096], batch_size=64, classes=10)
            engine, state = engine_of(
                Classification(convnet()), ERM(), source, device=DEVICE, replicas=count, lowered=low
            )
            batch, runner = next(engine.batches(source, state)), Captured(engine, state)

            def step(runner: Captured = runner, state: object = state, batch: object = batch) -> object:
                return runner.step(state, batch)

            steps[f"{count or 1}, {name}"] = step
            for _ in range(5):
                step()
    return milliseconds(steps)


def contestants(compiled: bool) -> dict[str, Callable[[], dict[str, float]]]:
    """What is measured, by name; each in a process of its own, so that no one's graphs and kernels are another's."""
    named: dict[str, Callable[[], dict[str, float]]] = {"replicas": replicas}
    for low, dtype in ((False, "float32"), (True, "bf16")):
        named[f"weft, {dtype}"] = lambda low=low: {"": seconds(weft(low=low))}
        for way in ("eager", "recorded", "compiled") if compiled else ("eager", "recorded"):
            for last in (False, True):
                name = f"bare, {way}, {dtype}{', channels last' if last else ''}"
                named[name] = lambda way=way, low=low, last=last: {"": seconds(bare(way, low=low, last=last))}
    return named


def measured(name: str) -> dict[str, float]:
    """One contestant's figures, from a process of its own."""
    ran = subprocess.run([sys.executable, __file__, "--only", name], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{name}: {ran.stderr[-2000:]}")
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    print(name, found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "results" / "precision.json")
    parser.add_argument("--compiled", action="store_true", help="torch.compile's loops too, half a minute each")
    parser.add_argument("--only")
    given = parser.parse_args()
    if given.only:
        torch.backends.cudnn.benchmark = True  # for the bare loops; weft's recorded steps do the same by themselves
        print(json.dumps(contestants(True)[given.only]()))
        return
    steps = measured("replicas")
    epochs = {name: measured(name)[""] for name in contestants(given.compiled) if name != "replicas"}
    best = {d: min(v for n, v in epochs.items() if n.startswith("bare") and d in n) for d in ("float32", "bf16")}
    ratios = {f"weft / best bare, {d}": epochs[f"weft, {d}"] / best[d] for d in best}
    ratios |= {f"{REPLICAS} replicas / one, {d}": steps[f"{REPLICAS}, {d}"] / steps[f"1, {d}"] for d in best}
    table = Table("", "", title=torch.cuda.get_device_name())
    for name, value in {**epochs, **steps, **ratios}.items():
        table.add_row(name, f"{value:.3f}")
    Console(width=120).print(table)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "seconds_an_epoch": epochs,
        "milliseconds_a_step": steps,
        "ratios": ratios,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
