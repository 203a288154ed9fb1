"""A study's part of the page: what the evidence says, then everything that it rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.report.page import charts
from weft.report.page.charts import Axis, Dot
from weft.report.page.curves import curve_section
from weft.report.page.markup import (
    Cell,
    Markup,
    Names,
    Sections,
    csv_link,
    details,
    el,
    formatter,
    is_number,
    num,
    pairs,
    seconds,
    table,
)
from weft.report.tasks import MEASURES, SAID

__all__ = ["again", "heat_map", "study", "subtitle"]

MOST_TRIALS = 2000

Json = dict[str, Any]


def subtitle(found: Json) -> str:
    """One line below the title."""
    data, protocol = found.get("data") or {}, found.get("protocol") or {}
    said = [
        f"{num(data.get('rows'))} rows and {num(data.get('features'))} features of {_file(data.get('path', ''))}",
        f"{len(found.get('methods') or [])} methods",
        f"{len(protocol.get('seeds') or [])} seeds",
        str(found.get("date", ""))[:10],
        f"weft {found.get('weft', '')}",
    ]
    return " · ".join(part for part in said if part)


def _file(path: Any) -> str:
    return str(path).replace("\\", "/").rsplit("/", 1)[-1] or "bundled data"


def study(found: Json, sections: Sections, progress: Json | None = None) -> None:
    """Adds the sections of a study.

    Args:
        found: what `results.json` holds.
        sections: where they go.
        progress: what `progress.json` holds, while it runs.
    """
    names = sections.names
    methods = [m for m in found.get("methods") or [] if isinstance(m, dict)]
    numbers = {str(m["name"]): i for i, m in enumerate(methods)}
    sections.add("What the evidence says", *_said(found, progress))
    measure = found.get("measure") or {"name": "score", "direction": "max"}
    sections.add("Results", _results(found, methods, measure, names), _comparisons(found, measure, names))
    sections.add("By environment", *_parts(methods, "environments", "environment", measure, numbers, names))
    sections.add(
        "By task", *_parts(methods, "tasks", "task", measure, numbers, names), *_matrices(methods, measure, sections)
    )
    sections.add("Learning curves", *_curves(methods, numbers, names))
    sections.add("Tuning", *_tuning(found, methods, numbers, measure, sections))
    sections.add("Protocol", *_protocol(found, names))
    sections.add("Run it again", *again(found, names))


def _said(found: Json, progress: Json | None) -> list[Any]:
    sentences = [str(s) for s in found.get("sentences") or []]
    out: list[Any] = []
    if found.get("state") == "running" or progress is not None:
        out.append(running(progress))
    if sentences:
        out.append(el("p", sentences[0], class_="lead"))
        if sentences[1:]:
            out.append(el("ul", *[el("li", s) for s in sentences[1:]], class_="said"))
    elif not out:
        out.append(el("p", "The study has not come to a result.", class_="lead"))
    return out


def running(progress: Json | None) -> Markup:
    """How far a study has come."""
    if not progress:
        return el(
            "p", "This study has not ended: what follows is what there was when the page was made.", class_="warn"
        )
    done, total = progress.get("done"), progress.get("total")
    left = f", about {seconds(progress['remaining'])} to go" if is_number(progress.get("remaining")) else ""
    what = f": {progress['what']}" if progress.get("what") else ""
    return el("p", f"This study has not ended: {num(done)} of {num(total)} done{left}{what}.", class_="warn")


# --- results ------------------------------------------------------------------------------------------


def _shared(values: Sequence[Any]) -> Axis:
    """The axis of all rows of one table, in per cent."""
    return Axis.over([float(v) for v in values if is_number(v)], 2, 98, pad=0.04)


def _results(found: Json, methods: list[Json], measure: Json, names: Names) -> Markup | None:
    if not methods:
        return None
    scored = [m for m in methods if is_number(m.get("mean"))]
    every = [v for m in methods for v in [*(m.get("interval") or []), *(m.get("scores") or []), m.get("mean")]]
    axis, write = _shared(every), formatter([v for v in every if is_number(v)])
    level = (found.get("protocol") or {}).get("level", 0.95)
    best = (max if measure.get("direction") == "max" else min)((float(m["mean"]) for m in scored), default=math.nan)
    rows = []
    for i, m in enumerate(methods):
        mean, span, trials = m.get("mean"), m.get("interval"), m.get("trials") or {}
        label = f"{m['name']}: {write(mean)}" + (f", interval {_span(span, write)}" if span else "")
        points = [(float(mean), i)] if is_number(mean) else []
        faint = [float(v) for v in m.get("scores") or [] if is_number(v)]
        shown = el("strong", write(mean)) if is_number(mean) and mean == best else write(mean)
        lost = int(trials.get("failed", 0)) + int(trials.get("diverged", 0))
        ran = f"{trials.get('complete', 0)}" + (f" + {lost} lost" if lost else "")
        rows.append(
            [
                Cell(str(m["name"]), [charts.swatch(i, line=False), " ", str(m["name"])], "name"),
                Cell(mean, shown),
                Cell(span[0] if span else None, _span(span, write)),
                Cell(None, charts.interval(axis, points, span=span, faint=faint, label=label), "plot"),
                Cell(len(faint)),
                Cell(m.get("validation")),
                Cell(int(trials.get("complete", 0)) + lost, ran),
                Cell(m.get("seconds"), seconds(m.get("seconds"))),
            ]
        )
    arrow = "more is better" if measure.get("direction") == "max" else "less is better"
    percent = f"{100 * float(level):g}%"
    return table(
        f"Test {measure.get('name')} of each method at the setting chosen for it ({arrow}): mean over seeds, the "
        f"{percent} interval over seeds and test points, and below the line a tick for each seed.",
        [
            "method",
            f"test {measure.get('name')}",
            Cell("interval from", f"{percent} interval"),
            Cell("", charts.scale(axis)),
            "seeds",
            "validation",
            "trials",
            "time",
        ],
        rows,
        names=names,
        file="methods",
        picture=3,
        more=_scores(methods),
    )


def _scores(methods: list[Json]) -> Markup:
    """Every seed's score, and what the table has no room for."""
    rows = [
        [
            m["name"],
            k,
            v,
            *(m.get("interval") or [None, None]),
            _setting(m.get("setting")),
            m.get("objective"),
            m.get("strategy"),
        ]
        for m in methods
        for k, v in enumerate(m.get("scores") or [])
    ]
    heads = ["method", "seed", "score", "interval from", "interval to", "setting", "objective", "strategy"]
    return csv_link("scores", heads, rows, "every seed's score")


