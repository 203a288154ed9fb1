"""Lossless compression of token sequences: about -log2 p(x) bits, and they come back as they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weft.objectives.densities.coding import Words, _constriction, _family
from weft.objectives.densities.tokens import TokenDensity

__all__ = ["compress_tokens", "decompress_tokens"]


def compress_tokens(density: TokenDensity, rows: Sequence[Sequence[int]], y: Any = None) -> Words:
    """Rows of token numbers as words of 32 bits, altogether about -sum log2 p(x).

    Step by step a range coder takes as many bits for each row's next token, its end among them, as the model says.

    Args:
        density: a fitted model, such as `learner.objective_`, with rows that end, or that are all of one length.
        rows: lists of token numbers; of text, `weft.core.vocabulary.encoded`.
        y: the class number of each row, of a conditional model.
    """
    stream = _constriction()
    most = density._most()
    for i, row in enumerate(rows):
        if most is not None and len(row) > most:
            raise ValueError(f"expected rows of at most {most} tokens, the context, got {len(row)} in row {i}")
        if wrong := [k for k in row if not 0 <= k < density.symbols]:
            raise ValueError(f"expected token numbers 0..{density.symbols - 1}, got {wrong[0]} in row {i}")
    if not density.ends and len(set(map(len, rows))) > 1:
        raise ValueError("expected rows of one length, as this model has no end (ends=False), got several")
    coder = stream.queue.RangeEncoder()

    def code(t: int, going: NDArray[np.int64], shares: NDArray[np.float64]) -> NDArray[np.int64]:
        following = np.array([rows[i][t] if t < len(rows[i]) else density.symbols for i in going], dtype=np.int32)
        coder.encode(following, _family(stream), shares)
        return following.astype(np.int64)

    _walk(density, len(rows), None if density.ends else max(map(len, rows), default=0), y, code)
    words: Words = coder.get_compressed()
    return words


def decompress_tokens(
    density: TokenDensity, words: Words, n: int, y: Any = None, *, length: int | None = None
) -> list[list[int]]:
    """The rows that `compress_tokens` was given, by the same model on a machine that computes alike.

    Args:
        density: the model.
        words: what `compress_tokens` gave.
        n: how many rows there were.
        y: as for `compress_tokens`.
        length: how long they were, where the model has no end.
    """
    if density.ends != (length is None):
        raise ValueError(f"expected length for a model without ends alone, got ends={density.ends}, length={length!r}")
    stream = _constriction()
    coder = stream.queue.RangeDecoder(np.asarray(words, dtype=np.uint32))

    def code(t: int, going: NDArray[np.int64], shares: NDArray[np.float64]) -> NDArray[np.int64]:
        found: NDArray[np.int64] = coder.decode(_family(stream), shares).astype(np.int64)
        return found

    rows = _walk(density, n, length, y, code)
    if rows is None or not coder.maybe_exhausted():
        raise ValueError(
            f"expected the words of {n} rows by this very model, got some that are left over or of others; give the n, "
            "y and parameters that they were compressed with"
        )
    return rows


@torch.no_grad()
def _walk(
    density: TokenDensity, n: int, length: int | None, y: Any, code: Callable[..., Any]
) -> list[list[int]] | None:
    """All steps: `code` is told which rows go on and the shares of what may follow in each, and gives what does.

    Both ways do the very same sums on the very same numbers. None where rows would go on beyond the context.
    """
    density.eval()
    device = density.embed.weight.device
    classes = None if y is None else torch.as_tensor(np.asarray(y), device=device)
    most = density._most() if length is None else length
    token, going = torch.full((n,), density.symbols, device=device), np.arange(n)
    rows: list[list[int]] = [[] for _ in range(n)]
    begin, advance = density._ways(True)
    kept: Any = None
    t = 0
    while len(going) and t != length:
        if length is None and most is not None and t > most:
            return None
        step = density.read(token, classes)
        kept = begin(step, 1024 if most is None else most + density.ends) if kept is None else kept
        shares = advance(step, kept).double().softmax(-1).cpu().numpy()[going]
        following = code(t, going, np.ascontiguousarray(shares))
        for i, k in zip(going, following, strict=True):
            if k != density.symbols:
                rows[i].append(int(k))
        token = token.clone()
        token[torch.as_tensor(going, device=device)] = torch.as_tensor(following, device=device)
        going, t = going[following != density.symbols], t + 1
    return rows
