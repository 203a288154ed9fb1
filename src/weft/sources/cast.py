"""Any source in another floating-point precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from weft.core.objective import Objective
from weft.core.source import Batch, Source, SourceState
from weft.core.state import State
from weft.core.trees import tree_map

__all__ = ["Cast"]


class Cast(Source):
    """Gives another source's batches with their floating-point fields in one dtype.

    Args:
        source: the other source.
        dtype: what its floating-point fields become; the others stay as they are.

    Example:
        >>> from weft.data import sinusoids
        >>> from weft.sources import Episodes
        >>> Cast(Episodes(sinusoids), torch.float64).spec["x"].dtype
        torch.float64
    """

    def __init__(self, source: Source, dtype: torch.dtype) -> None:
        self.source, self.dtype = source, dtype
        self.grouped, self.episodic = source.grouped, source.episodic
        self.epoch, self.size, self.vocabulary = source.epoch, source.size, source.vocabulary
        self.resumes, self.stacks = source.resumes, source.stacks
        self.acts, self.adapts, self.stale = source.acts, source.adapts, source.stale
        self.counts = source.counts
        self.spec = {
            name: replace(field, dtype=dtype) if field.dtype.is_floating_point else field
            for name, field in source.spec.items()
        }

    def _cast(self, value: Tensor) -> Tensor:
        return value.to(self.dtype) if value.is_floating_point() else value

    def init(self, state: State) -> SourceState:
        """What the other source keeps."""
        return self.source.init(state)

    def report(self, state: State) -> dict[str, Tensor]:
        """The other source's numbers."""
        return self.source.report(state)

    def judge(self, state: State) -> dict[str, Tensor]:
        """The other source's."""
        return self.source.judge(state)

    def played(self, state: State) -> Tensor:
        """The other source's."""
        return self.source.played(state)

    def recall(self, state: State, record: Mapping[str, Any]) -> None:
        """The other source recalls it."""
        self.source.recall(state, record)

    def latest(self, state: State, batch: Batch) -> Iterator[Batch]:
        """The other source's."""
        for part in self.source.latest(state, batch):
            yield part if part is batch else tree_map(self._cast, part)

    def warns(self, state: State) -> str | None:
        """The other source's."""
        return self.source.warns(state)

    def updates(self, env_steps: int, objective: Objective) -> int | None:
        """The other source's."""
        return self.source.updates(env_steps, objective)

    def batches(self, state: State) -> Iterator[Batch]:
        """The other source's batches."""
        for batch in self.source.batches(state):
            yield tree_map(self._cast, batch)

    def rounds(self, state: State) -> int:
        """The other source's."""
        return self.source.rounds(state)

    def round(self, state: State) -> tuple[Iterator[Batch], Callable[[], None]]:
        """The other source's batches."""
        batches, check = self.source.round(state)
        return (tree_map(self._cast, batch) for batch in batches), check

    def extent(self, field: str) -> tuple[float, float] | None:
        """The other source's, rounded as its values are."""
        found = self.source.extent(field)
        if found is None or not self.spec[field].dtype.is_floating_point:
            return found
        low, high = torch.tensor(found, dtype=torch.float64).to(self.dtype).tolist()
        return low, high

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        """The other source's one pass."""
        for batch in self.source.once(state, rows):
            yield tree_map(self._cast, batch)

    def contents(self) -> Batch:
        """What the other source's rows come from."""
        return self.source.contents()
