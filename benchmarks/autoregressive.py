"""Drawing rows of 784 bits one by one: MADE and NADE, which keep what is known, beside naive loops.

The naive loop makes one whole pass for each entry: as bare PyTorch, with weights masked once and `torch.rand`
(NADE's pass with its sums by a cumulative sum, one matrix product for MADE's layers), and as weft's own way of
checking, `cached=False`. MADE has two hidden layers of 500 units, NADE one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import Comparison, Turn, serve, timed

BITS, UNITS = 784, 500
BATCHES = {"MADE": (1, 16, 64), "NADE": (1, 4)}


def _made(model: str) -> Any:
    from weft.core.source import Field
    from weft.engine.build import build
    from weft.objectives import MADE, NADE

    objective = MADE((UNITS, UNITS), law="bernoulli") if model == "MADE" else NADE(UNITS, law="bernoulli")
    return build(objective, {"x": Field((BITS,), torch.float32)}, 0, torch.float32).eval()


def _ours(model: str, batch: int, cached: bool) -> Turn:
    from weft.core.random import key_of, keyed

    made = _made(model)

    @torch.no_grad()
    def work() -> None:
        with keyed(key_of(0), torch.arange(batch)):
            made.sample(batch, cached=cached)

    return timed(work, times=3 if cached else 1)


def _bare(model: str, batch: int) -> Turn:
    net = _made(model).net
    if model == "MADE":
        layers = [((layer.weight * layer.mask).detach(), layer.bias.detach()) for layer in net.layers]

        def logits(x: torch.Tensor) -> torch.Tensor:
            for number, (weight, bias) in enumerate(layers):
                x = torch.nn.functional.linear(x if not number else x.relu(), weight, bias)
            return x
    else:
        w, c, v, b = (p.detach() for p in (net.weight, net.c, net.v, net.b))

        def logits(x: torch.Tensor) -> torch.Tensor:
            each = x.unsqueeze(-1) * w
            sums = each.cumsum(1) - each
            return b + ((c + sums).sigmoid() * v).sum(-1)

    @torch.no_grad()
    def work() -> None:
        x = torch.zeros(batch, BITS)
        for i in range(BITS):
            x[:, i] = (torch.rand(batch) < logits(x)[:, i].sigmoid()).float()

    return timed(work)


ASKED = [(model, batch) for model, batches in BATCHES.items() for batch in batches]
CONTESTANTS: dict[str, Callable[[], Turn]] = {}
for _model, _batch in ASKED:
    CONTESTANTS[f"weft, {_model}, {_batch} rows"] = lambda m=_model, n=_batch: _ours(m, n, True)
    CONTESTANTS[f"bare naive loop, {_model}, {_batch} rows"] = lambda m=_model, n=_batch: _bare(m, n)
CONTESTANTS["weft's naive loop, MADE, 16 rows"] = lambda: _ours("MADE", 16, False)
PEERS: set[str] = set()
ROUNDS = 5
# Of a single row the ratio is stated, and nothing asked: there the price is that of calls, not of arithmetic.
COMPARISONS = [
    Comparison(f"weft, {m}, {n} rows", f"bare naive loop, {m}, {n} rows", faster=10.0 if n > 1 else None)
    for m, n in ASKED
]
COMPARISONS.append(Comparison("weft, MADE, 16 rows", "weft's naive loop, MADE, 16 rows", faster=10.0))

if __name__ == "__main__":
    serve(CONTESTANTS)
