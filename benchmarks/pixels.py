"""What it costs to draw images pixel by pixel, keeping what is known, beside asking the whole net for every pixel.

    python benchmarks/pixels.py [--out FILE]

Four images (or 16) of 28 x 28 bits by nets with fresh weights, on one thread: `sample(4)` in turns with
`sample(4, cached=False)`, whose images must be the same. The ratio is the median over the rounds of that round's ratio;
the aim is 20 for PixelCNN and PixelTransformer. The bound of arithmetic is one pass of the whole net over the images,
since every feature must be computed once.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from weft.core.random import key_of, keyed
from weft.core.source import Field
from weft.engine.build import build
from weft.objectives import PixelCNN, PixelRNN, PixelTransformer
from weft.objectives.densities.pixels import Images

SIDE, ROUNDS, AIM = 28, 3, 20.0
MODELS: dict[str, tuple[Images, int, float | None]] = {
    "PixelCNN, gated, 5 layers of 32": (PixelCNN(layers=5, width=32), 4, AIM),
    "PixelCNN, masked, 5 layers of 32": (PixelCNN(layers=5, width=32, gated=False), 4, AIM),
    "the same, 16 images": (PixelCNN(layers=5, width=32, gated=False), 16, AIM),
    "PixelTransformer, 2 layers of 64": (PixelTransformer(layers=2, heads=4, width=64), 4, AIM),
    "PixelRNN, row, 2 layers of 32": (PixelRNN(layers=2, width=32), 4, None),
}


def drawn(model: Images, n: int, *, cached: bool) -> tuple[Tensor, float]:
    """Images, and the seconds that they took."""
    begun = time.perf_counter()
    with torch.no_grad(), keyed(key_of(0), torch.arange(n)):
        images = model.sample(n, cached=cached)
    return images, time.perf_counter() - begun


def passed(model: Images, images: Tensor) -> float:
    """The seconds of one pass of the whole net."""
    begun = time.perf_counter()
    with torch.no_grad():
        model.log_prob(images)
    return time.perf_counter() - begun


def measure(name: str) -> dict[str, object]:
    """A model's line."""
    made, n, aim = MODELS[name]
    model = build(made, {"x": Field((1, SIDE, SIDE), torch.float32)}, 0, torch.float32).eval()
    images, _ = drawn(model, n, cached=True)
    passed(model, images)
    rounds = []
    for _ in range(ROUNDS):
        (ours, cached), (theirs, naive) = drawn(model, n, cached=True), drawn(model, n, cached=False)
        rounds.append((cached, naive, passed(model, images), (ours == theirs).flatten(1).all(1).float().mean().item()))
    cached, naive, one, same = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(b / a for a, b, *_ in rounds)
    line: dict[str, object] = {"model": name, "images": n, "cached, s": cached, "naive, s": naive, "one pass, s": one}
    met = "" if aim is None else ratio >= aim
    return {**line, "ratio": ratio, "aim": "" if aim is None else aim, "met": met, "same images": same}


def main() -> None:
    """Measures, prints a table and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "pixels.json")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    lines = [measure(name) for name in MODELS]
    table = Table(*lines[0], title=f"Images of {SIDE} x {SIDE} drawn, keeping what is known and not")
    for line in lines:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in line.values()))
    Console(width=140).print(table)
    about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": platform.processor() or "cpu"}
    about |= {"torch": torch.__version__, "command": "python benchmarks/pixels.py"}
    out.write_text(json.dumps({**about, "lines": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
