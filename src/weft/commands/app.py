"""The command `weft`. What is heavy is imported by the command that needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from weft.commands import claims, compare, report
from weft.commands.common import console, print_json, print_risk, print_tasks, printable, say, told

__all__ = ["app"]


class _OneLine(TyperGroup):
    """A group of commands whose usage errors take one line, as all other errors of weft do."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Runs the command; wrong usage is told in one line, with exit status 2."""
        try:
            status = super().main(*args, **{**extra, "standalone_mode": False})
        except typer.Abort:
            status = 1
        except Exception as error:
            if not hasattr(error, "format_message"):
                raise
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()  # type: ignore[attr-defined]
            else:
                context = getattr(error, "ctx", None)
                where = context.command_path if context is not None else "weft"
                say(f"{error.format_message().rstrip('.')}; see {where} --help")
            status = getattr(error, "exit_code", 2)
        if standalone_mode:
            sys.exit(status if isinstance(status, int) else 0)
        return status


app = typer.Typer(
    cls=_OneLine,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help takes half the time to show
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    room: Annotated[
        str | None, typer.Argument(help="objectives, strategies, sources, nets or attacks; all by default.")
    ] = None,
) -> None:
    """List the methods of the catalogue by family, with their references."""
    from itertools import groupby

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from weft.core.catalogue import ROOMS, entries

    try:
        methods = entries(room)
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    screen = Console()
    methods.sort(key=lambda entry: (ROOMS.index(entry.room), entry.family, entry.name))
    for place, members in groupby(methods, key=lambda entry: (entry.room, entry.family)):
        table = Table(title=": ".join(filter(None, place)), title_justify="left", title_style="bold")
        table.add_column("name", no_wrap=True, style="cyan")
        table.add_column("summary")
        table.add_column("reference")
        for entry in members:
            table.add_row(entry.name, escape(entry.summary), escape(entry.reference))
        screen.print(table)


# --- tables -------------------------------------------------------------------------------------------

