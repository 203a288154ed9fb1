"""What the commands share: one-line errors, the console, JSON for machines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from weft.core.values import Json

__all__ = ["console", "print_json", "print_matrix", "print_risk", "print_tasks", "printable", "say", "told"]


def printable(text: str) -> str:
    """Text on one line, without the control characters that a file's names may hold."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def say(text: str) -> None:
    """One line to stderr."""
    typer.echo(printable(" ".join(text.split())), err=True)


@contextmanager
def told(debug: bool) -> Iterator[None]:
    """Within it every failure ends the command with one line, and warnings take one line each."""
    import warnings

    def warn(message: Warning | str, *rest: Any, **more: Any) -> None:
        say(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.showwarning = warn
        try:
            yield
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            say("interrupted; nothing was changed")
            raise typer.Exit(130) from None
        except Exception as error:
            if debug:
                import traceback

                traceback.print_exc()
            expected = isinstance(error, ValueError | TypeError | OSError | RuntimeError | ArithmeticError)
            text = str(error) if expected and str(error) else f"{type(error).__name__}: {error}"
            hint = "" if debug or isinstance(error, ValueError | OSError) else " (--debug shows where)"
            say(f"error: {text}{hint}")
            raise typer.Exit(1) from error


def console() -> Console:
    """Where results go: with colours on a terminal, plain and wide when piped."""
    from rich.console import Console

    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=120)


def print_risk(screen: Console, found: dict[str, Any], most: int = 20) -> None:
    """A run's risk by environment; of many environments the worst ones."""
    from rich.table import Table
    from rich.text import Text

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    measure = found["measure"].replace("_", " ")
    each = list(found["environments"].items())
    if len(each) > most:
        sign = -1.0 if found["direction"] == "min" else 1.0
        each = sorted(each, key=lambda pair: (pair[0] != found["worst"], sign * (pair[1]["risk"] or 0.0)))[:most]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
    table.add_column(Text(printable(found["environment"])), style="cyan", no_wrap=True)
    for name in ("rows", *([found["score"]] if found["score"] else []), measure, ""):
        table.add_column(Text(name), justify="right" if name else "left", no_wrap=True)
    for label, part in each:
        scores = [number(part["score"])] if found["score"] else []
        mark = "the worst" if label == found["worst"] else ""
        table.add_row(Text(printable(label)), str(part["rows"]), *scores, number(part["risk"]), Text(mark))
    rest = f"; the {most} worst of {len(found['environments'])}" if len(each) < len(found["environments"]) else ""
    over = ", of a replica alone" if any(len(part["replicas"]) > 1 for _, part in each) else ""
    screen.print(Text(f"risk by environment: mean {measure} of the {found['part']} rows{over}{rest}"))
    screen.print(table)


def print_tasks(screen: Console, found: dict[str, Any]) -> None:
    """A run's score on each task after each, and what that comes to."""
    from rich.table import Table
    from rich.text import Text

    from weft.report.tasks import MEASURES

    measure = found["measure"].replace("_", " ")
    over = ", of a replica alone" if len(found["replicas"]) > 1 else ""
    screen.print(Text(f"{measure} on each task (columns) after each (lines), {found['part']} rows{over}:"))
    print_matrix(screen, found["names"], found["matrix"], lambda v: f"{v:.3f}", before=found["before"])
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, part in found["measures"].items():
        value = "-" if part["value"] is None else f"{part['value']:.3f}"
        table.add_row(MEASURES[name].format(measure=measure), value)
    if found["measures"]:
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


def print_json(result: Json) -> None:
    """One line of JSON to stdout; what is not finite becomes null."""
    import json

    from weft.core.values import jsonable

    typer.echo(json.dumps(jsonable(result), allow_nan=False))
