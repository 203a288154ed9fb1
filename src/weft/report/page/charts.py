"""Figures as SVG, drawn in the page's own colours: small, crisp, and with words beside every picture.

Widths of curves and scatters are those of a phone's column, so that letters keep their size there; on a
larger screen several stand side by side. What stands in a table's row (`interval`) is drawn in per cent of
the cell's width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.report.page.markup import Markup, Names, el, is_number

__all__ = ["Axis", "Series", "figure", "interval", "legend", "lines", "mark", "nice", "scatter", "swatch"]

Array = NDArray[np.float64]
SERIES = 8  # colours of the style; after that they repeat with other dashes
WIDTH, HEIGHT = 380, 240
_MARKS = ("circle", "square", "triangle", "diamond", "cross", "plus", "down", "bar")


def nice(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from within a range, for the ticks of an axis.

    >>> nice(0.03, 0.97)
    [0.2, 0.4, 0.6, 0.8]
    """
    if not high > low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first
    return [round((first + k) * step, 12) for k in range(max(count, 0) + 1)] or [low]


@dataclass(frozen=True)
class Axis:
    """From values to places along a line.

    Attributes:
        low, high: the range shown.
        start, stop: where it lies.
        log: whether equal ratios, not differences, take equal room.
        names: categories, whose values are 0, 1, 2, ...; none for numbers.
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False
    names: tuple[str, ...] = ()

    @classmethod
    def over(cls, values: Sequence[float] | Array, start: float, stop: float, *, pad: float = 0.05) -> Axis:
        """An axis that holds these values, with a little room at both ends."""
        good = [float(v) for v in values if math.isfinite(v)]
        low, high = (min(good), max(good)) if good else (0.0, 1.0)
        room = (high - low) * pad or abs(high) * pad or 1.0
        return cls(low - room, high + room, start, stop)

    def at(self, value: float) -> float:
        """The place of a value."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        value = math.log(value) if self.log else value
        return self.start + (value - low) / (high - low) * (self.stop - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Values with their labels."""
        if self.names:
            return [(float(i), n if len(n) <= 12 else f"{n[:11]}…") for i, n in enumerate(self.names)]
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            every = max(1, math.ceil((last - first + 1) / 4))
            powers = [10.0**p for p in range(first, last + 1, every)]
            if len(powers) >= 2:
                return [(p, f"{p:g}".replace("e-0", "e-")) for p in powers]
            return [(v, f"{v:.2g}") for v in (self.low, math.sqrt(self.low * self.high), self.high)]
        return [(v, f"{v:g}".replace("-", "\u2212")) for v in nice(self.low, self.high)]


@dataclass(frozen=True)
class Series:
    """A curve in a band.

    Attributes:
        name: for the legend.
        x, y: its points, NaN where there is none.
        low, high: the band, or None.
        number: which colour, dash and mark.
        seeds: thin lines of single seeds beside it: the points of each.
    """

    name: str
    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None
    number: int = 0
    seeds: tuple[tuple[Array, Array], ...] = ()


def _f(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _colour(number: int) -> str:
    return f"s{number % SERIES}" + (f" dash{number // SERIES % 3}" if number >= SERIES else "")


def mark(
    number: int, x: float | str, y: float | str, size: float = 4.0, title: str = "", hollow: bool = False
) -> Markup:
    """A point whose shape tells the series as its colour does. Places may be in per cent."""
    shape = _MARKS[number % len(_MARKS)]
    r = size
    place = el("title", title) if title else None
    d = {
        "square": f"M{-r * 0.85:.1f} {-r * 0.85:.1f}h{1.7 * r:.1f}v{1.7 * r:.1f}h{-1.7 * r:.1f}z",
        "triangle": f"M0 {-1.15 * r:.1f}L{1.1 * r:.1f} {0.85 * r:.1f}H{-1.1 * r:.1f}z",
        "down": f"M0 {1.15 * r:.1f}L{1.1 * r:.1f} {-0.85 * r:.1f}H{-1.1 * r:.1f}z",
        "diamond": f"M0 {-1.25 * r:.1f}L{1.1 * r:.1f} 0 0 {1.25 * r:.1f} {-1.1 * r:.1f} 0z",
        "cross": f"M{-r:.1f} {-r:.1f}L{r:.1f} {r:.1f}M{-r:.1f} {r:.1f}L{r:.1f} {-r:.1f}",
        "plus": f"M{-1.2 * r:.1f} 0H{1.2 * r:.1f}M0 {-1.2 * r:.1f}V{1.2 * r:.1f}",
        "bar": f"M{-0.4 * r:.1f} {-1.2 * r:.1f}h{0.8 * r:.1f}v{2.4 * r:.1f}h{-0.8 * r:.1f}z",
    }.get(shape)
    kind = f"{_colour(number)} mark" + (" hollow" if hollow else "") + (" open" if shape in ("cross", "plus") else "")
    if d is None:
        return el("circle", place, cx=x, cy=y, r=_f(r), class_=kind)
    if isinstance(x, str):  # per cent: a nested picture carries the path there
        return el("svg", el("path", place, d=d, class_=kind), x=x, y=y, overflow="visible", width="1", height="1")
    return el("path", place, d=d, class_=kind, transform=f"translate({_f(float(x))} {_f(float(y))})")


def swatch(number: int, line: bool = True) -> Markup:
    """A series' sign, for a legend."""
    stroke = el("path", d="M0 7H24", class_=f"{_colour(number)} curve") if line else None
    return el("svg", stroke, mark(number, 12, 7, 3.6), viewBox="0 0 24 14", width="24", height="14", aria_hidden="true")


def legend(named: Sequence[tuple[str, int]], *, line: bool = True) -> Markup:
    """Which colour and mark is which."""
    return el("ul", *[el("li", swatch(n, line), " ", name) for name, n in named], class_="legend")


def svg(
    inner: object, *, title: str, describe: str, names: Names, width: float = WIDTH, height: float = HEIGHT
) -> Markup:
    """A picture with a name and a description for those who do not see it."""
    name = names("figure")
    return el(
        "svg",
        el("title", title, id=f"{name}-t"),
        el("desc", describe, id=f"{name}-d"),
        inner,
        viewBox=f"0 0 {_f(width)} {_f(height)}",
        role="img",
        aria_labelledby=f"{name}-t {name}-d",
        class_="chart",
    )


def figure(picture: object, caption: object, *more: object, kind: str = "") -> Markup:
    """A picture with what is said of it, and its numbers."""
    return el("figure", picture, el("figcaption", caption), *more, class_=kind or None)


def _frame(x: Axis, y: Axis, x_label: str, y_label: str, height: float) -> list[Markup]:
    """Grid, ticks and labels; the value axis' name stands above it, level."""
    out = []
    for value, label in y.ticks():
        at = y.at(value)
        out.append(el("path", d=f"M{_f(x.start)} {_f(at)}H{_f(x.stop)}", class_="grid"))
        out.append(el("text", label, x=_f(x.start - 6), y=_f(at + 3.5), text_anchor="end"))
    ticks = x.ticks()
    for value, label in ticks:
        at = x.at(value)
        out.append(el("path", d=f"M{_f(at)} {_f(y.start)}v4", class_="tick"))
        anchor = "end" if at > x.stop - 8 and not x.names else "middle"
        out.append(el("text", label, x=_f(at), y=_f(y.start + 16), text_anchor=anchor))
    out.append(el("path", d=f"M{_f(x.start)} {_f(y.start)}H{_f(x.stop)}", class_="axis"))
    out.append(el("text", y_label, x="2", y="12", class_="label"))
    out.append(el("text", x_label, x=_f(x.stop), y=_f(height - 3), text_anchor="end", class_="label"))
    return out


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_f(a)} {_f(b)}" for a, b in points) if points else ""


