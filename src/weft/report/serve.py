"""A page on this machine alone that lists the runs, studies and claims in a folder and follows those in progress.

What it guards against: other machines (it listens on 127.0.0.1), other sites whose names lead here (the
`Host` header must be this machine's), paths out of the folder (each is decoded once, checked, and must be
itself after symbolic links are resolved), and names that are HTML (`weft.report.page.markup` escapes). Files
are never sent as they are: a page is made from those that weft knows.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any, Self
from urllib.parse import quote, unquote

from weft.report.writing import Found, Page, compose, look, progress, read, what

__all__ = ["Server", "inside", "scan"]

DEPTH, MOST_FOLDERS, MOST_FOUND = 6, 5000, 500
KEPT = 32  # rendered pages
SILENT = 120.0  # seconds after which a study in progress is said to be silent
SCRIPTS = ("page.js", "follow.js")


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
    weft.report.serve.RefusedError: expected a path within the folder
    """
    try:
        plain = unquote(asked, errors="strict")
    except UnicodeDecodeError as error:
        raise RefusedError(400, "expected a path in UTF-8") from error
    parts = plain.split("/") if plain else []
    if any(part == "" or part.startswith(".") or "\0" in part or "\\" in part or ":" in part for part in parts):
        raise RefusedError(403, "expected a path within the folder")
    path = root.joinpath(*parts)
    try:
        real = path.resolve(strict=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise RefusedError(404, "nothing of that name is in the folder") from error
    if real != path or not real.is_dir():  # a symbolic link, or a file
        raise RefusedError(403, "expected a folder within the folder, and no link")
    _own(root, real)
    return real


def _own(root: Path, folder: Path) -> None:
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
            _own(root, folder)
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


def stamp(found: list[Found]) -> tuple[Any, ...]:
    """What changes when a page would."""
    names = (
        "results.json",
        "progress.json",
        "result.json",
        "metrics.jsonl",
        "state.json",
        "config.json",
        "recipe.json",
    )
    out: list[Any] = []
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
        self._kept: dict[Path, tuple[Any, Row]] = {}

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
    from weft.report.curves import curves, records
    from weft.report.page.gallery import first_figure
    from weft.report.page.markup import is_number, num, seconds
    from weft.report.page.run import run_state, run_title

    if one.kind == "claim":
        plain = read(one)
        return Row(str(plain.get("title") or one.name), str(plain.get("verdict")), first_figure(plain), None, changed)
    if one.kind == "study":
        plain = read(one)
        on = progress(one.folder, plain)
        name = str(plain.get("name") or one.name)
        if plain.get("state") == "done" or on is None:
            sentences = plain.get("sentences") or [""]
            return Row(name, str(plain.get("state", "done")), str(sentences[0]), None, changed)
        done, total = on.get("done"), on.get("total")
        share = done / total if is_number(done) and is_number(total) and total else None
        left = f", about {seconds(on['remaining'])} to go" if is_number(on.get("remaining")) else ""
        if (silent := time.time() - changed) > SILENT:
            left = f"; no news for {seconds(silent)}, it may have been interrupted"
        return Row(name, "running", f"{num(done)} of {num(total)}: {on.get('what', '')}{left}", share, changed)
    found = records(one.folder)
    lines = curves(found)
    last = ", ".join(f"{c.part} {c.measure} {num(float(c.middle[-1]))}" for c in lines[:4])
    steps = f"step {num(found[-1]['step'])}: {last}" if found else "no records"
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
        galleries = [el("li", el("a", f"All claims in {_within(root, p)}", href=address(root, p))) for p in parents]
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


def _cells(root: Path, one: Found, line: Row) -> list[Any]:
    """A row of the list's table."""
    from weft.report.page.markup import Cell, badge, el

    state = el("span", line.state, class_="state live" if line.state == "running" else "state")
    if one.kind == "claim" and line.state != "damaged":
        state = badge(line.state)
    said: list[Any] = [line.told]
    if line.share is not None:
        said += [" ", el("progress", max="1", value=f"{line.share:.3f}", aria_label=f"progress of {line.name}")]
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(line.changed))
    return [
        Cell(line.name, el("a", line.name, href=address(root, one.folder))),
        Cell(line.state, state),
        Cell(line.told, said, "words most"),
        _within(root, one.folder),
        Cell(when, kind="still"),
    ]


def _within(root: Path, folder: Path) -> str:
    return folder.relative_to(root).as_posix()


def address(root: Path, folder: Path) -> str:
    """Where a folder is shown."""
    parts = [os.fsencode(part) for part in folder.relative_to(root).parts]
    return f"/at/{quote(b'/'.join(parts), safe='/')}"


# --- the server ---------------------------------------------------------------------------------------


