"""Two sources side by side, whose rows have nothing to do with each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from weft.core.legal import Legal, Such, Whole, check
from weft.core.random import fold, key_of
from weft.core.source import Batch, Source, SourceState, rows_of
from weft.core.state import State
from weft.engine.replicas import View, called

__all__ = ["Unpaired"]


def _two_names(given: object) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and all(isinstance(n, str) and n.isidentifier() for n in given)


_ROWS = Such("a source such as Arrays(x)", lambda given: isinstance(given, Source))


class Unpaired(Source):
    """Gives rows of two sources in one batch, each side shuffled for itself: photographs and paintings, say.

    A row of a batch is a row of each, which do not belong together; their fields are `a_x`, `a_y`, ... and `b_x`, ...
    Each side goes through passes of its own: the shorter one begins anew while the longer one goes on, and neither
    leaves a row out. A pass is one over the longer side.

    Args:
        a, b: the sources, of any lengths.
        batch_size: rows of each in a batch.
        names: what the fields' names begin with.

    References:
        Zhu, Park, Isola and Efros, "Unpaired image-to-image translation using cycle-consistent adversarial networks",
        arXiv 1703.10593.

    Example:
        >>> from weft.core import Objective, Output
        >>> from weft.sources import Arrays
        >>> class Shift(Objective):
        ...     fields = ("a_x", "b_x")
        ...     def build(self, spec):
        ...         self.by = torch.nn.Parameter(torch.zeros(spec["a_x"].shape))
        ...     def forward(self, batch):
        ...         return Output((batch["a_x"] + self.by - batch["b_x"]).square().sum(-1))
        >>> from weft import Learner, Optimizer
        >>> source = Unpaired(Arrays(torch.randn(50, 2)), Arrays(torch.randn(80, 2) + 3), batch_size=10)
        >>> learner = Learner(Shift(), epochs=20, optimizer=Optimizer("sgd", lr=0.05), random_state=0).fit(source)
        >>> source.epoch, learner.objective_.by.mean().round().item()
        (8, 3.0)
    """

    legal: ClassVar[dict[str, Legal]] = {
        "a": _ROWS,
        "b": _ROWS,
        "batch_size": Whole(1),
        "names": Such(
            "two names such as ('photo', 'painting')",
            _two_names,
            lambda given: len(set(given)) == 2,  # type: ignore[call-overload]
        ),
    }

    def __init__(self, a: Source, b: Source, *, batch_size: int = 64, names: tuple[str, str] = ("a", "b")) -> None:
        check(Unpaired, locals())
        self.batch_size = batch_size
        self.sides = dict(zip(names, (a, b), strict=True))
        for name, side in self.sides.items():
            kind = "groups" if side.grouped else "actions of the objective" if side.acts else ""
            if kind:
                raise ValueError(
                    f"expected a source of plain rows for {name!r}, got {called(side)}, which gives {kind}"
                )
            if "weight" in side.spec:
                raise ValueError(
                    f"expected no weights in {name!r}, got {called(side)} with the field 'weight': a row of a batch is "
                    "one of both sides, and has one weight; leave it out"
                )
        self.spec = {f"{name}_{n}": field for name, side in self.sides.items() for n, field in side.spec.items()}
        if len(self.spec) < len(a.spec) + len(b.spec):
            raise ValueError(f"expected names that keep the fields of both apart, got {names}; choose others")
        self.resumes = "exact" if a.resumes == b.resumes == "exact" else "restart"
        if a.size is not None and b.size is not None:
            self.size = max(a.size, b.size)
            self.epoch = -(-self.size // batch_size)

    def init(self, state: State) -> SourceState:
        """Of each side what it keeps itself, how many of its batches were read, and rows of the last not yet given."""
        return {
            name: {"kept": side.init(_own(state, name, 0)), "read": torch.tensor(0), "rest": _nothing(side)}
            for name, side in self.sides.items()
        }

    def report(self, state: State) -> dict[str, Tensor]:
        """Both sources' numbers."""
        found = {}
        for name, side in self.sides.items():
            kept = state.source[name]
            own = replace(_own(state, name, int(kept["read"])), source=kept["kept"])
            found.update({f"{name}_{n}": value for n, value in side.report(own).items()})
        return found

    def batches(self, state: State) -> Iterator[Batch]:
        """Batches without end."""
        readers = {name: _Reader(side, state, name) for name, side in self.sides.items()}
        while True:
            batch = {name: reader.take(self.batch_size) for name, reader in readers.items()}
            yield {f"{name}_{n}": value for name, rows in batch.items() for n, value in rows.items()}

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        """The longer side's rows in their own order, the shorter one's over and over beside them."""
        if self.size is None:
            yield from super().once(state, rows)
            return
        streams = {name: self._over_and_over(name, state, rows) for name in self.sides}
        rest = {name: _nothing(side) for name, side in self.sides.items()}
        for first in range(0, self.size, rows):
            batch = {}
            for name, stream in streams.items():
                given, rest[name] = _filled(rest[name], min(rows, self.size - first), stream)
                batch.update({f"{name}_{n}": value for n, value in given.items()})
            yield batch

    def _over_and_over(self, name: str, state: State, rows: int) -> Iterator[Batch]:
        while True:
            kept = state.source[name]["kept"]
            yield from self.sides[name].once(replace(_own(state, name, 0), source=kept), rows)

    def extent(self, field: str) -> tuple[float, float] | None:
        """That of the side whose field it is."""
        inner = {f"{name}_{n}": (side, n) for name, side in self.sides.items() for n in side.spec}
        side, own = inner[field]
        return side.extent(own)

    def contents(self) -> Batch:
        """What both sources' rows come from."""
        return {f"{name}_{n}": value for name, side in self.sides.items() for n, value in side.contents().items()}


