"""What Sphinx makes from the code while it builds: the catalogue from docstrings, the gallery from claims."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from weft.core.catalogue import ROOMS, Entry, entries
from weft.core.composed import Composed

__all__ = ["setup"]

ROOT = Path(__file__).parents[1]
log = logging.getLogger(__name__)


# --- the catalogue ------------------------------------------------------------------------------------


def sections(text: str) -> dict[str, str]:
    """A docstring by its headings (`Args`, `References`, ...); what stands before them under the empty name.

    Examples that stand without a heading of their own are put under `Example`.
    """
    parts: dict[str, list[str]] = {"": []}
    name = ""
    for line in text.splitlines():
        heading = re.fullmatch(r"(\w+):", line)
        if heading:
            name = heading.group(1)
        elif name and line and not line.startswith(" "):
            name = ""
        if not name and line.startswith(">>>"):
            name = "Example"
        if not heading:
            parts.setdefault(name, []).append(line)
    return {name: inspect.cleandoc("\n".join(lines)) for name, lines in parts.items()}


def arguments(text: str) -> list[tuple[str, str]]:
    """The names of an `Args` section with what is said of each."""
    parts: list[list[str]] = []
    for line in text.splitlines():
        begins = re.match(r"([\w, ]+): ?(.*)", line)
        if begins and not line.startswith(" "):
            parts.append([begins.group(1), begins.group(2)])
        elif parts:
            parts[-1][1] += " " + line.strip()
    return [(name, said.strip()) for name, said in parts]


def described(entry: Entry, *, level: int) -> str:
    """A method as Markdown, its heading of that level: signature, what it is, arguments, reference and example."""
    said = sections(inspect.getdoc(entry.cls) or "")
    home = Path(inspect.getfile(entry.cls)).relative_to(ROOT)
    body = said[""].partition("\n")[2].strip()
    lines = [f"{'#' * level} {entry.name}", "", entry.summary, ""]
    takes = [p.replace(annotation=p.empty) for p in inspect.signature(entry.cls).parameters.values()]
    signature = inspect.Signature(takes)
    lines += ["```python", f"from weft.{entry.room} import {entry.cls.__name__}", ""]
    lines += [f"{entry.cls.__name__}{signature}", "```", "", body, ""]
    if "Args" in said:
        lines += ["**Arguments**", ""] + [f"- `{name}`: {text}" for name, text in arguments(said["Args"])] + [""]
    lines += _facts(entry)
    if entry.reference:
        lines += [f"**Reference**: {entry.reference}", ""]
    if "Example" in said:
        lines += ["**Example**", "", "```pycon", said["Example"], "```", ""]
    return "\n".join([*lines, f"Its file: `{home}`.", ""])


def _facts(entry: Entry) -> list[str]:
    """What the class itself declares."""
    if entry.room == "objectives":
        cls: Any = entry.cls
        plain = cls()  # one that wraps another objective tells what that one does
        offered = ", ".join(f"`{name}`" for name in sorted(plain.capabilities()))
        offered = offered or ("what its parts do, each by its name" if isinstance(plain, Composed) else "nothing")
        name, direction = plain.progress
        facts = [f"**Once trained it offers** {offered}. Its progress measure is `{name}` ({direction})."]
        if plain.players:
            facts.append(f"It is a game of {' and '.join(f'`{player}`' for player in plain.players)}.")
        refusing = [(e.name, e.cls().refuses(cls())) for e in entries("strategies")]
        facts += [_refusals("It is refused by", refusing)]
    elif entry.room == "strategies":
        strategy = entry.cls()
        neutral = ", ".join(f"`{name}={value!r}`" for name, value in strategy.neutral.items())
        facts = [f"**It is plain ERM at** {neutral}."] if neutral else []
        refused = [(e.name, strategy.refuses(e.cls())) for e in entries("objectives")]
        facts += [_refusals("It refuses", refused)]
        facts.append(f"On the command line: `--strategy {entry.name}`.")
    elif entry.room == "sources":
        kind: Any = entry.cls
        facts = ["Its batches are episodes."] if kind.episodic else []
    else:
        facts = []
    return [" ".join(fact for fact in facts if fact), ""]


def _refusals(what: str, reasons: list[tuple[str, str | None]]) -> str:
    told = [f"`{name}` ({reason})" for name, reason in reasons if reason]
    return f"{what} {'; '.join(told)}." if told else ""


def by_family(room: str) -> Iterator[tuple[str, list[Entry]]]:
    """The methods of a room by name, family after family; first those that have none."""
    listed = sorted(entries(room), key=lambda entry: (entry.family, entry.name))
    for family, members in groupby(listed, key=lambda entry: entry.family):
        yield family, list(members)


def headed(room: str, family: str, level: int) -> list[str]:
    """A family's heading, and what its folder says it is."""
    said = inspect.getdoc(importlib.import_module(f"weft.{room}.{family}")) or ""
    return [f"{'#' * level} {family.capitalize()}", "", said, ""]


