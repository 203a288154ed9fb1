"""What was recorded of an expert: read row by row, cut into its episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.core.configured import closest
from weft.core.random import fold, key_of, permutation
from weft.core.source import Field, Spec
from weft.sources.strange import outside

__all__ = ["held_out", "mean_return", "numbered_episodes", "read_recorded", "stretched"]

TOLD = ("observation", "action", "reward", "next_observation", "terminated", "truncated", "legal", "next_legal")


def read_recorded(given: Any, spec: Spec, world: str) -> tuple[dict[str, Tensor], Tensor | None]:
    """What was recorded as tensors by name, and where episodes end, where that is told."""
    named = dict(given) if isinstance(given, Mapping) else dict(zip(("observation", "action"), given, strict=True))
    for name in named:
        if name not in spec:
            raise closest(str(name), [name for name in TOLD if name in spec], "what demonstrations tell")
    for name in ("observation", "action"):
        if named.get(name) is None:
            raise ValueError(f"expected demonstrations with {name!r}, got {sorted(named)}")
    rows = {name: _column(name, values, spec[name], world) for name, values in named.items() if values is not None}
    counts = {name: len(values) for name, values in rows.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"expected demonstrations of one length, got {counts}")
    if not counts["action"]:
        raise ValueError("expected at least one demonstrated step, got none")
    ends = [rows[name] for name in ("terminated", "truncated") if name in rows]
    return rows, torch.stack(ends).any(0) if ends else None


def _column(name: str, values: Any, field: Field, world: str) -> Tensor:
    """One field of what was recorded."""
    try:
        column = values.detach().cpu() if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"expected demonstrations with {name!r} as numbers, a row for each step, got: {error}"
        ) from None
    if tuple(column.shape[1:]) != field.shape or not column.dim():
        raise ValueError(
            f"expected demonstrations whose {name!r} has shape {field.shape} at each step, as in {world}, got "
            f"{tuple(column.shape[1:])}; give what was seen and done in this world, a row for each step"
        )
    if column.is_floating_point() and not bool(column.isfinite().all()):
        at = (~column.isfinite()).nonzero()[0].tolist()
        raise ValueError(
            f"expected finite demonstrations, got {column[tuple(at)].item()} in {name!r}, row {at[0]}, entry {at[1:]}"
        )
    if not field.dtype.is_floating_point and not bool((column == column.to(field.dtype)).all()):
        raise ValueError(f"expected demonstrations with {name!r} in {field.dtype}, got other values in {column.dtype}")
    column = column.to(field.dtype)
    if name == "action":
        wrong, said = outside(field, column)
        if bool(wrong.any()):
            at = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"expected demonstrated actions in {world} to be {said}, got {column[tuple(at)].item():g} in row "
                f"{at[0]}"
            )
    return column


def numbered_episodes(ends: Tensor) -> Tensor:
    """The number of each step's episode."""
    return ends.cumsum(0) - ends.long()


def mean_return(rows: Mapping[str, Tensor], ends: Tensor | None) -> float | None:
    """The mean return of the episodes that have ended."""
    if ends is None or "reward" not in rows or not bool(ends.any()):
        return None
    count = int(ends.sum())
    sums = torch.zeros(count + 1, dtype=torch.float64).index_add_(0, numbered_episodes(ends), rows["reward"].double())
    return float(sums[:count].mean())


def stretched(rows: Mapping[str, Tensor], ends: Tensor | None, world: str) -> dict[str, Tensor]:
    """Steps as episodes side by side, `(episodes, time, ...)`, as long as the longest; the last is repeated."""
    if ends is None:
        raise ValueError(
            f"expected demonstrations in {world} that tell where episodes end, by 'terminated' or 'truncated', for "
            "trajectories=True, got neither"
        )
    number = numbered_episodes(ends)
    lengths = torch.bincount(number)
    time = torch.arange(int(lengths.max()))
    real = time < lengths.unsqueeze(-1)
    index = (lengths.cumsum(0) - lengths).unsqueeze(-1) + time.minimum(lengths.unsqueeze(-1) - 1)
    found = {name: values[index] for name, values in rows.items()}
    for name in ("reward", "terminated", "truncated"):
        if name in found:
            found[name] = found[name] * real
    return {**found, "mask": real.to(torch.float32)}


def held_out(groups: Tensor, share: float, seed: int) -> Tensor:
    """Which rows are held out: whole episodes."""
    count = int(groups.max()) + 1
    if count < 2:
        raise ValueError("expected at least two episodes to hold one out, got one; demonstrate more, or holdout=0")
    chosen = permutation(fold(key_of(seed), "holdout"), count)[: min(max(1, round(share * count)), count - 1)]
    return torch.isin(groups, chosen)
