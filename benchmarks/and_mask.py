"""AND-mask: the gradients of 8, 16 and 64 environments and their combination, without the optimizer's step.

3 x 256 hidden units on 16 x 256 MNIST images, where arithmetic decides, and 3 x 64 on 8, 16 and 64
environments of 32 or 128 images, where the number of calls does. The bound is one forward and backward of the
same rows pooled. The authors' way is one forward over all rows and then, for each environment, a backward
through the whole graph; the usual other way (DomainBed's) is one forward and backward for each environment.
With the small net and 32 rows the cost shall grow slower than the number of environments; with 128 rows of 784
numbers arithmetic decides again, and grows with the rows, pooled or not: that is told without a target, and beside
it as many rows in four times as many environments.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from harness import Comparison, Turn, engine_of, mlp, mnist, serve, timed
from torch import Tensor, nn

THRESHOLD = 0.8
Size = tuple[int, int, int]
"""Hidden units, environments, rows of each."""
Work = Callable[[], object]


def weft(size: Size) -> Turn:
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


def pooled(size: Size) -> Turn:
    x, y, _ = _rows(size)
    net, rows, labels = _net(size), x.flatten(0, 1), y.flatten()
    return _turn(size, lambda: torch.autograd.grad(F.cross_entropy(net(rows), labels), list(net.parameters())))


def authors(size: Size) -> Turn:
    x, y, _ = _rows(size)
    net, rows = _net(size), x.flatten(0, 1)
    params = list(net.parameters())

    def gradient() -> list[Tensor]:
        logits = net(rows).unflatten(0, y.shape)
        each = [
            torch.autograd.grad(F.cross_entropy(one, labels), params, retain_graph=True)
            for one, labels in zip(logits, y, strict=True)
        ]
        return masked(each)

    return _turn(size, gradient)


def loop(size: Size) -> Turn:
    x, y, _ = _rows(size)
    net = _net(size)
    params = list(net.parameters())

    def gradient() -> list[Tensor]:
        pairs = zip(x, y, strict=True)
        return masked([torch.autograd.grad(F.cross_entropy(net(rows), labels), params) for rows, labels in pairs])

    return _turn(size, gradient)


def masked(each: list[tuple[Tensor, ...]], threshold: float = THRESHOLD) -> list[Tensor]:
    """The authors' mask: the mean where enough signs agree, divided by the share that is kept."""
    kept = []
    for gradients in zip(*each, strict=True):
        g = torch.stack(gradients)
        keep = (g.sign().mean(0).abs() >= threshold).to(g.dtype)
        kept.append(g.mean(0) * keep / (keep.mean() + 1e-10))
    return kept


def _rows(size: Size) -> tuple[Tensor, Tensor, Tensor]:
    x, y = mnist()
    shape, count = size[1:], size[1] * size[2]
    x, y = x[:count].clone(), y[:count].clone()  # the other images need not stay, once for each contestant
    return x.reshape(*shape, -1), y.reshape(shape), torch.arange(count) // size[2]


def _net(size: Size) -> nn.Module:
    return mlp(784, *(size[0],) * 3, 10)


def _turn(size: Size, gradient: Work) -> Turn:
    return timed(gradient, times=min(50, 40_960 // (size[1] * size[2])))


WAYS = {"weft": weft, "pooled": pooled, "authors' way": authors, "loop": loop}
LARGE = "3x256, 16x256"
SMALL = {(e, rows): f"3x64, {e}x{rows}" for rows in (32, 128) for e in (8, 16, 64)}
SIZES: dict[str, Size] = {LARGE: (256, 16, 256), **{name: (64, *size) for size, name in SMALL.items()}}
CONTESTANTS = {
    f"{way}, {name}": lambda run=run, size=size: run(size) for way, run in WAYS.items() for name, size in SIZES.items()
}
PEERS: set[str] = set()
ROUNDS = 9
COMPARISONS = [
    Comparison(f"weft, {LARGE}", f"pooled, {LARGE}", price=1.3),
    Comparison(f"weft, {LARGE}", f"authors' way, {LARGE}", faster=6.0),
    Comparison(f"weft, {LARGE}", f"loop, {LARGE}"),
    Comparison("weft, 3x64, 16x32", "loop, 3x64, 16x32", faster=3.0),
    *(
        Comparison(f"weft, {name}", f"{way}, {name}")
        for name in SMALL.values()
        for way in ("pooled", "authors' way", "loop")
        if (name, way) != ("3x64, 16x32", "loop")
    ),
    *(
        Comparison(f"weft, {SMALL[more, 32]}", f"weft, {SMALL[few, 32]}", price=more / few)
        for few, more in ((8, 16), (16, 64), (8, 64))
    ),
    Comparison(f"weft, {SMALL[64, 128]}", f"weft, {SMALL[8, 128]}", price=8.0),
    Comparison(f"pooled, {SMALL[64, 128]}", f"pooled, {SMALL[8, 128]}"),
    Comparison(f"weft, {SMALL[64, 32]}", f"weft, {SMALL[16, 128]}"),
]

if __name__ == "__main__":
    serve(CONTESTANTS)
