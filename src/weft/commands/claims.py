"""The commands `claims` and `reproduce`: papers' statements, run again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.commands.common import console, print_json, printable, say, told
from weft.commands.options import AsJson, Debug

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.text import Text

    from weft.core.values import Json

__all__ = ["register"]

_Folder = Annotated[
    Path | None, typer.Option(help="A folder of claims; default: weft's own.", metavar="DIR", show_default=False)
]
_Out = Annotated[Path, typer.Option(help="Where results are kept, in its folder claims/.", metavar="OUT")]
_STYLES = {"holds": "green", "fails": "bold red", "not settled": "yellow", "not run at this scale": "yellow"}


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("claims")(claims)
    app.command("reproduce")(reproduce)


def claims(folder: _Folder = None, out: _Out = Path("out"), json: AsJson = False, debug: Debug = False) -> None:
    """List the claims with their papers and last verdicts. Their files are read, not run."""
    with told(debug):
        from weft.bench.claims import last, listed, since

        verdicts = [(claim, last(claim.name, out)) for claim in listed(folder)]
        faults = {claim.name: since(claim, out) for claim, _ in verdicts}
        if json:
            print_json(
                {
                    "claims": [
                        {
                            "name": claim.name,
                            "title": claim.title,
                            "statement": claim.statement,
                            "reference": claim.reference,
                            "path": str(claim.path),
                            **{key: result.get(key) if result else None for key in ("verdict", "scale", "date")},
                            "since": faults[claim.name],
                        }
                        for claim, result in verdicts
                    ]
                }
            )
            return
        from rich.table import Table
        from rich.text import Text

        table = Table("claim", "what it says", "paper", "last verdict")
        table.columns[0].no_wrap = True
        for claim, result in verdicts:
            verdict = _verdict(result) if result else Text("not run yet", style="dim")
            verdict.append(f"; {faults[claim.name]}" if faults[claim.name] else "", style="dim")
            texts = [Text(printable(text)) for text in (claim.name, claim.title, claim.reference)]
            table.add_row(*texts, verdict)
        screen = console()
        screen.print(table if verdicts else "no claims there")
        screen.print("run one: weft reproduce NAME; all of them: weft reproduce --all")


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Claims, as `weft claims` lists them.", metavar="NAME...")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The small setting, in seconds (the default).")] = False,
    full: Annotated[bool, typer.Option("--full", help="The large setting, in minutes.")] = False,
    seeds: Annotated[int | None, typer.Option(help="Replicas, in place of the setting's.", min=1)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every claim of the folder.")] = False,
    workers: Annotated[int, typer.Option(help="Processes that share a claim's parts.", min=1)] = 1,
    judge: Annotated[
        bool, typer.Option("--judge", help="Train nothing: judge the kept results anew, by every seed's score.")
    ] = False,
    mutant: Annotated[
        bool, typer.Option("--mutant", help="Run the broken method that each claim names: it must fail.")
    ] = False,
    folder: _Folder = None,
    out: _Out = Path("out"),
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run claims again: reference against measured figures, the budget and the verdict.

    A claim is a Python file, and this runs it: give --folder only what you would run as a program. The exit
    status is 1 when a claim fails or cannot be run to its end; one that is not settled, since an interval reaches
    over a bound, is shown as such and needs more seeds.
    """
    with told(debug):
        if quick and full:
            raise ValueError("expected --quick or --full, got both; leave one out")
        if judge + mutant + (full or seeds is not None or workers > 1) > 1:
            raise ValueError(
                "expected one of --judge, --mutant and a run with --full, --seeds or --workers, got several"
            )
        if bool(names) == everything:
            got = "both" if names else "neither"
            raise ValueError(f"expected names of claims or --all, got {got}; weft claims lists them")
        from weft.bench.claims import listed

        known = {claim.name: claim.path for claim in listed(folder)}
        for name in names or []:
            if name not in known:
                from weft.core.configured import closest

                raise closest(name, known, "a claim")
        chosen = {name: known[name] for name in names or known}
        if not chosen:
            raise ValueError(f"expected claims in {folder}, got none")
        results, errors = _run(
            chosen, _job(judge, mutant, "full" if full else "quick", seeds, workers, out), out, quiet=json, debug=debug
        )
        alone = [result["name"] for result in results if workers > 1 and result["budget"]["processes"] == 1]
        if alone:
            say(f"--workers {workers} gained nothing for want of parts to share out: {', '.join(alone)}")
        if json:
            print_json({"claims": results, "errors": errors})
        elif len(chosen) > 1:
            _print_summary(results, errors)
    if errors or any(not result["caught"] if mutant else result["verdict"] == "fails" for result in results):
        raise typer.Exit(1)


