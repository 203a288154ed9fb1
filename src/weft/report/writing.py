"""One page of HTML for a run, a study or a set of claims: everything in the file, nothing asked of the network.

What a folder is, its files say: `results.json` (or `progress.json`) a study, `result.json` a claim,
`config.json` or `recipe.json` a run. The parts of the page are made in `weft.report.page`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weft.core.files import read_bytes, unsealed
from weft.report.folder import is_run

if TYPE_CHECKING:
    from weft.core.values import Json
    from weft.report.page.markup import Markup, Sections

__all__ = ["Found", "Page", "compose", "look", "render", "what", "write"]

FORMAT = 1
LARGEST = 200_000_000  # bytes of a results file that is read


@dataclass(frozen=True)
class Found:
    """A folder of which a report can be made.

    Attributes:
        kind: `run`, `study` or `claim`.
        folder: where it is.
    """

    kind: str
    folder: Path

    @property
    def name(self) -> str:
        """What to call it."""
        return self.folder.resolve().name


def read_json(path: Path) -> object:
    """A JSON file's value; NaN and the like, which JSON does not have, become None."""
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"more than {LARGEST // 1_000_000} MB")
        return json.loads(read_bytes(path), parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON in {path}, got a damaged or foreign file: {error}") from error


def read(one: Found) -> Json:
    """What a study's or claim's file holds, if weft wrote it in a format that is known here."""
    path = one.folder / ("results.json" if one.kind == "study" else "result.json")
    if one.kind == "study" and not path.exists():
        return {"format": FORMAT, "kind": "study", "name": one.name, "state": "running"}
    results = read_json(path)
    if one.kind == "study" and isinstance(results, dict) and "sha256" in results:
        results = unsealed(path)
    if not isinstance(results, dict) or results.get("kind") != one.kind:
        raise ValueError(f"expected a {one.kind} of weft in {path}, got another kind of file; the right folder?")
    if results.get("format") != FORMAT:
        raise ValueError(
            f"expected format {FORMAT} in {path}, got {results.get('format')!r}, which another version of weft wrote; "
            "make the report with that version"
        )
    return results


def what(folder: Path) -> Found | None:
    """What a folder is, or None."""
    if (folder / "results.json").is_file() or (folder / "progress.json").is_file():
        return Found("study", folder)
    if (folder / "result.json").is_file():
        return Found("claim", folder)
    return Found("run", folder) if is_run(folder) else None


def look(path: Path) -> list[Found]:
    """What a report of this path is about: the folder itself, or the claims in it.

    Args:
        path: a run's, study's or claim's folder, a folder of claims, or one that has such a folder `claims`.
    """
    if not path.exists():
        raise FileNotFoundError(f"expected a folder of a run, a study or claims, got {str(path)!r}, which is not there")
    if not path.is_dir():
        raise ValueError(f"expected a folder of a run, a study or claims, got the file {str(path)!r}")
    if (one := what(path)) is not None:
        return [one]
    for folder in (path, path / "claims"):
        inner = sorted(folder.iterdir()) if folder.is_dir() else []
        claims = [Found("claim", p) for p in inner if p.is_dir() and (p / "result.json").is_file()]
        if claims:
            return claims
    raise ValueError(
        f"expected a run, a study or claims of weft in {str(path)!r}, got another kind of folder; --serve lists a "
        "folder of several"
    )


@dataclass
class Page:
    """What a page shows, before it is put into one file.

    Attributes:
        title, kind, subtitle: at the top.
        contents: identifiers and titles.
        parts: sections and articles, each with an identifier.
    """

    title: str
    kind: str
    subtitle: str
    contents: list[tuple[str, str]]
    parts: list[Markup]


def compose(found: Sequence[Found], *, draw: bool = True, data: bool = True) -> Page:
    """The page for what was found.

    Args:
        found: runs, studies and claims.
        draw: whether runs are loaded to draw samples.
        data: whether the data that they were trained on may be read for that.
    """
    from weft.report.page.markup import Names, Sections, el

    names = Names()
    for taken in ("main", "told", "following"):
        names(taken)
    claims = [f for f in found if f.kind == "claim"]
    groups = [[f] for f in found if f.kind != "claim"] + ([claims] if claims else [])
    if len(groups) == 1:
        return _page(groups[0], Sections(names, 2), draw, data)
    page = Page("Report", f"{len(found)} parts", "", [], [])
    for group in groups:
        one = _page(group, Sections(names, 3), draw, data)
        anchor = names(f"part-{one.title}")
        page.contents.append((anchor, one.title))
        head = [el("h2", one.title, id=f"{anchor}-h"), el("p", f"{one.kind}: {one.subtitle}", class_="subtitle")]
        page.parts.append(el("section", *head, *one.parts, id=anchor, aria_labelledby=f"{anchor}-h", class_="part"))
    return page


def _page(group: Sequence[Found], sections: Sections, draw: bool, data: bool) -> Page:
    """The page of one run, one study, or some claims."""
    from weft.report.page import gallery, run, study

    first = group[0]
    if first.kind == "run":
        title, subtitle = run.run_title(first.folder)
        run.run(first.folder, sections, draw=draw, data=data)
        return Page(title, "run", subtitle, sections.contents, sections.parts)
    read_in = [(f.folder, read(f)) for f in group]
    try:
        if first.kind == "study":
            results = read_in[0][1]
            study.study(results, sections, progress(first.folder, results))
            title = str(results.get("name") or first.name)
            return Page(title, "study", study.subtitle(results), sections.contents, sections.parts)
        gallery.gallery(read_in, sections)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise ValueError(
            f"expected the results of a {first.kind} in {first.folder}, got a damaged or foreign file: {error!r}"
        ) from error
    if len(group) == 1:
        title, below = str(read_in[0][1].get("title") or first.name), gallery.tally(read_in)
    else:
        title, below = (
            "Claims, and whether they hold",
            "Statements of papers as runnable files, each with a verdict that can fail.",
        )
    return Page(title, "claims", below, sections.contents, sections.parts)


def render(paths: Sequence[Path]) -> str:
    """The page for these folders, as text."""
    from weft.report.page.markup import document, el, join

    page = compose([f for path in paths for f in look(path)])
    foot = el("p", "Made by weft report; all of it is in this file, and it asks nothing of the network.")
    return document(page.title, page.kind, page.subtitle, page.contents, join(page.parts), foot=foot)


def progress(folder: Path, results: Json) -> Json | None:
    """How far a study has come, while it runs."""
    path = folder / "progress.json"
    if results.get("state") == "done" or not path.exists():
        return None
    told = read_json(path)
    return told if isinstance(told, dict) else None


def write(paths: Sequence[Path], out: Path | None = None) -> Json:
    """Writes the page and says what it is about.

    Args:
        paths: folders of runs, studies and claims.
        out: the file; by default `report.html` in the first folder.
    """
    if not paths:
        raise ValueError("expected the folder of a run, a study or claims, got none; name one")
    out = paths[0] / "report.html" if out is None else out
    page = render(paths)
    put(out, page)
    parts = [{"kind": f.kind, "folder": str(f.folder)} for path in paths for f in look(path)]
    return {"report": str(out), "bytes": len(page.encode()), "parts": parts}


def put(out: Path, page: str) -> None:
    """Writes a page, where nothing but an older one is overwritten by it."""
    from weft.core.files import write_text

    if out.is_dir():
        raise ValueError(f"expected a file for the report, got the folder {str(out)!r}; name a file in it")
    if out.exists() and not out.read_bytes()[:15].lower().startswith(b"<!doctype html>"):
        raise ValueError(f"expected a new file or an older report, got {str(out)!r}, which is neither; choose another")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, page)
    except OSError as error:
        raise OSError(f"expected a file that can be written, got {out}: {error.strerror}") from error
