"""What a folder holds: runs, studies and claims, found without leaving the folder, and the page that lists them.

What it guards against: paths out of the folder (each is decoded once, checked, and must be itself after symbolic links
are resolved), and links out of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes

from weft.report.writing import Found, Page, progress, read, what

if TYPE_CHECKING:
    from weft.report.page.markup import Cell, Markup

__all__ = ["RefusedError", "Rows", "Stamp", "inside", "listing", "refuse_links", "scan", "stamp"]

DEPTH, MOST_FOLDERS, MOST_FOUND = 6, 5000, 500
CLOSED = {"\0"} if os.name == "posix" else {"\0", "\\", ":"}  # what a folder's name cannot hold
SILENT = 120.0  # seconds after which a study in progress is said to be silent
Stamp = tuple[tuple[str, str, int, int], ...]
"""Of each file: folder, name, time of its last change and size."""


class RefusedError(Exception):
    """A request that gets no page: its status and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


# --- the folder ---------------------------------------------------------------------------------------


def inside(root: Path, asked: str) -> Path:
    """The folder that a path of an address names, if it is within the root.

    Args:
        root: resolved.
        asked: as it stands in the address, percent-encoded.

    >>> inside(Path("/"), "%2e%2e/etc")
    Traceback (most recent call last):
        ...
    weft.report.listing.RefusedError: expected a path within the folder
    """
    plain = os.fsdecode(unquote_to_bytes(asked))
    parts = plain.split("/") if plain else []
    if any(part == "" or part.startswith(".") or set(part) & CLOSED for part in parts):
        raise RefusedError(403, "expected a path within the folder")
    path = root.joinpath(*parts)
    try:
        real = path.resolve(strict=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise RefusedError(404, "nothing of that name is in the folder") from error
    if real != path or not real.is_dir() or not real.is_relative_to(root):  # a symbolic link, or a file
        raise RefusedError(403, "expected a folder within the folder, and no link")
    refuse_links(root, real)
    return real


def refuse_links(root: Path, folder: Path) -> None:
    """Raises where one of a folder's files is a link out of the root."""
    with os.scandir(folder) as entries:
        links = [entry.path for entry in entries if entry.is_symlink()]
    if not all(Path(os.path.realpath(link)).is_relative_to(root) for link in links):
        raise RefusedError(403, "expected files of the folder, got a link out of it")


def scan(root: Path) -> tuple[list[Found], bool]:
    """The runs, studies and claims in a folder, and whether there are more than were looked at.

    Links are not followed, folders with a link out of the root are passed over, and what lies within a run,
    a study or a claim is not looked at.
    """
    found: list[Found] = []
    for count, folder in enumerate(_folders(root, 0)):
        if count >= MOST_FOLDERS or len(found) >= MOST_FOUND:
            return found, True
        try:
            refuse_links(root, folder)
            if (one := what(folder)) is not None:
                found.append(one)
        except (RefusedError, OSError):
            continue
    return found, False


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    yield folder
    if depth >= DEPTH or what(folder) is not None:
        return
    try:
        with os.scandir(folder) as entries:
            inner = sorted(e.path for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith("."))
    except OSError:
        return
    for path in inner:
        yield from _folders(Path(path), depth + 1)


def stamp(found: list[Found]) -> Stamp:
    """What changes when a page would."""
    names = (
        "results.json",
        "progress.json",
        "result.json",
        "metrics.jsonl",
        "manifest.json",
        "state.json",
        "config.json",
        "recipe.json",
    )
    out: list[tuple[str, str, int, int]] = []
    for one in found:
        for name in names:
            try:
                stat = (one.folder / name).stat()
                out.append((str(one.folder), name, stat.st_mtime_ns, stat.st_size))
            except OSError:
                continue
    return tuple(out)


# --- what is shown ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One line of the list."""

    name: str
    state: str
    told: str
    share: float | None
    changed: float


class Rows:
    """What the list says of each folder, read again only where files have changed or it is in progress."""

    def __init__(self) -> None:
        self._kept: dict[Path, tuple[Stamp, Row]] = {}

    def __call__(self, one: Found) -> Row:
        mark = stamp([one])
        kept = self._kept.get(one.folder)
        if kept is not None and kept[0] == mark and kept[1].state != "running":
            return kept[1]
        changed = max((part[2] for part in mark), default=0) / 1e9
        try:
            made = _row(one, changed)
        except (ValueError, OSError, KeyError, TypeError, AttributeError) as error:
            made = Row(one.name, "damaged", str(error), None, changed)
        self._kept[one.folder] = mark, made
        return made


def _row(one: Found, changed: float) -> Row:
    from weft.report.curves import curves
    from weft.report.folder import records
    from weft.report.page.gallery import first_figure
    from weft.report.page.markup import is_number, num, seconds
    from weft.report.page.run import run_state, run_title

    if one.kind == "claim":
        claim = read(one)
        return Row(str(claim.get("title") or one.name), str(claim.get("verdict")), first_figure(claim), None, changed)
    if one.kind == "study":
        study = read(one)
        on = progress(one.folder, study)
        name = str(study.get("name") or one.name)
        if study.get("state") == "done" or on is None:
            sentences = study.get("sentences") or [""]
            return Row(name, str(study.get("state", "done")), str(sentences[0]), None, changed)
        done, total = on.get("done"), on.get("total")
        share = done / total if is_number(done) and is_number(total) and total else None
        left = f", about {seconds(on['remaining'])} to go" if is_number(on.get("remaining")) else ""
        if (silent := time.time() - changed) > SILENT:
            left = f"; no news for {seconds(silent)}, it may have been interrupted"
        return Row(name, "running", f"{num(done)} of {num(total)}: {on.get('what', '')}{left}", share, changed)
    history = records(one.folder)
    lines = curves(history)
    last = ", ".join(f"{c.part} {c.measure} {num(float(c.middle[-1]))}" for c in lines[:4])
    steps = f"step {num(history[-1]['step'])}: {last}" if history else "no records"
    return Row(run_title(one.folder)[0], run_state(one.folder), steps, None, changed)


def listing(root: Path, rows: Rows) -> Page:
    """The list of what is in the folder."""
    from weft.report.page.markup import Names, Sections, el, table

    found, more = scan(root)
    sections = Sections(Names(), 2)
    for taken in ("main", "told", "following"):
        sections.names(taken)
    heads = ["name", "state", "what it says", "folder", "changed"]
    for kind, title in (("study", "Studies"), ("run", "Runs"), ("claim", "Claims")):
        own = [one for one in found if one.kind == kind]
        parents = sorted({one.folder.parent for one in own if one.folder != root}) if kind == "claim" else []
        galleries = [el("li", el("a", f"All claims in {_within(root, p)}", href=_address(root, p))) for p in parents]
        cells = [_cells(root, one, rows(one)) for one in own]
        if cells:
            shown = table(f"{title} in this folder.", heads, cells, names=sections.names, file=title.lower())
            sections.add(title, el("ul", *galleries, class_="said") if galleries else None, shown)
    if not sections.parts:
        said = "There are no runs, studies or claims in this folder yet; they appear here as they come."
        sections.add("Nothing yet", el("p", said))
    if more:
        sections.add("More", el("p", "The folder holds more than is listed; serve a part of it."))
    return Page(root.name or str(root), "folder", str(root), sections.contents, sections.parts)


def _cells(root: Path, one: Found, line: Row) -> list[Cell | str]:
    """A row of the list's table."""
    from weft.report.page.markup import Cell, badge, el

    state = el("span", line.state, class_="state live" if line.state == "running" else "state")
    if one.kind == "claim" and line.state != "damaged":
        state = badge(line.state)
    said: list[str | Markup] = [line.told]
    if line.share is not None:
        said += [" ", el("progress", max="1", value=f"{line.share:.3f}", aria_label=f"progress of {line.name}")]
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(line.changed))
    return [
        Cell(line.name, el("a", line.name, href=_address(root, one.folder))),
        Cell(line.state, state),
        Cell(line.told, said, "words most"),
        _within(root, one.folder),
        Cell(when, kind="still"),
    ]


def _within(root: Path, folder: Path) -> str:
    return folder.relative_to(root).as_posix()


def _address(root: Path, folder: Path) -> str:
    """Where a folder is shown."""
    parts = [os.fsencode(part) for part in folder.relative_to(root).parts]
    return f"/at/{quote(b'/'.join(parts), safe='/')}"
