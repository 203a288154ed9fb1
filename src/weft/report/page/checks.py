"""What the model gets wrong: predictive checks, in a run's page."""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.report.page import charts
from weft.report.page.charts import Axis
from weft.report.page.markup import Cell, Markup, Sections, el, num, seconds, table

if TYPE_CHECKING:
    from weft.learner.estimator import Learner
    from weft.measures.checks import Checked

__all__ = ["ROWS", "checks"]

ROWS, DRAWS, SOME = 500, 999, 20
PATIENCE = 30.0  # seconds that all of it may take
WIDE = 8.0  # deviations of the model's that the axis shows


def checks(learner: Learner, rows: Any, sections: Sections, *, trained: bool, **named: Any) -> list[Markup | None]:
    """Statistics of rows beside those of data sets that the model draws; nothing where drawing takes too long.

    Args:
        learner: fitted, of an objective that draws.
        rows: as the learner takes them; of many, some are taken, evenly.
        sections: of the page.
        trained: whether it was fitted to them.
        named: further fields by row that `sample` reads.
    """
    from weft.measures.checks import predictive_check

    kept = charts.thin(len(rows), ROWS)
    few = rows.iloc[kept] if hasattr(rows, "iloc") else rows[kept]
    beside: dict[str, Any] = {name: np.asarray(values)[kept] for name, values in named.items()}
    needed = _needed(learner, few, beside)
    if needed > PATIENCE:
        said = (
            f"Not made: {DRAWS} data sets of {len(few)} rows would take about {seconds(needed)}. "
            "weft.measures.predictive_check(learner, X, draws=...) makes them."
        )
        return [el("p", said, class_="note")]
    found = predictive_check(learner, few, draws=DRAWS, trained=trained, **beside)
    axis = Axis(-WIDE, WIDE, 2.0, 98.0)
    lines = [_line(line, axis, line.statistic in found.misfits) for line in found.table]
    heads = ["statistic", "data", "model", "p", "Holm's p", "where, or why not", Cell("", charts.scale(axis))]
    part = f"{num(len(few))} of the {num(len(rows))} " if len(few) < len(rows) else f"the {num(len(rows))} "
    caption = (
        f"Statistics of {part}{'training' if trained else 'held-out'} rows beside their medians over {num(DRAWS)} data "
        "sets of as many rows that the model drew. p: how often the model's are as far out; Holm's p is corrected for "
        "the number of statistics. The picture has the middle 95 % of the model's as a bar, 4 deviations wide, and the "
        f"data as a dot, at the edge where it is {num(WIDE)} deviations away or more."
    )
    shown = table(caption, heads, lines, names=sections.names, file="checks", picture=len(heads) - 1)
    return [el("p", found.conclusion, class_="lead"), shown]


def _needed(learner: Learner, rows: Any, named: dict[str, Any]) -> float:
    """Seconds that all of it takes, by a check with few draws; what is very slow to draw is not tried again."""
    from weft.measures.checks import APART, predictive_check

    begun = time.perf_counter()
    learner.sample(len(rows), random_state=0, **named)
    once = (time.perf_counter() - begun) * DRAWS
    if once > 20 * PATIENCE:  # even if most of the first call was preparation
        return once
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that so few draws find nothing
        predictive_check(learner, rows, draws=SOME, **named)
    return (time.perf_counter() - begun) * (DRAWS + APART) / (SOME + APART)


def _line(line: Checked, axis: Axis, misfit: bool) -> list[object]:
    """A line, whose picture is in deviations of the model's: a quarter of its middle 95 %."""
    unit = (line.high - line.low) / 4
    away = [v - line.model for v in (line.value, line.low, line.high)]
    places = [v / unit if unit > 0 else WIDE * np.sign(v) for v in away]  # what never varies is far wherever it differs
    data, low, high = (float(np.clip(np.nan_to_num(place), -WIDE, WIDE)) for place in places)
    said = f"data {num(line.value)}, model {num(line.low)} to {num(line.high)}"
    dot = charts.interval(axis, [(data, 1 if misfit else 0)], span=(low, high), label=said)
    corrected = el("strong", num(line.holm)) if misfit else num(line.holm)
    return [
        line.statistic,
        Cell(line.value, num(line.value)),
        Cell(line.model, num(line.model)),
        Cell(line.p_value, num(line.p_value)),
        Cell(line.holm, corrected),
        Cell(line.about, line.about or "–", "words"),
        Cell(None, dot, "plot"),
    ]
