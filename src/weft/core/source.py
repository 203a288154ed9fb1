"""Source: where the next batch comes from, given the current state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.core.trees import tree_leaves, tree_map

if TYPE_CHECKING:
    from weft.core.objective import Objective
    from weft.core.state import State

__all__ = [
    "Batch",
    "Field",
    "Part",
    "Source",
    "SourceState",
    "Spec",
    "flatten_groups",
    "judged_rows",
    "number_rows",
    "rows_of",
]

Batch = dict[str, Any]
"""Tensors by name (`x`, `y`, `environment`, `weight`, `observation`, ...), rows on the leading axis;
`support` and `query` are batches themselves, with the episodes on their leading axis and rows on the next."""


PARTS = ("number", "boolean", "category", "count", "missing")
"""What a column of a table may be once it is read."""


@dataclass(frozen=True)
class Part:
    """Consecutive entries of a row that are one column of a table.

    Attributes:
        name: the column's.
        kind: `number` (standardized), `boolean` (0 or 1), `category` (its code 0..k-1 in one entry, or one entry for
            each), `count` (0, 1, 2, ...) or `missing` (1 where the column has a gap).
        width: how many entries it has.
        classes: how many categories there are.
    """

    name: str
    kind: str
    width: int = 1
    classes: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in PARTS or self.width < 1 or (self.kind == "category") != (self.classes is not None):
            raise ValueError(
                f"expected a column of one of the kinds {', '.join(PARTS)}, with classes for a category and for "
                f"nothing else, got {self!r}"
            )


@dataclass(frozen=True)
class Field:
    """One row's shape and dtype; `classes` where it holds class numbers, `columns` where it was read from a table.

    The columns are in the order of the row's entries and leave none out; of a plain array there are none. Where every
    entry is a class number of its own kind, `choices` says how many there are for each; `low` and `high` are the bounds
    of each entry, infinite where it has none, of numbers that are known to keep to them (actions, above all).
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    classes: int | None = None
    columns: tuple[Part, ...] = ()
    choices: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        size = math.prod(self.shape)
        if any(bounds and len(bounds) != size for bounds in (self.choices, self.low, self.high)):
            raise ValueError(f"expected choices, low and high with one number for each of {size} entries, got {self!r}")
        if len(self.low) != len(self.high) or any(a > b for a, b in zip(self.low, self.high, strict=True)):
            raise ValueError(f"expected low and high together, no low above its high, got {self.low} and {self.high}")
        if self.columns and (sum(part.width for part in self.columns),) != self.shape:
            raise ValueError(f"expected columns that fill a row of shape {self.shape}, got {self.columns}")


SourceState = dict[str, Any]
"""What a source keeps between batches: a tree of tensors."""
Spec = dict[str, Field]
"""What a row of a batch holds, by name; of an episode, what a row of its parts holds."""


