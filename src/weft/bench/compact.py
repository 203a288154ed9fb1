"""SVG text made small: what a picture shows stays, to a tenth of a point."""

from __future__ import annotations

import re
from itertools import groupby

__all__ = ["compact"]

_PLACES = re.compile(r'( (?:d|x|y|x1|x2|y1|y2|width|height|points|transform)=")([^"]*)"')
_MARK = re.compile(r'\s*<use xlink:href="#([^"]+)" x="([^"]+)" y="([^"]+)" style="([^"]*)"/>')
_DOT = re.compile(r'<path id="([^"]+)" d="M 0 ([\d.]+) \n(?:C [-\d. ]+\n){8}z\n"')
_LAYER = 32  # so many faint dots are one path: within one they do not add up where they overlap
_NUMBER = re.compile(r"-?\d+\.\d+")


def compact(text: str, name: str) -> str:
    """An SVG of matplotlib's in fewer bytes.

    Places are rounded; round marks of one colour are one path of dots; what is drawn alike shares a class; groups
    that nothing refers to lose their names.

    Args:
        text: of the picture.
        name: what its classes begin with.

    >>> dot = '<use xlink:href="#m" x="{0}.123456" y="4.000001" style="fill: red; stroke: black"/>'
    >>> drawn = chr(10).join(["<svg>", *map(dot.format, (10, 20, 30)), '<g id="unused"></g></svg>'])
    >>> print(compact(drawn, "p"))
    <svg>
    <g style="fill: red; stroke: black">
    <use xlink:href="#m" x="10.1" y="4"/>
    <use xlink:href="#m" x="20.1" y="4"/>
    <use xlink:href="#m" x="30.1" y="4"/>
    </g>
    <g></g></svg>
    """
    dots = {mark: float(radius) for mark, radius in _DOT.findall(text)}
    lines: list[str] = []
    for key, run in groupby(text.splitlines(), key=_mark):
        each = list(run)
        lines += each if key is None or len(each) < 3 else _together(*key, each, dots)
    text = _PLACES.sub(_rounded, "\n".join(lines))
    named = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    text = re.sub(r'(<g) id="([^"]+)"', lambda m: m.group() if m.group(2) in named else m.group(1), text)
    return _classed(text, name)


def _mark(line: str) -> tuple[str, str] | None:
    """Which mark a line draws, and how."""
    found = _MARK.fullmatch(line)
    return (found.group(1), found.group(4)) if found else None


def _together(mark: str, style: str, lines: list[str], dots: dict[str, float]) -> list[str]:
    """Marks of one kind: a path of dots where they are round and of one colour, else a group with one style."""
    places = [found.group(2, 3) for found in map(_MARK.fullmatch, lines) if found]
    look = dict(part.split(": ") for part in style.rstrip("; ").split("; "))
    if mark not in dots or look.get("stroke", look.get("fill")) != look.get("fill"):
        return [f'<g style="{style}">', *(f'<use xlink:href="#{mark}" x="{x}" y="{y}"/>' for x, y in places), "</g>"]
    width = 2 * dots[mark] + ("stroke" in look) * float(look.get("stroke-width", 1))
    drawn = f"fill: none; stroke: {look['fill']}; stroke-width: {width:.2f}; stroke-linecap: round"
    some = len(places)
    if "fill-opacity" in look:
        drawn += f"; stroke-opacity: {look['fill-opacity']}"
        some = _LAYER
    dots_of = (places[i : i + some] for i in range(0, len(places), some))
    paths = ("".join(f"M{float(x):.1f} {float(y):.1f}h0" for x, y in part) for part in dots_of)
    return [f'<path d="{path}" style="{drawn}"/>' for path in paths]


def _rounded(match: re.Match[str]) -> str:
    """An attribute with its numbers to a tenth, small ones to a hundredth."""

    def short(number: re.Match[str]) -> str:
        value = float(number.group())
        return f"{value:.{1 if abs(value) >= 10 else 2}f}".rstrip("0").rstrip(".")

    return f'{match.group(1)}{_NUMBER.sub(short, " ".join(match.group(2).split()))}"'


def _classed(text: str, name: str) -> str:
    """Styles that are used more than once, as classes."""
    count: dict[str, int] = {}
    for style in re.findall(r' style="([^"]*)"', text):
        count[style] = count.get(style, 0) + 1
    classes = {style: f"{name}-{i}" for i, style in enumerate(s for s, n in count.items() if n > 1)}
    if not classes:
        return text
    text = re.sub(
        r' style="([^"]*)"',
        lambda m: f' class="{classes[m.group(1)]}"' if m.group(1) in classes else m.group(),
        text,
    )
    rules = "".join(f".{own}{{{style}}}" for style, own in classes.items())
    head, rest = text.split(">", 1)
    return f"{head}>\n<style>{rules}</style>{rest}"
