"""Few-shot episodes: tasks with a few rows to learn from and a few to be judged by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from weft.core.legal import Legal, Such, Whole, check
from weft.core.random import bits, fold, key_of, permutation
from weft.core.source import Batch, Field, Source
from weft.core.state import State
from weft.core.trees import tree_map
from weft.sources.arrays import CLASSES, numbered_by
from weft.sources.pools import ClassPool, Pool, Rows, TaskPool

__all__ = ["Episodes"]

Tasks = Callable[[Tensor, int], Batch]
Count = int | tuple[int, int]
Take = Callable[[Tensor], Batch]


def _draws(given: object) -> bool:
    return len(given) in (2, 3) if isinstance(given, tuple) else callable(given)


def _range(given: object) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and all(map(Whole(1).kind, given))


def _rises(given: object) -> bool:
    return isinstance(given, tuple) and all(map(Whole(1).fits, given)) and given[0] <= given[1]


_COUNT = Whole(1) | Such("a range such as (1, 5)", _range, _rises)


class Episodes(Source):
    """Draws tasks, and from each a `support` part (to adapt on) and a `query` part (to be judged by).

    A task may be a draw of some classes, which are numbered anew in random order (n ways, k shots): all of what is
    known of a class in an episode stands in its support part. No row of the support part is in the query part; where
    an episode is drawn out of classes the rows of each part are in random order.

    Where shots or queries are a range, each episode has a number of its own. Both parts then have as many rows as the
    largest and a field `weight`, 1 for those that count and 0 for the others, which repeat them.

    Args:
        draw: the tasks: a function from one key per task and a number of rows to a batch of shape
            `(tasks, rows, ...)`, such as `weft.data.sinusoids`; arrays `(X, y, task)`, from which each episode takes
            rows of one task, without replacement; or `(X, y)` with `ways`, from which it takes rows of some classes.
        tasks: tasks per step (the meta-batch); of a validation, how many episodes are measured, the same each time.
        shots: rows of the support part, of each class where there are `ways`; a range `(1, 5)` for a number of its own
            in each episode, and for as many as a task with few rows can spare.
        queries: rows of the query part, likewise; default: as many as shots, at most.
        ways: how many classes an episode has, where it is drawn out of `(X, y)`.
        classes: how many classes `y` numbers, for classification; or such numbers by field. With `ways` as many.

    References:
        Vinyals, Blundell, Lillicrap, Kavukcuoglu and Wierstra, "Matching networks for one shot
        learning", arXiv 1606.04080 (training by episodes).

    Example:
        >>> from weft.data import sinusoids
        >>> source = Episodes(sinusoids, tasks=25, shots=10)
        >>> source.spec["x"].shape, source.shots, source.queries
        ((1,), 10, 10)
        >>> digits = torch.rand(60, 64), torch.arange(60) % 10
        >>> Episodes(digits, ways=5, shots=1, queries=3).spec["y"].classes
        5
    """

    grouped = True
    episodic = True
    stacks = True
    legal: ClassVar[dict[str, Legal]] = {
        "draw": Such(
            "a function that draws tasks, such as weft.data.sinusoids, or arrays (X, y, task), or (X, y) with ways",
            _draws,
        ),
        "tasks": Whole(1),
        "shots": _COUNT,
        "queries": _COUNT | None,
        "ways": Whole(2) | None,
        "classes": CLASSES,
    }

    def __init__(
        self,
        draw: Tasks | tuple[Rows, Rows, Rows] | tuple[Rows, Rows],
        *,
        tasks: int = 25,
        shots: Count = 10,
        queries: Count | None = None,
        ways: int | None = None,
        classes: int | Mapping[str, int] | None = None,
    ) -> None:
        check(Episodes, locals())
        self.tasks, self.shots, self.ways = tasks, shots, ways
        self.queries: Count = _ends(shots)[1] if queries is None else queries
        self.draw: Tasks | Pool = _pool(draw, ways, classes, _ends(shots)[0] + _ends(self.queries)[0])
        if isinstance(self.draw, ClassPool):
            self.spec = self.draw.spec
        else:
            probe = self.draw(key_of(torch.zeros(1, dtype=torch.int64)), 2)
            numbered = numbered_by(classes, probe)
            self.spec = {name: Field(tuple(t.shape[2:]), t.dtype, numbered.get(name)) for name, t in probe.items()}

    @property
    def ragged(self) -> bool:
        """Whether some rows may be there to fill up: then the parts have weights."""
        return isinstance(self.shots, tuple) or isinstance(self.queries, tuple)

    def batches(self, state: State) -> Iterator[Batch]:
        """Episodes without end, new tasks at each step."""
        task = torch.arange(self.tasks, device=state.device)
        while True:
            keys = fold(state.key("episode").unsqueeze(-1), task)
            drawn = self._drawn(keys.reshape(-1))
            yield tree_map(lambda t: t.to(state.device).reshape(*keys.shape, *t.shape[1:]), drawn)  # noqa: B023

    def _drawn(self, keys: Tensor) -> Batch:
        """An episode for each key."""
        (_, most), (least, asked) = _ends(self.shots), _ends(self.queries)
        if isinstance(self.draw, Pool):
            order, have = self.draw.drawn(keys)
            take = self.draw.take
        else:
            whole = self.draw(keys, most + asked)
            order = torch.arange(most + asked, device=keys.device).expand(len(keys), 1, -1)
            have, take = torch.full_like(order[..., 0], most + asked), partial(_taken, whole)
        shots = torch.minimum(_counts(self.shots, fold(keys, "shots")), have - least)
        queries = torch.minimum(_counts(self.queries, fold(keys, "queries")), have - shots)
        return {
            "support": self._part(fold(keys, "support"), take, order, most, shots, torch.zeros_like(shots)),
            "query": self._part(fold(keys, "query"), take, order, asked, queries, shots),
        }

    def _part(self, keys: Tensor, take: Take, order: Tensor, rows: int, counts: Tensor, first: Tensor) -> Batch:
        """So many rows of each kind from the first on; those that count, then those again to fill up."""
        place = torch.arange(rows, device=keys.device)
        batch = take(order.gather(-1, first.unsqueeze(-1) + place % counts.unsqueeze(-1)))
        if self.ragged:
            real = (place < counts.unsqueeze(-1)).flatten(1).float()
            batch["weight"] = real if "weight" not in batch else real * batch["weight"]
        if self.ways is None:
            return batch
        mixed = permutation(fold(keys, "order"), rows * self.ways)  # else a row's place would tell its class
        return _taken(batch, mixed.unsqueeze(1))

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        """The rows of one step's episodes, of both parts: what is surveyed, and what may be refused."""
        axis = 0 if state.replicas is None else 1
        for batch in super().once(state, rows):
            yield {name: torch.cat([batch[part][name] for part in ("support", "query")], axis) for name in self.spec}

    def contents(self) -> Batch:
        """How many tasks and shots there are; and the rows and their tasks, where those come out of arrays."""
        told = [self.tasks, self.shots, self.queries, *([] if self.ways is None else [self.ways])]
        return {**(self.draw.contents() if isinstance(self.draw, Pool) else {}), "episodes": " ".join(map(str, told))}

    def extent(self, field: str) -> tuple[float, float] | None:
        """Of tasks out of arrays, the least and the largest value of a field."""
        return self.draw.extent(field) if isinstance(self.draw, Pool) else None

    def shared(self, other: Source) -> str:
        """What tells that another source draws of the same tasks or classes, in words; "" where nothing does."""
        pools = [source.draw if isinstance(source, Episodes) else None for source in (self, other)]
        return pools[0].shared(pools[1]) if isinstance(pools[0], Pool) and isinstance(pools[1], Pool) else ""


