"""A memory of earlier tasks' rows: a uniform sample of all that were seen, of bounded size."""

from __future__ import annotations

import torch

from weft.core import random
from weft.core.legal import Whole
from weft.core.objective import Objective
from weft.core.source import Batch, rows_of
from weft.core.strategy import Local, Strategy, StrategyState
from weft.core.trees import Params, tree_cat, tree_map

__all__ = ["Remembering"]


class Remembering(Strategy):
    """A strategy that keeps `size` rows of the tasks that have ended, each row seen with the same probability.

    A reservoir: every row is given a random number of its own, and those with the `size` least ones are kept. That
    has the distribution of the reservoir filled row by row, takes whole batches at once, and does not depend on how
    the rows are cut into batches. Rows go in when a task ends, in evaluation order, one pass.

    Args:
        size: rows to keep.
        rows: rows drawn from them for each batch, without replacement.

    References:
        Vitter, "Random sampling with a reservoir", ACM Transactions on Mathematical Software 11, 1985.
    """

    legal = {"size": Whole(1), "rows": Whole(1)}

    def __init__(self, *, size: int = 1000, rows: int = 64) -> None:
        self.size = size
        self.rows = rows

    def refuses(self, objective: Objective) -> str | None:
        if objective.on_policy:
            return (
                "a policy's gradient is an average over its own trajectories, and those remembered are an earlier "
                "policy's"
            )
        if objective.credits:
            return (
                "a row's credit is of the policy and the critic that played it, A = q - v of that policy, and those "
                "remembered were played by an earlier one"
            )
        return super().refuses(objective)

    def init(self, params: Params) -> StrategyState:
        """`memory`, empty until a task has ended: `rows` by field with their `weight`, and of each row its `task` (a
        number) and its place in the `order` in which rows are kept."""
        return {"memory": {}}

    def consolidate(self, local: Local, state: StrategyState, task: str) -> StrategyState:
        memory, dtype = state["memory"], next(iter(local.params.values())).dtype
        seen = 0
        for batch in local.batches():
            seen += rows_of(batch)
            row = batch["row"]
            fields = {name: value for name, value in batch.items() if name != "row"}
            new: StrategyState = {
                "rows": {"weight": torch.ones_like(row, dtype=dtype), **fields},
                "order": random.uniform(row.shape, place="order", rows=row, dtype=torch.float64),
                "task": torch.full_like(row, _code(task)),
            }
            both = _joined(memory, new, task) if memory else new
            kept = both["order"].argsort()[: self.size]
            memory = tree_map(lambda t: t[kept], both)  # noqa: B023 (used before the next turn)
        if not seen:
            raise ValueError(f"expected the task {task!r} to have examples to consolidate, got none")
        return {"memory": memory}

    def release(self, state: StrategyState, task: str) -> StrategyState:
        """The task's own rows count nothing from now on, and make room first."""
        memory = state["memory"]
        if not memory:
            return state
        gone = memory["task"] == _code(task)
        rows = {**memory["rows"], "weight": memory["rows"]["weight"].masked_fill(gone, 0.0)}
        return {"memory": {**memory, "rows": rows, "order": memory["order"].masked_fill(gone, 1.0)}}

    def drawn(self, state: StrategyState) -> Batch | None:
        """Rows of the memory at this step, or None while it is empty; numbered below zero, apart from the batch's."""
        if not state["memory"]:
            return None
        rows = state["memory"]["rows"]
        size = rows_of(rows)
        count = min(size, self.rows)
        chosen = random.uniform((size,), place="memory").argsort()[:count]
        return {
            **tree_map(lambda t: t[chosen], rows),
            "row": -1 - torch.arange(count, device=chosen.device),
        }


def _code(task: str) -> int:
    """A task's number, by its name."""
    return random.integer(random.fold(random.key_of(0), task))


def _joined(memory: StrategyState, new: StrategyState, task: str) -> StrategyState:
    """Two sets of rows as one."""
    old, kinds = (tree_map(lambda t: tuple(t.shape[1:]), part["rows"]) for part in (memory, new))  # type: ignore[arg-type,return-value]
    if kinds != old:
        raise ValueError(f"expected rows of the task {task!r} like those of earlier tasks, {old}, got {kinds}")
    rows = tree_cat([memory["rows"], new["rows"]])
    return {"rows": rows, **{name: torch.cat([memory[name], new[name]]) for name in ("order", "task")}}
