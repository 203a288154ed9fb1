"""What a run that acts shows: returns over the steps of its worlds, what its policy earns, and a film of it."""

from __future__ import annotations

import base64
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from weft.report.curves import Curve
from weft.report.page import charts
from weft.report.page.charts import Array, Axis, Series
from weft.report.page.markup import Cell, Markup, Sections, csv_link, details, el, formatter, num, table

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["evaluated", "film", "middle_half", "returns", "steps_of_worlds"]

MOST_BYTES = 12_000_000  # of a film that is put into the page; a larger one is named
MOST_SEEDS = 20  # drawn one by one


def steps_of_worlds(lines: list[Curve]) -> Curve | None:
    """How many steps of its worlds each replica had played at each record, where the run acts."""
    return next((line for line in lines if line.measure == "env_steps"), None)


def middle_half(values: Array) -> Array:
    """The interquartile mean over seeds (the last axis): a quarter of them left out at either end; NaN where none is.

    >>> middle_half(np.array([[0.0, 1.0, 3.0, 100.0], [np.nan, np.nan, np.nan, 5.0]])).tolist()
    [2.0, 5.0]
    """
    out = np.full(len(values), math.nan)
    for i, row in enumerate(values):
        each = np.sort(row[np.isfinite(row)])
        if len(each):
            cut = len(each) // 4
            out[i] = each[cut : len(each) - cut].mean()
    return out


def together(steps: Array, values: Array) -> tuple[Array, Array, Array, Array]:
    """Steps, interquartile mean, least and largest of seeds that were looked at after steps of their own, `(n, seeds)`.

    Between two looks a seed is on the line; told is from where all have begun to where the first has ended, since the
    mean of those that are left would be of others.

    >>> steps = np.array([[0.0, 0.0], [10.0, 20.0], [20.0, np.nan]])
    >>> [row.tolist() for row in together(steps, np.array([[0.0, 0.0], [1.0, 4.0], [3.0, np.nan]]))[:2]]
    [[0.0, 10.0, 20.0], [0.0, 1.5, 3.5]]
    """
    there = np.isfinite(steps) & np.isfinite(values)
    each = [(x[good], y[good]) for x, y, good in zip(steps.T, values.T, there.T, strict=True) if good.any()]
    if not each:
        return (np.full(1, math.nan),) * 4
    first, last = max(x[0] for x, _ in each), min(x[-1] for x, _ in each)
    grid = np.unique(np.concatenate([x for x, _ in each]))
    inside = grid[(grid >= first) & (grid <= last)]
    grid = inside[charts.thin(len(inside), 160)] if len(inside) else np.array([last])
    at = np.stack([np.interp(grid, x, y) for x, y in each], 1)
    return grid, middle_half(at), at.min(1), at.max(1)


