"""What a run on tasks in sequence keeps of them: `tasks.json`, the score on each task after each, and its picture.

The file is written whenever a task has ended, so that a run that is interrupted goes on with the lines it has.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["MEASURES", "SAID", "assemble", "draw", "keep", "lines", "literal", "tasks"]

Json = dict[str, Any]
MEASURES = {
    "average": "average {measure}",
    "forgetting_max": "forgetting (max)",
    "forgetting_learned": "forgetting (learned)",
    "backward_transfer": "backward transfer",
    "forward_transfer": "forward transfer",
}
SAID = "forgetting is the best score less the last (max), or the score when just learned less the last (learned)"
_NUMBERED = 12  # tasks whose scores are written into the heat map
_NAMED = 10  # curves with a name


def assemble(about: Json, before: Any, after: list[Any]) -> Json:
    """A run's tasks as plain values.

    Args:
        about: `task` (the column), `part`, `measure`, `direction`, and `names` and `rows` of the tasks.
        before: the scores before the first task, (replicas, tasks), or None where they are not known.
        after: such scores after each task that has ended; None for one whose scores are not known.

    Returns:
        These, with `before` and `matrix` as means over the replicas, each replica's own in `replicas`, and the
        `measures` where all tasks have ended, over those tasks that have rows to measure.
    """
    known = next((line for line in (before, *after) if line is not None), np.empty((1, len(about["names"]))))
    every = np.stack(
        [_filled(line, known.shape) for line in (before, *after)], axis=1
    )  # (replicas, 1 + tasks ended, tasks)
    middle = [_mean(column) for column in every.transpose(1, 2, 0)]
    found = {
        **about,
        "before": middle[0] if before is not None else None,
        "matrix": middle[1:],
        "replicas": [{"before": _plain(run[0]), "matrix": [_plain(line) for line in run[1:]]} for run in every],
    }
    return {**found, "measures": _measures(every, about) if len(after) == len(about["names"]) else {}}


def _filled(line: Any, shape: tuple[int, ...]) -> Any:
    return np.full(shape, math.nan) if line is None else np.asarray(line, dtype=float)


def _plain(values: Any) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in values]


def _mean(columns: Any) -> list[float | None]:
    """The mean over replicas of each task's score, without those that have none."""
    return _plain([column[np.isfinite(column)].mean() if np.isfinite(column).any() else math.nan for column in columns])


def _measures(every: Any, about: Json) -> Json:
    """The usual numbers, over the tasks that can be measured: the mean over replicas, and each one's."""
    from weft.measures import average_accuracy, backward_transfer, forgetting, forward_transfer

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
    return {name: {"value": _mean([each])[0], "replicas": _plain(each)} for name, each in values.items()}


# --- the files ----------------------------------------------------------------------------------------


def keep(found: Json, folder: Path) -> None:
    """Writes them to a run's folder as `tasks.json`; when the last task has ended, drawn as `tasks.png` too."""
    from weft.core.files import write_bytes, write_text

    if found["measures"]:
        import io

        from weft.report.curves import picture

        canvas = io.BytesIO()
        picture([], canvas, matrix=found)
        write_bytes(folder / "tasks.png", canvas.getvalue())
    write_text(folder / "tasks.json", json.dumps(found, indent=1, allow_nan=False) + "\n")


def tasks(folder: Path) -> Json | None:
    """A run's scores by task; None where it has no tasks, or none has ended."""
    path = folder / "tasks.json"
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
        names, size = found["names"], len(found["names"])
        runs = [found, *found["replicas"]]
        lines = [line for run in runs for line in (run["before"] or [None] * size, *run["matrix"])]
        if any(len(line) != size for line in lines) or any(len(run["matrix"]) > size for run in runs):
            raise ValueError("lines that do not fit the tasks")
        numbers = [*(value for line in lines for value in line), *(m["value"] for m in found["measures"].values())]
        sum(value or 0.0 for value in [*numbers, *found["rows"]])
        if len(found["rows"]) != size or not all(isinstance(name, str) for name in [*names, found["task"]]):
            raise ValueError("tasks without names or rows")
        if not {"part", "measure", "direction"} <= found.keys() or not set(found["measures"]) <= set(MEASURES):
            raise ValueError("parts are missing")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"expected scores by task in {path}, got a damaged or foreign file: {error!r}") from error
    return found


