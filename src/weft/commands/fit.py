"""The commands `weft fit` and `weft resume`: training on a table, and what it came to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.commands.common import console, print_json, printable, say, told
from weft.commands.job.asked import Options
from weft.commands.options import AsJson, Debug, Quiet, Run, filled
from weft.commands.play import train_and_tell
from weft.commands.printing import number, print_risk, print_tasks

if TYPE_CHECKING:
    from weft.commands.job import Job
    from weft.core.values import Json
    from weft.tables.files import Columns

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command()(fit)
    app.command()(resume)


@filled(Options, "options")
def fit(
    data: Annotated[Path, typer.Argument(help="A table: CSV, Parquet or NPZ.", metavar="DATA", show_default=False)],
    options: Options,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder; by default a new one in runs/.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the run that is in the folder.")] = False,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train on a table and keep the run in a folder.

    Numbers are standardized, text becomes categories, missing values are filled in and marked; dates,
    identifiers and free text are refused by name (leave them out with --drop).
    """
    with told(debug):
        from weft.tables.files import read_columns

        columns = read_columns(data, encoding=options.encoding)
        from weft.commands.job import Job, clear, new_folder, rehearse

        job = Job.plan(columns, options)
        for note in columns.notes:
            say(f"note: {note}")
        folder = out if out is not None else new_folder(data)
        if force and folder.is_dir():
            rehearse(job, columns)
        clear(folder, force=force)
        _train(job, columns, folder, resume=False, json=json, quiet=quiet)


def resume(
    run: Run,
    data: Annotated[
        Path | None, typer.Option(help="Where the data is now, if it was moved.", show_default=False)
    ] = None,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Go on with a run that was interrupted, to where it would have ended."""
    with told(debug):
        from weft.commands.job import Job, PlayJob
        from weft.report.folder import run_folder, world_of

        if world_of(run_folder(run)):
            if data is not None:
                raise ValueError(f"expected no --data for a run that acts in a world, got {data}; leave it out")
            train_and_tell(PlayJob.open(run), run, resume=True, json=json, quiet=quiet)
            return
        job = Job.open(run)
        _train(job, job.data.read(data), run, resume=True, json=json, quiet=quiet)


def _train(job: Job, columns: Columns, folder: Path, *, resume: bool, json: bool, quiet: bool) -> None:
    """Trains with a bar on a terminal; Ctrl-C keeps the state and says how to go on."""
    from weft.commands.job import train

    try:
        result = train(job, columns, folder, verbose=sys.stdout.isatty() and not (json or quiet), resume=resume)
    except KeyboardInterrupt:
        kept = (folder / "recipe.json").exists()
        say(
            f"interrupted; go on with: weft resume {folder}"
            if kept
            else "interrupted before training; nothing was kept"
        )
        raise typer.Exit(130) from None
    if json:
        print_json(result)
    elif not quiet:
        _print_result(result)


def _print_result(result: Json) -> None:
    import shlex

    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")

    def add(name: str, value: str, note: str = "") -> None:
        table.add_row(Text(printable(name)), Text(printable(value)), Text(printable(note)))

    rows = result["rows"]
    if "measure" in result:
        measure = result["measure"]
        if rows["held_out"]:
            low_high = result.get("interval")
            note = f"95%: {low_high[0]:.3f} to {low_high[1]:.3f}, {rows['held_out']} rows" if low_high else ""
            add(f"held-out {measure}", number(result["held_out"]), note or f"{rows['held_out']} rows")
        add(f"training {measure}", number(result["training"]), f"{rows['training']} rows")
        scores = [score for score in result.get("replicas") or [] if score is not None]
        if scores:
            import numpy as np

            spread = f"sd {np.std(scores, ddof=1):.3f} over " if len(scores) > 1 else ""
            add("one replica alone", number(float(np.mean(scores))), f"{spread}{len(result['replicas'])} replicas")
    if likely := result.get("likelihood"):
        span = likely["interval"]
        wide = f"95%: {span[0]:.3f} to {span[1]:.3f}, " if span else ""
        kind = likely["kind"] or "of a kind that is not said"
        add(
            f"{likely['part']} log-likelihood",
            number(likely["mean"]),
            f"nats per row, {kind}; {wide}{likely['rows']} rows",
        )
    else:
        for name, value in result.get("progress", {}).items():
            add(name, number(value))
    for name, kind in result.get("kinds", {}).items():
        add(name, kind, "not exact")
    told = f"{result['strategy']}, {result['seconds']:.1f} s"
    if result.get("resumed_at") is not None:
        old = result["resumed_at"] >= result["steps"]
        told += "; it had already ended" if old else f"; resumed at step {result['resumed_at']}"
    add("steps", str(result["steps"]), told)
    add("features", str(result["features"]))
    for name, why in list(result["left_out"].items())[:10]:
        add("left out", "", f"{name} ({why})")
    add("run", "", result["run"])
    screen = console()
    screen.print(table)
    if "risk" in result:
        print_risk(screen, result["risk"])
        screen.print(Text(f"picture: {printable(result['run'])}/risk.png"))
    if result.get("matrix"):
        print_tasks(screen, result["matrix"])
        screen.print(Text(f"picture: {printable(result['run'])}/tasks.png"))
    run = printable(shlex.quote(result["run"]))
    commands = [f"weft show {run}"]
    if "measure" in result:
        commands.append(f"weft predict {run} DATA --out predictions.csv")
    named = {"sample": f"sample {run} -n 1000 --out rows.csv", "impute": f"impute {run} DATA --out whole.csv"}
    commands += [f"weft {command}" for name, command in named.items() if name in result.get("offers", ())]
    if likely:
        commands.append(f"weft score {run} DATA")
    screen.print(Text("next: " + "\n      ".join(commands)))
