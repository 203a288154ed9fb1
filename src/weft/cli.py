"""The command `weft`. What is heavy is imported by the command that needs it."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        from weft import __version__

        typer.echo(f"weft {__version__}")
        raise typer.Exit


@app.callback()
def weft(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Weaves any learning objective with any learning strategy."""


@app.command("list")
def list_methods(
    family: Annotated[
        str | None, typer.Argument(help="objectives, strategies, sources or nets; all by default.")
    ] = None,
) -> None:
    """List the methods of the catalogue, with their references."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from weft.core.catalogue import FAMILIES, entries

    try:
        found = entries(family)
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    console = Console()
    for part in FAMILIES if family is None else (family,):
        table = Table(title=part, title_justify="left", title_style="bold")
        table.add_column("name", no_wrap=True, style="cyan")
        table.add_column("summary")
        table.add_column("reference")
        for entry in sorted(found, key=lambda entry: entry.name):
            if entry.family == part:
                table.add_row(entry.name, escape(entry.summary), escape(entry.reference))
        console.print(table)
