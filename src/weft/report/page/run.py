"""A run's part of the page: how it went, what it can draw, and what it was asked for."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from weft.core import manifest
from weft.learner.given import beside
from weft.report.curves import Curve, curves, lasts
from weft.report.folder import about, done, evaluation, inexact, records, risk, world_of
from weft.report.page import charts
from weft.report.page.acting import evaluated, film, returns, steps_of_worlds
from weft.report.page.charts import Axis
from weft.report.page.checks import checks
from weft.report.page.curves import Charted, curve_section
from weft.report.page.density import density
from weft.report.page.latent import Codes
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
from weft.report.page.protocol import again
from weft.report.page.samples import SAMPLES, kept_columns, reconstructions, samples
from weft.report.page.tasks import run_tasks
from weft.report.tasks import tasks

if TYPE_CHECKING:
    from weft.core.values import Json
    from weft.learner.estimator import Learner
    from weft.tables.recipe import Table

__all__ = ["commanded", "run", "run_curves", "run_state", "run_title"]

Array = NDArray[np.generic]
RECENT = 30.0  # seconds since its last record, after which a run that has not ended is taken for interrupted
_PARTS = {"training": 0, "validation": 1}


def described(value: object) -> str:
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
        *(world_of(folder) or ()),
        Path(str(data["path"])).name if data.get("path") else None,
        f"target {options['target']}" if options.get("target") else None,
        objective,
        f"by {described(params.get('strategy') or options.get('strategy') or 'erm')}",
        f"{described(params['replicas'])} replicas" if is_number(params.get("replicas")) else None,
    ]
    return folder.resolve().name, " · ".join(str(part) for part in said if part)


def run_state(folder: Path) -> str:
    """`done`, `running`, or `interrupted`: as far as files can tell."""
    if done(folder):
        return "done"
    files = [
        p for name in ("metrics.jsonl", manifest.NAME, "state.json", "recipe.json") if (p := folder / name).exists()
    ]
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
    told, history = about(folder), records(folder)
    lines = curves(history)
    sections.add("How it went", *_went(folder, history, lines), _kinds(told), _last(lines, sections))
    sections.add("What it earns", *evaluated(evaluation(folder), sections))
    sections.add("Returns", *returns(lines, sections))
    sections.add("A film", *film(folder))
    others = [line for line in lines if line.measure not in ("return", "env_steps")]
    sections.add("Learning curves", *run_curves(history, others if steps_of_worlds(lines) else lines, sections))
    sections.add("By environment", *_places(risk(folder), sections))
    sections.add("By task", *run_tasks(tasks(folder), sections))
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
    sections.add("Run it again", *again({"command": commanded(folder, told), **versions}))


def commanded(folder: Path, told: Json) -> str:
    """The command that makes this run, or the Python that reads it."""
    recipe = told.get("recipe") or {}
    options, data = recipe.get("options"), recipe.get("data")
    worlds = (recipe.get("recipe") or {}).get("worlds")
    if isinstance(options, dict) and isinstance(worlds, list):
        return shlex.join(["weft", "train", *map(str, worlds), *_options(options)])
    if not isinstance(options, dict) or not isinstance(data, dict):
        return f"import weft\nlearner = weft.load({str(folder)!r})"
    return shlex.join(["weft", "fit", str(data.get("path")), *_options(options)])


def _options(options: Json) -> list[str]:
    """Options as they are written on the command line."""
    said: list[str] = []
    for name, value in options.items():
        if value in (None, "", []):
            continue
        for each in value if isinstance(value, list) else [value]:
            said += [f"--{name.replace('_', '-')}", str(each)]
    return said


def _went(folder: Path, history: list[Json], lines: list[Curve]) -> list[Markup]:
    state = run_state(folder)
    if not history:
        ended = "It was solved in closed form; there are no curves." if state == "done" else "It has no records yet."
        return [el("p", ended, class_="lead")]
    best = sorted(lines, key=_telling)[0] if lines else None
    steps = num(history[-1]["step"])
    spent = _spent(history)
    out = []
    if state != "done":
        how = "It is still training" if state == "running" else "It was interrupted and can go on: weft resume"
        out.append(el("p", f"{how}; what follows is what there was when the page was made.", class_="warn"))
    if best is None:
        out.append(el("p", f"After {steps} steps no measure is finite.", class_="lead"))
        return out
    last = lasts(best, lines)
    last = last[np.isfinite(last)]
    if (played := steps_of_worlds(lines)) is not None:
        steps = f"{num(float(np.nanmax(played.values)))} steps of the world, {steps}"
    when = (
        f"After {steps} {'updates' if played else 'steps'}"
        if any(record["step"] for record in history)
        else "It was solved in closed form:"
    )
    now = num(float(np.median(last)) if len(last) else math.nan)
    said = f"{when} the {best.part} {best.measure.replace('_', ' ')} is {now}"
    if len(last) > 1:
        said += f" (median of {len(last)} replicas, from {num(float(last.min()))} to {num(float(last.max()))})"
    lost = best.values.shape[1] - len(last)
    said += f". {lost} of {best.values.shape[1]} replicas have no finite value." if lost else "."
    out.append(el("p", said, class_="lead"))
    if spent is not None:
        out.append(el("p", f"Training took {seconds(spent)}.", class_="note"))
    return out


def _telling(line: Curve) -> tuple[bool, bool, bool]:
    """What is told first of all: of what acts the return, on the evaluations if there are some."""
    return line.part != "validation", line.measure != "return", line.measure.endswith("loss")


def _kinds(told: Json) -> Markup | None:
    said = inexact(told)
    return el("p", f"Of its answers, {said}.", class_="note") if said else None


def _spent(history: list[Json]) -> float | None:
    """Seconds of training; the clock begins anew with each task."""
    clock = [float(r["seconds"]) for r in history if is_number(r.get("seconds"))]
    if not clock:
        return None
    return sum(a for a, b in zip(clock, [*clock[1:], -math.inf], strict=True) if b < a)


def _last(lines: list[Curve], sections: Sections) -> Markup | None:
    if not lines:
        return None
    rows = []
    for line in lines:
        last = lasts(line, lines)
        last = last[np.isfinite(last)]
        few = [float(f(last)) if len(last) else None for f in (np.median, np.min, np.max)]
        rows.append([line.measure, line.part, *[Cell(v, num(v)) for v in few], len(last)])
    heads = ["measure", "part", "median", "least", "largest", "replicas"]
    return table("The last record, over replicas.", heads, rows, names=sections.names, file="last-record")


def run_curves(history: list[Json], lines: list[Curve], sections: Sections) -> list[Markup | None]:
    """The figures of a run's records."""
    charted: dict[str, list[Charted]] = {}
    for line in lines:
        charted.setdefault(line.measure, []).append((line.part, _PARTS[line.part], line.steps, line.values))
    tasks: dict[str, float] = {}
    for record, before in zip(history, [None, *history], strict=False):
        if "task" in record and record["task"] is not None and str(record["task"]) not in tasks:
            tasks[str(record["task"])] = float(before["step"]) if before else 0.0
    breaks = [(step, name) for name, step in list(tasks.items())[1:]]
    return curve_section(charted, sections.names, over="replicas", breaks=breaks)


