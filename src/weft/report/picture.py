"""A run's picture in a PNG file: learning curves, the risk by environment, the scores by task."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.report.curves import Curve, by_measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from weft.core.values import Json

__all__ = ["picture"]

_MOST = 40  # environments in a picture
_NUMBERED = 12  # tasks whose scores are written into the heat map
_NAMED = 10  # curves with a name


def picture(
    lines: list[Curve],
    path: Path | io.BytesIO,
    *,
    title: str = "",
    tasks: dict[str, float] | None = None,
    risk: Json | None = None,
    matrix: Json | None = None,
) -> None:
    """Draws the curves into a PNG file: the median over replicas in a band from the least to the largest.

    Args:
        lines: the curves.
        path: the file.
        title: above the picture.
        tasks: where each task begins, by step.
        risk: by environment, for a part of the picture of its own.
        matrix: the scores by task, for two parts: a heat map, and a curve for each task.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    charts = by_measure(lines)
    count = len(charts) + (risk is not None) + 2 * (matrix is not None)
    height = 3.6 if risk is None else max(3.6, 1.0 + 0.24 * min(len(risk["environments"]), _MOST + 1))
    if matrix is not None:
        height = max(height, min(2.0 + 0.3 * len(matrix["names"]), 9.0))
    figure = Figure(figsize=(5.2 * count, height), layout="constrained")
    FigureCanvasAgg(figure)
    colours = {"training": "#4477aa", "validation": "#ee7733"}
    every = figure.subplots(1, count, squeeze=False)[0]
    if risk is not None:
        _draw_risk(every[len(charts)], risk)
    if matrix is not None:
        _draw_tasks(every[-2], every[-1], matrix)
    for axes, (name, parts) in zip(every, charts.items(), strict=False):
        for part in parts:
            colour = colours[part.part]
            marker = "o" if len(part.steps) == 1 else None
            axes.plot(part.steps, part.middle, color=colour, label=part.part, marker=marker)
            some = np.isfinite(part.values).any(1)
            if part.values.shape[1] > 1 and some.any():
                band = np.where(np.isfinite(part.values), part.values, math.nan)[some]
                low, high = np.nanmin(band, 1), np.nanmax(band, 1)
                axes.fill_between(part.steps[some], low, high, color=colour, alpha=0.2, linewidth=0)
        for label, step in list((tasks or {}).items())[1:]:
            axes.axvline(step, color="0.6", linewidth=0.8, linestyle=":")
            axes.text(
                step,
                1.0,
                f" {_literal(label)}",
                fontsize=8,
                color="0.4",
                va="top",
                transform=axes.get_xaxis_transform(),
            )
        axes.set_title(_literal(name), loc="left")
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    if title:
        figure.suptitle(_literal(title), fontsize=10)
    figure.savefig(path, dpi=120, format="png")


