"""`weft compare`: which way of learning works on this data, and can that be trusted?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.commands.common import console, print_json, print_matrix, printable, say, told

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(compare)


def compare(
    data: Annotated[
        str | None,
        typer.Argument(help="A table: CSV, Parquet or NPZ; without one, the bundled digits.", show_default=False),
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column to be predicted.", metavar="COLUMN")] = None,
    environment: Annotated[
        str | None, typer.Option(help="The column that names environments; one of them is the test.", metavar="COLUMN")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="The column that names tasks, learned one after another.", metavar="COLUMN")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="The column that names rows that must stay together.", metavar="COLUMN")
    ] = None,
    test: Annotated[
        list[str] | None, typer.Option(help="A test environment; repeatable. Default: the last.", metavar="NAME")
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(help="A method, such as 'and-mask(threshold=0.8)'; repeatable.", metavar="SPEC"),
    ] = None,
    budget: Annotated[int | None, typer.Option(help="Settings tried for each method (default: 16).")] = None,
    batch: Annotated[int | None, typer.Option(help="Settings proposed at a time (default: 8).")] = None,
    seeds: Annotated[int | None, typer.Option(help="Fresh trainings of the chosen setting (default: 8).")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates of each training (default: 200).")] = None,
    rows: Annotated[int | None, typer.Option(help="Rows per update, of each environment (default: 64).")] = None,
    selection: Annotated[
        str | None,
        typer.Option(help="validation, training-domain, leave-one-out or oracle.", metavar="RULE"),
    ] = None,
    holdout: Annotated[float | None, typer.Option(help="The share of validation and test rows (default: 0.2).")] = None,
    kind: Annotated[str | None, typer.Option(help="classes or values; by default seen by the target.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out; repeatable.", metavar="COLUMN")] = None,
    encoding: Annotated[str | None, typer.Option(help="Of a CSV file (default: utf-8).")] = None,
    seed: Annotated[int | None, typer.Option(help="Everything random follows from it (default: 0).")] = None,
    level: Annotated[
        float | None, typer.Option(help="Confidence, of all comparisons together (default: 0.95).")
    ] = None,
    study: Annotated[
        Path | None, typer.Option(help="A study file (TOML); options change it.", metavar="FILE", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The study's folder; one that is there is continued. Default: in studies/.", show_default=False
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="A database for the trials (URL), in place of SQLite in the folder.", metavar="URL"),
    ] = None,
    on: Annotated[str, typer.Option(help="Where trials run: joblib, ray, or a Ray cluster's address.")] = "joblib",
    workers: Annotated[int | None, typer.Option(help="Trials at a time (default: one for each core).")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and what it will cost, and leave.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Compare methods on a table by one honest protocol.

    Every method is tuned with the same budget on validation rows; its best setting is trained anew with fresh
    seeds; the test is looked at once. An interrupted study goes on when the command is given again, or
    `weft compare --out STUDY`.
    """
    with told(debug):
        from weft.bench.comparing import Comparing, continued
        from weft.bench.study import Study

        given: dict[str, Any] = {
            "target": target,
            "environment": environment,
            "task": task,
            "group": group,
            "test": test,
            "methods": methods,
            "budget": budget,
            "batch": batch,
            "seeds": seeds,
            "steps": steps,
            "rows": rows,
            "selection": selection,
            "holdout": holdout,
            "kind": kind,
            "drop": drop,
            "encoding": encoding,
            "seed": seed,
            "level": level,
        }
        anything = any(value is not None for value in given.values())
        if workers is not None and workers < 1:
            raise ValueError(f"expected --workers >= 1, got {workers}")
        if study is not None:
            asked = Study.read(study, data=data, **given)
        elif data is None and not anything and out is not None and (out / "study.toml").exists():
            asked = continued(out)
        else:
            asked = Study.make(data=data, **given)
        work = Comparing(asked, out or Path(), storage=storage, on=on, workers=workers)
        if dry_run:
            plan = work.estimate()
            print_json(plan) if json else _print_plan(plan)
            return
        work.plan()
        work.folder = out if out is not None else _folder(asked, work.fingerprint)
        results = _run(work, shown=not quiet and not json and sys.stderr.isatty())
        report = _report(work.folder)
        if json:
            print_json({**results, "folder": str(work.folder), "report": report})
        elif not quiet:
            _print(results, work.folder, report)


def _folder(study: Any, fingerprint: str) -> Path:
    """`studies/NAME`, or the first free or fitting one of `studies/NAME-2`, ..."""
    import json
    import re

    base = Path("studies") / (re.sub(r"[^\w.-]+", "_", Path(study.data).stem).lstrip(".-") or "table")
    number = 1
    while True:
        folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
        if not folder.exists():
            return folder
        try:
            if json.loads((folder / "plan.json").read_text())["fingerprint"] == fingerprint:
                return folder
        except (OSError, ValueError, KeyError, TypeError):
            pass
        number += 1


def _run(work: Any, *, shown: bool) -> dict[str, Any]:
    """Does the study, with a bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown) as progress:
        bar = progress.add_task("reading", total=None)

        def heard(done: int, total: int, what: str) -> None:
            progress.update(bar, completed=done, total=total, description=printable(what))

        work.heard = heard
        try:
            with work:
                return work.run()
        except KeyboardInterrupt:
            say(f"interrupted; what was recorded is kept, go on with: weft compare --out {work.folder}")
            raise typer.Exit(130) from None


def _report(folder: Path) -> str | None:
    """The study's page beside it; None where it could not be made."""
    from weft.report.writing import write

    try:
        return str(write([folder], folder / "report.html")["report"])
    except OSError as error:
        say(f"warning: no report was written: {error}")
        return None


