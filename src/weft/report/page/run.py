"""A run's part of the page: how it went, what it can draw, and what it was asked for."""

from __future__ import annotations

import base64
import io
import json
import math
import shlex
import time
from pathlib import Path
from typing import Any

import numpy as np

from weft.report.curves import Curve, about, curves, records, risk
from weft.report.page import charts
from weft.report.page.charts import Axis, Dot, Series
from weft.report.page.curves import curve_section
from weft.report.page.markup import (
    Cell,
    Markup,
    Sections,
    details,
    el,
    formatter,
    is_number,
    num,
    pairs,
    seconds,
    table,
)
from weft.report.page.study import again, heat_map
from weft.report.tasks import MEASURES, SAID, tasks

__all__ = ["commanded", "run", "run_curves", "run_state", "run_title"]

Array = np.ndarray[Any, Any]
Json = dict[str, Any]
RECENT = 30.0  # seconds since its last record, after which a run that has not ended is taken for interrupted
SAMPLES = 400  # rows drawn for a scatter
IMAGES = 24
TASKS = 8  # curves by task
_PARTS = {"training": 0, "validation": 1}


def described(value: Any) -> str:
    """A parameter of `config.json` as a person would write it.

    >>> described({"$method": "strategies/and-mask", "params": {"threshold": 0.8}})
    'and-mask(threshold=0.8)'
    """
    if isinstance(value, list):
        return f"[{', '.join(map(described, value))}]"
    if not isinstance(value, dict):
        return str(value)
    if "$given" in value:
        return f"{value['$given']} (given)"
    if "$float" in value:
        return str(value["$float"])
    if "$tuple" in value:
        return f"({', '.join(map(described, value['$tuple']))})"
    if "$weave" in value:
        return " + ".join(map(described, value["$weave"]))
    params = value.get("params", value.get("$optimizer", value)) or {}
    name = str(value["$method"]).rpartition("/")[2] if "$method" in value else ""
    said = ", ".join(f"{k}={described(v)}" for k, v in params.items() if v is not None)
    return f"{name}({said})" if name and said else name or f"{{{said}}}"


def run_title(folder: Path) -> tuple[str, str]:
    """What a run is called, and what it is in a line."""
    told = about(folder)
    params = (told.get("config") or {}).get("params") or {}
    options = (told.get("recipe") or {}).get("options") or {}
    data = (told.get("recipe") or {}).get("data") or {}
    objective = described(params["objective"]) if params.get("objective") else options.get("objective")
    said = [
        Path(str(data["path"])).name if data.get("path") else None,
        f"target {options['target']}" if options.get("target") else None,
        objective,
        f"by {described(params.get('strategy') or options.get('strategy') or 'erm')}",
        f"{described(params['replicas'])} replicas" if is_number(params.get("replicas")) else None,
    ]
    return folder.resolve().name, " · ".join(str(part) for part in said if part)


def run_state(folder: Path) -> str:
    """`done`, `running`, or `interrupted`: as far as files can tell."""
    try:
        tree = json.loads((folder / "state.json").read_text())["tree"]
        phase = tree["fitted"]["_phase"]["runs"]
        if all(isinstance(part, dict) and part.get("done") for part in phase):
            return "done"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    files = [p for name in ("metrics.jsonl", "state.json", "recipe.json") if (p := folder / name).exists()]
    last = max((p.stat().st_mtime for p in files), default=0.0)
    return "running" if time.time() - last < RECENT else "interrupted"


def run(folder: Path, sections: Sections, *, draw: bool = True, data: bool = True) -> None:
    """Adds the sections of a run.

    Args:
        folder: the run's.
        sections: where they go.
        draw: whether to load it and draw samples, where it can.
        data: whether the file that it was trained on may be read for that.
    """
    told, found = about(folder), records(folder)
    lines = curves(found)
    names = sections.names
    sections.add("How it went", *_went(folder, found, lines), _last(lines, sections))
    sections.add("Learning curves", *run_curves(found, lines, sections))
    sections.add("By environment", *_places(risk(folder), sections))
    sections.add("By task", *_tasks(tasks(folder), sections))
    for title, parts in (drawn(folder, sections, data=data) if draw else {}).items():
        sections.add(title, *parts)
    params = (told.get("config") or {}).get("params") or {}
    options = (told.get("recipe") or {}).get("options") or {}
    asked = {**options, **{k: described(v) for k, v in params.items() if v is not None}}
    sections.add(
        "What was asked for",
        pairs([(k, el("code", v)) for k, v in asked.items() if v not in (None, "", [])]),
        _columns(told, sections),
    )
    versions = {"weft": (told.get("config") or told.get("recipe") or {}).get("weft")}
    sections.add("Run it again", *again({"command": commanded(folder, told), **versions}, names))


