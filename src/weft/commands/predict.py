"""The command `weft predict`: a run's predictions for another table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.commands.common import console, new_file, print_json, printable, say, told
from weft.commands.options import AsJson, Debug, Quiet, Run

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(predict)


def predict(
    run: Run,
    data: Annotated[
        Path, typer.Argument(help="A table with the columns of training.", metavar="DATA", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option(help="A CSV file for the predictions.", show_default=False)] = None,
    proba: Annotated[bool, typer.Option("--proba", help="The probability of each class, too.")] = False,
    encoding: Annotated[str | None, typer.Option(help="Of a CSV file, if it is another than in training.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file for the predictions.")] = False,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Predict for another table: as CSV, one row for each of its rows, in order."""
    with told(debug):
        new_file(out, force, "the predictions")
        from weft.commands.job import as_csv
        from weft.commands.job import predict as answer

        result = answer(run, data, proba=proba, encoding=encoding)
        if not result["finished"]:
            say(f"warning: the run has not ended; weft resume {run}")
        if out is not None:
            from weft.core.files import write_text

            write_text(out, as_csv(result))
            result["out"] = str(out)
        if json:
            print_json(result)
            return
        score = f"; {result['measure']} {result['score']:.3f}" if result.get("score") is not None else ""
        if out is not None:
            if not quiet:
                typer.echo(f"{result['rows']} predictions in {printable(str(out))}{score}")
        elif sys.stdout.isatty():
            _print_predictions(result)
            typer.echo(f"{result['rows']} rows{score}; all of them into a file: --out predictions.csv")
        else:
            typer.echo(as_csv(result), nl=False)


def _print_predictions(result: Json, most: int = 20) -> None:
    """The first predictions, for a look."""
    from rich.table import Table
    from rich.text import Text

    table = Table("row")
    table.add_column(Text(printable(f"predicted {result['target']}")))
    labels = result.get("labels", [])[:8]
    for label in labels:
        table.add_column(Text(printable(f"p({label})")), justify="right")
    for i, value in enumerate(result["predictions"][:most]):
        shown = f"{value:.6g}" if isinstance(value, float) else printable(str(value))
        shares = [f"{p:.3f}" for p in result["probabilities"][i][: len(labels)]] if labels else []
        table.add_row(str(i + 1), Text(shown), *shares)
    console().print(table)
