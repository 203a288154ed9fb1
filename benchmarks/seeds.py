"""On a GPU: 16 VAEs at once, recorded as one CUDA graph, beside one eager run of the same steps.

    python benchmarks/seeds.py [--out FILE]

Needs weft alone, no peers and no data: rows are random bits, 784-512-16 and back with ReLU (pythae's default nets),
batches of 100, Adam. Every time is that of a whole training step, Adam included. An eager run is plain PyTorch with the
fused Adam; weft's own eager step stands beside it. The bound of 16 is a bare loop of one, recorded, sixteen times.
"""

from __future__ import annotations

import argparse
import json
import platform
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.nn.functional as F
from gpu import DEVICE, Step, milliseconds, recorded
from harness import engine_of, mlp
from torch import Tensor

from weft.engine.capture import Captured
from weft.objectives import VAE
from weft.sources import Arrays
from weft.strategies import ERM

ROWS, BATCH, WIDTH, LATENT, SEEDS = 20_000, 100, 512, 16, 16


def weft(replicas: int | None, eager: bool) -> Step:
    """A step of weft's, and the batch that it is made on, drawn anew as in a training."""
    x = (torch.rand(ROWS, 784, device=DEVICE) > 0.5).float()
    nets = {"encoder": mlp(784, WIDTH, 2 * LATENT), "decoder": mlp(LATENT, WIDTH, 784)}
    source = Arrays(x, batch_size=BATCH)
    engine, state = engine_of(VAE(LATENT, **nets, law="bernoulli"), ERM(), source, device=DEVICE, replicas=replicas)
    stream, stepping = engine.batches(source, state), engine if eager else Captured(engine, state)

    def step() -> None:
        stepping.step(state, next(stream))

    for _ in range(6):
        step()
    if isinstance(stepping, Captured) and stepping.failed:
        raise RuntimeError("expected a step that is recorded, got one that runs eagerly")
    return step


def bare(capture: bool) -> Step:
    """The same step in plain PyTorch."""
    X = (torch.rand(ROWS, 784, device=DEVICE) > 0.5).float()
    encoder, decoder = mlp(784, WIDTH, 2 * LATENT).to(DEVICE), mlp(LATENT, WIDTH, 784).to(DEVICE)
    adam = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3, fused=True, capturable=True)

    def step() -> None:
        x: Tensor = X[torch.randint(ROWS, (BATCH,), device=DEVICE)]
        mean, log_scale = encoder(x).chunk(2, -1)
        z = mean + log_scale.exp() * torch.randn_like(mean)
        rate = (0.5 * (mean**2 + torch.expm1(2 * log_scale)) - log_scale).sum(-1)
        told = F.binary_cross_entropy_with_logits(decoder(z), x, reduction="none").sum(-1)
        adam.zero_grad()
        (told + rate).mean().backward()
        adam.step()

    return recorded(step) if capture else step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "results" / "seeds.json")
    given = parser.parse_args()
    steps = {
        "16 seeds, recorded": weft(SEEDS, eager=False),
        "one seed, recorded": weft(None, eager=False),
        "one seed, eager": weft(None, eager=True),
        "bare, eager": bare(capture=False),
        "bare, recorded": bare(capture=True),
    }
    taken = milliseconds(steps)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": "python benchmarks/seeds.py",
        "milliseconds": taken,
        "16 seeds / one bare eager run": taken["16 seeds, recorded"] / taken["bare, eager"],
        "16 seeds / 16 bare recorded runs": taken["16 seeds, recorded"] / (SEEDS * taken["bare, recorded"]),
        "asked": 1.0,
    }
    print(json.dumps(record, indent=1))
    given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
