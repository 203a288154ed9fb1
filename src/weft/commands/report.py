"""The command `weft report`: one page for a run, a study or claims, or a local page that follows a folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from weft.commands.common import print_json, printable, told
from weft.commands.options import AsJson, Debug

__all__ = ["register"]


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Folders of runs, studies or claims.", metavar="PATH...", show_default=False),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The file; by default report.html in the first folder.", show_default=False)
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Instead, follow what is in the folder on a page of this machine alone.")
    ] = False,
    port: Annotated[int, typer.Option(help="With --serve: its port; 0 for a free one.")] = 8137,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Make one HTML page of a run, a study or claims, or follow a folder with --serve.

    The page is one file that asks nothing of the network; an older report in its place is replaced. --serve
    answers this machine alone (127.0.0.1) and shows that folder alone, until Ctrl-C.
    """
    with told(debug):
        if serve:
            _serve(paths, out, port, show=show, json=json)
            return
        from weft.report.writing import write

        result = write(paths, out)
        if show:
            _open(Path(result["report"]).resolve().as_uri())
        if json:
            print_json(result)
        else:
            typer.echo(f"report: {printable(result['report'])} ({result['bytes'] / 1000:.0f} kB)")


def _serve(paths: list[Path], out: Path | None, port: int, *, show: bool, json: bool) -> None:
    from weft.report.serve import Server

    if len(paths) != 1 or out is not None:
        given = f"{len(paths)} folders" if len(paths) != 1 else "--out"
        raise ValueError(f"expected one folder to serve and no --out, got {given}; leave the rest out")
    with suppress(KeyboardInterrupt), Server(paths[0], port) as server:
        if json:
            print_json({"url": server.url, "folder": str(paths[0])})
        else:
            typer.echo(f"following {printable(str(paths[0]))} at {server.url} (Ctrl-C ends it)")
        if show:
            _open(server.url)
        server.run()


def _open(address: str) -> None:
    import webbrowser

    webbrowser.open(address)


def register(app: typer.Typer) -> None:
    """Adds the command to the application."""
    app.command("report")(report)
