"""Tables that several commands print: the risk by environment, the scores by task."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.commands.common import printable

if TYPE_CHECKING:
    from rich.console import Console

    from weft.core.values import Json

__all__ = ["number", "print_matrix", "print_risk", "print_tasks"]


def number(value: float | None) -> str:
    """A score for a table.

    >>> number(0.98765), number(None)
    ('0.988', '-')
    """
    return "-" if value is None else f"{value:.3f}"


def print_risk(screen: Console, risk: Json, most: int = 20) -> None:
    """A run's risk by environment; of many environments the worst ones."""
    from rich.table import Table
    from rich.text import Text

    measure = risk["measure"].replace("_", " ")
    each = list(risk["environments"].items())
    if len(each) > most:
        sign = -1.0 if risk["direction"] == "min" else 1.0
        each = sorted(each, key=lambda pair: (pair[0] != risk["worst"], sign * (pair[1]["risk"] or 0.0)))[:most]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
    table.add_column(Text(printable(risk["environment"])), style="cyan", no_wrap=True)
    for name in ("rows", *([risk["score"]] if risk["score"] else []), measure, ""):
        table.add_column(Text(name), justify="right" if name else "left", no_wrap=True)
    for label, part in each:
        scores = [number(part["score"])] if risk["score"] else []
        mark = "the worst" if label == risk["worst"] else ""
        table.add_row(Text(printable(label)), str(part["rows"]), *scores, number(part["risk"]), Text(mark))
    rest = f"; the {most} worst of {len(risk['environments'])}" if len(each) < len(risk["environments"]) else ""
    over = ", of a replica alone" if any(len(part["replicas"]) > 1 for _, part in each) else ""
    screen.print(Text(f"risk by environment: mean {measure} of the {risk['part']} rows{over}{rest}"))
    screen.print(table)


def print_tasks(screen: Console, tasks: Json) -> None:
    """A run's score on each task after each, and what that comes to."""
    from rich.table import Table
    from rich.text import Text

    from weft.report.tasks import MEASURES

    measure = tasks["measure"].replace("_", " ")
    over = ", of a replica alone" if len(tasks["replicas"]) > 1 else ""
    screen.print(Text(f"{measure} on each task (columns) after each (lines), {tasks['part']} rows{over}:"))
    print_matrix(screen, tasks["names"], tasks["matrix"], number, before=tasks["before"])
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, part in tasks["measures"].items():
        table.add_row(MEASURES[name].format(measure=measure), number(part["value"]))
    if tasks["measures"]:
        screen.print(table)


def print_matrix(
    screen: Console,
    names: list[str],
    matrix: list[list[float | None]],
    write: Callable[[float], str],
    *,
    before: list[float | None] | None = None,
    most: int = 12,
) -> None:
    """The scores after each task (lines) on each (columns); of many tasks, when learned and at the end."""
    from rich.table import Table
    from rich.text import Text

    def cell(value: float | None) -> str:
        return "-" if value is None else write(value)

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
    table.add_column("", style="cyan", no_wrap=True)
    if len(names) <= most:
        for name in names:
            table.add_column(Text(printable(name)), justify="right")
        if before is not None:
            table.add_row("before", *map(cell, before))
        for name, line in zip(names, matrix, strict=False):
            table.add_row(Text(printable(f"after {name}")), *map(cell, line))
    else:
        for title in ("learned", "at the end"):
            table.add_column(title, justify="right")
        for j, name in enumerate(names[: len(matrix)]):
            table.add_row(Text(printable(name)), cell(matrix[j][j]), cell(matrix[-1][j]))
    screen.print(table)