class Source:
    """Gives batches. What it gives next depends on the state's seed and step, on the tree in `state.source`
    (and on the state's parameters, where the learner acts), so that it can go on from a saved state.

    Attributes:
        spec: names, shapes and dtypes of a row.
        grouped: whether groups (environments, episodes) are stacked on a leading axis. Ragged ones
            are padded by repeating real rows at weight 0.
        episodic: whether each group is an episode with a `support` and a `query` part.
        epoch: steps in one pass over the data, or None where there is no such thing.
        size: rows in the data, or None where there is no such thing.
        resumes: `exact`, or `restart` where the world outside has no state to save, or the tree is too large to be
            kept: then no checkpoint holds it, and after a resume it is as `init` gives it.
        stacks: whether `batches` itself serves a state of several replicas.
        acts: whether the rows are drawn by the actions of the objective that learns from them.
        adapts: whether, where it acts and gives episodes, the policy that plays a query is the one adapted to its
            support, by `state.adapt`.
        stale: whether, where it acts, rows may have been drawn by the objective as it was some updates ago.
        counts: whether, where it acts, it counts the steps that were played, by `played`.
        vocabulary: by field, what text became tokens by (`weft.core.vocabulary`), where it was text.
    """

    spec: Spec
    grouped: bool = False
    episodic: bool = False
    epoch: int | None = None
    size: int | None = None
    resumes: str = "exact"
    stacks: bool = False
    acts: bool = False
    adapts: bool = False
    stale: bool = False
    counts: bool = False
    vocabulary: Mapping[str, Any] = MappingProxyType({})

    def init(self, state: State) -> SourceState:
        """What the source keeps between batches: a tree (dictionaries) of tensors, kept in `state.source`.

        Asked whenever a training begins to read it (each task's anew). With replicas it is asked for each of them,
        unless it `stacks`: then the tree has them on its leading axis.
        """
        return {}

    def batches(self, state: State) -> Iterator[Batch]:
        """Batches without end; `state.step` and `state.source` are read anew for each.

        What is kept in `state.source` is changed or replaced before the batch is given, nowhere else is anything kept.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define batches(state)")

    def rounds(self, state: State) -> int:
        """How many batches the round has that begins here and asks nothing of the host on its way, so that it can be
        recorded as a whole; 0 where none begins."""
        return 0

    def round(self, state: State) -> tuple[Iterator[Batch], Callable[[], None]]:
        """The batches of the round that begins here, as `batches` gives them, and what raises, when all is done, what
        was strange in it. Whoever reads it moves `state.step`, or the clock, on between two."""
        raise NotImplementedError(f"{type(self).__name__} has no rounds")

    def report(self, state: State) -> dict[str, Tensor]:
        """Numbers that a record tells of the source, by name (of one that `stacks`, over the replicas)."""
        return {}

    def updates(self, env_steps: int, objective: Objective) -> int | None:
        """How many updates so many steps of its worlds allow; None where it does not act, or cannot tell."""
        return None

    def played(self, state: State) -> Tensor:
        """The steps of its worlds so far (of one that `stacks`, of each replica), where it `counts` them."""
        raise NotImplementedError(f"{type(self).__name__} does not count the steps that it plays")

    def recall(self, state: State, record: Mapping[str, Any]) -> None:
        """After an interruption, where it resumes by restart: counts go on from what the last record told of them."""

    def latest(self, state: State, batch: Batch) -> Iterator[Batch]:
        """The rows of which a record tells the objective's measures: of the batch that was just learned from, or of all
        that were collected with it."""
        yield batch

    def warns(self, state: State) -> str | None:
        """What whoever has trained on it should know at the end, such as that nothing was there to learn from."""
        return None

    def judge(self, state: State) -> dict[str, Tensor]:
        """What it tells of a trained objective beside the objective's own measures, where it is the validation: numbers
        by name (of one that `stacks`, over the replicas), such as the return of fresh episodes."""
        return {}

    def extent(self, field: str) -> tuple[float, float] | None:
        """The least and the largest value of a field among all rows, or None where that is not known."""
        return None

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        """One pass over the data in a fixed order, ungrouped, at most so many rows at a time.

        The default takes one batch as the data: right for sources that draw anew each time.
        """
        batch = next(self.batches(state))
        axis = 0 if state.replicas is None else 1
        yield tree_map(lambda t: t.flatten(axis, axis + 1), batch) if self.grouped else batch

    def contents(self) -> dict[str, Any]:
        """The tensors, arrays and settings that its rows come from, by name: `resume` compares their digests.

        The default is none: right for sources that draw their rows.
        """
        return {}


def rows_of(batch: Batch, axis: int = 0) -> int:
    """The number of rows (the length of `axis`), from any tensor of the batch."""
    value = next(iter(batch.values()))
    return rows_of(value, axis) if isinstance(value, dict) else value.shape[axis]


def number_rows(batch: Batch, dims: int) -> Batch:
    """Adds row numbers (the `row` field), which key the draws and travel with every slice.

    `dims` is the number of leading axes that index rows: 1, or 2 where groups are stacked. Of groups that are episodes
    the rows of each part are numbered; of rows that are, the episodes.
    """
    if dims == 2 and any(isinstance(value, dict) for value in batch.values()):
        return {name: number_rows(v, dims) if isinstance(v, dict) else v for name, v in batch.items()}
    if "row" in batch:
        return batch
    first = next(tree_leaves(batch))
    return {**batch, "row": _row_numbers(tuple(first.shape[:dims]), first.device)}


@lru_cache(maxsize=16)
def _row_numbers(shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.arange(math.prod(shape), device=device).reshape(shape)


def judged_rows(batch: Batch) -> Batch:
    """The rows of a numbered batch that losses are of: of groups that are episodes, those of the query part."""
    return batch["query"] if "query" in batch and "row" not in batch else batch


def flatten_groups(batch: Batch) -> Batch:
    """Puts stacked groups end to end: `(G, n, ...)` becomes `(G * n, ...)`."""
    return tree_map(lambda t: t.flatten(0, 1), batch)