def _span(span: Any, write: Any) -> str:
    return f"{write(span[0])} to {write(span[1])}" if span else "–"


def _setting(setting: Any) -> str:
    if not isinstance(setting, dict) or not setting:
        return "–"
    return ", ".join(f"{k} = {num(v) if is_number(v) else v}" for k, v in setting.items())


def _comparisons(found: Json, measure: Json, names: Names) -> Markup | None:
    given = [c for c in found.get("comparisons") or [] if isinstance(c, dict)]
    if not given:
        return None
    every = [0.0] + [v for c in given for v in [*(c.get("interval") or []), c.get("difference")]]
    axis, write = _shared(every), formatter(every)
    correction = (found.get("protocol") or {}).get("correction", "")
    rows = []
    for c in given:
        span = c.get("interval")
        pair = f"{c['a']} − {c['b']}"
        label = f"{pair}: {write(c.get('difference'))}" + (f", interval {_span(span, write)}" if span else "")
        points = [(float(c["difference"]), 0)] if is_number(c.get("difference")) else []
        rows.append(
            [
                Cell(pair, kind="name"),
                Cell(c.get("difference"), write(c.get("difference"))),
                Cell(span[0] if span else None, _span(span, write)),
                Cell(None, charts.interval(axis, points, span=span, zero=True, label=label), "plot"),
                Cell(c.get("p"), _p(c.get("p"))),
                Cell(c.get("p_corrected"), _p(c.get("p_corrected"))),
                Cell(str(c.get("verdict", "")), kind="words"),
            ]
        )
    return table(
        f"Paired differences in test {measure.get('name')}: the same seeds and test points for both"
        f"{f'; p corrected by {correction}' if correction else ''}. The dashed line is no difference.",
        [
            "pair",
            "difference",
            Cell("interval from", "interval"),
            Cell("", charts.scale(axis)),
            "p",
            "p corrected",
            "verdict",
        ],
        rows,
        names=names,
        file="comparisons",
        picture=3,
    )


def _p(value: Any) -> str:
    if not is_number(value):
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


# --- by environment and by task -----------------------------------------------------------------------


def _mean(values: Any) -> float | None:
    good = [float(v) for v in values or [] if is_number(v)]
    return float(np.mean(good)) if good else None


