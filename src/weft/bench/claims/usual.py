"""The usual pictures of claims: every seed as a dot, curves over seeds, and what a net believes over a plane."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.bench.pictures import BLUE, INK, ORANGE, SOFT, blank, note, ramp

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["bands", "chances", "curve", "dots", "dumbbells", "plane", "sheets"]


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


def bands(
    ax: Any,
    at: ArrayLike,
    values: ArrayLike,
    colour: str,
    *,
    middle: Callable[..., Any] = np.mean,
    between: tuple[float, float] = (0.0, 1.0),
    **line: Any,
) -> None:
    """The middle of the seeds as a line, and their range as a band.

    Args:
        ax: where.
        at: along the axis.
        values: shape (seeds, points).
        colour: of both.
        middle: of the seeds, as `np.mean` or `np.median`.
        between: the quantiles at which the band ends; by default all seeds are in it.
        line: looks of the line.
    """
    values = np.asarray(values)
    ax.fill_between(at, *np.quantile(values, between, axis=0), color=colour, alpha=0.18, linewidth=0)
    ax.plot(at, middle(values, axis=0), color=colour, **line)


def curve(
    ax: Any,
    at: ArrayLike,
    values: ArrayLike,
    colour: str,
    style: str = "-",
    *,
    seeds: str = "o",
    middle: Callable[..., Any] = np.mean,
    **line: Any,
) -> None:
    """Every seed faintly, and their middle as a line.

    Args:
        ax: where.
        at: along the axis.
        values: shape (seeds, points).
        colour: of all.
        style: of the middle.
        seeds: the style of each seed.
        middle: of the seeds, as `np.mean` or `np.median`.
        line: further looks of the middle.
    """
    values = np.asarray(values)
    ax.plot(at, values.T, seeds, color=colour, alpha=0.35, markersize=3, linewidth=1)
    ax.plot(at, middle(values, axis=0), style, color=colour, **{"markersize": 5, **line})


def dumbbells(ax: Any, scores: Mapping[str, Mapping[str, ArrayLike]], colours: Mapping[str, str]) -> None:
    """A row for each name: its kinds of scores as points on one line, the mean large and every seed small.

    Args:
        ax: where.
        scores: by row, the first on top, and by kind: for each seed.
        colours: of the kinds; the first is drawn largest, so that all are seen where they meet.
    """
    for row, kinds in enumerate(scores.values()):
        means = [float(np.asarray(values).mean()) for values in kinds.values()]
        ax.plot([min(means), max(means)], [row, row], color=SOFT, linewidth=2.2, alpha=0.5)
        for place, (kind, colour) in enumerate(colours.items()):
            values = np.reshape(kinds[kind], -1)
            ax.plot(values, np.full(len(values), row), "o", color=colour, markersize=3, alpha=0.5)
            ax.plot(values.mean(), row, "o", color=colour, markersize=10 - 2 * place, label=None if row else kind)
    ax.set_yticks(range(len(scores)), list(scores))
    ax.set(ylim=(len(scores) - 0.5, -0.5))
    ax.grid(False, axis="y")
    ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=len(colours), borderaxespad=0.2, markerscale=0.7)


def chances(net: Any, x: NDArray[Any], noise: NDArray[Any], resolution: int = 80) -> NDArray[Any]:
    """The probability of label 1 over a square around the origin, averaged over draws of the further columns.

    Args:
        net: a fitted classifier.
        x: rows whose first two columns the square holds.
        noise: what the columns after the first two hold; shape (draws, columns).
        resolution: points along each side.
    """
    side = np.linspace(-_edge(x), _edge(x), resolution)
    square = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    total = np.zeros(len(square))
    for draw in noise:
        rows = np.concatenate([square, np.broadcast_to(draw, (len(square), len(draw)))], axis=1)
        total += net.predict_proba(rows.astype(np.float32))[:, 1] / len(noise)
    return total.reshape(resolution, resolution)


def plane(ax: Any, chance: Any, x: Any, y: Any, some: int = 200) -> None:
    """The probability of label 1 over a square around the origin, and some rows.

    Args:
        ax: where.
        chance: probabilities, as `chances` gives them for these rows.
        x, y: rows, of which two columns are drawn, and their labels.
        some: how many rows of each label.
    """
    edge = _edge(x)
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


def sheets(ax: Any, images: Mapping[str, NDArray[Any]], columns: int = 7) -> None:
    """Two rows of images under each title, every channel in a colour of its own.

    Args:
        ax: where.
        images: by title; shape (images, channels, height, width), with at most two channels.
        columns: images beside each other.
    """
    blank(ax)
    for place, (title, some) in enumerate(images.items()):
        top = -3.0 * place
        rows = [np.concatenate(list(some[i : 2 * columns : 2]), axis=2) for i in (0, 1)]
        for strip, colour in zip(np.concatenate(rows, axis=1), (BLUE, ORANGE), strict=False):
            image = ramp(colour, colour)(strip)
            image[..., 3] = strip / max(strip.max(), 1e-9)
            ax.imshow(image, extent=(0, columns, top - 2, top), interpolation="bilinear")
        note(ax, 0, top + 0.12, title, fontweight="normal", fontsize=9)
    ax.set(xlim=(0, columns), ylim=(-3.0 * len(images) + 0.9, 0.7), aspect="equal")


def _edge(x: NDArray[Any]) -> float:
    """Half of the side of the square that holds the first two columns."""
    return 1.06 * float(np.abs(x[:, :2]).max())
