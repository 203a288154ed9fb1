"""Counted contexts: what followed the last few characters elsewhere, interpolated with what followed fewer of them."""

from __future__ import annotations

from typing import Any

import numpy as np


def counted(text: str, asked: str, order: int) -> Any:
    """-log p of each character of a text by counts of what followed its last `order` characters in another.

    By Witten and Bell: a context that was followed by r kinds of characters in n places gives them (count + r q) /
    (n + r), with q what the context shorter by one says.
    """
    kinds = {c: i for i, c in enumerate(sorted(set(text + asked)))}
    k = len(kinds)
    a, b = (np.array([kinds[c] for c in t]) for t in (text, asked))
    p = np.full(len(b) - order, 1 / k)
    for n in range(order + 1):
        pairs, counts = np.unique(numbers(a, n, k) * k + a[n:], return_counts=True)
        contexts, first = np.unique(pairs // k, return_index=True)
        total, distinct = np.add.reduceat(counts, first), np.diff(np.append(first, len(pairs)))
        own, next_ = numbers(b, n, k)[order - n :], b[order:]
        at, pair = found(contexts, own), found(pairs, own * k + next_)
        count = np.where(pair < 0, 0, counts[pair])
        p = np.where(at < 0, p, (count + distinct[at] * p) / (total[at] + distinct[at]))
    return -np.log(p)


def numbers(x: Any, n: int, k: int) -> Any:
    """The n characters before each from the n-th on, as one number."""
    key = np.zeros(len(x) - n, dtype=np.int64)
    for i in range(n):
        key = key * k + x[i : len(x) - n + i]
    return key


def found(known: Any, asked: Any) -> Any:
    """Where each number stands among known ones, -1 where it does not."""
    at = np.searchsorted(known, asked).clip(max=len(known) - 1)
    return np.where(known[at] == asked, at, -1)
