"""The page of a density of a table: its likelihood and what kind it is, unusual rows, data beside samples."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.learner.given import beside
from weft.report.page import charts
from weft.report.page.beside import BINS, NUMBERS, histograms, plane, shares
from weft.report.page.markup import Cell, Markup, Sections, el, num, table
from weft.scores.likelihoods import bits
from weft.scores.predictions import mean_interval

if TYPE_CHECKING:
    import pandas as pd

    from weft.learner.estimator import Learner
    from weft.tables.recipe import Table

__all__ = ["density"]

DRAWS, COLUMNS, CROSSED, UNUSUAL, SHOWN = 2000, 8, 4, 10, 8
SAMPLES = ("data", "samples")


def density(learner: Learner, data: Table, sections: Sections) -> dict[str, list[Markup | None]]:
    """Sections by their titles: of what tells a density of the table, and of what draws.

    Args:
        learner: fitted on the table.
        data: the table's rows; the likelihood and the pictures are of those held out, where there are some.
        sections: of the page.
    """
    out: dict[str, list[Markup | None]] = {}
    offered = learner.objective_.capabilities()
    rows = data.given()
    part, seen = data.measured
    if "log_prob" in offered and offered["log_prob"].gives == "density":
        logs = np.asarray(learner.log_prob(rows, **beside(learner, "log_prob", data.y)), dtype=np.float64)
        out["Likelihood"] = _likelihood(logs[seen], part, learner.log_prob.kind)
        out["Unusual rows"] = _unusual(logs, rows, seen, part, sections)
    if "sample" in offered and offered["sample"].asks == "number":
        classes = None if data.y is None else np.random.default_rng(0).choice(data.y[seen], DRAWS)  # as they come
        drawn = learner.sample(DRAWS, random_state=0, **beside(learner, "sample", classes))
        out["Samples"] = _beside(data.given(seen), drawn, part, data, sections)
    return out


def _likelihood(logs: NDArray[np.float64], part: str, kind: str) -> list[Markup | None]:
    mean = float(logs.mean())
    fine = len(logs) > 1 and bool(np.isfinite(logs).all())
    span = [num(end) for end in mean_interval(logs)] if fine else []
    wide = f" (95 %: {span[0]} to {span[1]}, for independent rows)" if span else ""
    said = (
        f"The mean log-likelihood of the {num(len(logs))} {part} rows is {num(mean)} nats{wide}, or "
        f"{num(float(bits(mean)))} bits. It is {_KINDS.get(kind, 'of a kind that the objective does not say')}."
    )
    units = (
        "Real numbers count by their density, in the units of the table; categories and counts by their probability; "
        "of a row with gaps, what is observed. The loss above is that of the columns as the model reads them, numbers "
        "standardized."
    )
    return [el("p", said, class_="lead"), el("p", units, class_="note")]


_KINDS = {
    "exact": "exact",
    "lower bound": "a lower bound: the model's own may be higher",
    "upper bound": "an upper bound: the model's own may be lower",
    "estimate": "an estimate, which may be off in either direction",
}


def _unusual(
    logs: NDArray[np.float64], rows: pd.DataFrame, seen: NDArray[np.bool_], part: str, sections: Sections
) -> list[Markup | None]:
    """The rows with the lowest density, by their number in the file."""
    lowest = np.argsort(logs, kind="stable")[:UNUSUAL]
    share = [float((logs <= logs[i]).mean()) for i in lowest]
    shown = list(rows.columns[:SHOWN])
    cells = []
    for i, below in zip(lowest, share, strict=True):
        own = rows.iloc[int(i)]
        values = ["–" if value is None or value != value else value for value in (own[name] for name in shown)]
        which = part if seen[i] else "training"
        values = [float(v) if isinstance(v, float | np.floating) else str(v) for v in values]
        cells.append([int(i) + 1, Cell(float(logs[i]), num(float(logs[i]))), Cell(below, num(below)), which, *values])
    heads = ["row", "log p", "share as low", "part", *map(str, shown)]
    caption = f"The {len(cells)} rows that the model finds least likely, of {num(len(logs))}; – is a gap."
    return [table(caption, heads, cells, names=sections.names, file="unusual-rows")]


def _beside(held: pd.DataFrame, drawn: pd.DataFrame, part: str, data: Table, sections: Sections) -> list[Markup | None]:
    """Marginals and pairs of columns."""
    columns = () if data.recipe is None else data.recipe.columns
    bins = int(np.clip(2 * len(held) ** (1 / 3), 8, BINS))  # Rice's rule: few rows fill few of them
    pictures: list[Markup] = []
    real: list[str] = []
    for column in columns:
        pair = [frame[column.name].dropna() for frame in (held, drawn)]
        if not len(pair[0]):
            continue
        if column.kind in ("number", "count"):
            real.append(column.name)
        if len(pictures) >= COLUMNS:
            continue
        if column.kind in ("number", "count"):
            values = [own.to_numpy(np.float64) for own in pair]
            pictures.append(
                histograms(column.name, SAMPLES, values, sections.names, bins=bins, whole=column.kind == "count")
            )
        else:
            pictures.append(shares(column.name, SAMPLES, [own.astype(str).tolist() for own in pair], sections.names))
    planes = []
    for names in combinations(real[:CROSSED], 2):
        equal = drawn.iloc[: max(len(held), 50)]  # as dense as the data
        both = [frame[list(names)].dropna().to_numpy(np.float64) for frame in (held, equal)]
        if len(both[0]):
            planes.append(plane(names, SAMPLES, both, sections.names))
    few = f" The first {COLUMNS} of {num(len(columns))} columns." if len(columns) > COLUMNS else ""
    said = f"{num(len(drawn))} samples beside the {num(len(held))} {part} rows, column by column.{few}"
    named = list(zip(SAMPLES, NUMBERS, strict=True))
    out: list[Markup | None] = [el("p", said), charts.legend(named), el("div", *pictures, class_="charts")]
    if planes:
        out += [el("p", "Pairs of columns:"), charts.legend(named, line=False), el("div", *planes, class_="charts")]
    return out
