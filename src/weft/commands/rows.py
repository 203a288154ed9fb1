"""The commands `weft sample`, `weft impute` and `weft score`: what a run that models rows does with them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.commands.common import console, new_file, print_json, printable, say, told
from weft.commands.options import AsJson, Debug, Quiet, Run
from weft.commands.printing import number

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["register"]

Data = Annotated[Path, typer.Argument(help="A table with the columns of training.", metavar="DATA", show_default=False)]
Seed = Annotated[int, typer.Option(help="What fixes the draws: another seed, other rows.")]
Encoding = Annotated[str | None, typer.Option(help="Of a CSV file, if it is another than in training.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the file.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(sample)
    app.command()(impute)
    app.command()(score)


def sample(
    run: Run,
    n: Annotated[int, typer.Option("-n", "--number", help="How many rows.", min=1)] = 100,
    out: Annotated[Path | None, typer.Option(help="A CSV file for the rows.", show_default=False)] = None,
    seed: Seed = 0,
    force: Force = False,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Draw new rows from a run that can: as CSV, with the columns of training."""
    with told(debug):
        new_file(out, force, "the rows")
        from weft.commands.job import sample as drawn

        result = drawn(run, n, seed=seed)
        _warn(result)
        if result["features"] and not quiet:
            say("note: the rows are the features that the net sees (numbers standardized), not the table's columns")
        how = f", {result['kind']} draws" if result["kind"] else ""
        _give(result, out, json, quiet, f"{n} rows{how}, seed {seed}")


def impute(
    run: Run,
    data: Data,
    out: Annotated[Path | None, typer.Option(help="A CSV file for the table.", show_default=False)] = None,
    seed: Seed = 0,
    encoding: Encoding = None,
    force: Force = False,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fill in what is missing in a table, by draws given the rest of each row: as CSV, all else as it is."""
    with told(debug):
        new_file(out, force, "the table")
        from weft.commands.job import impute as filled

        result = filled(run, data, seed=seed, encoding=encoding)
        _warn(result)
        if result["left"] and not quiet:
            say(f"note: gaps are left in columns that the run does not model: {', '.join(result['left'])}")
        count = sum(result["filled"].values())
        which = f" in {', '.join(result['filled'])}" if count else ""
        how = f", {result['kind']} draws" if result["kind"] else ""
        _give(result, out, json, quiet, f"{count} values drawn{which}{how}, seed {seed}; {result['rows']} rows")


def score(
    run: Run,
    data: Data,
    encoding: Encoding = None,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """How good a run is on another table, with 95% intervals over its rows, and by environment where it has them.

    Accuracy or R squared where the run predicts and the table has the target; the mean log-likelihood, and whether it
    is exact, where the run models the table itself.
    """
    with told(debug):
        from weft.commands.job import score as judged

        result = judged(run, data, encoding=encoding)
        _warn(result)
        if json:
            print_json(result)
            return
        _print_score(result)


def _warn(result: Json) -> None:
    if not result["finished"]:
        say(f"warning: the run has not ended; weft resume {result['run']}")


def _give(result: Json, out: Path | None, json: bool, quiet: bool, said: str) -> None:
    """A table into a file, as JSON, or to the screen."""
    from weft.commands.job import csv_text

    if out is not None:
        from weft.core.files import write_text

        write_text(out, csv_text(result["columns"], result["table"]))
        result["out"] = str(out)
        result.pop("table")
    if json:
        print_json(result)
    elif out is not None:
        if not quiet:
            typer.echo(f"{printable(said)} in {printable(str(out))}")
    elif sys.stdout.isatty():
        _print_table(result)
        typer.echo(f"{printable(said)}; all of them into a file: --out rows.csv")
    else:
        typer.echo(csv_text(result["columns"], result["table"]), nl=False)


def _print_table(result: Json, most: int = 20) -> None:
    """The first rows, for a look."""
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in result["columns"][:12]:
        table.add_column(Text(printable(name)))
    for row in result["table"][:most]:
        shown = [f"{cell:.6g}" if isinstance(cell, float) else "" if cell is None else str(cell) for cell in row[:12]]
        table.add_row(*(Text(printable(cell)) for cell in shown))
    console().print(table)


def _print_score(result: Json) -> None:
    from rich.table import Table
    from rich.text import Text

    likely = result.get("likelihood")
    heads = [*([result["measure"]] if "measure" in result else []), *(["log-likelihood"] if likely else [])]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
    table.add_column(Text(printable(result.get("environment", ""))), style="cyan", no_wrap=True)
    table.add_column("rows", justify="right")
    for head in heads:
        table.add_column(Text(head), justify="right", no_wrap=True)
        table.add_column("95%", no_wrap=True)

    def add(name: str, part: Json) -> None:
        cells: list[str] = []
        if "measure" in result:
            cells += [number(part["score"]), _span(part["interval"])]
        if likely:
            cells += [number(part["likelihood"]["mean"]), _span(part["likelihood"]["interval"])]
        table.add_row(Text(printable(name)), str(part["rows"]), *cells)

    for name, part in result.get("environments", {}).items():
        add(name, part)
    add("all", result)
    screen = console()
    screen.print(table)
    if likely:
        kind = likely["kind"] or "of a kind that is not said"
        screen.print(
            Text(f"log-likelihood: mean over rows of log p in nats, {kind}; intervals are for independent rows")
        )


def _span(interval: list[float] | None) -> str:
    return "-" if interval is None else f"{number(interval[0])} to {number(interval[1])}"