def lines(found: Json | None, count: int) -> list[Any]:
    """The scores after the first tasks, (replicas, tasks) each, as `assemble` takes them; None where unknown."""
    runs = [] if found is None else [run["matrix"] for run in found["replicas"]]
    known = min((len(run) for run in runs), default=0)
    made: list[Any] = [np.array([run[i] for run in runs], dtype=float) for i in range(min(known, count))]
    return made + [None] * (count - len(made))


# --- the picture --------------------------------------------------------------------------------------


def literal(text: str, most: int = 80) -> str:
    """Text in which matplotlib sees no formulas, on one line."""
    plain = "".join(c if c.isprintable() else "?" for c in text)
    return (plain if len(plain) <= most else f"{plain[: most - 3]}...").replace("$", r"\$")


def _limits(found: Json) -> tuple[float, float]:
    """The colours' ends: shares from 0 to 1; an R2 below 0 is as bad as 0."""
    if found["measure"] in ("accuracy", "R2"):
        return 0.0, 1.0
    every = [value for line in (found["before"] or [], *found["matrix"]) for value in line if value is not None]
    return (min(every), max(every)) if every else (0.0, 1.0)


def draw(heat: Any, curves: Any, found: Json) -> None:
    """The matrix as a heat map on one of the axes, and a curve for each task, over the tasks learned, on the other."""
    names, lines = found["names"], [*([found["before"]] if found["before"] else []), *found["matrix"]]
    first = 0 if found["before"] else 1
    values = np.array([[math.nan if v is None else v for v in line] for line in lines], dtype=float)
    values = values.reshape(len(lines), len(names))
    low, high = _limits(found)
    heat.imshow(values, cmap="Blues", vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    after = [*(["before"] if not first else []), *(f"after {name}" for name in names[: len(found["matrix"])])]
    every = max(1, -(-len(names) // 24))
    heat.set_xticks(range(0, len(names), every), [literal(n, 16) for n in names[::every]], rotation=45, ha="right")
    heat.set_yticks(range(0, len(after), every), [literal(n, 24) for n in after[::every]])
    heat.tick_params(length=0, labelsize=8)
    heat.spines[:].set_visible(False)
    if len(names) <= _NUMBERED:
        middle = (low + high) / 2
        for i, j in np.argwhere(np.isfinite(values)):
            dark = values[i, j] > middle + 0.1 * (high - low)
            text = f"{values[i, j]:.2f}" if abs(values[i, j]) < 100 else f"{values[i, j]:.2g}"
            heat.text(j, i, text, ha="center", va="center", fontsize=7, color="white" if dark else "0.2")
    measure = found["measure"].replace("_", " ")
    heat.set_title(literal(f"{measure} on each {found['task']}"), loc="left")
    _draw_curves(curves, found, values, first)
    curves.set_ylabel(literal(f"{measure}, {found['part']} rows"))


def _draw_curves(axes: Any, found: Json, values: Any, first: int) -> None:
    import matplotlib

    names = found["names"]
    colours = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, max(len(names), 2)))
    at = np.arange(first, first + len(values))
    for j, name in enumerate(names):
        learned = at >= j + 1
        axes.plot(at, values[:, j], color=colours[j], linewidth=1.0, linestyle=":")
        axes.plot(at[learned], values[learned, j], color=colours[j], marker="o", markersize=4, label=literal(name, 24))
    if found["measure"] in ("accuracy", "R2"):
        axes.set_ylim(-0.03, 1.03)
    every = max(1, -(-len(names) // 12))
    ticks = [t for t in range(first, len(names) + 1) if t % every == 0]
    axes.set_xticks(ticks, ["before" if t == 0 else literal(names[t - 1], 12) for t in ticks], rotation=45, ha="right")
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("each task as others come (dotted: not yet learned)", loc="left", fontsize=9)
    axes.set_xlabel(literal(f"{found['task']} learned last"))
    if 1 < len(names) <= _NAMED:
        axes.legend(frameon=False, fontsize=7)
