"""Policies that are given, not learned: a table, a function, or evenly drawn actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core.legal import Such

__all__ = ["POLICY", "Given", "probabilities_of"]

Given = Sequence[Sequence[float]] | NDArray[Any] | Tensor | Callable[[Tensor], Tensor] | None
"""Probabilities of the actions in each state, (S, A); a function from observations `(n, ...)` to `(n, A)`; None for
actions that are drawn evenly."""


def _kind(given: object) -> bool:
    return given is None or callable(given) or isinstance(given, list | tuple | np.ndarray | Tensor)


POLICY = Such(
    "a policy: a table of probabilities (states, actions), a function from observations to probabilities, or None for "
    "actions drawn evenly",
    _kind,
)


def probabilities_of(given: Given, observation: Tensor, actions: int, what: str) -> Tensor:
    """pi(a | s) for each row, (n, A), in the dtype of the observations.

    Args:
        given: the policy.
        observation: of a table, one-hot rows.
        actions: how many.
        what: how the messages call it.
    """
    rows = len(observation)
    if given is None:
        return torch.full((rows, actions), 1.0 / actions, dtype=observation.dtype, device=observation.device)
    if callable(given):
        told: Any = given(observation)
        found = torch.as_tensor(told, dtype=observation.dtype, device=observation.device)
        if found.shape != (rows, actions):
            raise ValueError(
                f"expected {what} to give a probability for each of {actions} actions, {(rows, actions)}, got "
                f"{tuple(found.shape)}"
            )
        return found
    table = torch.as_tensor(given, dtype=observation.dtype, device=observation.device)
    refuse_table(table, observation.shape[-1], actions, what)
    return observation @ table


def refuse_table(table: Tensor, states: int, actions: int, what: str) -> None:
    """Raises where a table is not one of probabilities for so many states."""
    if table.shape != (states, actions):
        raise ValueError(
            f"expected {what} as a table of {states} states and {actions} actions, got {tuple(table.shape)}"
        )
    sums = table.sum(-1)
    if bool((table < 0).any()) or not torch.allclose(sums, torch.ones_like(sums), atol=1e-5):
        raise ValueError(f"expected {what} to hold probabilities that sum to 1 in each state, got {table}")