def commanded(folder: Path, told: Json) -> str:
    """The command that makes this run, or the Python that reads it."""
    recipe = told.get("recipe") or {}
    options, data = recipe.get("options"), recipe.get("data")
    if not isinstance(options, dict) or not isinstance(data, dict):
        return f"import weft\nlearner = weft.load({str(folder)!r})"
    said = ["weft", "fit", str(data.get("path"))]
    for name, value in options.items():
        if value in (None, "", []):
            continue
        for each in value if isinstance(value, list) else [value]:
            said += [f"--{name.replace('_', '-')}", str(each)]
    return shlex.join(said)


def _went(folder: Path, found: list[Json], lines: list[Curve]) -> list[Any]:
    state = run_state(folder)
    if not found:
        ended = "It was solved in closed form; there are no curves." if state == "done" else "It has no records yet."
        return [el("p", ended, class_="lead")]
    best = sorted(lines, key=lambda c: (c.part != "validation", c.measure.endswith("loss")))[0] if lines else None
    steps = num(found[-1]["step"])
    spent = _spent(found)
    out: list[Any] = []
    if state != "done":
        how = "It is still training" if state == "running" else "It was interrupted and can go on: weft resume"
        out.append(el("p", f"{how}; what follows is what there was when the page was made.", class_="warn"))
    if best is None:
        out.append(el("p", f"After {steps} steps no measure is finite.", class_="lead"))
        return out
    last = best.values[-1][np.isfinite(best.values[-1])]
    said = f"After {steps} steps the {best.part} {best.measure.replace('_', ' ')} is {num(float(best.middle[-1]))}"
    if len(last) > 1:
        said += f" (median of {len(last)} replicas, from {num(float(last.min()))} to {num(float(last.max()))})"
    lost = best.values.shape[1] - len(last)
    said += f". {lost} of {best.values.shape[1]} replicas have no finite value." if lost else "."
    out.append(el("p", said, class_="lead"))
    if spent is not None:
        out.append(el("p", f"Training took {seconds(spent)}.", class_="note"))
    return out


def _spent(found: list[Json]) -> float | None:
    """Seconds of training; the clock begins anew with each task."""
    clock = [float(r["seconds"]) for r in found if is_number(r.get("seconds"))]
    if not clock:
        return None
    return sum(a for a, b in zip(clock, [*clock[1:], -math.inf], strict=True) if b < a)


def _last(lines: list[Curve], sections: Sections) -> Markup | None:
    if not lines:
        return None
    rows = []
    for line in lines:
        last = line.values[-1][np.isfinite(line.values[-1])]
        few = [float(f(last)) if len(last) else None for f in (np.median, np.min, np.max)]
        rows.append([line.measure, line.part, *[Cell(v, num(v)) for v in few], len(last)])
    heads = ["measure", "part", "median", "least", "largest", "replicas"]
    return table("The last record, over replicas.", heads, rows, names=sections.names, file="last-record")


def run_curves(found: list[Json], lines: list[Curve], sections: Sections) -> list[Any]:
    """The figures of a run's records."""
    charted: dict[str, list[tuple[str, int, Any, Any]]] = {}
    for line in lines:
        charted.setdefault(line.measure, []).append((line.part, _PARTS[line.part], line.steps, line.values))
    tasks: dict[str, float] = {}
    for record, before in zip(found, [None, *found], strict=False):
        if "task" in record and record["task"] is not None and str(record["task"]) not in tasks:
            tasks[str(record["task"])] = float(before["step"]) if before else 0.0
    breaks = [(step, name) for name, step in list(tasks.items())[1:]]
    return curve_section(charted, sections.names, over="replicas", breaks=breaks)


