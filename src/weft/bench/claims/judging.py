"""Judging a figure by the bound of its interval, and a claim by its figures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypedDict

from weft.bench.claims.estimates import Estimate, Margins, interquartile_of, mean_of, median_of, over, share_of

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = [
    "FAILS",
    "HOLDS",
    "NOT_RUN",
    "NOT_SETTLED",
    "Figure",
    "anew",
    "as_kept",
    "concluded",
    "judged",
    "shown",
    "verdict_of",
]

HOLDS, FAILS, NOT_SETTLED, NOT_RUN = "holds", "fails", "not settled", "not run at this scale"
ESTIMATES = {estimate.__name__: estimate for estimate in (interquartile_of, mean_of, median_of, share_of)}


class Figure(TypedDict):
    """A figure as `result.json` holds it; its bounds, scores and how they were summed up allow to judge it anew."""

    name: str
    reference: str
    measured: float | None
    interval: list[float] | None
    unit: str
    verdict: str | None
    least: float | None
    most: float | None
    exact: bool
    by: str
    scores: list[float | None]
    margins: Margins | None


def judged(
    value: float, interval: tuple[float, float] | None, least: float | None, most: float | None, *, exact: bool = False
) -> str | None:
    """A figure's verdict: it holds or fails where its whole interval does; None without bounds.

    Args:
        value, interval: what was measured.
        least, most: the bounds; given both, too good is a fault too.
        exact: whether the value itself is all there is: it has no interval and needs none.

    >>> judged(2.0, (1.0, 3.0), 0.5, None), judged(2.0, (1.0, 3.0), 1.5, None), judged(2.0, (1.0, 3.0), 3.5, None)
    ('holds', 'not settled', 'fails')
    """
    if least is None and most is None:
        return None
    if not math.isfinite(value):
        return FAILS
    if interval is None and not exact:
        return NOT_SETTLED  # one replica tells nothing
    low, high = interval or (value, value)
    if (least is None or low >= least) and (most is None or high <= most):
        return HOLDS
    if (least is not None and high < least) or (most is not None and low > most):
        return FAILS
    return NOT_SETTLED


def anew(figure: Figure) -> Figure:
    """The figure judged again: its interval as this weft makes it of the scores, by the bounds that were kept."""
    if figure["measured"] is None or figure["verdict"] is None or figure["least"] is figure["most"] is None:
        return figure
    scores = [math.nan if s is None else s for s in figure["scores"]]
    between = figure["interval"]
    interval = (between[0], between[1]) if between else None
    margins = figure.get("margins")
    if margins:
        found = over(margins)
    elif figure["by"]:
        found = ESTIMATES[figure["by"]](scores)
    else:
        found = Estimate(figure["measured"], interval, len(scores))
    verdict = judged(found.value, found.interval, figure["least"], figure["most"], exact=figure["exact"])
    ends = list(found.interval) if found.interval and all(map(math.isfinite, found.interval)) else None
    return {**figure, "measured": found.value, "interval": ends, "verdict": verdict}


def as_kept(figure: Figure) -> bool:
    """Whether a figure can be judged anew by the interval that was kept alone, since what it was made of was not."""
    judged_by = figure["least"] is not None or figure["most"] is not None
    return judged_by and figure["interval"] is not None and not figure["by"] and not figure.get("margins")


def verdict_of(figure: Json | Figure) -> str | None:
    """A figure's verdict; results of earlier versions say only whether the measured value itself holds."""
    told: Json = dict(figure)
    verdict: str | None = told.get("verdict", {True: HOLDS, False: FAILS}.get(told.get("holds", "")))
    return verdict


def concluded(figures: list[Figure]) -> tuple[str, str]:
    """The claim's verdict and why: it fails if one figure does, else is not settled if one is not, else holds."""
    found = [f for f in figures if f["verdict"] is not None]
    skipped = [f["name"] for f in figures if f["verdict"] is None and f["measured"] is None]
    left = f" Not run at this scale: {'; '.join(skipped)}." if skipped else ""
    if not found:
        return NOT_RUN, f"No figure was judged.{left}"
    said = []
    for verdict, told in ((FAILS, "missed"), (NOT_SETTLED, "not settled")):
        those = [f for f in found if f["verdict"] == verdict]
        if those:
            each = "; ".join(f"{f['name']}: {shown(f)}{_few(f)} (expected: {f['reference'] or 'true'})" for f in those)
            said.append(f"{len(those)} of {len(found)} judged figures {told}. {each}.")
    if said:
        verdict = FAILS if any(f["verdict"] == FAILS for f in found) else NOT_SETTLED
        return verdict, f"{' '.join(said)}{left}"
    all_of = f"All {len(found)} judged figures are" if len(found) > 1 else "The judged figure is"
    return HOLDS, f"{all_of} within the tolerance.{left}"


def _few(figure: Figure) -> str:
    """What keeps a figure from being settled, where that is the number of seeds."""
    without = figure["verdict"] == NOT_SETTLED and figure["interval"] is None
    return f", of too few seeds for an interval ({len(figure['scores'])})" if without else ""


def shown(figure: Json | Figure) -> str:
    """A figure's measured value with its unit and interval.

    >>> shown({"measured": 97.91, "unit": "%", "interval": [96.0, 98.5]})
    '97.9 % [96, 98.5]'
    >>> shown({"measured": 1e-9, "unit": "", "interval": None, "exact": True})
    '1e-09 (exact)'
    """
    if figure["measured"] is None:
        return "none"
    unit = f" {figure['unit']}" if figure["unit"] else ""
    between = f" [{figure['interval'][0]:.3g}, {figure['interval'][1]:.3g}]" if figure["interval"] else ""
    return f"{figure['measured']:.3g}{unit}{between or (' (exact)' if figure.get('exact') else '')}"
