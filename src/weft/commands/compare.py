"""`weft compare`: which way of learning works on this data, and can that be trusted?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.bench.study import Study
from weft.commands.common import console, print_json, printable, say, told
from weft.commands.options import AsJson, Debug, Quiet, those_given
from weft.commands.printing import print_matrix

if TYPE_CHECKING:
    from rich.console import Console

    from weft.bench.comparing import Comparing
    from weft.core.values import Json

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(compare)


@those_given(Study, "given")
def compare(
    given: dict[str, object],
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
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare methods on a table by one honest protocol.

    Every method is tuned with the same budget on validation rows; its best setting is trained anew with fresh
    seeds; the test is looked at once. An interrupted study goes on when the command is given again, or
    `weft compare --out STUDY`.
    """
    with told(debug):
        from weft.bench.comparing import Comparing, continued

        if workers is not None and workers < 1:
            raise ValueError(f"expected --workers >= 1, got {workers}")
        if study is not None:
            asked = Study.read(study, **given)
        elif not given and out is not None and (out / "study.toml").exists():
            asked = continued(out)
        else:
            asked = Study.make(**given)
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


def _folder(study: Study, fingerprint: str) -> Path:
    """`studies/NAME`, or the first free or fitting one of `studies/NAME-2`, ..."""
    import re

    from weft.core.files import read_json

    base = Path("studies") / (re.sub(r"[^\w.-]+", "_", Path(study.data).stem).lstrip(".-") or "table")
    number = 1
    while True:
        folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
        if not folder.exists():
            return folder
        try:
            if read_json(folder / "plan.json")["fingerprint"] == fingerprint:
                return folder
        except (OSError, ValueError, KeyError, TypeError):
            pass
        number += 1


def _run(work: Comparing, *, shown: bool) -> Json:
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


def _setting(setting: Json) -> str:
    return ", ".join(f"{name.partition('__')[2]} {value:.3g}" for name, value in setting.items())


def _print(results: Json, folder: Path, report: str | None) -> None:
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
            _score(row["mean"], measure) + (f" ({row['kind']})" if row.get("kind") else ""),
            interval,
            str(len(row["scores"])),
            trials,
        ]
        table.add_row(Text(printable(row["name"])), _setting(row["setting"]), *cells, f"{row['seconds']:.0f}")
    if base := results.get("base"):
        answer = f"always {base['answer']}" if measure == "accuracy" else "the mean"
        cells = [_score(base["validation"], measure), _score(base["test"], measure)]
        table.add_row("base rate", Text(printable(answer)), *cells, "-", "-", "-", "-")
    screen.print(table)
    _print_places(screen, results, measure)
    _print_kept(screen, results, measure)
    if results["comparisons"]:
        pairs = Table("difference", "")
        for name in ("of means", "interval", "p, corrected"):
            pairs.add_column(name, justify="right")
        for c in results["comparisons"]:
            interval = " to ".join(_score(v, measure) for v in c["interval"]) if c["interval"] else "-"
            p = "-" if c["p_corrected"] is None else f"{c['p_corrected']:.3g}"
            cells = [_score(c["difference"], measure), interval, p]
            pairs.add_row(Text(printable(f"{c['a']} less {c['b']}")), Text(printable(c["verdict"])), *cells)
        screen.print(pairs)
    touches = len(results["ledger"])
    screen.print(f"looks at the test: {touches}, all in {printable(str(folder / 'ledger.jsonl'))}")
    if report:
        screen.print(Text(f"report: {printable(report)}"))


def _print_places(screen: Console, results: Json, measure: str) -> None:
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


def _print_kept(screen: Console, results: Json, measure: str) -> None:
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


def _print_plan(plan: Json) -> None:
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
