"""Few-shot episodes: tasks with a few rows to learn from and a few to be judged by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from weft.core.legal import Legal, Such, Whole, check
from weft.core.random import bits, fold, key_of
from weft.core.source import Batch, Field, Source
from weft.core.state import State
from weft.core.trees import tree_map
from weft.sources.arrays import CLASSES, numbered_by

__all__ = ["Episodes"]

Tasks = Callable[[Tensor, int], Batch]
Rows = ArrayLike | Tensor


def _draws(given: object) -> bool:
    return len(given) == 3 if isinstance(given, tuple) else callable(given)


class Episodes(Source):
    """Draws tasks, and from each a `support` part (to adapt on) and a `query` part (to be judged by).

    Args:
        draw: the tasks: a function from one key per task and a number of rows to a batch of shape
            `(tasks, rows, ...)`, such as `weft.data.sinusoids`; or arrays `(X, y, task)`, from which
            each episode takes rows of one task, without replacement.
        tasks: tasks per step (the meta-batch).
        shots: rows of the support part.
        queries: rows of the query part; default: as many as shots.
        classes: how many classes `y` numbers, for classification; or such numbers by field.

    References:
        Vinyals, Blundell, Lillicrap, Kavukcuoglu and Wierstra, "Matching networks for one shot
        learning", arXiv 1606.04080 (training by episodes).

    Example:
        >>> from weft.data import sinusoids
        >>> source = Episodes(sinusoids, tasks=25, shots=10)
        >>> source.spec["x"].shape, source.shots, source.queries
        ((1,), 10, 10)
    """

    grouped = True
    episodic = True
    stacks = True
    legal: ClassVar[dict[str, Legal]] = {
        "draw": Such("a function that draws tasks, such as weft.data.sinusoids, or arrays (X, y, task)", _draws),
        "tasks": Whole(1),
        "shots": Whole(1),
        "queries": Whole(1) | None,
        "classes": CLASSES,
    }

    def __init__(
        self,
        draw: Tasks | tuple[Rows, Rows, Rows],
        *,
        tasks: int = 25,
        shots: int = 10,
        queries: int | None = None,
        classes: int | Mapping[str, int] | None = None,
    ) -> None:
        check(Episodes, locals())
        self.tasks, self.shots, self.queries = tasks, shots, shots if queries is None else queries
        self.draw: Tasks = _Pool(*draw, rows=self.shots + self.queries) if isinstance(draw, tuple) else draw
        probe = self.draw(key_of(torch.zeros(1, dtype=torch.int64)), 2)
        numbered = numbered_by(classes, probe)
        self.spec = {name: Field(tuple(t.shape[2:]), t.dtype, numbered.get(name)) for name, t in probe.items()}

    def batches(self, state: State) -> Iterator[Batch]:
        """Episodes without end, new tasks at each step."""
        task = torch.arange(self.tasks, device=state.device)
        while True:
            keys = fold(state.key("episode").unsqueeze(-1), task)
            drawn = self.draw(keys.reshape(-1), self.shots + self.queries)
            shape = keys.shape
            whole = tree_map(lambda t: t.to(state.device).reshape(*shape, *t.shape[1:]), drawn)  # noqa: B023
            axis = len(shape)
            parts = (("support", slice(0, self.shots)), ("query", slice(self.shots, None)))
            yield {
                name: tree_map(lambda t: t[(slice(None),) * axis + (window,)], whole)  # noqa: B023
                for name, window in parts
            }

    def once(self, state: State, rows: int) -> Iterator[Batch]:
        """The rows of one step's episodes, of both parts: what is surveyed, and what may be refused."""
        axis = 0 if state.replicas is None else 1
        for batch in super().once(state, rows):
            yield {name: torch.cat([batch[part][name] for part in ("support", "query")], axis) for name in self.spec}

    def contents(self) -> Batch:
        """How many tasks and shots there are; and the rows and their tasks, where those come out of arrays."""
        pool, numbers = self.draw, {"episodes": f"{self.tasks} {self.shots} {self.queries}"}
        return {"x": pool.x, "y": pool.y, "task": pool.members, **numbers} if isinstance(pool, _Pool) else numbers

    def extent(self, field: str) -> tuple[float, float] | None:
        """Of tasks out of arrays, the least and the largest value of a field."""
        if not isinstance(self.draw, _Pool):
            return None
        low, high = getattr(self.draw, field).aminmax()
        return low.item(), high.item()


class _Pool:
    """Tasks out of arrays: a key chooses a task, then rows of it without replacement."""

    def __init__(self, x: Rows, y: Rows, task: Rows, *, rows: int) -> None:
        names, codes = np.unique(np.asarray(task), return_inverse=True)
        self.x = torch.as_tensor(np.asarray(x)) if not isinstance(x, Tensor) else x
        self.y = torch.as_tensor(np.asarray(y)) if not isinstance(y, Tensor) else y
        if self.x.dtype == torch.float64:
            self.x = self.x.float()
        if self.y.dtype == torch.float64:
            self.y = self.y.float()
        if not len(self.x) == len(self.y) == len(codes):
            raise ValueError(
                f"expected X, y and task of one length, got {len(self.x)}, {len(self.y)} and {len(codes)} rows"
            )
        sizes = np.bincount(codes)
        if sizes.min() < rows:
            small = names[int(sizes.argmin())]
            raise ValueError(
                f"expected at least {rows} rows (shots + queries) in every task, got {sizes.min()} in {small!r}; "
                "lower shots or queries, or leave that task out"
            )
        order = np.argsort(codes, kind="stable")
        starts = np.cumsum(sizes) - sizes
        within = np.minimum(np.arange(sizes.max())[None, :], sizes[:, None] - 1)
        self.members = torch.as_tensor(order[starts[:, None] + within])
        self.sizes = torch.as_tensor(sizes)

    def __call__(self, keys: Tensor, rows: int) -> Batch:
        device = keys.device
        members, sizes = self.members.to(device), self.sizes.to(device)
        chosen = (bits(fold(keys, "task"), ()) & (2**31 - 1)) % len(sizes)
        words = bits(fold(keys, "rows"), (members.shape[1],))
        real = torch.arange(members.shape[1], device=device) < sizes[chosen][:, None]
        order = torch.argsort(torch.where(real, words, torch.iinfo(torch.int64).max), dim=-1)[:, :rows]
        index = members[chosen].gather(-1, order)
        return {"x": self.x.to(device)[index], "y": self.y.to(device)[index]}