def _parts(methods: list[Json], key: str, what: str, measure: Json, numbers: dict[str, int], names: Names) -> list[Any]:
    """One row per environment or task, one column and mark per method."""
    having = [m for m in methods if isinstance(m.get(key), dict) and m[key]]
    if not having:
        return []
    labels = list(dict.fromkeys(str(label) for m in having for label in m[key]))
    means = {
        (str(m["name"]), label): _mean((m[key].get(label) or {}).get("scores")) for m in having for label in labels
    }
    axis, write = _shared(list(means.values())), formatter(list(means.values()))
    least = min if measure.get("direction") == "max" else max
    worst = {n: least((v for (m, _), v in means.items() if m == n and v is not None), default=None) for n, _ in means}
    rows = []
    for label in labels:
        facts = next(m[key][label] for m in having if label in m[key])
        each = [(str(m["name"]), means[str(m["name"]), label]) for m in having]
        told = "; ".join(f"{name} {write(value)}" for name, value in each)
        points = [(value, numbers[name]) for name, value in each if value is not None]
        rows.append(
            [
                label,
                *([str(facts.get("part", ""))] if key == "environments" else []),
                facts.get("rows"),
                Cell(None, charts.interval(axis, points, label=f"{label}: {told}"), "plot"),
                *[Cell(v, el("strong", write(v)) if v is not None and v == worst[n] else write(v)) for n, v in each],
            ]
        )
    heads = [what, *(["part"] if key == "environments" else []), "rows", Cell("", charts.scale(axis))]
    note = " Those of part test were not trained on." if key == "environments" else ""
    return [
        charts.legend([(str(m["name"]), numbers[str(m["name"])]) for m in having], line=False),
        table(
            f"{str(measure.get('name')).capitalize()} in each {what}, mean over seeds; a method's worst is bold.{note}",
            [*heads, *[str(m["name"]) for m in having]],
            rows,
            names=names,
            file=key,
            picture=len(heads) - 1,
        ),
    ]