def _places(found: Json | None, sections: Sections) -> list[Any]:
    """The risk in each environment, as a table with a dot for each, and a tick for each replica."""
    if not found:
        return []
    measure, score = str(found["measure"]).replace("_", " "), found["score"]
    each = found["environments"]
    every = [v for part in each.values() for v in [part["risk"], *part["replicas"]] if is_number(v)]
    axis, write = Axis.over(every, 2, 98, pad=0.04), formatter(every)
    rows = []
    for label, part in each.items():
        points = [(part["risk"], 0)] if is_number(part["risk"]) else []
        faint = [v for v in part["replicas"] if is_number(v)] if len(part["replicas"]) > 1 else []
        dot = charts.interval(axis, points, faint=faint, label=f"{label}: {write(part['risk'])}")
        shown = el("strong", write(part["risk"])) if label == found["worst"] else write(part["risk"])
        scores = [Cell(part["score"], num(part["score"]))] if score else []
        rows.append([str(label), part["rows"], *scores, Cell(part["risk"], shown), Cell(None, dot, "plot")])
    heads = [str(found["environment"]), "rows", *([str(score)] if score else []), measure, Cell("", charts.scale(axis))]
    caption = f"Risk by environment: mean {measure} of the {found['part']} rows. The worst is bold: {found['worst']}."
    made = table(caption, heads, rows, names=sections.names, file="risk", picture=len(heads) - 1)
    return [made]


def _tasks(found: Json | None, sections: Sections) -> list[Any]:
    """What is kept of each task: the usual numbers, the scores after each task as a heat map, a curve for each."""
    if not found:
        return []
    measure, names = str(found["measure"]).replace("_", " "), found["names"]
    lines = [(f"after {name}", line) for name, line in zip(names, found["matrix"], strict=False)]
    if found["before"]:
        lines.insert(0, ("before", found["before"]))
    every = [v for _, line in lines for v in line if is_number(v)]
    if not every:
        return []
    shares = found["measure"] in ("accuracy", "R2")  # an R2 below 0 is as bad as 0
    limits = (0.0, 1.0) if shares else (min(every), max(every))
    over = ", mean over replicas" if len(found["replicas"]) > 1 else ""
    caption = f"{measure.capitalize()} after each {found['task']} (rows) on each (columns), {found['part']} rows{over}."
    made = heat_map(caption, names, lines, limits, formatter(every), names=sections.names, file="tasks")
    said = "Deeper is more. Down a column is how a task is remembered once others have come."
    return [_kept(found, measure, sections), made, el("p", said, class_="note"), *_by_task(found, measure, sections)]


def _kept(found: Json, measure: str, sections: Sections) -> Markup | None:
    if not found["measures"]:
        return None
    rows = []
    for name, part in found["measures"].items():
        each = [v for v in part["replicas"] if is_number(v)]
        ends = [min(each, default=None), max(each, default=None)] if len(found["replicas"]) > 1 else []
        rows.append([MEASURES[name].format(measure=measure), *[Cell(v, num(v)) for v in (part["value"], *ends)]])
    heads = ["measure", "value" if len(found["replicas"]) == 1 else "mean", "least", "largest"]
    caption = f"What is kept of earlier tasks; {SAID}. A transfer above 0 is a gain."
    return table(caption, heads[: len(rows[0])], rows, names=sections.names, file="kept")


def _by_task(found: Json, measure: str, sections: Sections) -> list[Any]:
    """A curve for each task over the tasks learned; of many tasks, the first ones."""
    lines = [found["before"] or [None] * len(found["names"]), *found["matrix"]]
    values = np.array([[v if is_number(v) else math.nan for v in line] for line in lines], dtype=float)
    shown = [j for j in range(len(found["names"])) if np.isfinite(values[:, j]).any()][:TASKS]
    series = [Series(found["names"][j], np.arange(len(values)) * 1.0, values[:, j], number=j) for j in shown]
    told = []
    for s in series:
        good = s.y[np.isfinite(s.y)]
        told.append(f"{s.name} goes from {good[0]:.4g} to {good[-1]:.4g}")
    picture = charts.lines(
        series,
        title=f"{measure} on each {found['task']} by the number learned",
        describe=f"{'; '.join(told)}.",
        names=sections.names,
        x_label=f"{found['task']}s learned",
        y_label=measure,
    )
    legend = charts.legend([(s.name, s.number) for s in series])
    rest = len(found["names"]) - len(series)
    note = el("p", f"The first {len(series)} tasks; {rest} more are in the table.", class_="note") if rest else None
    return [legend, el("div", el("figure", picture), class_="charts"), note]


