"""The exact diagonal Fisher information over 60,000 MNIST images: MLP 784-400-400-10, and a small convnet.

Weft's turn is `engine.consolidate` under EWC, the whole of what ends a task: with the labels given (the
empirical Fisher) and in expectation over all ten (the true one). Beside it one example at a time, measured
on a part of the images and scaled up, and the forward and backward of an ordinary epoch at two batch sizes.

The convnet has two convolutions of 5 x 5 with 16 and 32 channels, each followed by a ReLU and the maximum over 2 x 2
pixels, and a linear layer: 512 features to 10 classes. For it weft too is measured on a part, and scaled up.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from harness import Comparison, Turn, engine_of, mlp, mnist, serve, timed
from torch import Tensor, nn

HIDDEN, PART = (400, 400), 300
CONV_PART = 6_000


def _convnet() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10)),
    )


def _weft(fisher: str, net: Any = None, part: int | None = None) -> Turn:
    from weft.objectives import Classification
    from weft.sources import Arrays
    from weft.strategies import EWC

    x, y = mnist()
    part = part or len(x)
    source = Arrays(x[:part], y[:part], batch_size=128, classes=10)
    engine, state = engine_of(Classification(net, hidden=HIDDEN), EWC(fisher=fisher), source)
    return timed(lambda: engine.consolidate(state, source, "digits"), scale=len(x) / part)


def _one_by_one(fisher: str, net: nn.Module) -> Turn:
    x, y = mnist()
    params = list(net.parameters())
    part = PART if fisher == "empirical" else PART // 10

    def example(row: Tensor, label: Tensor, total: list[Tensor]) -> None:
        scores = net(row[None]).log_softmax(-1)[0]
        labels = [int(label)] if fisher == "empirical" else range(10)
        for k in labels:
            weight = 1.0 if fisher == "empirical" else float(scores[k].exp())
            for sum_, g in zip(total, torch.autograd.grad(scores[k], params, retain_graph=True), strict=True):
                sum_.addcmul_(g, g, value=weight)

    def some() -> None:
        total = [torch.zeros_like(p) for p in params]
        for row, label in zip(x[:part], y[:part], strict=True):
            example(row, label, total)

    return timed(some, scale=len(x) / part)


def _epoch(batch: int) -> Turn:
    x, y = mnist()
    net = mlp(784, *HIDDEN, 10)
    params = list(net.parameters())

    def epoch() -> None:
        for rows in torch.randperm(len(x)).split(batch):
            torch.autograd.grad(F.cross_entropy(net(x[rows]), y[rows]), params)

    return timed(epoch)


CONTESTANTS = {
    "weft, empirical": lambda: _weft("empirical"),
    "weft, true": lambda: _weft("true"),
    "one by one, empirical": lambda: _one_by_one("empirical", mlp(784, *HIDDEN, 10)),
    "one by one, true": lambda: _one_by_one("true", mlp(784, *HIDDEN, 10)),
    "epoch, batch 128": lambda: _epoch(128),
    "epoch, batch 1024": lambda: _epoch(1024),
    "weft, convnet, empirical": lambda: _weft("empirical", _convnet(), CONV_PART),
    "weft, convnet, true": lambda: _weft("true", _convnet(), CONV_PART),
    "one by one, convnet, empirical": lambda: _one_by_one("empirical", _convnet()),
    "one by one, convnet, true": lambda: _one_by_one("true", _convnet()),
}
PEERS: set[str] = set()
ROUNDS = 5
COMPARISONS = [
    Comparison("weft, empirical", "one by one, empirical", faster=15.0),
    Comparison("weft, empirical", "epoch, batch 128", price=1.5),
    Comparison("weft, empirical", "epoch, batch 1024", price=1.5),
    Comparison("weft, true", "one by one, true", faster=15.0),
    Comparison("weft, true", "epoch, batch 128", price=1.5),
    Comparison("weft, true", "epoch, batch 1024", price=1.5),
    Comparison("weft, convnet, empirical", "one by one, convnet, empirical", faster=5.0),
    Comparison("weft, convnet, true", "one by one, convnet, true", faster=5.0),
]

if __name__ == "__main__":
    serve(CONTESTANTS)
