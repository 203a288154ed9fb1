"""The claims' part of the page: an index with all verdicts, then each claim with its picture and its figures."""

from __future__ import annotations

import base64
import io
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from weft.report.digests import standing
from weft.report.page.markup import (
    Cell,
    Markup,
    Names,
    Sections,
    badge,
    details,
    el,
    formatter,
    num,
    pairs,
    seconds,
    table,
)
from weft.report.page.protocol import again

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["first_figure", "gallery", "picture", "tally"]

_KINDS = {
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
}
LARGEST = 1_500_000  # bytes of a picture that is put into the page
_HOLDS = {True: "holds", False: "fails"}

MOST_ROWS = 10  # longer tables are folded


def tally(claims: list[tuple[Path, Json]]) -> str:
    """The verdicts in a sentence.

    >>> tally([(Path(), {"verdict": v}) for v in ("holds", "holds", "fails", "not settled")])
    '2 of 4 claims hold; 1 fails; 1 is not settled.'
    """
    count = Counter(str(c.get("verdict")) for _, c in claims)
    holds, fails, total = count.pop("holds", 0), count.pop("fails", 0), len(claims)
    open_ = count.pop("not settled", 0)
    rest = sum(count.values())
    if total == 1 and not rest:
        return "The claim holds." if holds else "The claim fails." if fails else "The claim is not settled."
    said = f"{'All' if holds == total else holds} {'' if holds == total else 'of '}{total} claims hold"
    more = [f"{fails} fail{'s' if fails == 1 else ''}"] if fails else []
    more += [f"{open_} {'is' if open_ == 1 else 'are'} not settled"] if open_ else []
    more += [f"{rest} {'was' if rest == 1 else 'were'} not run at this scale"] if rest else []
    return "; ".join([said, *more]) + "."


def gallery(claims: list[tuple[Path, Json]], sections: Sections) -> None:
    """Adds the claims; where there are several, an index stands before them.

    Args:
        claims: folders and what their `result.json` holds.
        sections: where they go.
    """
    anchors = [sections.names(f"claim-{c.get('name')}") for _, c in claims]
    each = [(folder, c, anchor) for anchor, (folder, c) in zip(anchors, claims, strict=True)]
    if len(claims) > 1:
        cards = [_card(*one, sections.level) for one in each]
        said = el("p", tally(claims), class_="lead")
        sections.add("All verdicts", said, el("ul", *cards, class_="cards"), _index(claims, anchors, sections.names))
    sections.parts += [_claim(*one, sections) for one in each]


def _card(folder: Path, claim: Json, anchor: str, level: int) -> Markup:
    """A claim at a glance: its first picture, drawn again from where it stands in the article, title and verdict."""
    title = str(claim.get("title") or claim.get("name"))
    try:
        size = _read(folder, str(claim["pictures"][0]["file"]))[1]
    except (ValueError, OSError, KeyError, IndexError, TypeError):
        size = None
    thumb = None
    if size is not None:
        box = f"0 0 {size[0]:g} {size[1]:g}"
        thumb = el("svg", el("use", href=f"#{anchor}-0"), viewBox=box, aria_hidden="true", class_="thumb")
    head = el(f"h{level + 1}", el("a", title, href=f"#{anchor}"))
    frame = el("div", thumb, class_="frame") if thumb else None
    return el("li", frame, head, badge(str(claim.get("verdict"))), class_="card")


def _index(claims: list[tuple[Path, Json]], anchors: list[str], names: Names) -> Markup:
    """All verdicts as a table."""
    rows = [
        [
            Cell(str(c.get("title") or c.get("name")), el("a", c.get("title") or c.get("name"), href=f"#{anchor}")),
            Cell(str(c.get("verdict")), badge(str(c.get("verdict")))),
            Cell(first_figure(c), kind="words"),
            Cell(str(c.get("scale", ""))),
            Cell(len(c.get("seeds") or [])),
            Cell((c.get("budget") or {}).get("seconds"), seconds((c.get("budget") or {}).get("seconds"))),
            Cell(str(c.get("reference", "")), kind="words"),
        ]
        for anchor, (_, c) in zip(anchors, claims, strict=True)
    ]
    heads = ["claim", "verdict", "first figure", "scale", "seeds", "time", "reference"]
    return details("As a table", table("Every claim with its verdict.", heads, rows, names=names, file="claims"))


def first_figure(claim: Json) -> str:
    """The figure that a visitor wants to see first."""
    for figure in claim.get("figures") or []:
        if figure.get("measured") is not None:
            return f"{figure.get('name')}: {_amount(num(figure.get('measured')), figure.get('unit'))}"
    return "–"


def _amount(shown: str, unit: object) -> str:
    unit = str(unit or "")
    return shown if unit == "" or shown == "–" else f"{shown}{'' if unit == '%' else ' '}{unit}"


def _claim(folder: Path, claim: Json, anchor: str, sections: Sections) -> Markup:
    names, level = sections.names, sections.level
    title = str(claim.get("title") or claim.get("name"))
    verdict = str(claim.get("verdict"))
    budget = claim.get("budget") or {}
    spent = [
        ("scale", claim.get("scale")),
        ("seeds", _seeds(claim.get("seeds"))),
        ("time", seconds(budget.get("seconds"))),
        ("trainings", num(budget.get("trainings"))),
        ("steps", num(budget.get("steps"))),
        *(claim.get("setting") or {}).items(),
    ]
    pictures = [_figure(folder, p, f"{anchor}-{k}") for k, p in enumerate(claim.get("pictures") or [])]
    judged = [el("strong", f"{verdict.capitalize()}. "), str(claim.get("why", ""))]
    tolerance, fault = claim.get("tolerance"), standing(claim, folder)
    return el(
        "article",
        el("div", el(f"h{level}", title, id=f"{anchor}-h"), badge(verdict), class_="top"),
        el("blockquote", el("p", claim.get("statement", ""))),
        el("p", claim.get("reference", ""), class_="reference"),
        el("div", *pictures, class_="pictures") if pictures else None,
        el("p", *judged, class_="why"),
        el("p", f"Tolerance: {tolerance}", class_="note") if tolerance else None,
        el("p", f"This result: {fault}.", class_="note") if fault else None,
        _figures(claim, names),
        *[_given(t, claim, names) for t in claim.get("tables") or []],
        details("Setting and budget", pairs([(k, v) for k, v in spent if v not in (None, "", "–")])),
        details("Run it again", *again({**claim, "seconds": None})),
        id=anchor,
        class_="claim",
        aria_labelledby=f"{anchor}-h",
    )


