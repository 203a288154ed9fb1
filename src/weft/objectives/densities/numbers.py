"""Columns of real numbers: what a density needs that has no other law for a column."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.source import Field
from weft.objectives.densities.laws import laws_of

__all__ = ["moments", "numbers_of"]


def numbers_of(field: Field, model: str) -> tuple[str, ...]:
    """The names of a row's entries, all of them real numbers; raises where one is a category, a count or a truth."""
    laws = laws_of(field, "auto")
    odd = [j for j, law in enumerate(laws.laws) if not law.continuous]
    if odd:
        told = ", ".join(f"{laws.names[j]} ({field.columns[j].kind})" for j in odd[:5])
        raise ValueError(
            f"expected columns of real numbers for {model}, got {told}{', ...' if len(odd) > 5 else ''}; leave them "
            "out, or make counts real by dequantizing: X + rng.random(X.shape)"
        )
    return laws.names


def moments(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Mean `(d,)` and covariance `(d, d)` of rows, with one degree of freedom for the mean; weights count rows."""
    n = weight.sum()
    if not bool(n > 1):
        raise ValueError(
            f"expected weights that sum to more than 1, as numbers of rows do, got {float(n):g}; scale the weights"
        )
    mean = weight @ x / n
    away = x - mean
    return mean, (weight[:, None] * away).T @ away / torch.clamp_min(n - 1, torch.finfo(x.dtype).tiny)
