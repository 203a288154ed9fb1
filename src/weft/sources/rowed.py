"""Episodes as rows, for objectives that read the support and the query part themselves."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from weft.core.source import Batch, Source, SourceState, rows_of
from weft.core.state import State, aside
from weft.core.trees import tree_map

__all__ = ["Rowed"]


class Rowed(Source):
    """Gives another source's episodes as rows: each row has a `support` and a `query` part, and counts once.

    One pass over them is a batch of the other's, drawn aside: the same episodes at any step and for any seed, none of
    which is trained on.

    Args:
        source: of episodes.

    Example:
        >>> from weft.data import sinusoids
        >>> from weft.sources import Episodes
        >>> source = Rowed(Episodes(sinusoids, tasks=3))
        >>> source.grouped, source.episodic, source.spec["x"].shape
        (False, False, (1,))
    """

    def __init__(self, source: Source) -> None:
        self.source, self.spec = source, source.spec
        self.epoch, self.size, self.vocabulary = source.epoch, source.size, source.vocabulary
        self.resumes, self.stacks = source.resumes, source.stacks

    def init(self, state: State) -> SourceState:
        """What the other source keeps."""
        return self.source.init(state)

    def report(self, state: State) -> dict[str, Tensor]:
        """The other source's numbers."""
        return self.source.report(state)

    def batches(self, state: State) -> Iterator[Batch]:
        """The other source's episodes."""
        yield from self.source.batches(state)

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        """Episodes that are not learned from, so many at a time."""
        axis = 0 if state.replicas is None else 1
        batch = next(self.source.batches(aside(state, "validation")))
        count = rows_of(batch, axis)
        for first in range(0, count, rows):
            part = torch.arange(first, min(first + rows, count), device=state.device)
            yield tree_map(lambda t: t.index_select(axis, part.to(t.device)), batch)  # noqa: B023 (called at once)

    def contents(self) -> Batch:
        """What the other source's episodes come from."""
        return self.source.contents()

    def extent(self, field: str) -> tuple[float, float] | None:
        """The other source's."""
        return self.source.extent(field)
