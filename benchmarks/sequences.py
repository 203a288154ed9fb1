"""Sequences on the CPU: an epoch of a character LSTM beside a bare loop, and cached draws beside naive ones.

The LSTM: two layers of 128, batches of 50 windows of 50 characters (the defaults of Karpathy's char-rnn), drawn from
the first 200,000 of tiny Shakespeare (of WEFT_DATA; else random ones), Adam. Weft's turn is a whole `Learner.fit`. The
bare loop is plain PyTorch with `nn.LSTM` and the fused Adam, over tokens that lie in memory.

The draws: 4 rows of 784 tokens of a Transformer of 2 layers, 4 heads and 128 values, by the keys and values that are
kept, and by a pass over all tokens so far at each.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from harness import Comparison, Turn, serve, timed
from torch import Tensor, nn

CHARACTERS, CONTEXT, BATCH, LAYERS, WIDTH, POSITIONS, ROWS = 200_000, 50, 50, 2, 128, 784, 4
STEPS = -(-CHARACTERS // (CONTEXT * BATCH))


def text() -> tuple[Tensor, int]:
    """The tokens, and how many there are of them."""
    path = Path(os.environ.get("WEFT_DATA", "")) / "tinyshakespeare.txt"
    if not path.exists():
        print("note: no tiny Shakespeare under WEFT_DATA; random characters instead", file=sys.stderr)
        return torch.from_numpy(np.random.default_rng(0).integers(0, 65, CHARACTERS)), 65
    read = path.read_text()[:CHARACTERS]
    numbers = {character: k for k, character in enumerate(sorted(set(read)))}
    return torch.tensor([numbers[character] for character in read]), len(numbers)


def weft() -> Turn:
    from weft import Learner, Optimizer
    from weft.objectives import CharRNN
    from weft.sources import Windows

    tokens, count = text()
    source = Windows(tokens, context=CONTEXT, batch_size=BATCH, classes=count)
    optimizer = Optimizer("adam", lr=1e-3)

    def epoch() -> None:
        objective = CharRNN(layers=LAYERS, width=WIDTH, ends=False)
        Learner(objective, optimizer=optimizer, epochs=1, device="cpu", random_state=0).fit(source)

    return timed(epoch)


def bare_loop() -> Turn:
    tokens, count = text()

    def epoch() -> None:
        embed, head = nn.Embedding(count + 1, WIDTH), nn.Linear(WIDTH, count)
        net = nn.LSTM(WIDTH, WIDTH, LAYERS, batch_first=True)
        parameters = [*embed.parameters(), *net.parameters(), *head.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)
        begin = torch.full((BATCH, 1), count)
        for _ in range(STEPS):
            first = torch.randint(len(tokens) - CONTEXT + 1, (BATCH, 1))
            x = tokens[first + torch.arange(CONTEXT)]
            logits = head(net(embed(torch.cat([begin, x[:, :-1]], 1)))[0])
            loss = F.cross_entropy(logits.flatten(0, 1), x.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return timed(epoch)


def drawn(cached: bool) -> Turn:
    from weft.core.random import key_of, keyed
    from weft.core.source import Field
    from weft.engine.build import build
    from weft.objectives import CausalTransformer

    objective = CausalTransformer(layers=2, heads=4, width=128, ends=False, context=POSITIONS)
    model = build(objective, {"x": Field((POSITIONS,), torch.int64, 16)}, 0, torch.float32).eval()

    @torch.no_grad()
    def draw() -> None:
        with keyed(key_of(0), torch.arange(ROWS)):
            model.sample(ROWS, length=POSITIONS, cached=cached)

    return timed(draw)


CONTESTANTS = {
    "weft": weft,
    "bare loop": bare_loop,
    "draws, cached": lambda: drawn(True),
    "draws, naive": lambda: drawn(False),
}
PEERS: set[str] = set()
ROUNDS = 3
COMPARISONS = [
    Comparison("weft", "bare loop", price=1.05),
    Comparison("draws, cached", "draws, naive", faster=20.0),
]

if __name__ == "__main__":
    serve(CONTESTANTS)