def _seeds(seeds: list[int] | None) -> str:
    each = list(seeds or [])
    if len(each) > 8 and each == list(range(each[0], each[0] + len(each))):
        return f"{len(each)}, from {each[0]} to {each[-1]}"
    return ", ".join(map(str, each))


def _figures(claim: Json, names: Names) -> Markup | None:
    figures = [f for f in claim.get("figures") or [] if isinstance(f, dict)]
    if not figures:
        return None
    rows = []
    for f in figures:
        span, verdict = f.get("interval"), _verdict(f)
        write = formatter([f.get("measured"), *(span or [])])
        ends = f"{write(span[0])} to {write(span[1])}" if span else "exact" if f.get("exact") else "–"
        rows.append(
            [
                str(f.get("name")),
                Cell(str(f.get("reference") or "–")),
                Cell(f.get("measured"), el("strong", _amount(write(f.get("measured")), f.get("unit")))),
                Cell(span[0] if span else None, ends),
                Cell(verdict or "–", badge(verdict) if verdict else "–"),
            ]
        )
    return table(
        "What was expected beside what was measured.",
        ["figure", "reference", "measured", Cell("interval from", "interval"), "verdict"],
        rows,
        names=names,
        file=f"{claim.get('name')}-figures",
    )


def _verdict(figure: Json) -> str | None:
    """A figure's verdict; results of earlier versions say only whether the measured value itself holds."""
    old = _HOLDS.get(figure["holds"]) if isinstance(figure.get("holds"), bool) else None
    return str(figure["verdict"]) if figure.get("verdict") else old


def _given(given: Json, claim: Json, names: Names) -> Markup:
    title, rows = str(given.get("title", "")), [list(row) for row in given.get("rows") or []]
    heads = [str(c) for c in given.get("columns") or []]
    shown = table(title, heads, rows, names=names, file=f"{claim.get('name')}-{title}")
    return shown if len(rows) <= MOST_ROWS else details(f"{title} ({len(rows)} rows)", shown)


def _figure(folder: Path, given: Json, name: str) -> Markup:
    try:
        shown = picture(folder, str(given.get("file", "")), str(given.get("alt", "")), name)
    except (ValueError, OSError) as error:
        return el("p", f"A picture is not shown: {error}", class_="warn")
    return el("figure", shown, el("figcaption", given["caption"]) if given.get("caption") else None)


def picture(folder: Path, file: str, alt: str, name: str) -> Markup:
    """A picture file put into the page; as an image it can run nothing and ask for nothing.

    Args:
        folder: the file's, which it may not leave.
        file: its name.
        alt: what it shows, in words.
        name: an identifier, by which the page can draw it once more.
    """
    source, size = _read(folder, file)
    if size is None:
        return el("img", src=source, alt=alt or file)
    wide, high = f"{size[0]:g}", f"{size[1]:g}"
    image = el("image", id=name, href=source, width=wide, height=high)
    kind = "picture wide" if size[0] > 1.6 * size[1] else "picture"
    drawn = el("svg", image, viewBox=f"0 0 {wide} {high}", role="img", aria_label=alt or file, class_=kind)
    # On a phone a wide picture keeps its size, so that its letters can be read, and scrolls.
    return el("div", drawn, class_="scroll", role="region", aria_label=f"Picture: {alt or file}", tabindex="0")


def _read(folder: Path, file: str) -> tuple[str, tuple[float, float] | None]:
    """A picture as a data address, and its size where that can be seen."""
    path = folder / file
    if path.suffix.lower() not in _KINDS:
        raise ValueError(f"expected a picture ({', '.join(_KINDS)}), got {file!r}")
    real = path.resolve(strict=True)
    if not real.is_relative_to(folder.resolve()):
        raise ValueError(f"expected a picture inside the claim's folder, got {file!r}")
    data = real.read_bytes()
    if len(data) > LARGEST:
        raise ValueError(f"expected a picture of up to {LARGEST // 1000} kB, got {len(data) // 1000} kB in {file!r}")
    source = f"data:{_KINDS[path.suffix.lower()]};base64,{base64.b64encode(data).decode()}"
    return source, _size(data, path.suffix.lower())


def _size(data: bytes, suffix: str) -> tuple[float, float] | None:
    """Width and height of a picture, or None where they cannot be seen."""
    if suffix == ".svg":
        box = re.search(rb"<svg\b[^>]*?\bviewBox\s*=\s*[\"']([^\"']*)", data)
        try:
            _, _, wide, high = map(float, box.group(1).replace(b",", b" ").split()) if box else (0, 0, 0, 0)
        except ValueError:
            return None
    else:
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(io.BytesIO(data)) as opened:
                wide, high = opened.size
        except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
            raise ValueError(f"expected a picture, got a file that is none: {error}") from error
    return (wide, high) if 0 < wide < 1e5 and 0 < high < 1e5 else None