class Catalogue(SphinxDirective):
    """`{catalogue} ROOM`: every method of a room."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """One section for each method, within that of its family where it has one."""
        self.env.note_reread()
        room = directives.choice(self.arguments[0], ROOMS)
        lines: list[str] = []
        for family, members in by_family(room):
            lines += headed(room, family, 2) if family else []
            lines += [described(entry, level=3 if family else 2) for entry in members]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


class Overview(SphinxDirective):
    """`{overview}`: the whole catalogue as tables of names and summaries, with links."""

    def run(self) -> list[nodes.Node]:
        """One section for each room, with one for each of its families."""
        self.env.note_reread()
        lines = []
        for room in ROOMS:
            lines += [f"## {room.capitalize()}", ""]
            for family, members in by_family(room):
                lines += headed(room, family, 3) if family else []
                lines += ["| name | what it does |", "|---|---|"]
                for entry in members:
                    summary = entry.summary.replace("|", "\\|")
                    lines.append(f"| [{entry.name}]({room}.md#{entry.name}) | {summary} |")
                lines.append("")
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


# --- the gallery --------------------------------------------------------------------------------------


def results(out: Path) -> list[dict[str, Any]]:
    """The results of claims in OUT/claims, by name; each knows its folder."""
    kept = []
    for path in sorted((out / "claims").glob("*/result.json")):
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            if result["format"] != 1 or result["kind"] != "claim":
                raise ValueError(f"format {result['format']!r}, kind {result['kind']!r}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("expected the result of a claim (format 1) in %s, got %s; run it again", path, error)
            continue
        kept.append({**result, "folder": path.parent})
    return kept


def stated(known: set[str]) -> list[dict[str, Any]]:
    """The claims that have no result yet, as their files state them."""
    from weft.bench.claims import listed

    told = {"verdict": "not run", "why": "It has not been run here yet."}
    return [
        {**told, **{name: getattr(claim, name) for name in ("name", "title", "statement", "reference", "tolerance")}}
        for claim in listed()
        if claim.name not in known
    ]


def chosen(folders: list[Path]) -> list[dict[str, Any]]:
    """One result of each claim, by name: of a later folder, but never a quick one in place of a full one."""
    kept: dict[str, dict[str, Any]] = {}
    for result in (result for folder in folders for result in results(folder)):
        before = kept.get(result["name"])
        if before is None or result["scale"] == "full" or before["scale"] != "full":
            kept[result["name"]] = result
    return [kept[name] for name in sorted(kept)]


def headline(result: dict[str, Any]) -> list[str]:
    """The scale, the seeds, and the first judged figure that is no identity: its name, value and deviation."""
    figures = [figure for figure in result.get("figures", []) if judged(figure)]
    first = next((figure for figure in figures if not figure.get("exact")), figures[0] if figures else None)
    told = [result.get("scale", "-"), str(len(result["seeds"])) if "seeds" in result else "-"]
    if first is None or first["measured"] is None:
        return [*told, "-", "-", "-"]
    return [*told, first["name"], measured(first), deviation(first)]


def deviation(figure: dict[str, Any]) -> str:
    """How far a figure is from the middle of its two bounds, or within or beyond its one."""
    least, most, measured = figure.get("least"), figure.get("most"), figure["measured"]
    if least is not None and most is not None:
        return f"{measured - (least + most) / 2:+.2g} of ±{(most - least) / 2:.2g}"
    if least is None and most is None:
        return "-"
    room = measured - least if most is None else most - measured
    return f"{abs(room):.2g} {'within' if room >= 0 else 'beyond'} its bound"


def linked(result: dict[str, Any]) -> nodes.reference:
    """A claim's title, which leads to its section."""
    return nodes.reference("", result["title"], refid=nodes.make_id(result["name"]), internal=True)


SIGNS = {"holds": "✓ holds", "fails": "✗ fails", "not settled": "? not settled"}


