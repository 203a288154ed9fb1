"""Sinusoids of random amplitude and phase: the regression tasks of the MAML paper."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weft.core.random import fold, unit
from weft.core.source import Batch

__all__ = ["sinusoids"]


def sinusoids(keys: Tensor, rows: int) -> Batch:
    """One task per key: y = a sin(x - b), a in [.1, 5], b in [0, pi], x in [-5, 5], all uniform.

    Args:
        keys: one key per task, shape `(tasks,)`.
        rows: points per task.

    Returns:
        `x` and `y`, each `(tasks, rows, 1)`.

    References:
        Finn, Abbeel and Levine, arXiv 1703.03400, section 5.1.

    Example:
        >>> from weft.core.random import key_of
        >>> batch = sinusoids(key_of(torch.arange(3)), 10)
        >>> batch["x"].shape, bool(batch["y"].abs().max() <= 5)
        (torch.Size([3, 10, 1]), True)
    """
    amplitude = 0.1 + 4.9 * unit(fold(keys, "amplitude"), (1, 1))
    phase = math.pi * unit(fold(keys, "phase"), (1, 1))
    x = -5.0 + 10.0 * unit(fold(keys, "x"), (rows, 1))
    return {"x": x, "y": amplitude * torch.sin(x - phase)}