def returns(lines: list[Curve], sections: Sections) -> list[Markup | None]:
    """The returns of training and of evaluations over the steps of the worlds: each seed, and the middle of them."""
    played = steps_of_worlds(lines)
    parts = [line for line in lines if line.measure == "return"]
    if played is None or not parts:
        return []
    series, told, rows, kept = [], [], [], []
    at = {float(step): row for step, row in zip(played.steps, played.values, strict=True)}
    several = max(part.values.shape[1] for part in parts) > 1
    for part in parts:
        none = np.full(part.values.shape[1], math.nan)
        own = np.array([np.broadcast_to(at.get(float(step), none), none.shape) for step in part.steps])
        x, middle, low, high = together(own, part.values)
        name = {"training": "episodes of training", "validation": "evaluations"}[part.part]
        few = min(part.values.shape[1], MOST_SEEDS)
        seeds = tuple((own[:, k], part.values[:, k]) for k in range(few)) if several else ()
        series.append(Series(name, x, middle, number=0 if part.part == "training" else 1, seeds=seeds))
        good = np.flatnonzero(np.isfinite(middle))
        if len(good):
            told.append(f"{name} go from {middle[good[0]]:.4g} to {middle[good[-1]]:.4g}")
        for i in charts.thin(len(x), 25):
            ends = [low[i], high[i]] if several else []
            rows.append([name, Cell(float(x[i])), *(Cell(float(v), num(float(v))) for v in (middle[i], *ends))])
        kept += [[name, *map(_short, a), *map(_short, b)] for a, b in zip(own, part.values, strict=True)]
    picture = charts.lines(
        series,
        title="return by steps of the world",
        describe=f"{'; '.join(told)}.",
        names=sections.names,
        x_label="steps of the world",
        y_label="return",
    )
    count = max(part.values.shape[1] for part in parts)
    heads = ["curve", *(f"{what} {k + 1}" for what in ("steps of seed", "return of seed") for k in range(count))]
    link = csv_link("returns", heads, kept)
    shown = ["curve", "steps", *(["interquartile mean", "least", "largest"] if several else ["return"])]
    numbers = details(
        "Numbers of the returns",
        table("Returns at some steps", shown, rows, names=sections.names, file="some-returns"),
        el("p", "All of them: ", link, class_="tools"),
    )
    said = (
        f"A thin line for each of {min(count, MOST_SEEDS)} seeds{f' of {count}' if count > MOST_SEEDS else ''}, a bold "
        "one for their interquartile mean, as far as all of them have come."
        if several
        else ""
    )
    legend = charts.legend([(one.name, one.number) for one in series])
    note = el("p", said, class_="note") if said else None
    return [note, legend, el("div", el("figure", picture, numbers), class_="charts")]


def _short(value: float) -> float | str:
    return float(f"{value:.6g}") if math.isfinite(value) else ""


def evaluated(found: Json | None, sections: Sections) -> list[Markup | None]:
    """What the policy earns in fresh episodes, with the interval of the mean and a tick for each replica."""
    if not found:
        return []
    worlds = found["worlds"]
    every = [v for one in worlds for v in [one["mean"], *(one["interval"] or []), *one["means"]]]
    axis, write = Axis.over(every, 2, 98, pad=0.04), formatter(every)
    rows = []
    for one in worlds:
        span, seeds = one["interval"], one["means"] if len(one["means"]) > 1 else []
        between = "" if span is None else f"{write(span[0])} to {write(span[1])}"
        dot = charts.interval(axis, [(one["mean"], 0)], span=span, faint=seeds, label=f"{one['world']}: {one['said']}")
        row = [one["world"], Cell(one["mean"], el("strong", write(one["mean"]))), between, Cell(None, dot, "plot")]
        rows.append([*row, Cell(one["length"], num(one["length"])), one["cut"]])
    level = f"{100 * worlds[0]['level']:g}% interval"
    heads = ["world", "return", level, Cell("", charts.scale(axis)), "length", "cut"]
    count = max(len(one["means"]) for one in worlds)
    episodes = f"{found['episodes']} fresh episodes"
    over = f"{count} trainings, {episodes} of each: the interval is for other trainings" if count > 1 else episodes
    caption = f"What the policy earns at the end of training, by its best actions; {over}."
    made = table(caption, heads, rows, names=sections.names, file="evaluation", picture=3)
    return [made]


def film(folder: Path) -> list[Markup | None]:
    """The film of a run's folder, in the page; one that is too large beside it."""
    path = folder / "film.gif"
    if not path.is_file():
        return []
    data = path.read_bytes()
    if data[:4] != b"GIF8":
        return [el("p", "The film in the run's folder is no GIF.", class_="note")]
    if len(data) > MOST_BYTES:
        return [el("p", f"The film is too large for the page: {path.name}, {len(data) / 1e6:.0f} MB.", class_="note")]
    source = f"data:image/gif;base64,{base64.b64encode(data).decode()}"
    shown = el("img", src=source, alt="A film of an episode that the trained policy plays", class_="film")
    return [el("figure", shown, el("figcaption", "An episode of the trained policy, over and over.", class_="note"))]
