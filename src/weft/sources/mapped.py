"""Any source with a function of its rows in between: augmentation, masking, noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any, ClassVar

import torch
from torch import Tensor

from weft.core.legal import Legal, Such, check
from weft.core.objective import Objective
from weft.core.random import fold, key_of, keyed
from weft.core.source import Batch, Field, Source, SourceState, Spec, number_rows, rows_of
from weft.core.state import State
from weft.core.trees import tree_map, tree_stack
from weft.sources.drawn import ambient_draws, seeded, seeds_of

__all__ = ["Mapped", "batchwise"]


class batchwise:
    """Marks a function as one of a whole batch; its draws are those of `weft.core.random`, keyed by row.

    Args:
        function: from a batch to a batch.
        changes: whether it makes rows of another kind (bits of intensities), without which nothing can be asked: then
            rows that are looked at apart from training are made too, by a draw that stays the same for a seed.
        refuse: raises where the first field has values that it cannot take. Rows that a source holds are looked at
            once, others as they come.

    Example:
        >>> from weft.core.random import normal
        >>> @batchwise
        ... def noisy(batch):
        ...     return {**batch, "x": batch["x"] + 0.1 * normal(batch["x"].shape, place="noise")}
        >>> noisy.function.__name__
        'noisy'
    """

    def __init__(
        self,
        function: Callable[[Batch], Batch],
        *,
        changes: bool = False,
        refuse: Callable[[Tensor], None] | None = None,
    ) -> None:
        self.function, self.changes, self.refuse = function, changes, refuse

    def __call__(self, batch: Batch) -> Batch:
        return self.function(batch)


class Mapped(Source):
    """Gives another source's batches with a function applied to each row, drawn anew at each step.

    The function is given one row of the first field (`x`) and returns it changed, as torchvision's transforms of
    tensors do; what it draws from PyTorch's, NumPy's or Python's own generator depends on the run's seed, the step and
    the row alone. One that is marked `batchwise` is given the whole batch, all fields by name, and draws by
    `weft.core.random`, which is faster. Either way replica k is the single run with seed k, and a resumed run the
    uninterrupted one.

    Rows that are looked at apart from training (a validation, what a strategy keeps of a task) are not mapped, unless
    the function makes other fields or rows of another kind, which are then needed there too.

    Args:
        source: the other source.
        function: what is done to a row, or (`batchwise`) to a batch.
        spec: what a row holds afterwards, where that is not what it held before.

    Example:
        >>> from weft import Learner
        >>> from weft.objectives import Regression
        >>> from weft.sources import Arrays
        >>> x, y = torch.randn(40, 3), torch.randn(40)
        >>> source = Mapped(Arrays(x, y, batch_size=8), lambda row: row + 0.1 * torch.randn(3))
        >>> Learner(Regression(), epochs=2, random_state=0).fit(source).n_steps_
        10
    """

    legal: ClassVar[dict[str, Legal]] = {
        "source": Such("a source such as Arrays(x, y)", lambda given: isinstance(given, Source)),
        "function": Such("a function of a row, or one of a batch that is marked @batchwise", callable),
        "spec": Such("fields by name", lambda given: isinstance(given, dict), lambda given: _fields(given)) | None,
    }

    def __init__(self, source: Source, function: Callable[..., Any], *, spec: Spec | None = None) -> None:
        check(Mapped, locals())
        self.source, self.function = source, function
        self.grouped, self.episodic = source.grouped, source.episodic
        self.epoch, self.size, self.vocabulary = source.epoch, source.size, source.vocabulary
        self.resumes, self.stacks = source.resumes, source.stacks
        self.acts, self.adapts, self.stale = source.acts, source.adapts, source.stale
        self.spec = source.spec if spec is None else spec
        self.changes = spec is not None or (isinstance(function, batchwise) and function.changes)
        self.field = next(iter(source.spec))
        self.depth: int = source.depth + 1 if isinstance(source, Mapped) else 0  # each map draws for itself
        self._refuse_values = function.refuse if isinstance(function, batchwise) else None
        held = source.contents().get(self.field) if self._refuse_values and not self.depth else None
        if self._refuse_values is not None and isinstance(held, Tensor):
            self._refuse_values(held)
            self._refuse_values = None

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

    def warns(self, state: State) -> str | None:
        """The other source's."""
        return self.source.warns(state)

    def updates(self, env_steps: int, objective: Objective) -> int | None:
        """The other source's."""
        return self.source.updates(env_steps, objective)

    def contents(self) -> Batch:
        """What the other source's rows come from, and the function's name."""
        return {**self.source.contents(), f"map {self.depth}": self._name()}

    def batches(self, state: State) -> Iterator[Batch]:
        """The other source's batches, mapped."""
        for batch in self.source.batches(state):
            yield self._mapped(batch, state.key("mapped", self.depth), 2 if self.grouped else 1)

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        """The other source's one pass, as it is; mapped where the map makes other fields."""
        key, first = fold(key_of(state.seeds), "mapped once", self.depth), 0
        for batch in self.source.once(state, rows):
            yield self._mapped(batch, key, 1, first) if self.changes else batch
            first += rows_of(batch, key.dim())

    def _mapped(self, batch: Batch, key: Tensor, dims: int, first: int = 0) -> Batch:
        """A batch by its key, or one of stacked replicas by their keys.

        Args:
            batch: with rows on so many leading axes as `dims` says, after the replicas'.
            key: one, or one for each replica.
            dims: 1, or 2 where groups are stacked.
            first: the number of the first row.
        """
        if key.dim():
            each = [tree_map(itemgetter(k), batch) for k in range(len(key))]
            return tree_stack([self._mapped(one, own, dims, first) for one, own in zip(each, key, strict=True)])
        if any(isinstance(part, dict) for part in batch.values()):
            return {name: self._mapped(part, fold(key, name), dims, first) for name, part in batch.items()}
        rows = batch["row"] if "row" in batch else number_rows(batch, dims)["row"] + first
        # Copies: what the function does in place is not done to the source's own rows.
        flat = tree_map(lambda t: t.flatten(0, dims - 1).clone(), batch)
        if self._refuse_values is not None:
            self._refuse_values(flat[self.field])
        make = self._together if isinstance(self.function, batchwise) else self._each
        after = make(flat, key, rows.flatten())
        self._refuse(flat, after)
        return {name: value.unflatten(0, rows.shape) for name, value in after.items()}

    def _together(self, batch: Batch, key: Tensor, rows: Tensor) -> Batch:
        """All rows at once."""
        with ambient_draws(rows.device) as drawn, keyed(key, rows):
            after: Batch = self.function(batch)
            if drawn():
                raise ValueError(
                    f"expected {self._name()}, which is batchwise, to draw by weft.core.random, whose draws are keyed "
                    "by row, got draws of PyTorch's, NumPy's or Python's own generator; draw by uniform or normal of "
                    "weft.core.random, or give a function of one row, not marked batchwise"
                )
        return after

    def _each(self, batch: Batch, key: Tensor, rows: Tensor) -> Batch:
        """Every row by itself, on the CPU, whose generators can be set."""
        values = batch[self.field]
        try:
            made = seeded(self.function, values.cpu().unbind(), seeds_of(fold(key, rows)))
        except (TypeError, ValueError, RuntimeError, LookupError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(
                f"expected {self._name()} to take a row of {self.field!r}, a tensor of shape "
                f"{tuple(values.shape[1:])}, got: {error}; what mixes rows or labels, as MixUp does, is given the "
                "whole batch: mark it @batchwise"
            ) from error
        for after in made:
            if not isinstance(after, Tensor):
                raise TypeError(
                    f"expected {self._name()} to make a tensor of a row of {self.field!r}, got "
                    f"{type(after).__name__}; a function of a whole batch is marked @batchwise"
                )
        if len(shapes := {tuple(after.shape) for after in made}) > 1:
            raise ValueError(f"expected {self._name()} to make rows of one shape, got {sorted(shapes)}")
        return {**batch, self.field: torch.stack(made).to(values.device)}

    def _refuse(self, before: Batch, after: object) -> None:
        """Raises where what was made is not as the spec says, or has lost what the engine needs (weights)."""
        rows = rows_of(before)
        if not isinstance(after, dict):
            raise TypeError(f"expected {self._name()} to give a batch, got {type(after).__name__}")
        for name, field in self.spec.items():
            got = after.get(name)
            if not isinstance(got, Tensor) or got.shape != (rows, *field.shape) or got.dtype != field.dtype:
                found = f"{tuple(got.shape)} of {got.dtype}" if isinstance(got, Tensor) else repr(got)
                raise ValueError(
                    f"expected {self._name()} to give {name!r} of shape {(rows, *field.shape)} and {field.dtype}, got "
                    f"{found}; give Mapped the spec where it makes other rows"
                )
        lost = [name for name in before if name not in after and name not in self.source.spec]
        if lost:
            raise ValueError(f"expected {self._name()} to pass {lost[0]!r} on, got {sorted(after)}; {{**batch, ...}}")
        odd = [name for name, value in after.items() if not isinstance(value, Tensor) or value.shape[:1] != (rows,)]
        if odd:
            raise ValueError(f"expected {self._name()} to give {rows} rows of every field, got others of {odd[0]!r}")

    def _name(self) -> str:
        function = self.function.function if isinstance(self.function, batchwise) else self.function
        return getattr(function, "__name__", type(function).__name__)


def _fields(given: object) -> bool:
    return isinstance(given, dict) and all(isinstance(field, Field) for field in given.values())