def _job(
    judge: bool, mutant: bool, scale: str, seeds: int | None, workers: int, out: Path
) -> Callable[[Path, Callable[[float, str], None]], Json]:
    """What is done with a claim: run, judged anew, or run with its mutant."""
    from weft.bench import claims as room

    if judge:
        return lambda path, show: room.judge(path.stem, out)
    if mutant:
        return lambda path, show: room.caught(path, progress=show)
    return lambda path, show: room.reproduce(path, scale=scale, seeds=seeds, workers=workers, out=out, progress=show)


def _run(
    chosen: dict[str, Path],
    job: Callable[[Path, Callable[[float, str], None]], Json],
    out: Path,
    *,
    quiet: bool,
    debug: bool,
) -> tuple[list[Json], dict[str, str]]:
    """Runs claims one after another; one that cannot be run is told, and the next one begins."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    screen = console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    results: list[Json] = []
    errors: dict[str, str] = {}
    for i, (name, path) in enumerate(chosen.items()):
        count = f" ({i + 1} of {len(chosen)})" if len(chosen) > 1 else ""
        bar = Progress(*columns, console=screen, transient=True, disable=quiet or not sys.stdout.isatty())
        try:
            with bar:
                task = bar.add_task(f"{name}{count}", total=1.0)

                def show(
                    share: float, what: str, bar: Progress = bar, task: TaskID = task, title: str = name + count
                ) -> None:
                    bar.update(task, completed=share, description=f"{title}: {printable(what)}" if what else title)

                result = job(path, show)
        except KeyboardInterrupt:
            say(f"interrupted in {name}; {len(results)} claims before it are kept in {out / 'claims'}")
            raise typer.Exit(130) from None
        except Exception as error:
            if debug:
                import traceback

                traceback.print_exc()
            errors[name] = f"{type(error).__name__}: {error}"
            say(f"error: {name} did not run to its end: {errors[name]}{'' if debug else ' (--debug shows where)'}")
            continue
        results.append(result)
        if not quiet:
            _print_result(result, out)
    return results, errors


def _verdict(result: Json) -> Text:
    from rich.text import Text

    verdict = printable(str(result.get("verdict")))
    text = Text(verdict, style=_STYLES.get(verdict, ""))
    return text.append(printable(f" ({result.get('scale')}, {str(result.get('date'))[:10]})"), style="dim")


def _print_result(result: Json, out: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    from weft.bench.claims import shown, verdict_of

    screen = console()
    screen.print(Text(printable(f"{result['name']}: {result['title']}"), style="bold"))
    screen.print(Text(printable(result["statement"])))
    screen.print(Text(printable(result["reference"]), style="dim"))
    table = Table("figure", "reference", "measured [95 %]", "")
    for figure in result["figures"]:
        measured = shown(figure) if figure["measured"] is not None else "not run at this scale"
        verdict = verdict_of(figure) or ""
        mark = Text(verdict, style=_STYLES.get(verdict, ""))
        table.add_row(*(Text(printable(text)) for text in (figure["name"], figure["reference"], measured)), mark)
    screen.print(table)
    budget = result["budget"]
    screen.print(
        f"budget: {budget['seconds']:.1f} s, {budget['trainings']:,} trainings, {budget['steps']:,} steps, "
        f"{len(result['seeds'])} seeds, {result['scale']} setting"
    )
    if result.get("judged", {}).get("intervals_as_kept"):
        names = "; ".join(result["judged"]["intervals_as_kept"])
        screen.print(Text(printable(f"judged by intervals as they were kept, not made anew: {names}")))
    concluded = Text("verdict: ").append(result["verdict"], style=_STYLES[result["verdict"]])
    screen.print(concluded.append(f". {printable(result['why'])}"))
    if "mutant" in result:
        told = "caught" if result["caught"] else "NOT CAUGHT: the claim does not tell it from the right method"
        screen.print(
            Text(printable(f"mutant: {result['mutant']}: {told}"), style="" if result["caught"] else "bold red")
        )
    else:
        screen.print(Text(printable(f"kept in {out / 'claims' / result['name']}"), style="dim"))
    screen.print()


def _print_summary(results: list[Json], errors: dict[str, str]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("claim", "verdict", "seconds")
    table.columns[2].justify = "right"
    for result in results:
        verdict = Text(result["verdict"], style=_STYLES[result["verdict"]])
        table.add_row(Text(printable(result["name"])), verdict, f"{result['budget']['seconds']:.1f}")
    for name in errors:
        table.add_row(Text(printable(name)), Text("error", style="bold red"), "")
    console().print(table)
