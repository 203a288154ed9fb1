"""Learning curves: the measures of a run's records, and how they look in plain characters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["Curve", "by_measure", "curves", "drawn", "lasts"]

_FIXED = ("step", "epoch", "seconds", "task")
_MARKS = {"training": ".", "validation": "o"}


def lasts(line: Curve, lines: list[Curve]) -> NDArray[np.float64]:
    """The last values of a measure, NaN where there is none: of what acts each replica's own last one.

    Replicas that play whole episodes end by themselves, at different records, when they have played their steps.
    """
    if all(one.measure != "env_steps" for one in lines):
        return line.values[-1]
    out = np.full(line.values.shape[1], math.nan)
    for k, own in enumerate(line.values.T):
        good = np.flatnonzero(np.isfinite(own))
        out[k] = own[good[-1]] if len(good) else math.nan
    return out


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
    steps: NDArray[np.float64]
    values: NDArray[np.float64]

    @property
    def middle(self) -> NDArray[np.float64]:
        """The median over replicas; NaN where there is none."""
        out = np.full(len(self.values), math.nan)
        some = np.isfinite(self.values).any(1)
        out[some] = np.nanmedian(np.where(np.isfinite(self.values), self.values, math.nan)[some], axis=1)
        return out


def curves(history: list[Json]) -> list[Curve]:
    """The measures of the records, training and validation side by side."""
    names = list(dict.fromkeys(name for record in history for name in record if name not in _FIXED))
    order = sorted(names, key=lambda name: (name.removeprefix("valid_"), name.startswith("valid_")))
    out = []
    for name in order:
        rows = [(r["step"], r[name]) for r in history if name in r]
        widest = max(len(v) if isinstance(v, list) else 1 for _, v in rows)
        values = np.full((len(rows), widest), math.nan)
        for i, (_, value) in enumerate(rows):
            each = value if isinstance(value, list) else [value]
            for k, v in enumerate(each):
                if isinstance(v, int | float) and math.isfinite(v):
                    values[i, k] = v
        if (name == "lr" or name.endswith("_lr")) and bool((values == values[:1]).all()):
            continue  # a learning rate that stays as it was set
        if np.isfinite(values).any():
            part = "validation" if name.startswith("valid_") else "training"
            steps = np.array([step for step, _ in rows], dtype=float)
            out.append(Curve(name.removeprefix("valid_"), part, steps, values))
    return out


def by_measure(lines: list[Curve]) -> dict[str, list[Curve]]:
    """The curves of each measure together."""
    out: dict[str, list[Curve]] = {}
    for curve in lines:
        out.setdefault(curve.measure, []).append(curve)
    return out


def drawn(lines: list[Curve], *, width: int = 72, height: int = 10) -> str:
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
    return "\n\n".join(_chart(name, parts, width, height) for name, parts in by_measure(lines).items())


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