def _draw_risk(axes: Axes, risk: Json) -> None:
    """A line for each environment, the worst on top: the mean over replicas as a dot, each replica as a ring."""
    named = [(label, part) for label, part in risk["environments"].items() if part["risk"] is not None]
    named.sort(key=lambda pair: pair[1]["risk"], reverse=risk["direction"] == "min")
    shown = named[:_MOST]
    for i, (label, part) in enumerate(shown):
        worst = label == risk["worst"]
        colour = "#ee7733" if worst else "#4477aa"
        each = [value for value in part["replicas"] if value is not None]
        axes.hlines(i, min([part["risk"], *each]), max([part["risk"], *each]), color=colour, alpha=0.3, linewidth=3)
        if len(each) > 1:
            axes.plot(each, [i] * len(each), "o", color=colour, markersize=4, fillstyle="none", alpha=0.7)
        axes.plot([part["risk"]], [i], "o", color=colour, markersize=7)
    if risk["mean"] is not None:
        axes.axvline(risk["mean"], color="0.6", linewidth=0.8, linestyle=":")
        above = axes.get_xaxis_transform()
        axes.text(risk["mean"], 1.0, "mean", fontsize=8, color="0.4", va="bottom", ha="center", transform=above)
    marks = {True: ", the worst", False: ""}
    names = [_literal(f"{label} ({part['rows']} rows{marks[label == risk['worst']]})") for label, part in shown]
    axes.set_yticks(range(len(shown)), names, fontsize=8)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.grid(axis="x", color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    rest = f", the {_MOST} worst of {len(named)}" if len(named) > _MOST else ""
    axes.set_title(_literal(f"risk by {risk['environment']}{rest}"), loc="left", pad=16)
    rings = "; a ring for each replica" if any(len(part["replicas"]) > 1 for _, part in shown) else ""
    axes.set_xlabel(_literal(f"{risk['measure'].replace('_', ' ')}, mean over the {risk['part']} rows{rings}"))


def _literal(text: str, most: int = 80) -> str:
    """Text in which matplotlib sees no formulas, on one line."""
    plain = "".join(c if c.isprintable() else "?" for c in text)
    return (plain if len(plain) <= most else f"{plain[: most - 3]}...").replace("$", r"\$")


def _limits(scores: Json) -> tuple[float, float]:
    """The colours' ends: shares from 0 to 1; an R2 below 0 is as bad as 0."""
    if scores["measure"] in ("accuracy", "R2"):
        return 0.0, 1.0
    every = [value for line in (scores["before"] or [], *scores["matrix"]) for value in line if value is not None]
    return (min(every), max(every)) if every else (0.0, 1.0)


def _draw_tasks(heat: Axes, curves: Axes, scores: Json) -> None:
    """The matrix as a heat map on one of the axes, and a curve for each task, over the tasks learned, on the other."""
    names, lines = scores["names"], [*([scores["before"]] if scores["before"] else []), *scores["matrix"]]
    first = 0 if scores["before"] else 1
    values = np.array([[math.nan if v is None else v for v in line] for line in lines], dtype=float)
    values = values.reshape(len(lines), len(names))
    low, high = _limits(scores)
    heat.imshow(values, cmap="Blues", vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    after = [*(["before"] if not first else []), *(f"after {name}" for name in names[: len(scores["matrix"])])]
    every = max(1, -(-len(names) // 24))
    heat.set_xticks(range(0, len(names), every), [_literal(n, 16) for n in names[::every]], rotation=45, ha="right")
    heat.set_yticks(range(0, len(after), every), [_literal(n, 24) for n in after[::every]])
    heat.tick_params(length=0, labelsize=8)
    heat.spines[:].set_visible(False)
    if len(names) <= _NUMBERED:
        middle = (low + high) / 2
        for i, j in np.argwhere(np.isfinite(values)):
            dark = values[i, j] > middle + 0.1 * (high - low)
            text = f"{values[i, j]:.2f}" if abs(values[i, j]) < 100 else f"{values[i, j]:.2g}"
            heat.text(j, i, text, ha="center", va="center", fontsize=7, color="white" if dark else "0.2")
    measure = scores["measure"].replace("_", " ")
    heat.set_title(_literal(f"{measure} on each {scores['task']}"), loc="left")
    _draw_curves(curves, scores, values, first)
    curves.set_ylabel(_literal(f"{measure}, {scores['part']} rows"))


def _draw_curves(axes: Axes, scores: Json, values: NDArray[np.float64], first: int) -> None:
    import matplotlib

    names = scores["names"]
    colours = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, max(len(names), 2)))
    at = np.arange(first, first + len(values))
    for j, name in enumerate(names):
        learned = at >= j + 1
        axes.plot(at, values[:, j], color=colours[j], linewidth=1.0, linestyle=":")
        axes.plot(at[learned], values[learned, j], color=colours[j], marker="o", markersize=4, label=_literal(name, 24))
    if scores["measure"] in ("accuracy", "R2"):
        axes.set_ylim(-0.03, 1.03)
    every = max(1, -(-len(names) // 12))
    ticks = [t for t in range(first, len(names) + 1) if t % every == 0]
    axes.set_xticks(ticks, ["before" if t == 0 else _literal(names[t - 1], 12) for t in ticks], rotation=45, ha="right")
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("each task as others come (dotted: not yet learned)", loc="left", fontsize=9)
    axes.set_xlabel(_literal(f"{scores['task']} learned last"))
    if 1 < len(names) <= _NAMED:
        axes.legend(frameon=False, fontsize=7)
