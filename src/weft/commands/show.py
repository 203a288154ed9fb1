"""The command `weft show`: a run's curves, its risk by environment, its scores by task."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.commands.common import console, print_json, printable, told
from weft.commands.options import AsJson, Debug, Run
from weft.commands.printing import print_risk, print_tasks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(show)


def _median(values: NDArray[np.float64]) -> float:
    good = [float(value) for value in values if math.isfinite(value)]
    return statistics.median(good) if good else math.nan


def show(
    run: Run,
    png: Annotated[Path | None, typer.Option(help="A picture of the curves.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the picture.")] = False,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show a run's learning curves, its risk by environment or its scores by task, in the terminal or as a picture."""
    with told(debug):
        from weft.learner.kept import listed
        from weft.report.curves import curves, drawn, lasts
        from weft.report.folder import about, evaluation, inexact, records, risk
        from weft.report.picture import picture
        from weft.report.tasks import tasks as by_task

        facts = about(run)
        history = records(run)
        lines, risks, matrix, best = curves(history), risk(run), by_task(run), listed(run)
        played = evaluation(run)
        stepped = any(record["step"] for record in history)
        if png is not None:
            if png.is_dir() or (png.exists() and not force):
                raise ValueError(f"expected a new file for the picture, got {png}, which is there; --force replaces it")
            if not lines or not stepped:
                raise ValueError(f"expected records to draw in {run}, got none{'; it was solved' if lines else ''}")
            tasks: dict[str, float] = {}
            for record, before in zip(history, [None, *history], strict=False):
                if "task" in record and record["task"] not in tasks:
                    tasks[str(record["task"])] = before["step"] if before else 0
            picture(lines, png, title=facts["title"], tasks=tasks, risk=risks, matrix=matrix)
        if json:
            parts = (("risk", risks), ("matrix", matrix), ("checkpoints", best), ("evaluation", played))
            told_of = {name: part for name, part in parts if part}
            print_json({"run": str(run), **facts, "records": history, **told_of, **({"png": str(png)} if png else {})})
            return
        screen = console()
        from rich.text import Text

        screen.print(Text(printable(facts["title"])))
        if not lines:
            screen.print("no records: solved in closed form, or not yet begun")
        else:
            if stepped:
                screen.print(Text(drawn(lines, width=min(screen.width - 2, 100))))
            last = ", ".join(f"{line.part} {line.measure} {_median(lasts(line, lines)):.4g}" for line in lines)
            when = f"at step {history[-1]['step']}" if stepped else "solved in closed form"
            screen.print(Text(printable(f"{when}: {last}")))
        for one in played["worlds"] if played else ():
            screen.print(Text(printable(f"at the end, return in {one['world']}: {one['said']}")))
        if best:
            said = ", ".join(f"{one['name']} ({one['measure']} {one['value']:.4g})" for one in best)
            screen.print(Text(printable(f"checkpoints kept: {said}")))
        if told_kinds := inexact(facts):
            screen.print(Text(printable(told_kinds)))
        if risks:
            print_risk(screen, risks)
        if matrix:
            print_tasks(screen, matrix)
        if png is not None:
            screen.print(Text(f"picture: {printable(str(png))}"))
