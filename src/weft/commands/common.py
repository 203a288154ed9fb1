"""What the commands share: one-line errors, the console, JSON for machines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from weft.core.values import Json

__all__ = ["console", "new_file", "print_json", "printable", "say", "told"]


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

    def warn(message: Warning | str, *rest: object, **more: object) -> None:
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


def new_file(out: Path | None, force: bool, what: str) -> None:
    """Raises where a file that is to be written is there already, unless it may be replaced."""
    if out is not None and (out.is_dir() or (out.exists() and not force)):
        got = "a folder" if out.is_dir() else "a file that is there already; --force replaces it"
        raise ValueError(f"expected a new file for {what}, got {out}, {got}")


def console() -> Console:
    """Where results go: with colours on a terminal, plain and wide when piped."""
    from rich.console import Console

    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=120)


def print_json(result: Json) -> None:
    """One line of JSON to stdout; what is not finite becomes null."""
    import json

    from weft.core.values import jsonable

    typer.echo(json.dumps(jsonable(result), allow_nan=False))