def _score(value: float | None, measure: str) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if measure == "accuracy" else f"{value:.4g}"


def _setting(setting: dict[str, Any]) -> str:
    return ", ".join(f"{name.partition('__')[2]} {value:.3g}" for name, value in setting.items())


def _print(results: dict[str, Any], folder: Path, report: str | None) -> None:
    """The sentence, the table, the differences."""
    from rich.table import Table
    from rich.text import Text

    screen = console()
    measure = results["measure"]["name"]
    screen.print(Text(printable(results["sentences"][0]), style="bold"))
    for sentence in results["sentences"][1:]:
        screen.print(Text(printable(sentence)))
    table = Table("method", "chosen setting")
    for name in ("validation", f"test {measure}", "interval", "seeds", "trials", "seconds"):
        table.add_column(name, justify="right")
    for row in results["methods"]:
        interval = " to ".join(_score(v, measure) for v in row["interval"]) if row["interval"] else "-"
        counts = row["trials"]
        trials = str(counts["complete"]) + (
            f" (+{counts['failed'] + counts['diverged']})" if counts["failed"] + counts["diverged"] else ""
        )
        cells = [
            _score(row["validation"], measure),
            _score(row["mean"], measure),
            interval,
            str(len(row["scores"])),
            trials,
        ]
        table.add_row(Text(printable(row["name"])), _setting(row["setting"]), *cells, f"{row['seconds']:.0f}")
    screen.print(table)
    _print_places(screen, results, measure)
    _print_kept(screen, results, measure)
    if results["comparisons"]:
        pairs = Table("difference", "")
        for name in ("of means", "interval", "p, corrected"):
            pairs.add_column(name, justify="right")
        for c in results["comparisons"]:
            low, high = (_score(v, measure) for v in c["interval"])
            cells = [_score(c["difference"], measure), f"{low} to {high}", f"{c['p_corrected']:.3g}"]
            pairs.add_row(Text(printable(f"{c['a']} less {c['b']}")), Text(printable(c["verdict"])), *cells)
        screen.print(pairs)
    touches = len(results["ledger"])
    screen.print(f"looks at the test: {touches}, all in {printable(str(folder / 'ledger.jsonl'))}")
    if report:
        screen.print(Text(f"report: {printable(report)}"))


def _print_places(screen: Any, results: dict[str, Any], measure: str) -> None:
    """Scores by environment or by task."""
    from rich.table import Table
    from rich.text import Text

    for kind in ("environments", "tasks"):
        rows = [row for row in results["methods"] if row[kind]]
        if not rows:
            continue
        table = Table("method")
        places = rows[0][kind]
        most = len(places) <= 10 or kind == "tasks"
        few = {name for name, place in places.items() if most or place["part"] == "test"}
        for name, place in places.items():
            if name not in few:
                continue
            mark = " (test)" if place.get("part") == "test" else ""
            table.add_column(Text(printable(f"{name}{mark}")), justify="right")
        if kind == "environments":
            table.add_column("the worst", justify="right")
        for row in rows:
            shown = [place for name, place in row[kind].items() if name in few]
            means = [sum(p["scores"]) / len(p["scores"]) if p["scores"] else None for p in shown]
            cells = [_score(mean, measure) for mean in means]
            if kind == "environments":
                worst = row.get("worst")
                cells.append(printable(f"{_score(worst['score'], measure)} ({worst['environment']})") if worst else "-")
            table.add_row(Text(printable(row["name"])), *map(Text, cells))
        rest = f" ({len(few)} of {len(places)} shown)" if len(few) < len(places) else ""
        screen.print(Text(f"{measure} by {kind[:-1]}, mean over seeds{rest}:"))
        screen.print(table)


def _print_kept(screen: Any, results: dict[str, Any], measure: str) -> None:
    """Of tasks in sequence: each method's scores after each task on each, and what that comes to."""
    from rich.table import Table
    from rich.text import Text

    from weft.report.tasks import MEASURES

    rows = [row for row in results["methods"] if row.get("matrix")]
    if not rows:
        return
    table = Table("method")
    keys = [key for key in MEASURES if key in (rows[0].get("continual") or {})]
    for key in keys:
        table.add_column(MEASURES[key].format(measure=measure), justify="right")
    for row in rows:
        table.add_row(Text(printable(row["name"])), *(_score(row["continual"][key], measure) for key in keys))
        screen.print(Text(printable(f"{row['name']}: {measure} on each task (columns) after each (lines)")))
        print_matrix(screen, row["task_names"], row["matrix"], lambda value: _score(value, measure))
    if keys:
        screen.print(Text("what is kept, from the mean over seeds:"))
        screen.print(table)


def _print_plan(plan: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = console()
    about, parts = plan["data"], plan["split"]["rows"]
    screen.print(
        Text(
            printable(f"{about['path']}: {about['rows']} rows, {about['features']} features, target {about['target']}")
        )
    )
    screen.print(
        f"split by {plan['split']['by']}: {parts['train']} rows for training, {parts['validation']} for validation, "
        f"{parts['test']} for the test; selection: {plan['selection']}"
    )
    table = Table("method", "tuned", "trials", "seeds", "about")
    for row in plan["methods"]:
        tuned = ", ".join(
            f"{name.partition('__')[2]} in [{low:g}, {high:g}]" for name, (low, high) in row["tuned"].items()
        )
        cells = (tuned or "nothing", str(row["trials"]), str(plan["seeds"]), f"{row['seconds']:.0f} s")
        table.add_row(Text(printable(row["name"])), *cells)
    screen.print(table)
    screen.print(f"in all about {plan['seconds']:.0f} s; nothing was written")
