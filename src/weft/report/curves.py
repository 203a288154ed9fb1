"""What a run's folder tells: what it is, and its learning curves, in plain characters and as a picture."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.report.tasks import draw as draw_tasks
from weft.report.tasks import literal

__all__ = ["Curve", "about", "curves", "drawn", "is_run", "keep_risk", "picture", "records", "risk", "run_folder"]

_FIXED = ("step", "epoch", "seconds", "task")
_MARKS = {"training": ".", "validation": "o"}
_MOST = 40  # environments in a picture


@dataclass
class Curve:
    """One measure over a training.

    Attributes:
        measure: its name, without `valid_`.
        part: `training` or `validation`.
        steps: (n,), the updates made at each record.
        values: (n, replicas), NaN where there is none.
    """

    measure: str
    part: str
    steps: np.ndarray[Any, Any]
    values: np.ndarray[Any, Any]

    @property
    def middle(self) -> np.ndarray[Any, Any]:
        """The median over replicas; NaN where there is none."""
        out = np.full(len(self.values), math.nan)
        some = np.isfinite(self.values).any(1)
        out[some] = np.nanmedian(np.where(np.isfinite(self.values), self.values, math.nan)[some], axis=1)
        return out


def run_folder(folder: Path) -> Path:
    """The folder, if it holds a run."""
    if not folder.exists():
        near = [p.parent for p in Path().glob("runs/*/recipe.json")][:3]
        hint = f"; there are {', '.join(map(str, near))}" if near else ""
        raise FileNotFoundError(f"expected a run's folder, got {str(folder)!r}, which is not there{hint}")
    if not folder.is_dir():
        raise ValueError(f"expected a run's folder, got the file {str(folder)!r}")
    if not is_run(folder):
        raise ValueError(f"expected a run of weft in {str(folder)!r}, got another kind of folder")
    return folder


def is_run(folder: Path) -> bool:
    """Whether one of the files says that it is weft's."""
    for name, marks in (("recipe.json", {"weft", "recipe"}), ("config.json", {"weft", "params"})):
        try:
            plain = json.loads((folder / name).read_text())
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(plain, dict) and marks <= plain.keys():
            return True
    return False


def about(folder: Path) -> dict[str, Any]:
    """What a run is, in a line and by its configuration."""
    run_folder(folder)
    told: dict[str, Any] = {"title": str(folder)}
    for name in ("config", "recipe"):
        try:
            plain = json.loads((folder / f"{name}.json").read_text())
        except (OSError, ValueError, RecursionError):
            continue
        told[name] = plain if isinstance(plain, dict) else {}
    data, options = (told.get("recipe", {}).get(part) for part in ("data", "options"))
    if isinstance(data, dict) and isinstance(options, dict) and "path" in data:
        asked = [
            f"{name} {options[name]}" for name in ("target", "objective", "strategy", "replicas") if options.get(name)
        ]
        told["title"] = f"{folder}: {', '.join([Path(str(data['path'])).name, *asked])}"
    return told


def records(folder: Path) -> list[dict[str, Any]]:
    """The records of a run's `metrics.jsonl`; a last line that a crash has cut off is passed over."""
    path = folder / "metrics.jsonl"
    found: list[dict[str, Any]] = []
    if not path.exists():
        return found
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("step"), int | float):
                raise ValueError("no record with a step")
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise ValueError(f"expected a record per line in {path}, got in line {number}: {error}") from error
        found.append(record)
    return found


def keep_risk(found: dict[str, Any], folder: Path) -> None:
    """Writes the risk by environment to a run's folder: as `risk.json`, and drawn as `risk.png`."""
    from weft.core.files import write_bytes, write_text

    canvas = io.BytesIO()
    picture([], canvas, risk=found)
    write_bytes(folder / "risk.png", canvas.getvalue())
    write_text(folder / "risk.json", json.dumps(found, indent=1, allow_nan=False) + "\n")


def risk(folder: Path) -> dict[str, Any] | None:
    """A run's risk by environment; None where it has no environments, or has not ended."""
    path = folder / "risk.json"
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
        for part in found["environments"].values():
            sum(value or 0.0 for value in [part["rows"], part["risk"], part["score"], *part["replicas"]])
        if not {"environment", "part", "measure", "direction", "score", "worst", "mean"} <= found.keys():
            raise ValueError("parts are missing")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"expected the risk by environment in {path}, got a damaged or foreign file: {error!r}"
        ) from error
    return found


def curves(found: list[dict[str, Any]]) -> list[Curve]:
    """The measures of the records, training and validation side by side."""
    names = list(dict.fromkeys(name for record in found for name in record if name not in _FIXED))
    order = sorted(names, key=lambda name: (name.removeprefix("valid_"), name.startswith("valid_")))
    out = []
    for name in order:
        rows = [(r["step"], r[name]) for r in found if name in r]
        widest = max(len(v) if isinstance(v, list) else 1 for _, v in rows)
        values = np.full((len(rows), widest), math.nan)
        for i, (_, value) in enumerate(rows):
            each = value if isinstance(value, list) else [value]
            for k, v in enumerate(each):
                if isinstance(v, int | float) and math.isfinite(v):
                    values[i, k] = v
        if np.isfinite(values).any():
            part = "validation" if name.startswith("valid_") else "training"
            steps = np.array([step for step, _ in rows], dtype=float)
            out.append(Curve(name.removeprefix("valid_"), part, steps, values))
    return out


