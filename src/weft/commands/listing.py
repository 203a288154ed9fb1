"""The command `weft list`: the methods of the catalogue."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("list")(list_methods)


def list_methods(
    family: Annotated[
        str | None, typer.Argument(help="objectives, strategies, sources, nets or attacks; all by default.")
    ] = None,
) -> None:
    """List the methods of the catalogue, with their references."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from weft.core.catalogue import ROOMS, entries

    try:
        methods = entries(family)
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    screen = Console()
    for part in ROOMS if family is None else (family,):
        table = Table(title=part, title_justify="left", title_style="bold")
        table.add_column("name", no_wrap=True, style="cyan")
        table.add_column("summary")
        table.add_column("reference")
        for entry in sorted(methods, key=lambda entry: entry.name):
            if entry.room == part:
                table.add_row(entry.name, escape(entry.summary), escape(entry.reference))
        screen.print(table)