def _ends(count: Count) -> tuple[int, int]:
    """The least and the largest number."""
    return count if isinstance(count, tuple) else (count, count)


def _counts(count: Count, keys: Tensor) -> Tensor:
    """A number of rows for each episode, `(episodes, 1)`."""
    low, high = _ends(count)
    return (low + (bits(keys, ()) & (2**31 - 1)) % (high - low + 1)).unsqueeze(-1)


def _taken(batch: Batch, index: Tensor) -> Batch:
    """Of each episode the rows with some numbers, `(episodes, 1, rows)`."""
    episode = torch.arange(len(index)).unsqueeze(-1)
    return {name: t[episode.to(t.device), index[:, 0].to(t.device)] for name, t in batch.items()}


def _pool(draw: Tasks | tuple[Rows, ...], ways: int | None, classes: object, least: int) -> Tasks | Pool:
    """Where tasks come from, by what was given."""
    if not isinstance(draw, tuple):
        if ways is not None:
            raise ValueError(
                f"expected (X, y), rows and their classes, beside ways={ways}, got a function, which draws tasks as "
                "they are; leave ways out"
            )
        return draw
    if len(draw) == 3:
        if ways is not None:
            raise ValueError(
                f"expected (X, y), rows and their classes, beside ways={ways}, got (X, y, task), whose tasks are "
                "given; leave ways or task out"
            )
        return TaskPool(*draw, least=least)
    if ways is None:
        raise ValueError(
            "expected ways, how many classes an episode has, beside (X, y), got None; give ways=5, or (X, y, task) for "
            "tasks of your own"
        )
    if classes is not None:
        raise ValueError(
            f"expected classes=None beside ways={ways}, which is how many classes y numbers, got {classes!r}; leave it "
            "out"
        )
    return ClassPool(*draw, ways=ways, least=least)
