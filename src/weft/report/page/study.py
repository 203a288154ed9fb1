"""A study's part of the page: what the evidence says, then everything that it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.report.page import charts
from weft.report.page.charts import Axis
from weft.report.page.curves import Charted, curve_section
from weft.report.page.markup import (
    Cell,
    Markup,
    Names,
    Sections,
    csv_link,
    el,
    formatter,
    is_number,
    num,
    seconds,
    table,
)
from weft.report.page.protocol import again, file_name, protocol
from weft.report.page.tasks import study_tasks
from weft.report.page.tuning import setting_text, tuning

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["study", "subtitle"]


def subtitle(results: Json) -> str:
    """One line below the title."""
    data, asked = results.get("data") or {}, results.get("protocol") or {}
    said = [
        f"{num(data.get('rows'))} rows and {num(data.get('features'))} features of {file_name(data.get('path', ''))}",
        f"{len(results.get('methods') or [])} methods",
        f"{len(asked.get('seeds') or [])} seeds",
        str(results.get("date", ""))[:10],
        f"weft {results.get('weft', '')}",
    ]
    return " · ".join(part for part in said if part)


def study(results: Json, sections: Sections, progress: Json | None = None) -> None:
    """Adds the sections of a study.

    Args:
        results: what `results.json` holds.
        sections: where they go.
        progress: what `progress.json` holds, while it runs.
    """
    names = sections.names
    methods = [m for m in results.get("methods") or [] if isinstance(m, dict)]
    numbers = {str(m["name"]): i for i, m in enumerate(methods)}
    sections.add("What the evidence says", *_said(results, progress))
    measure = results.get("measure") or {"name": "score", "direction": "max"}
    sections.add("Results", _results(results, methods, measure, names), _comparisons(results, measure, names))
    sections.add("By environment", *_parts(methods, "environments", "environment", measure, numbers, names))
    sections.add(
        "By task", *_parts(methods, "tasks", "task", measure, numbers, names), *study_tasks(methods, measure, sections)
    )
    sections.add("Learning curves", *_curves(methods, numbers, names))
    sections.add("Tuning", *tuning(results, methods, numbers, measure, sections))
    sections.add("Protocol", *protocol(results, names))
    sections.add("Run it again", *again(results))


def _said(results: Json, progress: Json | None) -> list[Markup]:
    sentences = [str(s) for s in results.get("sentences") or []]
    out = []
    if results.get("state") == "running" or progress is not None:
        out.append(_running(progress))
    if sentences:
        out.append(el("p", sentences[0], class_="lead"))
        if sentences[1:]:
            out.append(el("ul", *[el("li", s) for s in sentences[1:]], class_="said"))
    elif not out:
        out.append(el("p", "The study has not come to a result.", class_="lead"))
    return out


def _running(progress: Json | None) -> Markup:
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


def _shared(values: Sequence[object]) -> Axis:
    """The axis of all rows of one table, in per cent."""
    return Axis.over([float(v) for v in values if is_number(v)], 2, 98, pad=0.04)


def _results(results: Json, methods: list[Json], measure: Json, names: Names) -> Markup | None:
    if not methods:
        return None
    scored = [m for m in methods if is_number(m.get("mean"))]
    every = [v for m in methods for v in [*(m.get("interval") or []), *(m.get("scores") or []), m.get("mean")]]
    base = results.get("base") or {}
    every.append(base.get("test"))
    axis, write = _shared(every), formatter([v for v in every if is_number(v)])
    level = (results.get("protocol") or {}).get("level", 0.95)
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
                Cell(mean, [shown, f" ({m['kind']})"] if m.get("kind") else shown),
                Cell(span[0] if span else None, _span(span, write)),
                Cell(None, charts.interval(axis, points, span=span, faint=faint, label=label), "plot"),
                Cell(len(faint)),
                Cell(m.get("validation")),
                Cell(int(trials.get("complete", 0)) + lost, ran),
                Cell(m.get("seconds"), seconds(m.get("seconds"))),
            ]
        )
    if is_number(base.get("test")):
        label = f"base rate: {write(base['test'])}"
        rows.append(
            [
                Cell("base rate", kind="name"),
                Cell(base["test"], write(base["test"])),
                Cell(None, "–"),
                Cell(None, charts.interval(axis, [], faint=[float(base["test"])], label=label), "plot"),
                Cell(None, "–"),
                Cell(base.get("validation")),
                Cell(None, "–"),
                Cell(None, "–"),
            ]
        )
    arrow = "more is better" if measure.get("direction") == "max" else "less is better"
    percent = f"{100 * float(level):g}%"
    return table(
        f"Test {measure.get('name')} of each method at the setting chosen for it ({arrow}): mean over seeds, the "
        f"{percent} interval over seeds and test points, and below the line a tick for each seed. The base rate is "
        "that of one answer for all rows."
        + (" A score in whose brackets a kind stands is not exact." if any(m.get("kind") for m in methods) else ""),
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
            setting_text(m.get("setting")),
            m.get("objective"),
            m.get("strategy"),
        ]
        for m in methods
        for k, v in enumerate(m.get("scores") or [])
    ]
    heads = ["method", "seed", "score", "interval from", "interval to", "setting", "objective", "strategy"]
    return csv_link("scores", heads, rows, "every seed's score")


def _span(span: Sequence[float] | None, write: Callable[[object], str]) -> str:
    return f"{write(span[0])} to {write(span[1])}" if span else "–"


def _comparisons(results: Json, measure: Json, names: Names) -> Markup | None:
    given = [c for c in results.get("comparisons") or [] if isinstance(c, dict)]
    if not given:
        return None
    every = [0.0] + [v for c in given for v in [*(c.get("interval") or []), c.get("difference")]]
    axis, write = _shared(every), formatter(every)
    correction = (results.get("protocol") or {}).get("correction", "")
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


def _p(value: object) -> str:
    if not is_number(value):
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


# --- by environment and by task -----------------------------------------------------------------------


def _mean(values: Sequence[object] | None) -> float | None:
    good = [float(v) for v in values or [] if is_number(v)]
    return float(np.mean(good)) if good else None


def _parts(
    methods: list[Json], key: str, what: str, measure: Json, numbers: dict[str, int], names: Names
) -> list[Markup]:
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


# --- curves -------------------------------------------------------------------------------------------


def _curves(methods: list[Json], numbers: dict[str, int], names: Names) -> list[Markup | None]:
    charted: dict[str, list[Charted]] = {}
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