class Gallery(SphinxDirective):
    """`{gallery}`: every claim with its verdict, figures and pictures."""

    def run(self) -> list[nodes.Node]:
        """An overview, then one section for each claim."""
        given = os.environ.get("WEFT_OUT")
        claims = chosen([Path(given)] if given else [ROOT / "docs" / "results", ROOT / "out"])
        self.env.note_reread()
        claims += stated({result["name"] for result in claims})
        head = ["claim", "verdict", "scale", "seeds", "headline figure", "measured", "deviation"]
        overview = table(head, [[linked(result), badge(result), *headline(result)] for result in claims])
        return [overview, *(self.section(result) for result in claims)]

    def section(self, result: dict[str, Any]) -> nodes.section:
        """One claim: the statement and the verdict first."""
        section = nodes.section(ids=[nodes.make_id(result["name"])], names=[result["name"]])
        section += nodes.title("", result["title"])
        section += nodes.paragraph("", "", nodes.strong("", result["statement"]))
        section += nodes.paragraph("", "", badge(result), nodes.Text(f" {result.get('why', '')}"))
        for picture in result.get("pictures", []):
            section += self.picture(result["folder"] / Path(picture["file"]).name, picture)
        figures = result.get("figures", [])
        if figures:
            rows = [[f["name"], f["reference"], measured(f), judged(f)] for f in figures]
            section += table(["figure", "reference", "measured", "verdict"], rows)
        for extra in result.get("tables", []):
            section += nodes.paragraph("", "", nodes.strong("", extra["title"]))
            section += table(extra["columns"], [[shown(cell) for cell in row] for row in extra["rows"]])
        if result.get("tolerance"):
            section += nodes.paragraph("", f"Tolerance: {result['tolerance']}")
        section += nodes.paragraph("", f"Reference: {result['reference']}")
        if result.get("budget"):
            section += nodes.paragraph("", spent(result))
        if result.get("folder") and (fault := fault_of(result)):
            section += nodes.paragraph("", f"This result: {fault}.")
        if result.get("command"):
            section += nodes.paragraph("", "Run it again: ", nodes.literal("", result["command"]))
        return section

    def picture(self, path: Path, picture: dict[str, str]) -> nodes.Node:
        """A picture beside the result, copied into the site."""
        source = Path(self.env.doc2path(self.env.docname)).parent
        image = nodes.image(uri=os.path.relpath(path, source), alt=picture["alt"])
        figure = nodes.figure("", image, classes=["claim-picture"])
        if picture.get("caption"):
            figure += nodes.caption("", picture["caption"])
        return figure


def fault_of(result: dict[str, Any]) -> str:
    """What there is to say against a result."""
    from weft.bench.claims import listed, since

    claims = {claim.name: claim for claim in listed()}
    name = result["name"]
    return since(claims[name], result["folder"].parents[1]) if name in claims else ""


def judged(figure: dict[str, Any]) -> str:
    """A figure's verdict; one without a bound is told, not judged."""
    from weft.bench.claims import verdict_of

    return verdict_of(figure) or ("not run" if figure["measured"] is None else "")


def badge(result: dict[str, Any]) -> nodes.inline:
    """The verdict, by its word and a sign."""
    verdict = result["verdict"]
    return nodes.inline(
        "", SIGNS.get(verdict, verdict), classes=["verdict", verdict if verdict in ("holds", "fails") else "open"]
    )


def shown(value: Any) -> str:
    """A cell of a table."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def measured(figure: dict[str, Any]) -> str:
    """A figure with its interval and unit."""
    from weft.bench.claims import shown as as_claims

    return "-" if figure["measured"] is None else as_claims(figure)


def spent(result: dict[str, Any]) -> str:
    """The budget and the scale."""
    budget, seeds = result["budget"], result.get("seeds", [])
    accelerator = result.get("machine", {}).get("accelerator")
    return (
        f"Scale: {result['scale']}, {len(seeds)} seeds, {budget['trainings']} trainings, {budget['steps']} steps, "
        f"{budget['seconds']:.0f} s{f' on {accelerator}' if accelerator else ''}; "
        f"weft {result['weft']}, {result['date']}."
    )


def table(head: list[str], rows: list[list[Any]]) -> nodes.table:
    """A table of texts or nodes."""

    def row(cells: list[Any]) -> nodes.row:
        made = nodes.row()
        for cell in cells:
            inner = cell if isinstance(cell, nodes.Node) else nodes.Text(str(cell))
            made += nodes.entry("", nodes.paragraph("", "", inner))
        return made

    group = nodes.tgroup(cols=len(head))
    group += [nodes.colspec(colwidth=1) for _ in head]
    group += nodes.thead("", row(head))
    group += nodes.tbody("", *[row(cells) for cells in rows])
    return nodes.table("", group, classes=["colwidths-auto"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's entry."""
    app.add_directive("catalogue", Catalogue)
    app.add_directive("overview", Overview)
    app.add_directive("gallery", Gallery)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