def _places(risks: Json | None, sections: Sections) -> list[Markup]:
    """The risk in each environment, as a table with a dot for each, and a tick for each replica."""
    if not risks:
        return []
    measure, score = str(risks["measure"]).replace("_", " "), risks["score"]
    each = risks["environments"]
    every = [v for part in each.values() for v in [part["risk"], *part["replicas"]] if is_number(v)]
    axis, write = Axis.over(every, 2, 98, pad=0.04), formatter(every)
    rows = []
    for label, part in each.items():
        points = [(part["risk"], 0)] if is_number(part["risk"]) else []
        faint = [v for v in part["replicas"] if is_number(v)] if len(part["replicas"]) > 1 else []
        dot = charts.interval(axis, points, faint=faint, label=f"{label}: {write(part['risk'])}")
        shown = el("strong", write(part["risk"])) if label == risks["worst"] else write(part["risk"])
        scores = [Cell(part["score"], num(part["score"]))] if score else []
        rows.append([str(label), part["rows"], *scores, Cell(part["risk"], shown), Cell(None, dot, "plot")])
    heads = [str(risks["environment"]), "rows", *([str(score)] if score else []), measure, Cell("", charts.scale(axis))]
    caption = f"Risk by environment: mean {measure} of the {risks['part']} rows. The worst is bold: {risks['worst']}."
    made = table(caption, heads, rows, names=sections.names, file="risk", picture=len(heads) - 1)
    return [made]


def _columns(told: Json, sections: Sections) -> Markup | None:
    columns = ((told.get("recipe") or {}).get("recipe") or {}).get("columns")
    if not isinstance(columns, list) or not columns or not all(isinstance(c, dict) for c in columns):
        return None
    heads = ["column", "kind", "mean", "std"]
    rows = [[str(c.get("name")), str(c.get("kind", "")), c.get("mean"), c.get("std")] for c in columns[:500]]
    shown = table("How columns became numbers.", heads, rows, names=sections.names, file="columns")
    return details(f"{len(columns)} columns", shown)


# --- samples and reconstructions ----------------------------------------------------------------------


