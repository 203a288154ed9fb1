"""What all measures of two samples share: how samples are read, distances between their rows, and a test's answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from weft.core.legal import Whole

__all__ = ["Samples", "TwoSample", "between", "blocks", "pair", "seeded"]

Samples = ArrayLike | Tensor
"""Rows: an array, a tensor, a DataFrame of numbers."""
MEMORY = 2**29  # bytes that a pass may hold at once
_FEW = 32  # columns up to which differences are taken one by one, exactly


@dataclass(frozen=True)
class TwoSample:
    """What a two-sample test answers; `float(answer)` is its statistic.

    Attributes:
        name: of the measure.
        value: the statistic.
        p_value: of the hypothesis that both samples have one law; None where none was asked for.
        about: the variant and its settings, in words.
    """

    name: str
    value: float
    p_value: float | None
    about: str

    def __float__(self) -> float:
        return self.value


def pair(X: Samples, Y: Samples, *, least: int = 2, device: torch.device | str | None = None) -> tuple[Tensor, Tensor]:
    """Both samples as float64 matrices on one device, with the same columns.

    A vector is a column of single numbers; rows of any other shape, such as images, are laid flat. In float32, where
    the device has no float64.

    Args:
        X, Y: the samples.
        least: the rows that each must have.
        device: where to compute; by default where X is.
    """
    where = torch.device(device) if device is not None else X.device if isinstance(X, Tensor) else torch.device("cpu")
    left, right = _rows(X, "X", where), _rows(Y, "Y", where)
    if left.shape[1:] != right.shape[1:]:
        raise ValueError(
            f"expected X and Y with rows of the same shape, got {_shape(left)} and {_shape(right)}; "
            f"give the same columns of both, in the same order"
        )
    for name, sample in (("X", left), ("Y", right)):
        if len(sample) < least:
            raise ValueError(f"expected at least {least} rows in {name}, got {len(sample)}; draw more of them")
    return left.flatten(1), right.flatten(1)


def _rows(values: Samples, name: str, device: torch.device) -> Tensor:
    if isinstance(values, Tensor):
        given = values.detach()
    else:
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise TypeError(
                f"expected numbers in {name}, got values of type {array.dtype}; turn categories into columns of 0 and 1"
            )
        given = torch.tensor(array.astype(np.float64))
    if given.is_complex():
        raise TypeError(f"expected real numbers in {name}, got {given.dtype}; give both parts as columns")
    if not given.dim() or not given.numel():
        raise ValueError(f"expected rows of numbers in {name}, got shape {tuple(given.shape)}")
    rows = given.to(device, torch.float32 if device.type == "mps" else torch.float64)
    bad = int((~torch.isfinite(rows)).reshape(len(rows), -1).any(1).sum())
    if bad:
        raise ValueError(
            f"expected finite numbers in {name}, got NaN or infinity in {bad} of {len(rows)} rows; "
            f"leave them out or fill them, and say which"
        )
    return rows[:, None] if rows.dim() == 1 else rows


def _shape(rows: Tensor) -> str:
    return f"({', '.join(map(str, ('n', *rows.shape[1:])))})"


def seeded(random_state: object) -> int:
    """A seed that is one."""
    Whole(0, 2**63 - 1).check(random_state, "random_state", 0)
    return int(random_state)  # type: ignore[call-overload]


def between(A: Tensor, B: Tensor) -> Tensor:
    """Squared distances of all rows of A from all rows of B; those of equal rows are 0.

    With few columns differences are taken one by one. With many, as |a|^2 + |b|^2 - 2ab, where what is below
    rounding counts as 0: then subtract the mean from both beforehand.
    """
    if A.shape[1] <= _FEW:
        return torch.cdist(A, B, compute_mode="donot_use_mm_for_euclid_dist").square_()
    sizes = A.square().sum(1)[:, None] + B.square().sum(1)
    squared = torch.addmm(sizes, A, B.T, alpha=-2.0)
    return squared.masked_fill_(squared < 1e3 * torch.finfo(A.dtype).eps * sizes, 0.0)


def blocks(rows: int, columns: int, *, copies: int = 4) -> Iterator[tuple[int, int]]:
    """Beginnings and ends of row blocks, so that so many matrices of block by columns fit the memory."""
    step = max(1, MEMORY // (8 * copies * max(columns, 1)))
    yield from ((start, min(start + step, rows)) for start in range(0, rows, step))
