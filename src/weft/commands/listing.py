"""The command `weft list`: the methods of the catalogue."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("list")(list_methods)


def list_methods(
    room: Annotated[
        str | None, typer.Argument(help="objectives, strategies, sources, nets, attacks or worlds; all by default.")
    ] = None,
) -> None:
    """List the methods of the catalogue by family, with their references, and the worlds to act in."""
    from itertools import groupby

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from weft.core.catalogue import LISTED, entries

    try:
        methods = entries(room) if room is not None else [entry for one in LISTED for entry in entries(one)]
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    screen = Console()
    methods.sort(key=lambda entry: (LISTED.index(entry.room), entry.family, entry.name))
    for place, members in groupby(methods, key=lambda entry: (entry.room, entry.family)):
        table = Table(title=": ".join(filter(None, place)), title_justify="left", title_style="bold")
        table.add_column("name", no_wrap=True, style="cyan")
        table.add_column("summary")
        table.add_column("reference")
        for entry in members:
            table.add_row(entry.name, escape(entry.summary), escape(entry.reference))
        screen.print(table)