def _columns(told: Json, sections: Sections) -> Markup | None:
    columns = ((told.get("recipe") or {}).get("recipe") or {}).get("columns")
    if not isinstance(columns, list) or not columns or not all(isinstance(c, dict) for c in columns):
        return None
    heads = ["column", "kind", "mean", "std"]
    rows = [[str(c.get("name")), str(c.get("kind", "")), c.get("mean"), c.get("std")] for c in columns[:500]]
    shown = table("How columns became numbers.", heads, rows, names=sections.names, file="columns")
    return details(f"{len(columns)} columns", shown)


# --- samples and reconstructions ----------------------------------------------------------------------


def drawn(folder: Path, sections: Sections, *, data: bool = True) -> dict[str, list[Any]]:
    """Samples and reconstructions, where the objective can draw them; where not, nothing, or why not."""
    params = ((about(folder).get("config") or {}).get("params")) or {}
    method = (params.get("objective") or {}).get("$method") if isinstance(params.get("objective"), dict) else None
    if method is not None and not _draws(str(method)):
        return {}  # not worth loading it
    import weft

    try:
        learner = weft.load(folder, validation=None)
    except (ValueError, OSError, TypeError, RuntimeError, KeyError) as error:
        if not (folder / "state.json").exists():
            return {}
        return {"Samples": [el("p", f"None were drawn, as the run cannot be loaded by itself: {error}", class_="note")]}
    offered = learner._objective().capabilities()
    rows = _data(folder) if data else None
    out: dict[str, list[Any]] = {}
    try:
        if "sample" in offered:
            out["Samples"] = _samples(np.asarray(learner.sample(SAMPLES), dtype=float), rows, sections)
        if rows is not None and {"transform", "inverse_transform"} <= offered.keys():
            learner = learner.replica(0) if learner.replicas is not None else learner
            few = rows[:SAMPLES]
            again = np.asarray(learner.inverse_transform(learner.transform(few)), dtype=float)
            out["Reconstructions"] = _reconstructions(np.asarray(few, dtype=float), again, sections)
    except (ValueError, TypeError, RuntimeError, AttributeError) as error:
        out["Samples"] = [el("p", f"None could be drawn: {error}", class_="note")]
    return out


def _draws(method: str) -> bool:
    """Whether a method of the catalogue has something to draw."""
    from weft.core.catalogue import class_of, named

    room, _, name = method.partition("/")
    if room != "objectives" or name not in named("objectives"):
        return True
    offered = class_of("objectives", name).capabilities()  # type: ignore[attr-defined]
    return bool({"sample", "inverse_transform"} & set(offered))


def _data(folder: Path) -> Array | None:
    """Held-out rows of the run's data as the net sees them, if the file is still what it was."""
    if not (folder / "recipe.json").exists():
        return None
    from weft.tables.kept import KeptTable

    try:
        kept = KeptTable.open(folder)
        table = kept.recipe.apply(kept.read(), quiet=True)
    except (ValueError, OSError):
        return None
    return np.asarray(table.X[table.measured[1]])


