"""What the benchmarks share: contestants that take turns, the data, and how a comparison is judged.

A contestant is a function that prepares everything and returns what is to be timed. Each one lives in a
process of its own, in its own environment, and waits there for its turns, so that the contestants of a
benchmark are measured in alternation and a busy machine slows all of them down alike.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

THREADS = 2

Turn = Callable[[], dict[str, float]]


@dataclass(frozen=True)
class Comparison:
    """Ours beside another contestant, and what is asked for; without a target the figures are only reported.

    Attributes:
        faster: how many times as fast ours shall be, at least.
        price: how many times the other's time ours may take, at most.
        above: how many seconds more than the other ours may take, at most.
        seconds: how many seconds ours may take, whatever the other does.
    """

    ours: str
    other: str
    faster: float | None = None
    price: float | None = None
    above: float | None = None
    seconds: float | None = None

    def judge(self, ours: list[float], other: list[float]) -> dict[str, Any]:
        """The medians, the ratio, and whether the target is met.

        The ratio is the median over the rounds of that round's ratio: what slows a whole round down cancels.
        """
        median = statistics.median
        pairs = list(zip(ours, other, strict=True))
        ratio = median(a / b for a, b in pairs)
        told = f"{ratio:.2f}x its time"
        row: dict[str, Any] = {"ours": self.ours, "ours_s": median(ours), "other": self.other}
        row |= {"other_s": median(other), "ratio": ratio, "told": told, "target": "", "met": None}
        if self.faster is not None:
            target, met = f"{self.faster:g}x as fast", 1 / ratio >= self.faster
            return {**row, "told": f"{1 / ratio:.2f}x as fast", "target": f"at least {target}", "met": met}
        if self.price is not None:
            return {**row, "target": f"at most {self.price:g}x its time", "met": ratio <= self.price}
        if self.above is not None:
            more = median(a - b for a, b in pairs)
            target, met = f"at most {self.above:g} s above", more <= self.above
            return {**row, "told": f"{more:.3f} s above", "target": target, "met": met}
        if self.seconds is not None:
            return {**row, "target": f"under {self.seconds:g} s", "met": median(ours) < self.seconds}
        return row


def timed(function: Callable[[], Any], *, times: int = 1, scale: float = 1.0) -> Turn:
    """A turn: the median of so many calls, in seconds of the clock and of the processor, times `scale`."""

    def turn() -> dict[str, float]:
        clock, work = [], []
        for _ in range(times):
            started, busy = time.perf_counter(), time.process_time()
            function()
            clock.append(time.perf_counter() - started)
            work.append(time.process_time() - busy)
        return {"seconds": statistics.median(clock) * scale, "processor": statistics.median(work) * scale}

    return turn


def serve(contestants: dict[str, Callable[[], Turn]]) -> None:
    """Prepares the contestant that the command line names, then takes a turn for every line that comes in."""
    torch.set_num_threads(THREADS)
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # what libraries print is no answer
        turn = contestants[sys.argv[1]]()
        for _ in sys.stdin:
            print(json.dumps(turn()), file=answers, flush=True)


def mnist() -> tuple[Tensor, Tensor]:
    """The 60,000 training images as rows in [0, 1] and their labels, from WEFT_DATA; else random ones."""
    folder = Path(os.environ.get("WEFT_DATA", "")) / "mnist"
    try:
        with gzip.open(folder / "train-images-idx3-ubyte.gz") as images:
            x = np.frombuffer(images.read(), np.uint8, offset=16).reshape(-1, 784)
        with gzip.open(folder / "train-labels-idx1-ubyte.gz") as labels:
            y = np.frombuffer(labels.read(), np.uint8, offset=8)
    except FileNotFoundError:
        print("note: no MNIST under WEFT_DATA; random data of the same shape instead", file=sys.stderr)
        random = np.random.default_rng(0)
        x, y = random.integers(0, 256, (60_000, 784)), random.integers(0, 10, 60_000)
    return torch.from_numpy(x.astype(np.float32) / 255.0), torch.from_numpy(y.astype(np.int64))


def mlp(*widths: int) -> nn.Sequential:
    """The plain PyTorch net that the peers train."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def engine_of(
    objective: Any, strategy: Any, source: Any, optimizer: Any = "adam", device: Any = "cpu", **options: Any
) -> tuple[Any, Any]:
    """Weft's engine and its state, as a Learner makes them: for what is less than a whole `fit`."""
    from weft.core.optimizer import as_optimizer
    from weft.engine import Engine
    from weft.engine.build import build
    from weft.engine.replicas import begun

    replicas = options.get("replicas")
    built = build(objective, source.spec, 0, torch.float32)
    optimizers = {player: as_optimizer(optimizer) for player in built.players or ("",)}
    engine = Engine(built, strategy, optimizers, grouped=source.grouped, episodic=source.episodic, **options)
    state = engine.init(list(range(replicas or 1)), torch.device(device))
    state.source = begun(source, state)
    return engine, state
