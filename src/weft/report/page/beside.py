"""Two samples beside each other in pictures: histograms of a column, shares of its categories, pairs of columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weft.report.page import charts
from weft.report.page.charts import Dot, Series
from weft.report.page.markup import Markup, Names, num

__all__ = ["BINS", "NUMBERS", "histograms", "plane", "shares"]

Array = NDArray[np.float64]
DOTS, BINS = 300, 40
NUMBERS = (1, 0)  # colour and mark of each sample


def histograms(
    column: str, samples: Sequence[str], values: Sequence[Array], names: Names, *, bins: int = BINS, whole: bool = False
) -> Markup:
    """Both histograms of a column, over the middle 99.8 % of it, as shares of each sample by bin.

    Args:
        column: its name.
        samples: the two samples' names.
        values: of the column, in each.
        names: the page's identifiers.
        bins: how many at most.
        whole: whether these are counts, with a bin for each where there are few.
    """
    every = np.concatenate(values)
    low, high = np.quantile(every, (0.001, 0.999))
    if not high > low:
        low, high = float(every.min()) - 0.5, float(every.max()) + 0.5
    edges = np.linspace(low, high, bins + 1)
    if whole and high - low < BINS:
        edges = np.arange(np.floor(low), np.ceil(high) + 2) - 0.5
    series, told = [], []
    for name, number, own in zip(samples, NUMBERS, values, strict=True):
        held = np.histogram(own, edges)[0] / len(own)
        series.append(Series(name, np.repeat(edges, 2)[1:-1], np.repeat(held, 2), number=number))
        told.append(f"{name}: mean {own.mean():.4g}, deviation {own.std():.4g}")
    outside = int(((every < edges[0]) | (every > edges[-1])).sum())
    picture = charts.lines(
        series,
        title=f"Histograms of {column}",
        describe=f"{'; '.join(told)}.",
        names=names,
        x_label=column,
        y_label="share of the rows",
    )
    rest = f"; {num(outside)} rows lie outside" if outside else ""
    return charts.figure(picture, f"{column}: shares in {len(edges) - 1} bins{rest}.")


def shares(column: str, samples: Sequence[str], values: Sequence[Sequence[str]], names: Names, most: int = 8) -> Markup:
    """The share of each category in both samples; of many, those that the first has most often."""
    known, counts = np.unique(np.asarray(values[0], dtype=str), return_counts=True)
    kept = [str(name) for name in known[np.argsort(-counts, kind="stable")][:most]]
    dots, told = [], []
    for name, number, own in zip(samples, NUMBERS, values, strict=True):
        each = np.asarray(own, dtype=str)
        held = [float((each == category).mean()) for category in kept]
        dots += [Dot(c[:12], share, number, f"{name}, {c}: {share:.3f}") for c, share in zip(kept, held, strict=True)]
        told.append(f"{name}: {', '.join(f'{c} {share:.3f}' for c, share in zip(kept, held, strict=True))}")
    picture = charts.scatter(
        [*dots, *([] if dots else [Dot("", 0.0)])],
        title=f"Shares of {column}",
        describe=f"{'; '.join(told)}.",
        names=names,
        x_label=column,
        y_label="share of the rows",
    )
    rest = f"; the {most} most frequent of {len(known)}" if len(known) > most else ""
    return charts.figure(picture, f"{column}: the share of each category{rest}.")


def plane(columns: tuple[str, str], samples: Sequence[str], rows: Sequence[Array], names: Names) -> Markup:
    """Some rows of both samples, `(n, 2)`, in the plane of two columns."""
    dots, few = [], []
    for number, own in zip(NUMBERS, rows, strict=True):
        some = own[charts.thin(len(own), DOTS)]
        few.append(len(some))
        dots += [Dot(float(a), float(b), number) for a, b in some]
    mixed = [dots[k] for k in np.random.default_rng(0).permutation(len(dots))]  # neither sample on top
    said = " and ".join(f"{count} rows of {name}" for count, name in zip(few, samples, strict=True))
    picture = charts.scatter(
        mixed,
        title=f"{columns[0]} and {columns[1]}",
        describe=f"Points of {said} in the plane of {columns[0]} and {columns[1]}.",
        names=names,
        x_label=columns[0],
        y_label=columns[1],
        height=300,
        small=True,
    )
    return charts.figure(picture, f"{said}.")