def _pieces(series: Series) -> list[NDArray[np.intp]]:
    """Runs of neighbouring points that are there."""
    good = np.flatnonzero(np.isfinite(series.y) & np.isfinite(series.x))
    return [part for part in np.split(good, np.flatnonzero(np.diff(good) > 1) + 1) if len(part)]


def lines(
    series: Sequence[Series],
    *,
    title: str,
    describe: str,
    names: Names,
    x_label: str = "step",
    y_label: str = "",
    breaks: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Curves, each in its band.

    Args:
        series: what to draw.
        title, describe: for those who do not see it.
        names: the page's identifiers.
        x_label, y_label: the axes' names.
        breaks: places on the x axis to mark, with their names: where a task begins.
    """
    every = [y for s in series for y in (s.y, *(y for _, y in s.seeds))]
    middle = np.concatenate(every) if every else np.array([0.0, 1.0])
    ends = [np.concatenate([e for s in series if (e := getattr(s, side)) is not None] or [middle]) for side in BAND]
    good = middle[np.isfinite(middle)]
    if not len(good):
        return el("p", "No finite values to draw.", class_="note")
    # A diverging seed's band may be very wide: it is cut where it would hide the curves.
    span = float(good.max() - good.min()) or abs(float(good.max())) or 1.0
    low = max(float(np.nanmin(np.append(ends[0], good))), float(good.min()) - span)
    high = min(float(np.nanmax(np.append(ends[1], good))), float(good.max()) + span)
    y = Axis.over([low, high], HEIGHT - 34, 24, pad=0.04)
    steps = np.concatenate([x for s in series for x in (s.x, *(x for x, _ in s.seeds))])
    first, last = float(np.nanmin(steps)), float(np.nanmax(steps))
    widest = max(len(label) for _, label in y.ticks())
    x = Axis(first, last if last > first else first + 1.0, 14 + 6.6 * widest, WIDTH - 10)
    out = _frame(x, y, x_label, y_label, HEIGHT)
    for at, label in breaks:
        out.append(el("path", d=f"M{_f(x.at(at))} 24V{HEIGHT - 34}", class_="break"))
        out.append(el("text", label[:14], x=_f(x.at(at) + 3), y="33", class_="label"))

    def inside(value: float) -> float:
        return y.at(min(max(value, y.low), y.high))

    for s in series:
        for part in _pieces(s):
            if s.low is not None and s.high is not None and len(part) > 1:
                there = [(x.at(float(s.x[i])), inside(float(s.high[i]))) for i in part]
                back = [(x.at(float(s.x[i])), inside(float(s.low[i]))) for i in part[::-1]]
                out.append(el("path", d=_path(there + back) + "z", class_=f"{_colour(s.number)} band"))
    for s in series:
        for own in (Series(s.name, x_of, y_of, number=s.number) for x_of, y_of in s.seeds):
            for part in _pieces(own):
                points = [(x.at(float(own.x[i])), inside(float(own.y[i]))) for i in part]
                out.append(el("path", d=_path(points), class_=f"{_colour(s.number)} curve thin"))
    for s in series:
        for part in _pieces(s):
            points = [(x.at(float(s.x[i])), inside(float(s.y[i]))) for i in part]
            out.append(el("path", d=_path(points), class_=f"{_colour(s.number)} curve"))
            end = int(part[-1])
            out.append(mark(s.number, *points[-1], 3.4, f"{s.name}: {s.y[end]:.4g} at {s.x[end]:g}"))
    return svg(out, title=title, describe=describe, names=names)


BAND = ("low", "high")


@dataclass(frozen=True)
class Dot:
    """A point of a scatter: where, how it is drawn, and what it says when pointed at."""

    x: float | str
    y: float | None
    number: int = 0
    title: str = ""
    hollow: bool = False
    ring: bool = False


def _axis(values: Sequence[float | str], start: float, stop: float) -> tuple[Axis, dict[float | str, float]]:
    """An axis for numbers, by ratio where they seem to have been drawn so, or for categories."""
    if all(is_number(v) for v in values):
        numbers = [float(v) for v in values]
        low, high = min(numbers), max(numbers)
        # Drawn by ratio, many values lie below a tenth of the largest; drawn evenly, one in ten.
        small = sum(v <= high / 10 for v in numbers)
        if low > 0 and high / low > 10 and small >= len(numbers) / 4:
            room = (high / low) ** 0.06
            return Axis(low / room, high * room, start, stop, log=True), {v: float(v) for v in values}
        return Axis.over(numbers, start, stop, pad=0.07), {v: float(v) for v in values}
    labels = sorted({str(v) for v in values})
    place = {v: float(labels.index(str(v))) for v in values}
    return Axis(-0.5, len(labels) - 0.5, start, stop, names=tuple(labels)), place


def scatter(
    dots: Sequence[Dot],
    *,
    title: str,
    describe: str,
    names: Names,
    x_label: str,
    y_label: str,
    height: float = 190,
    equal: bool = False,
    small: bool = False,
) -> Markup:
    """Points; those without a value stand as crosses on the axis.

    Args:
        dots: the points.
        title, describe, names, x_label, y_label: as in `lines`.
        height: of the picture.
        equal: whether both axes have one scale and take no category.
        small: whether there are many points: small ones, in a wide picture, between axes of even scale.
    """
    width = WIDTH if equal or small else 300
    good = [float(d.y) for d in dots if d.y is not None and math.isfinite(d.y)]
    y = Axis.over(good or [0.0, 1.0], height - 38, 24, pad=0.08)
    widest = max(len(label) for _, label in y.ticks())
    start = 14 + 6.6 * widest
    x, place = _axis([d.x for d in dots], start, width - 10)
    if small:
        x = Axis.over([place[d.x] for d in dots], start, width - 10)
    if equal:
        span = max((y.high - y.low) / (y.start - y.stop), (x.high - x.low) / (x.stop - x.start))
        mid_x, mid_y = (x.low + x.high) / 2, (y.low + y.high) / 2
        half_x, half_y = span * (x.stop - x.start) / 2, span * (y.start - y.stop) / 2
        x = Axis(mid_x - half_x, mid_x + half_x, x.start, x.stop)
        y = Axis(mid_y - half_y, mid_y + half_y, y.start, y.stop)
    out = _frame(x, y, x_label, y_label, height)
    for dot in dots:
        across = x.at(place[dot.x])
        if dot.y is None or not math.isfinite(dot.y):
            out.append(mark(4, across, y.start - 6, 3.0, dot.title, hollow=True))
            continue
        if dot.ring:
            out.append(el("circle", cx=_f(across), cy=_f(y.at(dot.y)), r="8", class_="ring"))
        out.append(mark(dot.number, across, y.at(dot.y), 1.6 if equal or small else 3.6, dot.title, hollow=dot.hollow))
    return svg(out, title=title, describe=describe, names=names, width=width, height=height)


def _percent(axis: Axis, value: float) -> str:
    return f"{min(max(axis.at(value), 0.0), 100.0):.2f}%"


def interval(
    axis: Axis,
    points: Sequence[tuple[float, int]],
    *,
    span: Sequence[float] | None = None,
    faint: Sequence[float] = (),
    zero: bool = False,
    label: str,
) -> Markup:
    """What stands in one row of a table: points on an axis shared by all rows, an interval, single seeds.

    Args:
        axis: from 0 to 100, in per cent of the cell.
        points: values and the number of each one's series.
        span: the interval's ends.
        faint: values of single seeds.
        zero: whether to mark where zero is.
        label: the same in words.
    """
    out = [el("line", x1="0", x2="100%", y1="14", y2="14", class_="grid")]
    if zero:
        at = _percent(axis, 0.0)
        out.append(el("line", x1=at, x2=at, y1="0", y2="28", class_="zero"))
    out += [el("line", x1=(p := _percent(axis, v)), x2=p, y1="18", y2="23", class_="seed") for v in faint]
    if span is not None:
        number = points[0][1] if points else 0
        ends = [_percent(axis, v) for v in span]
        out.append(el("line", x1=ends[0], x2=ends[1], y1="14", y2="14", class_=f"{_colour(number)} span"))
    out += [mark(number, _percent(axis, value), "14", 4.6) for value, number in points]
    return el("svg", *out, width="100%", height="28", role="img", aria_label=label, class_="row")


def scale(axis: Axis) -> Markup:
    """The ticks of `interval`'s axis, for the column's heading."""
    ticks = [v for v in nice(axis.low, axis.high, 4) if 4 <= axis.at(v) <= 96]
    out = [
        el(
            "text",
            f"{v:g}".replace("-", "\u2212"),
            x=_percent(axis, v),
            y="12",
            text_anchor="middle",
        )
        for v in ticks
    ]
    return el("svg", *out, width="100%", height="16", aria_hidden="true", class_="row scale")


def spread(values: Array) -> tuple[Array, Array, Array]:
    """Median, least and largest over seeds (the last axis), NaN where all are missing.

    >>> spread(np.array([[1.0, 2.0, 9.0]]))
    (array([2.]), array([1.]), array([9.]))
    """
    clean = np.where(np.isfinite(values), values, np.nan)
    some = np.isfinite(clean).any(-1)
    middle, low, high = (np.full(clean.shape[:-1], np.nan) for _ in range(3))
    middle[some] = np.nanmedian(clean[some], axis=-1)
    low[some], high[some] = np.nanmin(clean[some], axis=-1), np.nanmax(clean[some], axis=-1)
    return middle, low, high


def thin(count: int, most: int) -> NDArray[np.intp]:
    """Which of so many records to keep: evenly, the first and the last among them.

    >>> thin(10, 4)
    array([0, 3, 6, 9])
    """
    return np.arange(count) if count <= most else np.unique(np.linspace(0, count - 1, most).round().astype(int))