def heat_map(
    caption: Any,
    tasks: list[str],
    lines: list[tuple[str, Any]],
    limits: tuple[float, float],
    write: Any,
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


def _matrices(methods: list[Json], measure: Json, sections: Sections) -> list[Any]:
    """What each method keeps: the usual numbers, and the score after each task on each."""
    out: list[Any] = []
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
        out.append(heat_map(caption, tasks, lines, limits, formatter(every), names=sections.names, file=file))
    said = "Mean over seeds; deeper is more. Down a column is how a task is remembered once others have come."
    kept = _kept(having, measure, sections.names)
    return [sections.heading("What is kept"), kept, el("p", said, class_="note"), el("div", *out, class_="charts")]


def _kept(methods: list[Json], measure: Json, names: Names) -> Markup | None:
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


# --- curves -------------------------------------------------------------------------------------------


def _curves(methods: list[Json], numbers: dict[str, int], names: Names) -> list[Any]:
    charted: dict[str, list[tuple[str, int, Any, Any]]] = {}
    for m in methods:
        curves = m.get("curves")
        if not isinstance(curves, dict):
            continue
        steps = np.array(curves["step"], dtype=float)
        for name, per_seed in curves["measures"].items():
            values = np.array([[v if is_number(v) else math.nan for v in seed] for seed in per_seed], dtype=float)
            if values.ndim == 2 and values.shape[1] == len(steps) and np.isfinite(values).any():
                charted.setdefault(str(name), []).append((str(m["name"]), numbers[str(m["name"])], steps, values.T))
    return curve_section(charted, names, over="seeds")


# --- tuning -------------------------------------------------------------------------------------------


def _tuning(found: Json, methods: list[Json], numbers: dict[str, int], measure: Json, sections: Sections) -> list[Any]:
    trials = [t for t in found.get("trials") or [] if isinstance(t, dict)]
    if not trials:
        return []
    out: list[Any] = [
        el(
            "p",
            f"Validation {measure.get('name')} of each trial against each setting. The ring marks the chosen one; a "
            "cross at the foot is a trial that failed or diverged.",
            class_="note",
        )
    ]
    for m in methods:
        own = [t for t in trials if t.get("method") == m["name"]]
        settings = list(dict.fromkeys(k for t in own for k in (t.get("setting") or {})))
        chosen = el("p", f"Chosen: {_setting(m.get('setting'))}", class_="note") if m.get("setting") else None
        varied = [k for k in settings if len({str((t.get("setting") or {}).get(k)) for t in own}) > 1]
        if not varied:
            out += [sections.heading(m["name"]), chosen] if chosen else []
            continue
        figures = []
        for k in varied:
            dots = [_dot(t, k, numbers[str(m["name"])], m.get("setting")) for t in own if k in (t.get("setting") or {})]
            good = [d for d in dots if d.y is not None]
            told = f"{len(dots)} trials, {len(dots) - len(good)} of them without a value"
            if good:
                best = (max if measure.get("direction") == "max" else min)(good, key=lambda d: float(d.y or 0.0))
                told += f"; the best, {num(best.y)}, at {k} = {num(best.x) if is_number(best.x) else best.x}"
            figures.append(
                el(
                    "figure",
                    charts.scatter(
                        dots,
                        title=f"{m['name']}: validation {measure.get('name')} by {k}",
                        describe=f"{told}.",
                        names=sections.names,
                        x_label=k,
                        y_label="",
                    ),
                )
            )
        out += [sections.heading(m["name"]), chosen, el("div", *figures, class_="charts small")]
    order = [
        [
            f"{t.get('method')} {t.get('number')}",
            str(t.get("method")),
            t.get("number"),
            Cell(t.get("value")),
            str(t.get("state", "")),
            _setting(t.get("setting")),
            Cell(t.get("seconds")),
            str(t.get("why") or ""),
        ]
        for t in trials[:MOST_TRIALS]
    ]
    heads = ["trial", "method", "number", f"validation {measure.get('name')}", "state", "setting", "seconds", "why"]
    cut = f" (the first {MOST_TRIALS} of {len(trials)})" if len(trials) > MOST_TRIALS else ""
    lost = sum(t.get("state") != "complete" for t in trials)
    said = f"All {len(trials)} trials" + (f", {lost} of them failed or diverged" if lost else "")
    out.append(details(said, table(f"Every trial{cut}.", heads, order, names=sections.names, file="trials")))
    return out


def _dot(trial: Json, setting: str, number: int, chosen: Any) -> Dot:
    value = trial.get("value")
    x = trial["setting"][setting]
    x = x if is_number(x) else str(x)
    y = float(value) if is_number(value) and trial.get("state") == "complete" else None
    said = f"trial {trial.get('number')}: {setting} = {x}, " + (num(y) if y is not None else str(trial.get("state")))
    return Dot(x, y, number, said, ring=y is not None and trial["setting"] == chosen)


# --- protocol -----------------------------------------------------------------------------------------


def _protocol(found: Json, names: Names) -> list[Any]:
    protocol, data = found.get("protocol") or {}, found.get("data") or {}
    split = protocol.get("split") or {}
    rows = split.get("rows") or {}
    items = [
        ("data", _file(data.get("path", ""))),
        ("SHA-256", el("code", f"{str(data.get('sha256', ''))[:16]}…", title=str(data.get("sha256", "")))),
        ("target", data.get("target")),
        *[(k, data[k]) for k in ("environment", "task", "group") if data.get(k)],
        ("split by", f"{split.get('by')}, seed {split.get('seed')}"),
        ("rows", " · ".join(f"{k} {num(v)}" for k, v in rows.items())),
        ("test environments", ", ".join(map(str, split.get("test_environments") or []))),
        ("settings chosen by", protocol.get("selection")),
        ("trials for each method", num(protocol.get("budget"))),
        ("trials at once", num(protocol.get("batch"))),
        ("steps of a training", num(protocol.get("steps"))),
        ("seeds of the final fits", ", ".join(map(str, protocol.get("seeds") or []))),
        ("interval", f"{100 * float(protocol['level']):g}%, {num(protocol.get('resamples'))} resamples")
        if is_number(protocol.get("level"))
        else ("interval", None),
        ("correction", protocol.get("correction")),
    ]
    out: list[Any] = [pairs([(k, v) for k, v in items if v not in (None, "", "–")])]
    notes = [str(n) for n in protocol.get("notes") or []]
    if notes:
        out.append(el("ul", *[el("li", n) for n in notes], class_="said"))
    ledger = [entry for entry in found.get("ledger") or [] if isinstance(entry, dict)]
    if ledger:
        heads = ["time", "what", "method", "rows", "seeds", "part"]
        cells = [[_time(e.get("time")), *[e.get(h) for h in heads[1:]]] for e in ledger]
        times = "once" if len(ledger) == 1 else f"{len(ledger)} times"
        out.append(
            table(
                f"The ledger: the test rows were looked at {times}, and this is every time.",
                heads,
                cells,
                names=names,
                file="ledger",
            )
        )
    else:
        out.append(el("p", "The test rows have not been looked at.", class_="note"))
    return out


def _time(value: Any) -> str:
    return str(value or "–")[:19].replace("T", " ")


def again(found: Json, names: Names) -> list[Any]:
    """The command, the versions and the machine."""
    out: list[Any] = []
    if found.get("command"):
        out.append(el("pre", el("code", found["command"]), tabindex="0"))
    machine = found.get("machine") or {}
    items = [
        ("processor", machine.get("processor")),
        ("cores", num(machine.get("cores")) if machine.get("cores") else None),
        ("accelerator", machine.get("accelerator")),
        ("python", machine.get("python")),
        ("weft", found.get("weft")),
        ("made", _time(found.get("date"))),
        ("took", seconds(found.get("seconds")) if found.get("seconds") is not None else None),
        *sorted((found.get("versions") or {}).items()),
    ]
    kept = [(k, v) for k, v in dict(items).items() if v]
    return [*out, pairs(kept) if kept else None]
