"""A progress bar with the time remaining; silent unless asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np

from weft.engine.distributed import world
from weft.engine.engine import Engine
from weft.engine.loop import TOLD, Plan, Record, progress_of

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Bar", "pieces"]


def _progress(*, transient: bool = False) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[shown]}"),
        transient=transient,
    )


class _Done(Protocol):
    """Told how many more rows are done."""

    def __call__(self, rows: int) -> None: ...


@contextmanager
def pieces(what: str, rows: int, count: int, *, shown: bool) -> Iterator[_Done]:
    """A bar over rows done piece by piece, which goes when they are; none where there is one piece.

    Of several processes the first shows.

    Args:
        what: is done.
        rows: in all.
        count: of the pieces.
        shown: whether anything is to be shown.
    """
    if not shown or count < 2 or world()[0] > 0:
        yield lambda rows: None
        return
    with _progress(transient=True) as bar:
        task = bar.add_task(what, total=rows, shown="")
        yield lambda rows: bar.advance(task, rows)


def _beside(record: Record, name: str) -> list[str]:
    """What else is told of a policy that acts: the medians of what its objective measures, and the steps played.

    >>> _beside({"step": 8, "return": 21.5, "loss": 0.2, "entropy": 0.69, "lr": 0.1, "env_steps": 2048.0}, "return")
    ['2,048 env_steps', 'entropy 0.69']
    """
    if "env_steps" not in record:
        return []
    others = [n for n in record if n not in (*TOLD, name, "env_steps") and not n.endswith(("loss", "lr", "length"))]
    said = {n: np.asarray(record[n], dtype=float) for n in others if not n.startswith("valid_")}
    told = [f"{n} {float(np.nanmedian(v)):.3g}" for n, v in said.items() if not np.all(np.isnan(v))]
    return [f"{np.nanmax(record['env_steps']):,.0f} env_steps", *told[:4]]


class Bar:
    """Observes a training and shows how far it is, how long it will take and the progress measure."""

    def __init__(self, plan: Plan, engine: Engine, *, shown: bool) -> None:
        self.plan, self.engine, self.shown = plan, engine, shown
        self._rich: Progress | None = None

    def __enter__(self) -> Bar:
        if self.shown:
            self._rich = _progress()
            self._rich.start()
            name = type(self.engine.objective).__name__
            total = None if self.engine.objective.solved else self.plan.env_steps or self.plan.steps
            self._task = self._rich.add_task(f"{name}, {self.engine.strategy!r}", total=total, shown="")
        return self

    def update(self, record: Record) -> None:
        """Called with each record."""
        if self._rich is None:
            return
        try:
            name, value = progress_of(self.engine, record)
        except ValueError:  # an iteration of what is solved, whose solution is not told yet
            name, value = next(((n, v) for n, v in record.items() if n not in TOLD), ("epoch", record["epoch"]))
        shown = float(np.nanmedian(value)) if not np.all(np.isnan(value)) else float("nan")
        rising = self.engine.progress[1] == "max" and name.endswith(self.engine.progress[0])
        said = [f"{name} {-shown if rising else shown:.4g}", *_beside(record, name)]
        self._rich.update(self._task, completed=self._done(record), shown=", ".join(said))

    def _done(self, record: Record) -> float:
        """How many updates are made, or steps of worlds played."""
        if self.plan.env_steps is not None:
            return float(np.nanmax(record["env_steps"])) if "env_steps" in record else 0.0
        return self._rich.tasks[0].completed + (self.plan.every or 1) if self._rich is not None else 0.0

    def __exit__(self, *exc: object) -> None:
        if self._rich is not None:
            self._rich.stop()
