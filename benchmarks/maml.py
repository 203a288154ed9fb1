"""MAML on sinusoids: 25 tasks a step, 10 shots, an MLP with 2 x 40 hidden units, one inner step, second order.

A turn draws the tasks and makes one update by Adam. `higher` goes as its examples do: a loop over the tasks,
each in an inner-loop context over the same initial weights (not copied), gradients accumulated.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from harness import Comparison, Turn, engine_of, mlp, serve, timed

TASKS, SHOTS, HIDDEN, INNER, RATE = 25, 10, (40, 40), 0.01, 1e-3


def weft() -> Turn:
    from weft import Optimizer
    from weft.data import sinusoids
    from weft.objectives import Regression
    from weft.sources import Episodes
    from weft.strategies import MAML

    source = Episodes(sinusoids, tasks=TASKS, shots=SHOTS)
    strategy, optimizer = MAML(inner_lr=INNER, inner_steps=1), Optimizer("adam", lr=RATE)
    engine, state = engine_of(Regression(hidden=HIDDEN), strategy, source, optimizer)
    stream = engine.batches(source, state)
    return timed(lambda: engine.step(state, next(stream)), times=50)


def by_higher() -> Turn:
    import higher

    net = mlp(1, *HIDDEN, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE, fused=True)
    inner = torch.optim.SGD(net.parameters(), lr=INNER)

    def step() -> None:
        amplitude, phase = 0.1 + 4.9 * torch.rand(TASKS, 1, 1), math.pi * torch.rand(TASKS, 1, 1)
        x = -5.0 + 10.0 * torch.rand(TASKS, 2 * SHOTS, 1)
        y = amplitude * torch.sin(x - phase)
        optimizer.zero_grad()
        for xs, ys in zip(x, y, strict=True):
            with higher.innerloop_ctx(net, inner, copy_initial_weights=False) as (fast, inner_optimizer):
                inner_optimizer.step(F.mse_loss(fast(xs[:SHOTS]), ys[:SHOTS]))
                (F.mse_loss(fast(xs[SHOTS:]), ys[SHOTS:]) / TASKS).backward()
        optimizer.step()

    return timed(step, times=10)


CONTESTANTS = {"weft": weft, "higher": by_higher}
PEERS = {"higher"}
ROUNDS = 9
COMPARISONS = [Comparison("weft", "higher", faster=10.0)]

if __name__ == "__main__":
    serve(CONTESTANTS)
