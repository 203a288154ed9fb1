"""The command `weft`. What is heavy is imported by the command that needs it."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from weft.commands import claims, compare, fit, listing, play, predict, report, rows, show
from weft.commands.common import say

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


for command in (listing, fit, play, predict, rows, show, compare, claims, report):
    command.register(app)
