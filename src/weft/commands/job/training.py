"""Training on a table: in one go, task after task, or from where it was interrupted."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.commands.job.folder import own, remove
from weft.commands.job.plan import Job
from weft.commands.job.results import result_of
from weft.engine.checkpoint import kept
from weft.report import tasks as sequence
from weft.report.folder import keep_risk
from weft.tables.files import Columns
from weft.tables.recipe import Table

if TYPE_CHECKING:
    from weft.core.values import Json
    from weft.learner.estimator import Learner

__all__ = ["rehearse", "train"]


def rehearse(job: Job, columns: Columns) -> None:
    """Raises what `train` would raise before its first step; an old run is not given up for one that cannot begin."""
    table = job.data.recipe.apply(columns, quiet=True)
    learner = job.options.make_learner(job.data.recipe, table, None, verbose=False)
    if not learner.settings().objective.solved:  # raises for what is out of range
        learner.set_params(epochs=None, steps=0)
    learner.fit(table.given(), table.y, environment=table.environment)


def train(job: Job, columns: Columns, folder: Path, *, verbose: bool = False, resume: bool = False) -> Json:
    """Trains in a folder, or goes on with what was interrupted there; gives the result."""
    from weft.learner.loading import load

    table = job.data.recipe.apply(columns, quiet=True)
    rows = table.training
    environment = None if table.environment is None else table.environment[rows]
    y = None if table.y is None else table.y[rows]
    before = 0
    if resume and kept(folder):
        learner = load(folder, validation=table.held_out)
        learner.set_params(validation=table.held_out, verbose=verbose)
        before = learner.n_steps_
        if table.task is None:
            learner.resume(table.given(rows), y, environment=environment)
        else:
            _in_sequence(learner, table, job.data.recipe.task, folder)
    else:
        learner = job.options.make_learner(job.data.recipe, table, folder, verbose=verbose)
        if resume:  # it had not come to its first checkpoint
            remove(folder, [name for name in own(folder) if name != "recipe.json"])
        else:
            job.keep(folder)
        try:
            if table.task is None:
                learner.fit(table.given(rows), y, environment=environment)
            else:
                _in_sequence(learner, table, job.data.recipe.task, folder)
            if not kept(folder):
                learner.save(folder)  # solved in closed form, not trained
        except Exception:
            if not resume and not kept(folder):
                remove(folder, own(folder))
                with contextlib.suppress(OSError):  # what else is in it stays
                    folder.rmdir()
            raise
    result = {
        **result_of(job.data.recipe, learner, table),
        "run": str(folder),
        "resumed_at": before if resume else None,
    }
    if "risk" in result:
        keep_risk(result["risk"], folder)
    if table.task is not None:
        result["matrix"] = sequence.tasks(folder)
    return result


def _in_sequence(learner: Learner, table: Table, column: str | None, folder: Path) -> None:
    """Learns task after task, in the order of their first rows, and keeps the score on each after each.

    A learner that has begun goes on with the task it was at; what was measured before is in the folder.
    """
    from weft.measures.tasks import scored, task_scores, untrained

    task, rows = np.asarray(table.task), table.training
    order, first = np.unique(task[rows], return_index=True)
    names = [str(name) for name in order[np.argsort(first)]]
    part, seen = table.measured
    measure, more = scored(learner)
    about = {
        "task": column,
        "part": part,
        "measure": measure,
        "direction": "max" if more else "min",
        "names": names,
        "rows": [int((seen & (task == name)).sum()) for name in names],
    }
    y = None if table.y is None else table.y[seen]

    def lines(learner: Learner) -> NDArray[np.float64]:
        return np.atleast_2d(task_scores(learner, table.given(seen), y, task=task[seen], names=names))

    def of_task(name: str) -> Json:
        members = rows & (task == name)
        beside = {"y": table.y, "environment": table.environment}
        return {
            "X": table.given(members),
            **{key: None if values is None else values[members] for key, values in beside.items()},
        }

    classes = {}
    if table.y is not None and learner.settings().objective.targets == "classes":
        classes = {"classes": np.unique(table.y[rows])}
    begun = hasattr(learner, "training_")
    at = names.index(str(learner.training_.phase.task)) if begun else 0
    after = sequence.lines(sequence.tasks(folder), at) if begun else []
    before = None
    for i, name in enumerate(names[at:]):
        if begun and not i:
            learner.resume(**of_task(name))
        else:
            learner.partial_fit(**of_task(name), **classes, task=name)
        if not i:
            start = untrained(learner, **of_task(names[0]), **classes)
            before = None if start is None else lines(start)
        after.append(lines(learner))
        sequence.keep(sequence.assemble(about, before, after), folder)
