"""AND-mask: the gradients of 16 environments and their combination, without the optimizer's step.

Two sizes: 3 x 256 hidden units on 16 x 256 MNIST images, where arithmetic decides, and 3 x 64 on 16 x 32,
where the number of calls does. The bound is one forward and backward of the same rows pooled. The authors'
way is one forward over all rows and then, for each environment, a backward through the whole graph; the
usual other way is one forward and backward for each environment.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from harness import Comparison, Turn, engine_of, mlp, mnist, serve, timed
from torch import Tensor, nn

ENVIRONMENTS, THRESHOLD = 16, 0.8
LARGE, SMALL = (256, 256), (64, 32)  # hidden units, rows of an environment
Work = Callable[[], object]


def weft(size: tuple[int, int]) -> Turn:
    from weft.core.source import number_rows
    from weft.objectives import Classification
    from weft.sources import Arrays
    from weft.strategies import ANDMask

    x, y, environment = _rows(size)
    source = Arrays(x.flatten(0, 1), y.flatten(), environment=environment, grouped=True, classes=10)
    strategy = ANDMask(threshold=THRESHOLD)
    engine, state = engine_of(Classification(hidden=(size[0],) * 3), strategy, source)
    batch = number_rows(next(engine.batches(source, state)), 2)
    engine.objective.train()
    return _turn(size, lambda: engine.gradient(state, batch, ""))


def pooled(size: tuple[int, int]) -> Turn:
    x, y, _ = _rows(size)
    net, rows, labels = _net(size), x.flatten(0, 1), y.flatten()
    return _turn(size, lambda: torch.autograd.grad(F.cross_entropy(net(rows), labels), list(net.parameters())))


def authors(size: tuple[int, int]) -> Turn:
    x, y, _ = _rows(size)
    net, rows = _net(size), x.flatten(0, 1)
    params = list(net.parameters())

    def gradient() -> list[Tensor]:
        logits = net(rows).unflatten(0, y.shape)
        each = [
            torch.autograd.grad(F.cross_entropy(one, labels), params, retain_graph=True)
            for one, labels in zip(logits, y, strict=True)
        ]
        return _masked(each)

    return _turn(size, gradient)


def loop(size: tuple[int, int]) -> Turn:
    x, y, _ = _rows(size)
    net = _net(size)
    params = list(net.parameters())

    def gradient() -> list[Tensor]:
        pairs = zip(x, y, strict=True)
        return _masked([torch.autograd.grad(F.cross_entropy(net(rows), labels), params) for rows, labels in pairs])

    return _turn(size, gradient)


def _masked(each: list[tuple[Tensor, ...]]) -> list[Tensor]:
    """The authors' mask: the mean where enough signs agree, divided by the share that is kept."""
    masked = []
    for gradients in zip(*each, strict=True):
        g = torch.stack(gradients)
        keep = (g.sign().mean(0).abs() >= THRESHOLD).to(g.dtype)
        masked.append(g.mean(0) * keep / (keep.mean() + 1e-10))
    return masked


def _rows(size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    x, y = mnist()
    shape = (ENVIRONMENTS, size[1])
    count = ENVIRONMENTS * size[1]
    return x[:count].reshape(*shape, -1), y[:count].reshape(shape), torch.arange(count) // size[1]


def _net(size: tuple[int, int]) -> nn.Module:
    return mlp(784, *(size[0],) * 3, 10)


def _turn(size: tuple[int, int], gradient: Work) -> Turn:
    return timed(gradient, times=10 if size == LARGE else 50)


WAYS = {"weft": weft, "pooled": pooled, "authors' way": authors, "loop": loop}
SIZES = {"3x256, 16x256": LARGE, "3x64, 16x32": SMALL}
CONTESTANTS = {
    f"{way}, {name}": lambda run=run, size=size: run(size) for way, run in WAYS.items() for name, size in SIZES.items()
}
PEERS: set[str] = set()
ROUNDS = 9
COMPARISONS = [
    Comparison("weft, 3x256, 16x256", "pooled, 3x256, 16x256", price=1.3),
    Comparison("weft, 3x256, 16x256", "authors' way, 3x256, 16x256", faster=6.0),
    Comparison("weft, 3x256, 16x256", "loop, 3x256, 16x256"),
    Comparison("weft, 3x64, 16x32", "loop, 3x64, 16x32", faster=3.0),
    Comparison("weft, 3x64, 16x32", "authors' way, 3x64, 16x32"),
    Comparison("weft, 3x64, 16x32", "pooled, 3x64, 16x32"),
]

if __name__ == "__main__":
    serve(CONTESTANTS)
