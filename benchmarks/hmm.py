"""Hidden Markov models beside hmmlearn's best way, its scaled recursions: an iteration of EM, and scores.

A thousand sequences of 100 steps, and one of 100,000; 20 tokens, and 3 numbers, in 5 states, in double precision. An
iteration of hmmlearn's is the difference between a fit of three and a fit of one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import Comparison, Turn, serve, timed

STATES, TOKENS, ENTRIES = 5, 20, 3
SHAPES = {"1,000 x 100": (1000, 100), "1 x 100,000": (1, 100_000)}


def _drawn(n: int, steps: int) -> tuple[Any, Any, dict[str, Any]]:
    """Tokens and numbers of a chain, and the parameters that both begin with."""
    random = np.random.default_rng(0)
    moves = random.dirichlet(np.ones(STATES), STATES) * 0.5 + 0.5 * np.eye(STATES)
    shown, means = random.dirichlet(0.5 * np.ones(TOKENS), STATES), 2 * random.normal(size=(STATES, ENTRIES))
    below, u = moves.cumsum(1)[:, :-1], random.random((n, steps))
    path = np.zeros((n, steps), dtype=np.int64)
    for t in range(1, steps):
        path[:, t] = (u[:, t, None] > below[path[:, t - 1]]).sum(1)
    tokens = (random.random((n, steps, 1)) > shown[path].cumsum(-1)[..., :-1]).sum(-1)
    numbers = means[path] + random.normal(size=(n, steps, ENTRIES))
    begun = {"moves": random.dirichlet(np.ones(STATES), STATES), "shown": random.dirichlet(np.ones(TOKENS), STATES)}
    return tokens, numbers, {**begun, "means": random.normal(size=(STATES, ENTRIES))}


def _ours(law: str, shape: str, what: str) -> Turn:
    import torch

    from weft.core.source import Field
    from weft.objectives import HMM

    tokens, numbers, begun = _drawn(*SHAPES[shape])
    x = torch.as_tensor(tokens if law == "tokens" else numbers)
    model = HMM(STATES, law="categorical" if law == "tokens" else "normal")
    model.build({"x": Field(tuple(x.shape[1:]), x.dtype, TOKENS if law == "tokens" else None)})
    model.double()
    with torch.no_grad():
        model.start.zero_()
        model.moves.copy_(torch.as_tensor(begun["moves"]).log())
        means = torch.as_tensor(begun["means"])
        numbers_of = torch.stack([means, torch.zeros_like(means)], -1).flatten(1)
        model.seen_by.copy_(torch.as_tensor(begun["shown"]).log() if law == "tokens" else numbers_of)
    length, weight = torch.full((len(x),), x.shape[1]), torch.ones(1, len(x), dtype=torch.float64)
    theta = {name: p.detach()[None] for name, p in model.named_parameters()}

    @torch.no_grad()
    def work() -> None:
        if what == "EM":
            model.improve(theta, x[None], length[None], None, weight)
        else:
            model.log_prob(x, length)

    return timed(work, times=3)


def _theirs(law: str, shape: str, what: str) -> Turn:
    import logging

    from hmmlearn.hmm import CategoricalHMM, GaussianHMM

    logging.disable()
    tokens, numbers, begun = _drawn(*SHAPES[shape])
    n, steps = SHAPES[shape]
    x = tokens.reshape(-1, 1) if law == "tokens" else numbers.reshape(-1, ENTRIES)
    lengths = [steps] * n

    def made(iterations: int) -> Any:
        kind = CategoricalHMM if law == "tokens" else GaussianHMM
        given = {"n_iter": iterations, "tol": -np.inf, "init_params": "", "implementation": "scaling"}
        model = kind(STATES, **given)
        model.startprob_, model.transmat_ = np.full(STATES, 1 / STATES), begun["moves"]
        if law == "tokens":
            model.emissionprob_, model.n_features = begun["shown"], TOKENS
        else:
            model.means_, model.covars_ = begun["means"], np.ones((STATES, ENTRIES))
        return model

    def seconds(work: Callable[[], object]) -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    if what == "scores":
        model = made(1)
        return timed(lambda: model.score(x, lengths), times=3)

    def turn() -> dict[str, float]:
        each = [seconds(lambda: made(3).fit(x, lengths)) - seconds(lambda: made(1).fit(x, lengths)) for _ in range(3)]
        return {"seconds": statistics.median(each) / 2, "processor": statistics.median(each) / 2}

    return turn


def _named(law: str, shape: str, what: str) -> str:
    return f"{what} of {law}, {shape}"


ASKED = [(law, shape, what) for shape in SHAPES for law in ("tokens", "numbers") for what in ("EM", "scores")]
CONTESTANTS: dict[str, Callable[[], Turn]] = {}
for _asked in ASKED:
    CONTESTANTS[f"weft, {_named(*_asked)}"] = lambda asked=_asked: _ours(*asked)
    CONTESTANTS[f"hmmlearn, {_named(*_asked)}"] = lambda asked=_asked: _theirs(*asked)
PEERS = {name for name in CONTESTANTS if name.startswith("hmmlearn")}
ROUNDS = 7
# Of the one long sequence the ratio is stated, and nothing asked.
COMPARISONS = [
    Comparison(f"weft, {_named(*a)}", f"hmmlearn, {_named(*a)}", price=1.0 if a[1] == "1,000 x 100" else None)
    for a in ASKED
]

if __name__ == "__main__":
    serve(CONTESTANTS)
