"""Streams: what a loader reads, be it larger than memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler

from weft.core.legal import Choice, Legal, Several, Such, Whole, check
from weft.core.random import fold, integer, key_of
from weft.core.source import Batch, Field, Source, SourceState, rows_of
from weft.core.state import State
from weft.core.trees import tree_map
from weft.core.values import pack, unpack
from weft.sources.arrays import CLASSES, numbered_by
from weft.sources.drawn import seeded

__all__ = ["Stream"]

_WITHOUT_END = object()


@runtime_checkable
class Telling(Protocol):
    """A loader that tells where it is, and goes on from there at the next `iter`."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class Stream(Source):
    """Reads batches from a loader as they are needed: nothing but the batch at hand is in memory.

    What the loader draws from PyTorch's, NumPy's or Python's own generator (its shuffling, the data set's transforms)
    depends on the run's seed and the pass alone, so that each seed reads in an order of its own; what has a fixed order
    keeps it. Replicas read the loader once each.

    A pass has an end where the loader has a length. It resumes `exact` where the loader tells where it is, by
    `state_dict` and `load_state_dict` as torchdata's StatefulDataLoader does, and that is numbers, text, lists,
    dictionaries and tensors, which are kept with the run; or by reading again through the pass at hand, where it is a
    loader of a map-style data set in order or shuffled. Elsewhere nobody can know whether it gives the same again, and
    it resumes by `restart`: a resumed run begins a new pass, and says so. For files larger than memory see `Parquet`
    and `Shards`.

    Args:
        loader: a `DataLoader`; a data set, map-style (which is shuffled) or iterable (files, shards, a database); or
            whatever else can be iterated over again and again, giving batches. A batch is a tensor, several in a tuple
            or list, or some by name.
        fields: what the parts of a batch are called, where it is a tuple or list.
        batch_size: rows in a batch, where `loader` is a data set; default: 64.
        classes: how many classes `y` numbers; or such numbers by field.
        resumes: `exact` where you know that every pass can be repeated by setting the generators, or `restart`.

    Example:
        >>> from torch.utils.data import IterableDataset
        >>> from weft import Learner
        >>> from weft.objectives import Regression
        >>> class Shards(IterableDataset):
        ...     def __iter__(self):
        ...         for shard in range(4):  # each read from a file of its own, say
        ...             yield from zip(torch.randn(100, 3), torch.randn(100))
        >>> source = Stream(Shards(), batch_size=20)
        >>> source.epoch is None, source.resumes
        (True, 'restart')
        >>> Learner(Regression(hidden=(8,)), steps=30, random_state=0).fit(source).n_steps_
        30
    """

    legal: ClassVar[dict[str, Legal]] = {
        "loader": Such("a DataLoader, a data set, or what else gives batches again and again", lambda g: _read_on(g)),
        "fields": Several("names of fields such as ('x', 'y')", Such("a name", lambda n: isinstance(n, str)), least=1),
        "batch_size": Whole(1) | None,
        "classes": CLASSES,
        "resumes": Choice("exact", "restart") | None,
    }

    def __init__(
        self,
        loader: Iterable[Any] | Dataset[Any],
        *,
        fields: Sequence[str] = ("x", "y"),
        batch_size: int | None = None,
        classes: int | Mapping[str, int] | None = None,
        resumes: str | None = None,
    ) -> None:
        check(Stream, locals())
        if isinstance(loader, Iterator):
            raise TypeError(
                f"expected what can be iterated over again and again, got {type(loader).__name__}, which ends once; "
                "give the loader itself, or a class whose __iter__ begins anew"
            )
        if isinstance(loader, Dataset):
            shuffle = None if isinstance(loader, IterableDataset) else True
            loader = DataLoader(loader, batch_size=64 if batch_size is None else batch_size, shuffle=shuffle)
        elif batch_size is not None:
            raise ValueError(
                f"expected batch_size with a data set, got {batch_size} beside {type(loader).__name__}, which makes "
                "batches itself; leave it out"
            )
        if getattr(loader, "persistent_workers", False):
            raise ValueError(
                "expected a loader that can be read at several places at once, for replicas and looks in between, got "
                "persistent_workers=True, whose passes end each other; leave it out"
            )
        self.loader, self.fields = loader, tuple(fields)
        known = isinstance(loader, DataLoader) and _repeats(loader)
        try:
            self.epoch = len(loader)  # type: ignore[arg-type]
        except TypeError:
            self.epoch = None
        self.size = len(loader.sampler) if isinstance(loader, DataLoader) and known else None  # type: ignore[arg-type]
        self._follows = False
        self._reader: object = None  # of a loader that tells where it is, whose reading it is at
        first = next(self._pass(key_of(0)), None)
        if first is None:
            raise ValueError(f"expected at least one batch, got an empty {type(loader).__name__}")
        numbered = numbered_by(classes, first)
        self.spec = {name: Field(tuple(t.shape[1:]), t.dtype, numbered.get(name)) for name, t in first.items()}
        self._follows = resumes != "restart" and tells_where(loader)
        self.resumes = resumes or ("exact" if known or self._follows else "restart")

    def init(self, state: State) -> SourceState:
        """The step at which it began, the passes since, and the batches read of the last one; what the loader tells."""
        counts = {"begun": torch.tensor(state.step), "turn": torch.tensor(0), "read": torch.tensor(0)}
        return {**counts, "loader": packed({})} if self._follows else counts

    def batches(self, state: State) -> Iterator[Batch]:
        """Batches without end, pass after pass; in the midst of one it is read through to there."""
        begun, turn, skipped = (int(state.source[name]) for name in ("begun", "turn", "read"))
        while True:
            key = fold(key_of(state.seeds), "stream", begun, turn)
            read = 0
            if self._follows:
                kept = state.source["loader"] if skipped else packed({})
                readings, read = self._followed(key, kept, skipped), skipped
            else:
                readings = ((batch, {}) for batch in self._pass(key))
            for batch, told in readings:
                read += 1
                if read <= skipped:
                    continue
                self._refuse(batch, state.step)
                counts = {"begun": begun, "turn": turn, "read": read}
                now: SourceState = {name: torch.tensor(n) for name, n in counts.items()}
                now |= {"loader": told} if self._follows else {}
                state.source = tree_map(lambda t: t.to(state.device), now)
                yield tree_map(lambda t: t.to(state.device), batch)
            if read < max(1, skipped):
                raise ValueError(
                    f"expected a pass of at least {max(1, skipped)} batches, got {read}; "
                    + ("it is not the data that the run was begun with" if skipped else "a loader must begin anew")
                )
            turn, skipped = turn + 1, 0

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        """One pass, where it has an end; else one batch."""
        if self.epoch is None:
            yield from super().once(state, rows)
            return
        for batch in self._pass(fold(key_of(state.seeds), "stream once")):
            self._refuse(batch, state.step)
            for first in range(0, rows_of(batch), rows):
                yield {name: t[first : first + rows].to(state.device) for name, t in batch.items()}

    def contents(self) -> Batch:
        """How long a pass is: what is read is not known beforehand."""
        return {"stream": f"{self.epoch} {self.size}"}

    def _pass(self, key: Tensor) -> Iterator[Batch]:
        """One pass over the loader; what is drawn for each batch is drawn from the key."""
        if self._follows:
            yield from (batch for batch, _ in self._followed(key, packed({}), 0))
            return
        stream = self._begun(key)
        for i in count():
            given = _next(stream, key, i)
            if given is _WITHOUT_END:
                return
            yield self._named(given)

    def _begun(self, key: Tensor, where: Any = None) -> Iterator[Any]:
        """The loader's iterator, from its beginning or from where it told; what it draws is drawn from the key."""

        def begin(_: None) -> Iterator[Any]:
            for holder in (self.loader, getattr(self.loader, "sampler", None)):
                if isinstance(generator := getattr(holder, "generator", None), torch.Generator):
                    generator.manual_seed(integer(key))
            if where is not None:
                cast(Telling, self.loader).load_state_dict(where)
            return iter(self.loader)

        self._reader = None  # whoever was reading begins again from where he was
        (stream,) = seeded(begin, [None], [integer(key)])
        return cast(Iterator[Any], stream)

    def _followed(self, key: Tensor, before: SourceState, first: int) -> Iterator[tuple[Batch, SourceState]]:
        """One pass over a loader that tells where it is, from a batch on; each with what it told one batch before.

        That is loaded and read on by one batch: what a loader tells at the end of a pass may begin another one.
        Others (replicas, a look in between) may read meanwhile: the loader is then put back to where it was.

        Args:
            key: of the pass.
            before: what it told before the last batch that was read.
            first: the batches that were read.
        """
        mine, telling = object(), cast(Telling, self.loader)
        stream: Iterator[Any] = iter(())
        now = packed({})
        for i in count(first):
            if self._reader is not mine:
                stream = self._begun(key, unpacked(before) if i > 1 else None)
                if i and _next(stream, key, i - 1) is _WITHOUT_END:
                    raise ValueError(
                        f"expected a pass of at least {i} batches, got fewer from {type(self.loader).__name__} after "
                        "load_state_dict; it is not the data that the run was begun with"
                    )
                now = packed(telling.state_dict() if i else {})
                self._reader = mine
            given = _next(stream, key, i)
            if given is _WITHOUT_END:
                return
            before, now = now, packed(telling.state_dict())
            yield self._named(given), before

    def _named(self, given: Any) -> Batch:
        """A loader's batch as fields by name."""
        if isinstance(given, Mapping):
            parts = dict(given)
        else:
            listed = list(given) if isinstance(given, tuple | list) else [given]
            if len(listed) > len(self.fields):
                raise ValueError(
                    f"expected a batch of at most {len(self.fields)} parts, {self.fields}, got {len(listed)}; name "
                    "them by fields=(...)"
                )
            parts = dict(zip(self.fields, listed, strict=False))
        try:
            batch = {str(name): torch.as_tensor(value) for name, value in parts.items()}
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"expected a loader of tensors or arrays of numbers, got: {error}") from error
        lengths = {name: len(t) if t.dim() else 0 for name, t in batch.items()}
        if len(set(lengths.values())) != 1 or 0 in lengths.values():
            raise ValueError(f"expected batches with rows on the leading axis of every field, got {lengths} rows")
        return batch

    def _refuse(self, batch: Batch, step: int) -> None:
        """Raises where a batch is not as the first one was, or holds what is no number."""
        for name, field in self.spec.items():
            got = batch.get(name)
            if got is None or tuple(got.shape[1:]) != field.shape or got.dtype != field.dtype:
                found = "none" if got is None else f"{tuple(got.shape[1:])} of {got.dtype}"
                raise ValueError(
                    f"expected rows of {name!r} of shape {field.shape} and {field.dtype} as in the first batch, got "
                    f"{found} at step {step}"
                )
            if got.is_floating_point() and not bool(torch.isfinite(got).all()):
                raise ValueError(f"expected finite numbers, got others in {name!r} when rows were read at step {step}")