_Run = Annotated[Path, typer.Argument(help="The run's folder.", metavar="RUN", show_default=False)]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
_Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@app.command()
def fit(
    data: Annotated[Path, typer.Argument(help="A table: CSV, Parquet or NPZ.", metavar="DATA", show_default=False)],
    target: Annotated[str | None, typer.Option(help="The column to be predicted.", metavar="COLUMN")] = None,
    environment: Annotated[
        str | None, typer.Option(help="The column that names each row's environment (site, subject).", metavar="COLUMN")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="The column that names tasks, learned one after another.", metavar="COLUMN")
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="What is learned; by default seen by the target.", metavar="SPEC")
    ] = None,
    net: Annotated[
        str | None,
        typer.Option(help="Such as 'mlp(hidden=(64, 64), dropout=0.5)' or linear.", metavar="SPEC"),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(help="How: and-mask, 'and-mask(threshold=0.8)', 'ewc(strength=100)+and-mask'.", metavar="SPEC"),
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="Such as 'sgd(lr=0.1)'.", metavar="SPEC")] = None,
    schedule: Annotated[
        str | None, typer.Option(help="Of the learning rate: constant, linear, cosine or step.", metavar="NAME")
    ] = None,
    replicas: Annotated[int | None, typer.Option(help="Independent copies, trained at once.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data (default: 50).")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates, instead of passes.")] = None,
    batch_size: Annotated[int, typer.Option(help="Rows per update (and environment); 0 for all.")] = 64,
    validation: Annotated[float, typer.Option(help="The share of the rows held out; 0 for none.")] = 0.2,
    patience: Annotated[
        int | None,
        typer.Option(help="Evaluations without progress after which to stop, with the best parameters."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out; repeatable.", metavar="COLUMN")] = None,
    encoding: Annotated[str, typer.Option(help="Of a CSV file.")] = "utf-8",
    device: Annotated[str | None, typer.Option(help="cpu, cuda:0, ...; CUDA where there is one.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, float64 or bfloat16.")] = "float32",
    out: Annotated[
        Path | None, typer.Option(help="The run's folder; by default a new one in runs/.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the run that is in the folder.")] = False,
    json: _Json = False,
    quiet: _Quiet = False,
    debug: _Debug = False,
) -> None:
    """Train on a table and keep the run in a folder.

    Numbers are standardized, text becomes categories, missing values are filled in and marked; dates,
    identifiers and free text are refused by name (leave them out with --drop).
    """
    with told(debug):
        from weft.tables.files import read_columns

        columns = read_columns(data, encoding=encoding)
        from weft.commands.job import Job, Options, clear, new_folder, rehearse

        options = Options(
            target=target,
            environment=environment,
            task=task,
            drop=tuple(drop or ()),
            encoding=encoding,
            objective=objective,
            net=net,
            strategy=strategy,
            optimizer=optimizer,
            schedule=schedule,
            replicas=replicas,
            epochs=epochs,
            steps=steps,
            batch_size=batch_size,
            validation=validation,
            patience=patience,
            seed=seed,
            device=device,
            dtype=dtype,
        )
        job = Job.plan(columns, options)
        for note in columns.notes:
            say(f"note: {note}")
        folder = out if out is not None else new_folder(data)
        if force and folder.is_dir():
            rehearse(job, columns)
        clear(folder, force=force)
        _train(job, columns, folder, resume=False, json=json, quiet=quiet)


@app.command()
def resume(
    run: _Run,
    data: Annotated[
        Path | None, typer.Option(help="Where the data is now, if it was moved.", show_default=False)
    ] = None,
    json: _Json = False,
    quiet: _Quiet = False,
    debug: _Debug = False,
) -> None:
    """Go on with a run that was interrupted, to where it would have ended."""
    with told(debug):
        from weft.commands.job import Job

        job = Job.open(run)
        _train(job, job.read(data), run, resume=True, json=json, quiet=quiet)


def _train(job: Any, columns: Any, folder: Path, *, resume: bool, json: bool, quiet: bool) -> None:
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


def _print_result(result: dict[str, Any]) -> None:
    import shlex

    from rich.table import Table
    from rich.text import Text

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

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
    for name, value in result.get("progress", {}).items():
        add(name, number(value))
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
    screen.print(Text("next: " + "\n      ".join(commands)))


@app.command()
def predict(
    run: _Run,
    data: Annotated[
        Path, typer.Argument(help="A table with the columns of training.", metavar="DATA", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option(help="A CSV file for the predictions.", show_default=False)] = None,
    proba: Annotated[bool, typer.Option("--proba", help="The probability of each class, too.")] = False,
    encoding: Annotated[str | None, typer.Option(help="Of a CSV file, if it is another than in training.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file for the predictions.")] = False,
    json: _Json = False,
    quiet: _Quiet = False,
    debug: _Debug = False,
) -> None:
    """Predict for another table: as CSV, one row for each of its rows, in order."""
    with told(debug):
        if out is not None and (out.is_dir() or (out.exists() and not force)):
            what = "a folder" if out.is_dir() else "a file that is there already; --force replaces it"
            raise ValueError(f"expected a new file for the predictions, got {out}, {what}")
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


def _print_predictions(result: dict[str, Any], most: int = 20) -> None:
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


@app.command()
def show(
    run: _Run,
    png: Annotated[Path | None, typer.Option(help="A picture of the curves.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the picture.")] = False,
    json: _Json = False,
    debug: _Debug = False,
) -> None:
    """Show a run's learning curves, its risk by environment or its scores by task, in the terminal or as a picture."""
    with told(debug):
        from weft.report.curves import about, curves, drawn, picture, records, risk
        from weft.report.tasks import tasks as by_task

        facts = about(run)
        found = records(run)
        lines, risks, matrix = curves(found), risk(run), by_task(run)
        if png is not None:
            if png.is_dir() or (png.exists() and not force):
                raise ValueError(f"expected a new file for the picture, got {png}, which is there; --force replaces it")
            if not lines:
                raise ValueError(f"expected records to draw in {run}, got none")
            tasks: dict[str, float] = {}
            for record, before in zip(found, [None, *found], strict=False):
                if "task" in record and record["task"] not in tasks:
                    tasks[str(record["task"])] = before["step"] if before else 0
            picture(lines, png, title=facts["title"], tasks=tasks, risk=risks, matrix=matrix)
        if json:
            told_of = {name: part for name, part in (("risk", risks), ("matrix", matrix)) if part}
            print_json({"run": str(run), **facts, "records": found, **told_of, **({"png": str(png)} if png else {})})
            return
        screen = console()
        from rich.text import Text

        screen.print(Text(printable(facts["title"])))
        if not lines:
            screen.print("no records: solved in closed form, or not yet begun")
        else:
            screen.print(Text(drawn(lines, width=min(screen.width - 2, 100))))
            last = ", ".join(f"{line.part} {line.measure} {line.middle[-1]:.4g}" for line in lines)
            screen.print(Text(printable(f"at step {found[-1]['step']}: {last}")))
        if risks:
            print_risk(screen, risks)
        if matrix:
            print_tasks(screen, matrix)
        if png is not None:
            screen.print(Text(f"picture: {printable(str(png))}"))


for commands in (compare, claims, report):
    commands.register(app)