def _own(state: State, name: str, read: int) -> State:
    """The state by a side's own clock, and with draws of its own: sides of one length are not shuffled alike."""
    state = state.replica(0)  # a view of one run, as it is by now
    return replace(
        state, seeds=fold(key_of(state.seeds), "unpaired", name), step=state.origin + read, source={}, _roots={}
    )


def _nothing(side: Source) -> Batch:
    """No rows of a source."""
    return {name: torch.zeros(0, *field.shape, dtype=field.dtype) for name, field in side.spec.items()}


def _filled(rest: Batch, rows: int, stream: Iterator[Batch]) -> tuple[Batch, Batch]:
    """The next so many rows, the rest of an earlier batch first; and what is left of the last one read."""
    while rows_of(rest) < rows:
        batch = next(stream)
        if other := sorted(batch.keys() ^ rest.keys()):
            raise ValueError(f"expected batches with the fields of the spec, {sorted(rest)}, got a difference: {other}")
        rest = {name: torch.cat([value.to(batch[name].device), batch[name]]) for name, value in rest.items()}
    return {n: value[:rows] for n, value in rest.items()}, {n: value[rows:].clone() for n, value in rest.items()}


class _Reader:
    """Reads one side, by its own clock."""

    def __init__(self, side: Source, state: State, name: str) -> None:
        self.state, self.name, self.read = state, name, 0
        self.view = View(lambda: _own(state, name, self.read), {})
        self.stream = self._counted(side.batches(self.view))  # type: ignore[arg-type]

    def _counted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self.read += 1
            yield batch

    def take(self, rows: int) -> Batch:
        """The next so many rows."""
        own = self.state.source[self.name]
        self.view.source, self.read = own["kept"], int(own["read"])
        self.view.progress = self.state.progress
        given, rest = _filled(own["rest"], rows, self.stream)
        read = torch.tensor(self.read, device=own["read"].device)
        kept = {"kept": self.view.source, "read": read, "rest": rest}
        self.state.source = {**self.state.source, self.name: kept}
        return given