def side(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Height and width, where a row looks like a picture.

    >>> side((8, 8)), side((1, 28, 28)), side((64,)), side((2,)), side((10,))
    ((8, 8), (28, 28), (8, 8), None, None)
    """
    if len(shape) == 3 and shape[0] in (1, 3):
        shape = shape[1:]
    if len(shape) == 2 and min(shape) >= 4:
        return int(shape[0]), int(shape[1])
    root = math.isqrt(shape[0]) if len(shape) == 1 else 0
    return (root, root) if root >= 8 and root * root == shape[0] else None


def image(row: Array, low: float, high: float, alt: str) -> Markup:
    """A row as a small picture."""
    from PIL import Image

    size = side(row.shape)
    channels = 3 if row.ndim == 3 and row.shape[0] == 3 else 1
    grey = np.clip((row - low) / (high - low or 1.0) * 255, 0, 255).astype(np.uint8)
    pixels = grey.transpose(1, 2, 0) if channels == 3 else grey.reshape(size)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format="PNG")
    return el("img", src=f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}", alt=alt)


def _samples(rows: Array, data: Array | None, sections: Sections) -> list[Any]:
    good = rows[np.isfinite(rows.reshape(len(rows), -1)).all(1)]
    if not len(good):
        return [el("p", "No sample is finite.", class_="note")]
    if side(good.shape[1:]):
        low, high = float(good.min()), float(good.max())
        shown = [image(row, low, high, f"sample {i + 1}") for i, row in enumerate(good[:IMAGES])]
        return [el("div", *shown, class_="samples"), el("p", f"The first {len(shown)} samples.", class_="note")]
    flat = good.reshape(len(good), -1)
    known = None if data is None else np.asarray(data, dtype=float).reshape(len(data), -1)
    parts: list[Any] = []
    if flat.shape[1] == 2:
        parts.append(_plane(flat, known, "samples", sections))
    parts.append(_summary(flat, known, sections))
    return parts


def _plane(rows: Array, data: Array | None, what: str, sections: Sections) -> Markup:
    dots = [] if data is None else [Dot(float(a), float(b), 7) for a, b in data[:SAMPLES]]
    dots += [Dot(float(a), float(b), 0) for a, b in rows]
    beside = " beside the held-out data" if data is not None else ""
    picture = charts.scatter(
        dots,
        title=f"{len(rows)} {what}{beside}",
        describe=f"Points of {what} in the plane; their means and deviations are in the table below.",
        names=sections.names,
        x_label="first value",
        y_label="second value",
        height=340,
        equal=True,
    )
    named = [(what, 0), *([("data", 7)] if data is not None else [])]
    return el("div", charts.legend(named, line=False), charts.figure(picture, f"{len(rows)} {what}{beside}."))


def _summary(rows: Array, data: Array | None, sections: Sections, most: int = 100) -> Markup:
    cells = []
    for j in range(min(rows.shape[1], most)):
        column = rows[:, j]
        ends = [float(v) for v in (column.mean(), column.std(), *np.quantile(column, (0.05, 0.5, 0.95)))]
        beside = [] if data is None else [float(data[:, j].mean()), float(data[:, j].std())]
        cells.append([j + 1, *ends, *beside])
    heads = [
        "value",
        "mean",
        "deviation",
        "5%",
        "median",
        "95%",
        *([] if data is None else ["data's mean", "its deviation"]),
    ]
    return table(f"What {len(rows)} samples are like.", heads, cells, names=sections.names, file="samples")


def _reconstructions(rows: Array, again: Array, sections: Sections) -> list[Any]:
    error = float(np.mean((rows - again) ** 2))
    parts: list[Any] = [el("p", f"The mean squared error of {len(rows)} held-out rows is {num(error)}.")]
    if side(rows.shape[1:]):
        low, high = float(rows.min()), float(rows.max())
        shown = []
        for i, (row, made) in enumerate(zip(rows[: IMAGES // 2], again, strict=False)):
            shown += [image(row, low, high, f"row {i + 1}"), image(made, low, high, f"row {i + 1} reconstructed")]
        parts += [
            el("div", *shown, class_="samples"),
            el("p", "Each row, and after it its reconstruction.", class_="note"),
        ]
        return parts
    flat, made = rows.reshape(len(rows), -1), again.reshape(len(again), -1)
    cells = [
        [j + 1, float(flat[:, j].std()), float(np.sqrt(((flat - made)[:, j] ** 2).mean()))]
        for j in range(min(flat.shape[1], 100))
    ]
    heads = ["value", "deviation of the data", "root mean squared error"]
    parts.append(table("How each value is kept.", heads, cells, names=sections.names, file="reconstructions"))
    return parts
