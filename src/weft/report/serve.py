"""A page on this machine alone that lists the runs, studies and claims in a folder and follows those in progress.

What it guards against: other machines (it listens on 127.0.0.1), other sites whose names lead here (the
`Host` header must be this machine's), paths out of the folder (`weft.report.listing` refuses them), names that are
HTML (`weft.report.page.markup` escapes), and clients that take for ever (a request must come within `PATIENCE`). Files
are never sent as they are: a page is made from those that weft knows.
"""

from __future__ import annotations

import hashlib
import io
import json
import socket
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from weft.report.listing import RefusedError, Rows, Stamp, inside, listing, refuse_links, stamp
from weft.report.writing import Page, compose, look

__all__ = ["Server"]

KEPT = 32  # rendered pages
PATIENCE = 20.0  # seconds in which a request must have come as a whole, and an answer must have been taken
SCRIPTS = ("page.js", "follow.js")


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
        self._pages: dict[tuple[str, bool, Stamp], Page] = {}
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            refuse_links(self.root, one.folder)
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

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that went away is no news."""


class _Until(io.RawIOBase):
    """What a client sends, up to a moment; by the socket's own time-out, a byte now and then would hold it for ever."""

    def __init__(self, link: socket.socket) -> None:
        self.link, self.end = link, 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, space: memoryview) -> int:  # type: ignore[override]
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.link.settimeout(left)
        return self.link.recv_into(space)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for a page or its parts; everything else is refused."""

    site: Server
    server_version = "weft"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._sent = _Until(self.connection)
        self.rfile = io.BufferedReader(self._sent)

    def handle_one_request(self) -> None:
        """One request, if it comes in time."""
        self._sent.end = time.monotonic() + PATIENCE
        super().handle_one_request()

    def do_GET(self) -> None:
        try:
            self._answer()
        except RefusedError as error:
            self._send(error.status, "text/plain; charset=utf-8", f"{error}\n", "default-src 'none'")
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as error:  # one page that cannot be made must not look like a server that went away
            self._send(500, "text/plain; charset=utf-8", f"{type(error).__name__}\n", "default-src 'none'")

    def do_HEAD(self) -> None:
        self.do_GET()

    def __getattr__(self, name: str) -> Callable[[], None]:
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
        self.connection.settimeout(PATIENCE)  # for all that is written at once
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

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged: the terminal is the user's."""
