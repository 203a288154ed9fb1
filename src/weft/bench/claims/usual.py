"""The usual pictures of claims: every seed as a dot, curves with bands, and what a net believes over a plane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.bench.pictures import BLUE, INK, ORANGE, blank, note, ramp

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["bands", "dots", "plane"]


def dots(ax: Any, scores: Mapping[str, Any], colours: Mapping[str, str], *, chance: float) -> None:
    """Every seed's score, a row for each method, with the median as a stroke.

    Args:
        ax: where.
        scores: by method, for each seed.
        colours: of methods that stand out.
        chance: where a dotted line is drawn.
    """
    random = np.random.default_rng(0)
    for i, (name, found) in enumerate(scores.items()):
        colour = colours.get(name, INK)
        ax.plot(found, i + random.uniform(-0.18, 0.18, len(found)), "o", color=colour, alpha=0.55, markersize=4.5)
        ax.plot([np.median(found)] * 2, [i - 0.32, i + 0.32], color=colour)
    ax.set(ylim=(len(scores) - 0.5, -0.5))
    ax.set_yticks(range(len(scores)), list(scores))
    ax.axvline(chance, color=INK, linewidth=0.8, linestyle=":")
    note(ax, chance - 1, len(scores) - 0.6, "chance", INK, ha="right")


def bands(ax: Any, at: ArrayLike, values: ArrayLike, colour: str, **line: Any) -> None:
    """The mean over seeds as a line, and their range as a band.

    Args:
        ax: where.
        at: along the axis.
        values: shape (seeds, points).
        colour: of both.
        line: looks of the line.
    """
    values = np.asarray(values)
    ax.fill_between(at, values.min(0), values.max(0), color=colour, alpha=0.18, linewidth=0)
    ax.plot(at, values.mean(0), color=colour, **line)


def plane(ax: Any, chance: Any, edge: float, x: Any, y: Any, some: int = 200) -> None:
    """The probability of label 1 over a square around the origin, and some rows.

    Args:
        ax: where.
        chance: probabilities, rows from below.
        edge: half of the square's side.
        x, y: rows, of which two columns are drawn, and their labels.
        some: how many rows of each label.
    """
    ax.imshow(
        chance,
        origin="lower",
        extent=(-edge, edge, -edge, edge),
        cmap=ramp(BLUE, "#8d939c", ORANGE),
        vmin=0,
        vmax=1,
        alpha=0.38,
        interpolation="bilinear",
    )
    for label, colour in ((0, BLUE), (1, ORANGE)):
        rows = x[y == label][:some]
        ax.scatter(rows[:, 0], rows[:, 1], s=6, color=colour, linewidth=0)
    blank(ax)
