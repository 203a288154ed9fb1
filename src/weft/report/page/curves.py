"""Learning curves: one figure for each measure, with its numbers under it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft.core.values import jsonable
from weft.report.page import charts
from weft.report.page.charts import Array, Series
from weft.report.page.markup import Cell, Markup, Names, csv_link, details, el, table

__all__ = ["Charted", "curve_section"]

Charted = tuple[str, int, Array, Array]
"""A curve: its name, its number, the steps (n,) and the values (n, seeds)."""

MOST_RECORDS = 160  # points of a drawn curve; a screen shows no more
MOST_ROWS = 25  # rows of the table under a figure; the CSV has all
MOST_CSV = 4000  # rows of a CSV file held in the page


def curve_section(
    charted: dict[str, list[Charted]],
    names: Names,
    *,
    over: str,
    breaks: Sequence[tuple[float, str]] = (),
) -> list[Markup | None]:
    """One figure for each measure.

    Args:
        charted: by measure, the curves.
        names: the page's identifiers.
        over: what the last axis of the values is.
        breaks: steps to mark, with their names.
    """
    figures = []
    shown: dict[str, int] = {}
    many = False
    for measure, curves in charted.items():
        series, told, rows, kept = [], [], [], []
        for name, number, steps, values in curves:
            shown[name] = number
            many = many or values.shape[1] > 1
            middle, low, high = charts.spread(values)
            some = charts.thin(len(steps), MOST_RECORDS)
            several = values.shape[1] > 1
            least, largest = (low[some], high[some]) if several else (None, None)
            series.append(Series(name, steps[some], middle[some], least, largest, number))
            good = np.flatnonzero(np.isfinite(middle))
            told.append(f"{name} goes from {middle[good[0]]:.4g} to {middle[good[-1]]:.4g}")
            for i in charts.thin(len(steps), MOST_ROWS):
                few = [Cell(jsonable(v)) for v in (middle[i], low[i], high[i])]
                rows.append([name, Cell(float(steps[i])), *(few if values.shape[1] > 1 else few[:1])])
            for i in charts.thin(len(steps), max(MOST_CSV // len(curves), 2)):
                kept.append([name, float(steps[i]), *(_short(v) for v in values[i])])
        widest = max(values.shape[1] for *_, values in curves)
        picture = charts.lines(
            series,
            title=f"{measure} by step",
            describe=f"{'; '.join(told)}.",
            names=names,
            y_label=measure,
            breaks=breaks,
        )
        singular = over.rstrip("s")
        link = csv_link(f"curve-{measure}", ["curve", "step", *[f"{singular} {k + 1}" for k in range(widest)]], kept)
        heads = ["curve", "step", *(["median", "least", "largest"] if widest > 1 else ["value"])]
        numbers = details(
            f"Numbers of {measure}",
            table(f"{measure} at some steps", heads, rows, names=names, file=f"some-{measure}"),
            el("p", "All of them: ", link, class_="tools"),
        )
        figures.append(el("figure", picture, numbers))
    if not figures:
        return []
    said = f"Each curve is the median over {over}, in a band from the least to the largest." if many else ""
    return [
        el("p", said, class_="note") if said else None,
        charts.legend(list(shown.items())),
        el("div", *figures, class_="charts"),
    ]


def _short(value: float) -> float | str:
    return float(f"{value:.6g}") if math.isfinite(value) else ""
