"""The page of two samples: what the measures say, and both samples' marginals and pairs of columns in pictures."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.report.page import charts
from weft.report.page.beside import NUMBERS, histograms, plane
from weft.report.page.markup import Cell, Markup, Names, Sections, document, el, join, num, table

if TYPE_CHECKING:
    from weft.report.comparing import SampleComparison

__all__ = ["page"]

Array = NDArray[np.float64]
MARGINALS, CROSSED, LISTED = 8, 4, 200


def page(found: SampleComparison) -> str:
    """The whole page as text."""
    names = Names()
    for taken in ("main", "told"):
        names(taken)
    sections = Sections(names)
    X, Y = found.rows
    apart = np.array([_kolmogorov(X[:, j], Y[:, j]) for j in range(X.shape[1])])
    order = np.argsort(-apart, kind="stable")
    legend = charts.legend(list(zip(found.names, NUMBERS, strict=True)), line=False)
    sections.add("What the measures say", el("p", found.conclusion, class_="lead"), _measures(found, names))
    shown = sorted(order[:MARGINALS].tolist())
    sections.add(
        "Columns",
        _note(len(shown), len(order), "columns"),
        charts.legend(list(zip(found.names, NUMBERS, strict=True))),
        el(
            "div",
            *[histograms(found.columns[j], found.names, (X[:, j], Y[:, j]), names) for j in shown],
            class_="charts",
        ),
        _numbers(found, apart, order, names),
    )
    crossed = sorted(order[:CROSSED].tolist())
    pictures = [
        plane((found.columns[i], found.columns[j]), found.names, (X[:, [i, j]], Y[:, [i, j]]), names)
        for i, j in combinations(crossed, 2)
    ]
    if pictures:
        few = _note(len(crossed), len(order), "columns")
        sections.add("Pairs of columns", few, legend, el("div", *pictures, class_="charts"))
    sizes = " and ".join(f"{num(len(rows))} of {name}" for name, rows in zip(found.names, found.rows, strict=True))
    title = f"{found.names[0]} beside {found.names[1]}"
    foot = el("p", "Made by weft's compare_samples; all of it is in this file, and it asks nothing of the network.")
    subtitle = f"{sizes}: rows of {num(X.shape[1])} {'number' if X.shape[1] == 1 else 'numbers'}."
    return document(title, "two samples", subtitle, sections.contents, join(sections.parts), foot=foot)


def _note(shown: int, of: int, what: str) -> Markup | None:
    if shown == of:
        return None
    return el("p", f"The {shown} of {num(of)} {what} whose distributions differ most.", class_="note")


def _measures(found: SampleComparison, names: Names) -> Markup:
    rows = [
        [
            line.measure,
            Cell(line.value, num(line.value)),
            line.alike,
            Cell(line.p_value, num(line.p_value)),
            Cell(line.holm, num(line.holm)),
            Cell(line.about, line.about or "–", "words"),
        ]
        for line in found.table
    ]
    heads = ["measure", "value", "of one law", "p", "Holm's p", "how"]
    said = (
        f"Every measure of {found.names[0]}, as the real rows, and {found.names[1]}, as the generated ones. p: how "
        f"often two samples of one law would look as different; Holm's p is corrected for the number of tests."
    )
    return table(said, heads, rows, names=names, file="measures")


def _kolmogorov(a: Array, b: Array) -> float:
    """The largest distance of two samples' distribution functions.

    >>> _kolmogorov(np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    0.5
    """
    every = np.concatenate([a, b])
    below = [np.searchsorted(np.sort(v), every, side="right") / len(v) for v in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


def _numbers(found: SampleComparison, apart: Array, order: NDArray[np.intp], names: Names) -> Markup:
    X, Y = found.rows
    rows = []
    for j in order[:LISTED]:
        a, b = X[:, j], Y[:, j]
        values = (a.mean(), b.mean(), a.std(), b.std(), apart[j])
        rows.append([found.columns[j], *[float(value) for value in values]])
    left, right = found.names
    heads = ["column", f"mean, {left}", f"mean, {right}", f"deviation, {left}", f"deviation, {right}", "largest gap"]
    said = "The columns, those that differ most first: the largest gap is that of the two distribution functions."
    return table(said, heads, rows, names=names, file="columns")
