"""AND-mask with every example its own environment, in nets with batch normalization: a step's gradient.

There the gradient of an example is that of its loss through the batch's statistics: a backward through the whole
batch for each of its rows. Beside weft's way, several of them at a time within the default memory bound, stand the
authors' (one forward, then a loop of backwards) and one pooled forward and backward of the same rows, whose price
times the number of rows is the bound. Where arithmetic decides (the convnet on a CPU) nothing can be gained over the
loop; where the number of calls does (the small MLP) much can. 80 MNIST images, the paper's batch. The peak memory is
in `memory.py`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from and_mask import masked
from harness import Comparison, Turn, engine_of, mnist, serve, timed
from torch import Tensor, nn

ROWS, THRESHOLD = 80, 0.2


def convnet() -> nn.Module:
    """Two convolutions, of 16 and 32 channels."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, 10)),
    )


def perceptron() -> nn.Module:
    """Three layers of 64 units."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs in (784, 64, 64):
        layers += [nn.Linear(inputs, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


NETS = {"convnet": convnet, "mlp 3x64": perceptron}


def weft(net: str) -> Turn:
    from weft.core.source import number_rows
    from weft.objectives import Classification
    from weft.sources import Arrays
    from weft.strategies import ANDMask

    x, y = _rows()
    source = Arrays(x, y, classes=10, batch_size=ROWS)
    strategy = ANDMask(threshold=THRESHOLD, each="example")
    engine, state = engine_of(Classification(lambda inputs, outputs: NETS[net]()), strategy, source)
    batch = number_rows(next(engine.batches(source, state)), 1)
    engine.objective.train()
    return timed(lambda: engine.gradient(state, batch, ""))


def loop(net: str) -> Turn:
    module = NETS[net]()
    params, (x, y) = list(module.parameters()), _rows()

    def gradient() -> list[Tensor]:
        losses = F.cross_entropy(module(x), y, reduction="none")
        return masked([torch.autograd.grad(loss, params, retain_graph=True) for loss in losses], THRESHOLD)

    return timed(gradient)


def pooled(net: str) -> Turn:
    module = NETS[net]()
    params, (x, y) = list(module.parameters()), _rows()
    return timed(lambda: torch.autograd.grad(F.cross_entropy(module(x), y), params), times=20)


def _rows() -> tuple[Tensor, Tensor]:
    x, y = mnist()
    return x[:ROWS].clone().unflatten(1, (1, 28, 28)), y[:ROWS].clone()


WAYS = {"weft": weft, "loop": loop, "pooled": pooled}
CONTESTANTS = {f"{way}, {net}": lambda run=run, net=net: run(net) for way, run in WAYS.items() for net in NETS}
PEERS: set[str] = set()
ROUNDS = 5
COMPARISONS = [
    Comparison("weft, mlp 3x64", "loop, mlp 3x64", faster=2.0),
    Comparison("weft, convnet", "loop, convnet", price=1.3),
    *(Comparison(f"weft, {net}", f"pooled, {net}", price=float(ROWS)) for net in NETS),
]

if __name__ == "__main__":
    serve(CONTESTANTS)
