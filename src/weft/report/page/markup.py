"""HTML by construction: whatever is not `Markup` already is escaped, so that no name can become a tag."""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeGuard
from urllib.parse import quote

__all__ = [
    "Cell",
    "Markup",
    "Names",
    "Sections",
    "asset",
    "badge",
    "csv_link",
    "details",
    "document",
    "el",
    "formatter",
    "is_number",
    "join",
    "num",
    "pairs",
    "policy",
    "seconds",
    "table",
    "text",
]

# What HTML cannot hold, and what turns the direction of the text around it.
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_VOID = {"meta", "link", "br", "img", "hr", "input"}
MINUS = "\u2212"


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Markup:
    """A value as HTML text; what is `Markup` stays as it is.

    >>> print(text("<script>"), text(Markup("<b>x</b>")))
    &lt;script&gt; <b>x</b>
    """
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(_UNFIT.sub("\ufffd", str(value)), quote=True))


def join(parts: Iterable[object]) -> Markup:
    """Parts one after another; None counts for nothing, lists are opened."""
    out = []
    for part in parts:
        if part is None:
            continue
        out.append(join(part) if isinstance(part, list | tuple) else text(part))
    return Markup("".join(out))


def el(tag: str, /, *children: object, **attributes: object) -> Markup:
    """An element. `class_` is written `class`, `_` in names as `-`; None and False leave an attribute out.

    >>> print(el("p", "a < b", class_="lead", aria_label='"'))
    <p class="lead" aria-label="&quot;">a &lt; b</p>
    """
    said = []
    for name, value in attributes.items():
        name = name.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        said.append(f" {name}" if value is True else f' {name}="{text(value)}"')
    start = f"<{tag}{''.join(said)}>"
    return Markup(start if tag in _VOID else f"{start}{join(children)}</{tag}>")


class Names:
    """Identifiers that are each given once in a page."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def __call__(self, wish: str) -> str:
        base = re.sub(r"[^a-z0-9]+", "-", wish.lower()).strip("-")[:40] or "part"
        name, number = base, 1
        while name in self._taken:
            number += 1
            name = f"{base}-{number}"
        self._taken.add(name)
        return name


# --- numbers ------------------------------------------------------------------------------------------


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number (True and False are none)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def formatter(values: Sequence[object]) -> Callable[[object], str]:
    """How to write the numbers of one column: with as many decimals as its largest value deserves.

    >>> write = formatter([0.5, 0.93104])
    >>> write(0.93104), write(-1), write(None)
    ('0.931', '−1.000', '–')
    """
    sizes = [abs(float(v)) for v in values if is_number(v) and v]
    top = max(sizes, default=1.0)
    whole = all(is_number(v) and float(v).is_integer() for v in values if v is not None)
    power = math.floor(math.log10(top)) if sizes else 0
    places = min(max(3 - max(power, 0), 1), 3) + max(0, -power - 1)
    wide = power >= 7 or power < -4
    lost = power >= 1 and not whole and min(sizes, default=1.0) < 0.5 * 10.0**-places  # it would be shown as zero

    def write(value: object) -> str:
        if not is_number(value):
            return "\u2013" if value is None or isinstance(value, float) else str(value)
        if wide:
            shown = f"{value:.2e}"
        elif lost:
            shown = f"{value:.4g}"
        elif whole and float(value).is_integer():
            shown = f"{int(value):,}".replace(",", "\u202f") if abs(value) >= 10_000 else f"{int(value)}"
        else:
            shown = f"{value:.{places}f}"
        return shown.replace("-", MINUS)

    return write


def num(value: object) -> str:
    """One number on its own.

    >>> num(0.01), num(12345), num(None)
    ('0.01', '12\u202f345', '–')
    """
    if not is_number(value):
        return formatter([])(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e7):
        return formatter([1])(int(value))
    return f"{value:.4g}".replace("-", MINUS)


def seconds(value: object) -> str:
    """A span of time in words.

    >>> seconds(3.21), seconds(200), seconds(7300)
    ('3.2 s', '3 min 20 s', '2 h 1 min')
    """
    if not is_number(value):
        return "\u2013"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


# --- tables -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A table's cell: what it is (sorted by and written to CSV) and how it is shown.

    Attributes:
        value: a number, text or None.
        shown: HTML or text; None shows the value.
        kind: a class of the page's style, such as `heat-3`.
    """

    value: object
    shown: object = None
    kind: str = ""