def drawn(folder: Path, sections: Sections, *, data: bool = True) -> dict[str, list[Markup | None]]:
    """Density, samples, checks, reconstructions, codes, where the objective can; where not, nothing, or why not."""
    params = ((about(folder).get("config") or {}).get("params")) or {}
    if not _draws(params.get("objective")):
        return {}  # not worth loading it
    from weft.learner.loading import load

    try:
        learner = load(folder, validation=None)
    except (ValueError, OSError, TypeError, RuntimeError, KeyError) as error:
        if not (folder / manifest.NAME).exists() and not (folder / "state.json").exists():
            return {}
        return {"Samples": [el("p", f"None were drawn, as the run cannot be loaded by itself: {error}", class_="note")]}
    offered = learner.objective_.capabilities()
    held = _table(folder) if data else None
    of_table = held is not None and held.recipe is not None and hasattr(learner, "recipe_")
    part, seen = held.measured if held is not None else ("", slice(0))
    rows = None if held is None else held.given(seen) if of_table else np.asarray(held.X[seen])
    out: dict[str, list[Markup | None]] = {}
    if held is not None and of_table:
        out |= _tried("Samples", lambda: density(learner, held, sections))
    elif "sample" in offered:
        out |= _tried("Samples", lambda: {"Samples": _plain_samples(learner, rows, sections)})
    if held is not None and "sample" in offered and offered["sample"].asks == "number":
        named = {"y": held.y[seen]} if held.y is not None and learner.sample.takes("y") else {}
        trained = part == "training"
        title = "What it gets wrong"
        out |= _tried(title, lambda: {title: checks(learner, rows, sections, trained=trained, **named)})
    if {"transform", "inverse_transform"} <= offered.keys():
        one = learner.replica(0) if learner.replicas is not None else learner
        y = None if held is None or held.y is None else held.y[seen]
        if rows is not None:
            out |= _tried("Reconstructions", lambda: {"Reconstructions": _again(one, rows, y, sections)})
        if rows is not None or ("sample" in offered and offered["sample"].asks == "number"):
            out |= _tried("Codes", lambda: _coded(one, rows, y, part, sections))
    return out


def _tried(title: str, work: Callable[[], dict[str, list[Markup | None]]]) -> dict[str, list[Markup | None]]:
    """Sections by title, or why there are none: what one cannot draw is no reason to leave out the others."""
    try:
        return work()
    except (ValueError, TypeError, RuntimeError, AttributeError, KeyError) as error:
        return {title: [el("p", f"None could be drawn: {error}", class_="note")]}


def _plain_samples(learner: Learner, rows: Array | None, sections: Sections) -> list[Markup | None]:
    answer = learner.sample(SAMPLES, random_state=0)
    answer = learner.read(answer)["x"] if hasattr(answer, "iloc") else answer  # a table, as the net sees it
    return [*samples(np.asarray(answer, dtype=float), rows, sections)]


def _again(learner: Learner, rows: Any, y: NDArray[Any] | None, sections: Sections) -> list[Markup | None]:
    few = rows[:SAMPLES]
    named = beside(learner, "transform", None if y is None else y[:SAMPLES])
    again = learner.inverse_transform(learner.transform(few, **named), **named)
    if hasattr(again, "iloc"):
        return [*kept_columns(few, again, sections)]
    return [*reconstructions(np.asarray(few, dtype=float), np.asarray(again, dtype=float), sections)]


def _coded(
    learner: Learner, rows: Any, y: NDArray[Any] | None, part: str, sections: Sections
) -> dict[str, list[Markup | None]]:
    """What codes of rows are like; of the model's own rows, where there are no others. Given a class, of one class."""
    drawn, given = rows is None, None
    whose = "rows that the model drew" if drawn else f"{part} rows"
    if rows is not None and y is not None and beside(learner, "transform", y):
        labels, counts = np.unique(y, return_counts=True)
        given = labels[counts.argmax()]
        rows, whose = rows[y == given], f"{whose} of {given}"
    own = learner.sample(SAMPLES, random_state=0) if drawn else rows[:SAMPLES]
    codes = Codes(learner, own, whose, sections, given)
    if not codes.moves:
        return {}
    ways = {
        "Codes": codes.used,
        "What codes stand for": codes.grid,
        "Between two rows": codes.between,
        "Along each entry of the code": codes.along,
    }
    out: dict[str, list[Markup | None]] = {}
    for title, way in ways.items():
        out |= _tried(title, lambda way=way, title=title: {title: way()})  # type: ignore[misc]
    return out


def _draws(described: object) -> bool:
    """Whether an objective, as `describe` told it, has something to draw; of one that is not known it may."""
    from weft.core.objective import Objective
    from weft.core.values import rebuild

    try:
        objective = rebuild(described, {}, "objective", [])
    except (ValueError, TypeError):
        return True
    return not isinstance(objective, Objective) or bool(
        {"sample", "log_prob", "inverse_transform"} & set(objective.capabilities())
    )


def _table(folder: Path) -> Table | None:
    """The run's data, if the file is still what it was."""
    if not (folder / "recipe.json").exists():
        return None
    from weft.tables.kept import KeptTable

    try:
        kept = KeptTable.open(folder)
        return kept.recipe.apply(kept.read(), quiet=True)
    except (ValueError, OSError):
        return None
