"""Options of commands: those that several commands share, and those that are the fields of a dataclass.

What a command fills in, such as `weft fit` its `Options`, is declared once, on the dataclass: a field's name, type and
default, and in its metadata `help` and `metavar`, as typer has them; `argument` where it stands without a name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, get_type_hints

import typer

__all__ = ["AsJson", "Debug", "Quiet", "Run", "filled", "those_given"]

Run = Annotated[Path, typer.Argument(help="The run's folder.", metavar="RUN", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

_Command = Callable[..., None]


def filled(cls: type, name: str) -> Callable[[_Command], _Command]:
    """The fields of a dataclass become options of a command, which is handed one instance as its argument `name`."""
    kinds = get_type_hints(cls)

    def make(values: dict[str, object]) -> object:
        several = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
        return cls(**{key: value for key, value in values.items() if value is not None} | several)

    return functools.partial(_extended, name, [_parameter(spec, kinds[spec.name]) for spec in fields(cls)], make)


def those_given(cls: type, name: str) -> Callable[[_Command], _Command]:
    """The fields of a dataclass become options of a command, which is handed those that were given, by name.

    For what can come from a file too: the defaults are told in the help's text, and are not handed over.
    """
    kinds = get_type_hints(cls)

    def make(values: dict[str, object]) -> dict[str, object]:
        return {key: value for key, value in values.items() if value is not None}

    return functools.partial(_extended, name, [_if_given(spec, kinds[spec.name]) for spec in fields(cls)], make)


def _parameter(spec: Field[object], kind: type) -> inspect.Parameter:
    """A field as typer takes it; what may be given several times is None where it was not given."""
    if kind == tuple[str, ...]:
        return _typed(spec, list[str] | None, None, spec.metadata["help"])
    return _typed(spec, kind, spec.default, spec.metadata["help"])


def _if_given(spec: Field[object], kind: type) -> inspect.Parameter:
    """A field that is None where it was not given; its text says the default, where there is one to tell."""
    text = str(spec.metadata["help"])
    if spec.default not in ("", ()) and not spec.metadata.get("argument"):
        text = f"{text.removesuffix('.')} (default: {spec.default})."
    return _typed(spec, (list[str] if kind == tuple[str, ...] else kind) | None, None, text)


def _typed(spec: Field[object], kind: object, default: object, text: str) -> inspect.Parameter:
    info = typer.Argument if spec.metadata.get("argument") else typer.Option
    declared = info(default, help=text, metavar=spec.metadata.get("metavar"))
    return inspect.Parameter(spec.name, inspect.Parameter.KEYWORD_ONLY, default=declared, annotation=kind)


def _extended(
    name: str, made: list[inspect.Parameter], make: Callable[[dict[str, object]], object], command: _Command
) -> _Command:
    """The command with parameters in place of the one called `name`, for which `make` makes its value of theirs."""
    own = inspect.signature(command, eval_str=True).parameters
    if name not in own:
        raise TypeError(f"expected a parameter {name!r} of the command {command.__name__}, got {', '.join(own)}")
    keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own.values()]
    parameters = [each for one in keyword for each in (made if one.name == name else [one])]

    @functools.wraps(command)
    def run(**values: object) -> None:
        command(**{name: make({each.name: values.pop(each.name) for each in made})}, **values)

    # typer reads both
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run