def _csv_cell(value: object) -> object:
    """What stands in a CSV file: nothing for a missing number, and no text that a spreadsheet would run."""
    from weft.tables.files import plain_cell

    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return plain_cell(_UNFIT.sub("\ufffd", value)) if isinstance(value, str) else value


def csv_link(name: str, columns: Sequence[str], rows: Iterable[Sequence[object]], what: str = "CSV") -> Markup:
    """A link that saves rows as a CSV file, held in the page; cells that a spreadsheet would run are quoted."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([_csv_cell(c) for c in columns])
    writer.writerows([_csv_cell(v) for v in row] for row in rows)
    data = quote(out.getvalue(), safe="!$'()*,/:;=?@~ ").replace(" ", "%20")
    name = re.sub(r"[^\w.-]+", "-", name).strip("-.")[:60] or "table"
    return el("a", what, href=f"data:text/csv;charset=utf-8,{data}", download=f"{name}.csv", class_="csv")


def table(
    caption: object,
    columns: Sequence[object],
    rows: Sequence[Sequence[object]],
    *,
    names: Names,
    file: str,
    sorts: bool = True,
    kind: str = "",
    picture: int | None = None,
    more: Markup | None = None,
) -> Markup:
    """A table with a caption, row headings and, under it, its CSV.

    Args:
        caption: what it shows.
        columns: the headings; the first column names the rows. One may be a `Cell` whose value goes into
            the CSV and whose `shown` stands in the page.
        rows: values or `Cell`s.
        names: the page's identifiers.
        file: the CSV file's name.
        sorts: whether a click on a heading sorts.
        kind: more classes.
        picture: the number of a column that holds pictures, which is not sorted by and not in the CSV.
        more: a further link under it.
    """
    heads = [c if isinstance(c, Cell) else Cell(c) for c in columns]
    cells = [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in rows]
    formats = [formatter([row[j].value for row in cells]) for j in range(len(heads))]
    numeric = [
        bool(cells) and all(is_number(row[j].value) or row[j].value is None for row in cells) and j != picture
        for j in range(len(heads))
    ]

    def body(j: int, cell: Cell) -> Markup:
        shown = cell.shown if cell.shown is not None else formats[j](cell.value)
        raw = None
        if is_number(cell.value) and j != picture:
            raw = repr(float(cell.value)).removesuffix(".0")
        classes = " ".join(filter(None, ("n" if numeric[j] else "", cell.kind))) or None
        if j == 0:
            return el("th", shown, scope="row", data_v=raw, class_=classes)
        return el("td", shown, data_v=raw, class_=classes)

    name = names(f"table-{file}")
    head = [
        el(
            "th",
            h.shown if h.shown is not None else h.value,
            scope="col",
            class_="n" if numeric[j] else None,
            data_still=True if j == picture else None,
        )
        for j, h in enumerate(heads)
    ]
    inner = el(
        "table",
        el("caption", el("span", caption), id=name),
        el("thead", el("tr", *head)),
        el("tbody", *[el("tr", *[body(j, c) for j, c in enumerate(row)]) for row in cells]),
        class_=kind or None,
        data_sorts=True if sorts and len(cells) > 1 else None,
    )
    kept = [j for j in range(len(heads)) if j != picture]
    link = csv_link(
        file, [str(heads[j].value) for j in kept], [[row[j].value for j in kept] for row in cells], "Download CSV"
    )
    return el(
        "div",
        el("div", inner, class_="scroll", role="region", aria_labelledby=name, tabindex="0"),
        el("p", link, *([" · ", more] if more else []), class_="tools"),
        class_="table",
    )


class Sections:
    """The sections of a page in their order, with headings of one level.

    Args:
        names: the page's identifiers.
        level: of the headings.
    """

    def __init__(self, names: Names, level: int = 2) -> None:
        self.names, self.level = names, level
        self.contents: list[tuple[str, str]] = []
        self.parts: list[Markup] = []

    def add(self, title: str, *children: object, kind: str = "") -> None:
        """Adds a section; nothing where it has no children."""
        if not any(child for child in children):
            return
        name = self.names(title)
        self.contents.append((name, title))
        head = el(f"h{self.level}", title, id=f"{name}-h")
        kind = kind or ("" if self.parts else "first")
        self.parts.append(el("section", head, *children, id=name, aria_labelledby=f"{name}-h", class_=kind or None))

    def heading(self, title: object, below: int = 1) -> Markup:
        """A heading within a section."""
        return el(f"h{min(self.level + below, 6)}", title)


def pairs(items: Iterable[tuple[object, object]]) -> Markup:
    """Names and their values as a description list."""
    return el("dl", *[el("div", el("dt", k), el("dd", v)) for k, v in items])


def details(summary: object, *children: object, open: bool = False) -> Markup:
    """What is folded away until asked for."""
    return el("details", el("summary", summary), *children, open=open)


_BADGES = {
    "holds": ("holds", "M3 8.5 6.5 12 13 4.5"),
    "fails": ("fails", "M4 4 12 12 M12 4 4 12"),
    "not settled": ("not-settled", "M5 6 Q5 3 8 3 Q11 3 11 6 Q11 8 8 8.5 V10 M8 12.5 V13"),
}


def badge(verdict: str) -> Markup:
    """A verdict as a sign and a word, never by colour alone."""
    kind, path = _BADGES.get(verdict, ("not-run", "M4 8 12 8"))
    sign = el(
        "svg",
        el("path", d=path, fill="none", stroke="currentColor", stroke_width="2.2", stroke_linecap="round"),
        viewBox="0 0 16 16",
        width="14",
        height="14",
        aria_hidden="true",
    )
    return el("span", sign, " ", verdict, class_=f"badge {kind}")


# --- the page -----------------------------------------------------------------------------------------


@cache
def asset(name: str) -> str:
    """One of the files beside this module."""
    return files("weft.report.page").joinpath(name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def policy(*scripts: str, connect: str = "") -> str:
    """The Content-Security-Policy: this style, these scripts, pictures held in the page, and nothing else."""
    parts = [
        "default-src 'none'",
        f"style-src {_hash(asset('page.css'))}",
        f"script-src {' '.join(map(_hash, scripts))}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        *([f"connect-src {connect}"] if connect else []),
    ]
    return "; ".join(parts)


_LOGO = (
    "M2 6h5M11 6h7M22 6h8M2 16h1M7 16h10M21 16h9M2 26h5M11 26h7M22 26h8",
    "M5 2v10M5 20v10M9 2v1M9 9v14M9 29v1M19 2v1M19 9v14M19 29v1M23 2v11M23 20v10",
)


def _logo() -> Markup:
    """A weft passing over and under two warps."""
    paths = [
        el("path", d=d, fill="none", stroke="currentColor", stroke_width="3", stroke_linecap="round") for d in _LOGO
    ]
    return el("svg", *paths, viewBox="0 0 32 32", width="22", height="22", aria_hidden="true", class_="logo")


def document(
    title: str,
    kind: str,
    subtitle: object,
    contents: Sequence[tuple[str, str]],
    main: object,
    *,
    foot: object = None,
    scripts: Sequence[str] = ("page.js",),
    connect: str = "",
) -> str:
    """The whole page as text.

    Args:
        title: the heading and the window's title.
        kind: what it is (study, run, claims), above the heading.
        subtitle: below the heading.
        contents: identifiers and titles of the sections.
        main: the sections.
        foot: the last words.
        scripts: which of the package's scripts it runs.
        connect: whom they may ask: nobody.
    """
    sources = [asset(name) for name in scripts]
    nav = el("nav", el("ul", *[el("li", el("a", t, href=f"#{i}")) for i, t in contents]), aria_label="Contents")
    head = el(
        "head",
        el("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{text(policy(*sources, connect=connect))}">'),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", f"{title} · weft"),
        el("link", rel="icon", href="data:,"),
        el("style", Markup(asset("page.css"))),
    )
    body = el(
        "body",
        el("a", "Skip to the content", href="#main", class_="skip"),
        el(
            "header",
            el("p", _logo(), el("b", "weft"), el("span", kind), class_="brand"),
            el("h1", title),
            el("p", subtitle, class_="subtitle") if subtitle else None,
            nav if len(contents) > 1 else None,
        ),
        el("main", main, id="main", tabindex="-1"),
        el("footer", foot) if foot else None,
        el("p", class_="told", role="status", id="told"),
        *[el("script", Markup(source)) for source in sources],
    )
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"
