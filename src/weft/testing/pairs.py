"""A small sample of a large cross in which every pair of choices still occurs together."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

__all__ = ["pairwise"]

Value = TypeVar("Value", bound=Hashable)


def pairwise(factors: Mapping[str, Sequence[Value]]) -> list[dict[str, Value]]:
    """Combinations that cover every pair of values of every two factors, chosen greedily.

    >>> cases = pairwise({"a": [0, 1, 2], "b": [0, 1], "c": [0, 1]})
    >>> len(cases) < 3 * 2 * 2, {(c["b"], c["c"]) for c in cases} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    (True, True)
    """
    names = list(factors)
    pairs = list(itertools.combinations(names, 2))
    open_pairs = {(a, x, b, y) for a, b in pairs for x in factors[a] for y in factors[b]}
    everything = [dict(zip(names, values, strict=True)) for values in itertools.product(*factors.values())]
    chosen = []
    held = [{(a, case[a], b, case[b]) for a, b in pairs} for case in everything]
    while open_pairs:
        best = max(range(len(everything)), key=lambda i: len(held[i] & open_pairs))
        chosen.append(everything[best])
        open_pairs -= held[best]
    return chosen