def _by_measure(found: list[Curve]) -> dict[str, list[Curve]]:
    out: dict[str, list[Curve]] = {}
    for curve in found:
        out.setdefault(curve.measure, []).append(curve)
    return out


def drawn(found: list[Curve], *, width: int = 72, height: int = 10) -> str:
    """The curves in plain characters, one chart per measure.

    >>> line = Curve("loss", "training", np.array([1.0, 2.0, 3.0]), np.array([[3.0], [2.0], [1.0]]))
    >>> print(drawn([line], width=20, height=3))
    loss   . training
          3 |...
            |   ....
          1 |       ...
            +----------
             1        3  step
    """
    return "\n\n".join(_chart(name, parts, width, height) for name, parts in _by_measure(found).items())


def _chart(name: str, parts: list[Curve], width: int, height: int) -> str:
    margin = 10
    columns = max(width - margin - 6, 10)  # "  step" stands after the axis
    steps = np.concatenate([part.steps for part in parts])
    middle = np.concatenate([part.middle for part in parts])
    low, high = float(np.nanmin(middle)), float(np.nanmax(middle))
    first, last = float(steps.min()), float(steps.max())
    canvas = [[" "] * columns for _ in range(height)]
    for part in parts:
        good = np.isfinite(part.middle)
        at = np.linspace(first, last, columns) if last > first else np.array([first])
        inside = (at >= part.steps[good].min()) & (at <= part.steps[good].max())
        for column in np.flatnonzero(inside):
            value = float(np.interp(at[column], part.steps[good], part.middle[good]))
            share = (value - low) / (high - low) if high > low else 0.5
            canvas[height - 1 - round(share * (height - 1))][column] = _MARKS[part.part]
    marks = ", ".join(f"{_MARKS[part.part]} {part.part}" for part in parts)
    replicas = max(part.values.shape[1] for part in parts)
    over = f"   (median of {replicas} replicas)" if replicas > 1 else ""
    lines = [f"{name}   {marks}{over}"]
    for i, row in enumerate(canvas):
        label = f"{high:.3g}" if i == 0 else f"{low:.3g}" if i == height - 1 and high > low else ""
        lines.append(f"{label:>{margin - 3}} |{''.join(row)}".rstrip())
    lines.append(f"{'':{margin - 2}}+{'-' * columns}")
    ends = f"{first:g}", f"{last:g}"
    gap = max(1, columns - len(ends[0]) - len(ends[1]))
    axis = f"{ends[0]}{' ' * gap}{ends[1]}" if last > first else ends[0]
    lines.append(f"{'':{margin - 1}}{axis}  step")
    return "\n".join(lines)


def picture(
    found: list[Curve],
    path: Path | io.BytesIO,
    *,
    title: str = "",
    tasks: dict[str, float] | None = None,
    risk: dict[str, Any] | None = None,
    matrix: dict[str, Any] | None = None,
) -> None:
    """Draws the curves into a PNG file: the median over replicas in a band from the least to the largest.

    Args:
        found: the curves.
        path: the file.
        title: above the picture.
        tasks: where each task begins, by step.
        risk: by environment, for a part of the picture of its own.
        matrix: the scores by task, for two parts: a heat map, and a curve for each task.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    charts = _by_measure(found)
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
        draw_tasks(every[-2], every[-1], matrix)
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
                f" {literal(label)}",
                fontsize=8,
                color="0.4",
                va="top",
                transform=axes.get_xaxis_transform(),
            )
        axes.set_title(literal(name), loc="left")
        axes.set_xlabel("step")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    if title:
        figure.suptitle(literal(title), fontsize=10)
    figure.savefig(path, dpi=120, format="png")


def _draw_risk(axes: Any, found: dict[str, Any]) -> None:
    """A line for each environment, the worst on top: the mean over replicas as a dot, each replica as a ring."""
    named = [(label, part) for label, part in found["environments"].items() if part["risk"] is not None]
    named.sort(key=lambda pair: pair[1]["risk"], reverse=found["direction"] == "min")
    shown = named[:_MOST]
    for i, (label, part) in enumerate(shown):
        worst = label == found["worst"]
        colour = "#ee7733" if worst else "#4477aa"
        each = [value for value in part["replicas"] if value is not None]
        axes.hlines(i, min([part["risk"], *each]), max([part["risk"], *each]), color=colour, alpha=0.3, linewidth=3)
        if len(each) > 1:
            axes.plot(each, [i] * len(each), "o", color=colour, markersize=4, fillstyle="none", alpha=0.7)
        axes.plot([part["risk"]], [i], "o", color=colour, markersize=7)
    if found["mean"] is not None:
        axes.axvline(found["mean"], color="0.6", linewidth=0.8, linestyle=":")
        place = {"va": "bottom", "ha": "center", "transform": axes.get_xaxis_transform()}
        axes.text(found["mean"], 1.0, "mean", fontsize=8, color="0.4", **place)
    marks = {True: ", the worst", False: ""}
    names = [literal(f"{label} ({part['rows']} rows{marks[label == found['worst']]})") for label, part in shown]
    axes.set_yticks(range(len(shown)), names, fontsize=8)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.grid(axis="x", color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    rest = f", the {_MOST} worst of {len(named)}" if len(named) > _MOST else ""
    axes.set_title(literal(f"risk by {found['environment']}{rest}"), loc="left", pad=16)
    rings = "; a ring for each replica" if any(len(part["replicas"]) > 1 for _, part in shown) else ""
    axes.set_xlabel(literal(f"{found['measure'].replace('_', ' ')}, mean over the {found['part']} rows{rings}"))
