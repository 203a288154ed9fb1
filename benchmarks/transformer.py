"""On a GPU: a training step of a Transformer over tokens beside compiled and recorded bare loops of the same net.

    python benchmarks/transformer.py [--out FILE]

6 layers, 6 heads, 384 values, windows of 256 tokens of 65, batches of 64, bfloat16 over float32 parameters, no dropout:
nanoGPT's setting for tiny Shakespeare, on random tokens. The bare loops are `weft.nets.Transformer` with an embedding,
autocast and the fused AdamW: eager, compiled (nanoGPT's way) and recorded as a CUDA graph; windows are drawn on the
device. Weft's steps are those that a Learner makes: the source's windows, the engine's step, recorded. Tokens a second
are of whole steps.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
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

from weft.core.optimizer import Optimizer
from weft.engine.capture import Captured
from weft.nets import Transformer
from weft.objectives import CausalTransformer
from weft.sources import Windows
from weft.strategies import ERM

LAYERS, HEADS, WIDTH, CONTEXT, BATCH, SYMBOLS = 6, 6, 384, 256, 64, 65
CHARACTERS = 1_000_000
ADAM = {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.1}
Step = Callable[[], object]


def tokens() -> Tensor:
    return torch.randint(SYMBOLS, (CHARACTERS,), generator=torch.Generator().manual_seed(0))


class Bare(nn.Module):
    """The same net, as plain PyTorch has it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS + 1, WIDTH)
        self.net = Transformer(WIDTH, SYMBOLS, context=CONTEXT, layers=LAYERS, heads=HEADS, width=WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        before = F.pad(x[:, :-1], (1, 0), value=SYMBOLS)
        return F.cross_entropy(self.net(self.embed(before)).flatten(0, 1), x.flatten())


def bare(way: str) -> Step:
    """A step of a plain loop, its window drawn."""
    torch.set_float32_matmul_precision("high")
    model, data = Bare().to(DEVICE), tokens().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=way == "recorded", **ADAM)
    run = torch.compile(model) if way.startswith("compiled") else model
    x = torch.zeros(BATCH, CONTEXT, dtype=torch.int64, device=DEVICE)
    place = torch.arange(CONTEXT, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(x)
        loss.backward()
        optimizer.step()

    act = recorded(step) if way.endswith("recorded") else step

    def whole() -> None:
        first = torch.randint(CHARACTERS - CONTEXT + 1, (BATCH, 1), device=DEVICE)
        x.copy_(data[first + place])
        act()

    return whole


def weft() -> Step:
    """A step as the Learner makes it."""
    torch.set_float32_matmul_precision("high")
    objective = CausalTransformer(layers=LAYERS, heads=HEADS, width=WIDTH, context=CONTEXT, ends=False)
    source = Windows(tokens(), context=CONTEXT, batch_size=BATCH, classes=SYMBOLS)
    optimizer = Optimizer("adamw", **ADAM)
    engine, state = engine_of(objective, ERM(), source, optimizer, DEVICE, lowered=torch.bfloat16)
    stream, runner = engine.batches(source, state), Captured(engine, state)
    return lambda: runner.step(state, next(stream))


CONTESTANTS: dict[str, Callable[[], Step]] = {
    "weft": weft,
    "bare, eager": lambda: bare("eager"),
    "bare, recorded": lambda: bare("recorded"),
    "bare, compiled": lambda: bare("compiled"),
}


def measured(name: str) -> float:
    """Milliseconds of a contestant's step, from a process of its own."""
    ran = subprocess.run([sys.executable, __file__, "--only", name], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{name}: {ran.stderr[-2000:]}")
    found: float = json.loads(ran.stdout.splitlines()[-1])
    print(f"{name}: {found:.2f} ms, {BATCH * CONTEXT / found * 1e3:,.0f} tokens/s", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "results" / "transformer.json")
    parser.add_argument("--only")
    given = parser.parse_args()
    if given.only:
        step = CONTESTANTS[given.only]()
        for _ in range(10):
            step()
        print(json.dumps(milliseconds({"step": step})["step"]))
        return
    steps = {name: measured(name) for name in CONTESTANTS}
    ratios = {f"weft / {name}": steps["weft"] / taken for name, taken in steps.items() if name != "weft"}
    table = Table("", "ms a step", "tokens/s", title=torch.cuda.get_device_name())
    for name, taken in steps.items():
        table.add_row(name, f"{taken:.2f}", f"{BATCH * CONTEXT / taken * 1e3:,.0f}")
    for name, ratio in ratios.items():
        table.add_row(name, f"{ratio:.3f}", "at most 1.05" if "compiled" in name else "")
    Console(width=100).print(table)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "milliseconds_a_step": steps,
        "tokens_a_second": {name: BATCH * CONTEXT / taken * 1e3 for name, taken in steps.items()},
        "ratios": ratios,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
