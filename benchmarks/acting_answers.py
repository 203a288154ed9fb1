"""`learner.act` beside the bare net: what a question costs over the forward that answers it.

The bare way is the best that PyTorch has by hand: `torch.as_tensor`, the net under `no_grad`, `argmax`, `.numpy()`, of
the very module that was trained (an MLP of two layers of 64). Both are timed in blocks that take turns in one process
on one thread, and the shortest block of each counts, since a machine with other work only ever makes a block longer.

    python benchmarks/acting_answers.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from weft import Learner
from weft.data import CartPole
from weft.objectives import REINFORCE
from weft.sources import Rollouts

BLOCK, BLOCKS, MOST = 20, 400, 2.0


def seconds(functions: list[Callable[[Any], Any]], asked: Any) -> list[float]:
    """The shortest block of each, for one question."""
    each = [float("inf")] * len(functions)
    for _ in range(BLOCKS):
        for i, function in enumerate(functions):
            started = time.perf_counter()
            for _ in range(BLOCK):
                function(asked)
            each[i] = min(each[i], (time.perf_counter() - started) / BLOCK)
    return each


def main() -> None:
    torch.set_num_threads(1)
    learner = Learner(REINFORCE(hidden=(64, 64)), steps=1, random_state=0).fit(Rollouts(CartPole(), envs=2))
    net: Any = learner.module().policy

    def one(observation: Any) -> Any:
        with torch.no_grad():
            return net(torch.as_tensor(observation).unsqueeze(0)).argmax(-1).numpy()[0]

    def many(observations: Any) -> Any:
        with torch.no_grad():
            return net(torch.as_tensor(observations)).argmax(-1).numpy()

    rows = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)
    for count, bare, asked in ((1, one, rows[0]), (256, many, rows)):
        np.testing.assert_array_equal(learner.act(asked), bare(asked))
        plain, ours = seconds([bare, learner.act], asked)
        told = f"{count} at a time: bare {1e6 * plain:.1f} us, act {1e6 * ours:.1f} us, {ours / plain:.2f} times"
        print(f"{told} ({'at most' if ours <= MOST * plain else 'NOT at most'} {MOST:g})")


if __name__ == "__main__":
    main()
