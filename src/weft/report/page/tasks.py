"""What is kept of tasks in sequence, by a run or by the methods of a study: numbers, heat maps, a curve for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.report.page import charts
from weft.report.page.charts import Series
from weft.report.page.markup import Cell, Markup, Names, Sections, el, formatter, is_number, num, table
from weft.report.tasks import MEASURES, SAID

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["run_tasks", "study_tasks"]

TASKS = 8  # curves by task


def _heat_map(
    caption: object,
    tasks: list[str],
    lines: list[tuple[str, Sequence[float | None]]],
    limits: tuple[float, float],
    write: Callable[[object], str],
    *,
    names: Names,
    file: str,
) -> Markup:
    """Scores after each task (lines, named) on each (columns), as a heat map that is a table.

    Args:
        caption: above it.
        tasks: the columns' names.
        lines: a name and a score for each task.
        limits: where the colours begin and end.
        write: a number as text.
        names: the page's identifiers.
        file: what its CSV is called.
    """
    low, high = limits
    rows = []
    for label, line in lines:
        cells = []
        for v in line:
            share = (v - low) / (high - low) if is_number(v) and high > low else 0.0
            kind = f"heat-{min(9, max(0, int(10 * share)))}" + ("" if is_number(v) else " ahead")
            cells.append(Cell(v, write(v), kind))
        rows.append([label, *cells])
    return table(caption, ["", *tasks], rows, names=names, file=file, sorts=False, kind="matrix")


def run_tasks(scores: Json | None, sections: Sections) -> list[Markup | None]:
    """What is kept of each task: the usual numbers, the scores after each task as a heat map, a curve for each."""
    if not scores:
        return []
    measure, names = str(scores["measure"]).replace("_", " "), scores["names"]
    lines = [(f"after {name}", line) for name, line in zip(names, scores["matrix"], strict=False)]
    if scores["before"]:
        lines.insert(0, ("before", scores["before"]))
    every = [v for _, line in lines for v in line if is_number(v)]
    if not every:
        return []
    shares = scores["measure"] in ("accuracy", "R2")  # an R2 below 0 is as bad as 0
    limits = (0.0, 1.0) if shares else (min(every), max(every))
    over = ", mean over replicas" if len(scores["replicas"]) > 1 else ""
    caption = (
        f"{measure.capitalize()} after each {scores['task']} (rows) on each (columns), {scores['part']} rows{over}."
    )
    made = _heat_map(caption, names, lines, limits, formatter(every), names=sections.names, file="tasks")
    said = "Deeper is more. Down a column is how a task is remembered once others have come."
    return [
        _run_kept(scores, measure, sections),
        made,
        el("p", said, class_="note"),
        *_by_task(scores, measure, sections),
    ]


def _run_kept(scores: Json, measure: str, sections: Sections) -> Markup | None:
    if not scores["measures"]:
        return None
    rows = []
    for name, part in scores["measures"].items():
        each = [v for v in part["replicas"] if is_number(v)]
        ends = [min(each, default=None), max(each, default=None)] if len(scores["replicas"]) > 1 else []
        rows.append([MEASURES[name].format(measure=measure), *[Cell(v, num(v)) for v in (part["value"], *ends)]])
    heads = ["measure", "value" if len(scores["replicas"]) == 1 else "mean", "least", "largest"]
    caption = f"What is kept of earlier tasks; {SAID}. A transfer above 0 is a gain."
    return table(caption, heads[: len(rows[0])], rows, names=sections.names, file="kept")


def _by_task(scores: Json, measure: str, sections: Sections) -> list[Markup | None]:
    """A curve for each task over the tasks learned; of many tasks, the first ones."""
    lines = [scores["before"] or [None] * len(scores["names"]), *scores["matrix"]]
    values = np.array([[v if is_number(v) else math.nan for v in line] for line in lines], dtype=float)
    shown = [j for j in range(len(scores["names"])) if np.isfinite(values[:, j]).any()][:TASKS]
    series = [Series(scores["names"][j], np.arange(len(values), dtype=float), values[:, j], number=j) for j in shown]
    told = []
    for s in series:
        good = s.y[np.isfinite(s.y)]
        told.append(f"{s.name} goes from {good[0]:.4g} to {good[-1]:.4g}")
    picture = charts.lines(
        series,
        title=f"{measure} on each {scores['task']} by the number learned",
        describe=f"{'; '.join(told)}.",
        names=sections.names,
        x_label=f"{scores['task']}s learned",
        y_label=measure,
    )
    legend = charts.legend([(s.name, s.number) for s in series])
    rest = len(scores["names"]) - len(series)
    note = el("p", f"The first {len(series)} tasks; {rest} more are in the table.", class_="note") if rest else None
    return [legend, el("div", el("figure", picture), class_="charts"), note]


def study_tasks(methods: list[Json], measure: Json, sections: Sections) -> list[Markup | None]:
    """What each method keeps: the usual numbers, and the score after each task on each."""
    out = []
    having = [m for m in methods if m.get("matrix")]
    every = [v for m in having for row in m["matrix"] for v in row if is_number(v)]
    if not every:
        return []
    for m in having:
        size = max(len(row) for row in m["matrix"])
        tasks = [str(t) for t in m.get("task_names") or []] or [str(i + 1) for i in range(size)]
        after = [f"after {tasks[i]}" if i < len(tasks) else f"after {i + 1}" for i in range(len(m["matrix"]))]
        caption = [el("strong", m["name"]), f": {measure.get('name')} after each task (rows) on each (columns)"]
        lines = list(zip(after, m["matrix"], strict=True))
        limits, file = (min(every), max(every)), f"matrix-{m['name']}"
        out.append(_heat_map(caption, tasks, lines, limits, formatter(every), names=sections.names, file=file))
    said = "Mean over seeds; deeper is more. Down a column is how a task is remembered once others have come."
    kept = _study_kept(having, measure, sections.names)
    return [sections.heading("What is kept"), kept, el("p", said, class_="note"), el("div", *out, class_="charts")]


def _study_kept(methods: list[Json], measure: Json, names: Names) -> Markup | None:
    """Each method's numbers of remembering and forgetting."""
    having = [m for m in methods if isinstance(m.get("continual"), dict)]
    keys = [key for key in MEASURES if any(key in m["continual"] for m in having)]
    if not keys:
        return None
    write = formatter([m["continual"].get(key) for m in having for key in keys])
    rows = [[str(m["name"]), *[Cell(v, write(v)) for v in (m["continual"].get(key) for key in keys)]] for m in having]
    heads = ["method", *[MEASURES[key].format(measure=measure.get("name")) for key in keys]]
    caption = f"What is kept of earlier tasks, from the mean over seeds; {SAID}. A transfer above 0 is a gain."
    return table(caption, heads, rows, names=names, file="kept")