def _next(stream: Iterator[Any], key: Tensor, i: int) -> Any:
    """The i-th batch of a pass, with what it draws drawn from the key; or that there is none."""
    return seeded(lambda _: next(stream, _WITHOUT_END), [None], [integer(fold(key, i))])[0]


def tells_where(loader: object) -> bool:
    """Whether a loader tells where it is by what can be kept with a run."""
    if not isinstance(loader, Telling):
        return False
    try:
        packed(loader.state_dict())
    except TypeError:
        return False
    return True


def packed(told: object) -> SourceState:
    """What a loader tells as a tree of tensors: its numbers and texts as JSON's bytes, filled up to an even length."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(pack(told, tensors)).encode()
    data = bytearray(text.ljust(-(-len(text) // 1024) * 1024))
    return {"text": torch.frombuffer(data, dtype=torch.uint8), "tensors": tensors}


def unpacked(tree: SourceState) -> Any:
    """What was packed."""
    tensors = {name: t.cpu().clone() for name, t in tree["tensors"].items()}
    return unpack(json.loads(tree["text"].cpu().numpy().tobytes()), tensors)


def _read_on(given: object) -> bool:
    return isinstance(given, Iterable | Dataset) and not isinstance(given, str | bytes | Mapping | Tensor)


def _repeats(loader: DataLoader[Any]) -> bool:
    """Whether it is known to give the same again under the same seeds: rows by number, in order or shuffled."""
    orders = (SequentialSampler, RandomSampler)
    return (
        not isinstance(loader.dataset, IterableDataset)
        and type(loader.sampler) in orders
        and (loader.batch_sampler is None or type(loader.batch_sampler) is BatchSampler)
    )