class Server:
    """Serves a folder on 127.0.0.1 until it is stopped.

    Args:
        folder: all that it shows.
        port: 0 for a free one.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        if not folder.is_dir():
            raise ValueError(f"expected a folder to follow, got {str(folder)!r}, which is none")
        if not 0 <= port < 65536:
            raise ValueError(f"expected a port from 0 to 65535, got {port}")
        self.root = folder.resolve()
        self._pages: dict[Any, Page] = {}
        self._rows = Rows()
        self._lock = Lock()
        handler = type("Handler", (_Handler,), {"site": self})
        try:
            self._http = _Threads(("127.0.0.1", port), handler)
        except OSError as error:
            raise OSError(
                f"expected port {port} to be free, got: {error.strerror}; choose another with --port"
            ) from error
        self.port = int(self._http.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}/"
        self.hosts = {f"{name}:{self.port}" for name in ("127.0.0.1", "localhost")}
        if self.port == 80:
            self.hosts |= {"127.0.0.1", "localhost"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._http.server_close()

    def run(self) -> None:
        """Answers until Ctrl-C or `stop`."""
        try:
            self._http.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            return

    def stop(self) -> None:
        """Ends `run`, from another thread."""
        self._http.shutdown()

    def page(self, asked: str | None) -> tuple[Page, str]:
        """The page for an address' path (None for the list), and what is said of its freshness."""
        if asked is None:
            return listing(self.root, self._rows), "This list follows the folder."
        folder = inside(self.root, asked)
        try:
            found = look(folder)
        except (ValueError, OSError) as error:
            raise RefusedError(404, "no run, study or claims of weft are there") from error
        for one in found:
            _own(self.root, one.folder)
            if one.folder.is_symlink():
                raise RefusedError(403, "expected a folder within the folder, and no link")
        live = any(self._rows(one).state == "running" for one in found)
        key = (str(folder), live, stamp(found))
        with self._lock:
            if key not in self._pages:
                try:
                    # While it goes on nothing is drawn from it, and data elsewhere is never read.
                    self._pages[key] = compose(found, draw=not live, data=False)
                except (ValueError, OSError) as error:
                    self._pages[key] = _damaged(folder.name, str(error))
                while len(self._pages) > KEPT:
                    self._pages.pop(next(iter(self._pages)))
            return self._pages[key], "In progress; this page follows it." if live else "This page follows the folder."


def _damaged(name: str, why: str) -> Page:
    from weft.report.page.markup import Names, Sections, el

    sections = Sections(Names(), 2)
    sections.add("It cannot be shown", el("p", why, class_="warn"))
    return Page(name, "damaged", "", sections.contents, sections.parts)


def _marked(part: str) -> tuple[str, str]:
    """A part with the checksum that tells whether it has changed."""
    mark = hashlib.sha256(part.encode()).hexdigest()[:16]
    head, gap, rest = part.partition(" ")
    return mark, f'{head} data-h="{mark}"{gap}{rest}'


class _Threads(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 32

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for a page or its parts; everything else is refused."""

    site: Server
    timeout = 20
    server_version = "weft"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        try:
            self._answer()
        except RefusedError as error:
            self._send(error.status, "text/plain; charset=utf-8", f"{error}\n", "default-src 'none'")
        except ConnectionError:
            self.close_connection = True
        except Exception as error:  # one page that cannot be made must not look like a server that went away
            self._send(500, "text/plain; charset=utf-8", f"{type(error).__name__}\n", "default-src 'none'")

    def do_HEAD(self) -> None:
        self.do_GET()

    def __getattr__(self, name: str) -> Any:
        """Whatever other method is asked for, it is refused."""
        if name.startswith("do_"):
            return self._refuse
        raise AttributeError(name)

    def _refuse(self) -> None:
        self.close_connection = True  # what body there is stays unread
        self._send(405, "text/plain; charset=utf-8", "only GET and HEAD are answered\n", "default-src 'none'")

    def _answer(self) -> None:
        from weft.report.page.markup import Markup, asset, document, el, join, policy

        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].strip().lower() not in self.site.hosts:
            raise RefusedError(421, "this page answers to 127.0.0.1 and localhost only")
        path = self.path.partition("?")[0]
        kind, _, rest = path.removeprefix("/").partition("/")
        if not path.startswith("/") or kind not in ("", "at", "parts", "list"):
            raise RefusedError(404, "there is no such page")
        if kind in ("", "list") and rest:
            raise RefusedError(404, "there is no such page")
        asked = None if kind in ("", "list") else rest
        page, said = self.site.page(asked)
        parts = []
        for part in page.parts:
            mark, html = _marked(part)
            name = html.partition('id="')[2].partition('"')[0]
            parts.append({"id": name, "h": mark, "html": html})
        if kind in ("parts", "list"):
            body = json.dumps({"parts": parts, "said": said}).replace("<", "\\u003c")
            self._send(200, "application/json; charset=utf-8", body, "default-src 'none'")
            return
        follow = "/list" if asked is None else f"/parts/{asked}"
        back = el("p", el("a", "← all of this folder", href="/")) if asked is not None else None
        note = el("p", said, class_="note", id="following", data_follow=follow)
        main = join([note, *[Markup(part["html"]) for part in parts]])
        text = document(
            page.title, page.kind, join([page.subtitle, back]), page.contents, main, scripts=SCRIPTS, connect="'self'"
        )
        rules = policy(*map(asset, SCRIPTS), connect="'self'") + "; frame-ancestors 'none'"
        self._send(200, "text/html; charset=utf-8", text, rules)

    def _send(self, status: int, kind: str, text: str, rules: str) -> None:
        body = text.encode()
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": rules,
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cache-Control": "no-store",
            **({"Allow": "GET, HEAD"} if status == 405 else {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Errors of the protocol, in plain text."""
        self.close_connection = True
        self.command = self.command or ""
        self._send(code, "text/plain; charset=utf-8", "the request was not understood\n", "default-src 'none'")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged: the terminal is the user's."""
