"""What a run on tasks in sequence keeps of them: `tasks.json`, the score on each task after each, and its picture.

The file is written whenever a task has ended, so that a run that is interrupted goes on with the lines it has.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.core import manifest
from weft.core.files import write_bytes, write_text
from weft.report.picture import picture

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["MEASURES", "SAID", "assemble", "keep", "lines", "tasks"]

Scores = NDArray[np.float64]
MEASURES = {
    "average": "average {measure}",
    "forgetting_max": "forgetting (max)",
    "forgetting_learned": "forgetting (learned)",
    "backward_transfer": "backward transfer",
    "forward_transfer": "forward transfer",
}
SAID = "forgetting is the best score less the last (max), or the score when just learned less the last (learned)"


def assemble(about: Json, before: Scores | None, after: Sequence[Scores | None]) -> Json:
    """A run's tasks as plain values.

    Args:
        about: `task` (the column), `part`, `measure`, `direction`, and `names` and `rows` of the tasks.
        before: the scores before the first task, (replicas, tasks), or None where they are not known.
        after: such scores after each task that has ended; None for one whose scores are not known.

    Returns:
        These, with `before` and `matrix` as means over the replicas, each replica's own in `replicas`, and the
        `measures` where all tasks have ended, over those tasks that have rows to measure.
    """
    from weft.core.values import jsonable

    known = next((line for line in (before, *after) if line is not None), np.empty((1, len(about["names"]))))
    every = np.stack(
        [_filled(line, known.shape) for line in (before, *after)], axis=1
    )  # (replicas, 1 + tasks ended, tasks)
    middle = [[_mean(column) for column in line] for line in every.transpose(1, 2, 0)]
    scores = {
        **about,
        "before": middle[0] if before is not None else None,
        "matrix": middle[1:],
        "replicas": [{"before": jsonable(run[0]), "matrix": jsonable(run[1:])} for run in every],
    }
    return {**scores, "measures": _measures(every, about) if len(after) == len(about["names"]) else {}}


def _filled(line: ArrayLike | None, shape: tuple[int, ...]) -> Scores:
    return np.full(shape, math.nan) if line is None else np.asarray(line, dtype=float)


def _mean(column: Scores) -> float | None:
    """The mean over replicas, without those that have no score."""
    good = column[np.isfinite(column)]
    return float(good.mean()) if len(good) else None


def _measures(every: Scores, about: Json) -> Json:
    """The usual numbers, over the tasks that can be measured: the mean over replicas, and each one's."""
    from weft.core.values import jsonable
    from weft.scores import average_accuracy, backward_transfer, forgetting, forward_transfer

    some = np.flatnonzero([rows > 0 for rows in about["rows"]])
    if not len(some):
        return {}
    before, matrix = every[:, 0, some], every[:, 1:][:, some][:, :, some]
    more = about["direction"] == "max"
    values = {
        "average": average_accuracy(matrix),
        "forgetting_max": forgetting(matrix, more=more),
        "forgetting_learned": forgetting(matrix, kind="learned", more=more),
        "backward_transfer": backward_transfer(matrix, more=more),
        "forward_transfer": forward_transfer(matrix, before, more=more),
    }
    return {name: {"value": _mean(np.asarray(each)), "replicas": jsonable(each)} for name, each in values.items()}


# --- the files ----------------------------------------------------------------------------------------


def keep(scores: Json, folder: Path) -> None:
    """Writes them to a run's folder as `tasks.json`; when the last task has ended, drawn as `tasks.png` too."""
    if scores["measures"]:
        canvas = io.BytesIO()
        picture([], canvas, matrix=scores)
        write_bytes(folder / "tasks.png", canvas.getvalue())
    write_text(folder / "tasks.json", manifest.sealed_beside(folder, scores))


def tasks(folder: Path) -> Json | None:
    """A run's scores by task; None where it has no tasks, or none has ended."""
    path = folder / "tasks.json"
    if not path.exists():
        return None
    try:
        scores: Json = manifest.unsealed_beside(path)
        names, size = scores["names"], len(scores["names"])
        runs = [scores, *scores["replicas"]]
        lines = [line for run in runs for line in (run["before"] or [None] * size, *run["matrix"])]
        if any(len(line) != size for line in lines) or any(len(run["matrix"]) > size for run in runs):
            raise ValueError("lines that do not fit the tasks")
        numbers = [*(value for line in lines for value in line), *(m["value"] for m in scores["measures"].values())]
        sum(value or 0.0 for value in [*numbers, *scores["rows"]])
        if len(scores["rows"]) != size or not all(isinstance(name, str) for name in [*names, scores["task"]]):
            raise ValueError("tasks without names or rows")
        if not {"part", "measure", "direction"} <= scores.keys() or not set(scores["measures"]) <= set(MEASURES):
            raise ValueError("parts are missing")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"expected scores by task in {path}, got a damaged or foreign file: {error!r}") from error
    return scores


def lines(scores: Json | None, count: int) -> list[Scores | None]:
    """The scores after the first tasks, (replicas, tasks) each, as `assemble` takes them; None where unknown."""
    runs = [] if scores is None else [run["matrix"] for run in scores["replicas"]]
    known = min((len(run) for run in runs), default=0)
    made = [np.array([run[i] for run in runs], dtype=float) for i in range(min(known, count))]
    return [*made, *[None] * (count - len(made))]
