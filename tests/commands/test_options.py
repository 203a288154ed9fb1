"""Options of commands that are the fields of a dataclass."""

from dataclasses import dataclass, field, fields, replace
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from weft.bench.study import Study
from weft.commands.app import app
from weft.commands.job import Options
from weft.commands.options import filled, those_given


@dataclass(frozen=True)
class Tea:
    water: str = field(default="hot", metadata={"help": "What it is made with.", "argument": True})
    cups: int = field(default=2, metadata={"help": "How many."})
    name: str | None = field(default=None, metadata={"help": "Which.", "metavar": "LEAF"})
    extra_parts: tuple[str, ...] = field(default=(), metadata={"help": "What else."})


def told(decorator, *args):
    """What a command is handed, and its output."""
    handed = []

    def brew(tea: object, out: Annotated[str, typer.Option(help="Where.")] = "pot") -> None:
        handed.append((tea, out))

    one = typer.Typer(rich_markup_mode=None)
    one.command()(decorator(Tea, "tea")(brew))
    result = CliRunner().invoke(one, list(args), env={"COLUMNS": "100"})
    return handed[0] if handed else None, result.output


def test_a_command_is_handed_one_instance():
    assert told(filled)[0] == (Tea(), "pot")
    asked = ["cold", "--cups", "3", "--name", "green", "--extra-parts", "a", "--extra-parts", "b", "--out", "jug"]
    assert told(filled, *asked)[0] == (Tea("cold", 3, "green", ("a", "b")), "jug")
    assert told(filled, "--cups", "many")[0] is None


def test_a_command_is_handed_what_was_given():
    assert told(those_given)[0] == ({}, "pot")
    assert told(those_given, "--cups", "2", "--extra-parts", "a")[0] == ({"cups": 2, "extra_parts": ["a"]}, "pot")


def test_a_command_without_that_parameter_is_refused():
    def brew(tea: object) -> None:
        raise NotImplementedError

    with pytest.raises(TypeError, match="expected a parameter 'coffee' of the command brew, got tea"):
        filled(Tea, "coffee")(brew)


@pytest.mark.parametrize(
    ("decorator", "default"), [(filled, "How many.  [default: 2]"), (those_given, "(default: 2).")]
)
def test_the_help_is_the_fields_(decorator, default):
    text = told(decorator, "--help")[1]
    assert default in text
    assert "--name LEAF" in text
    assert "What else." in text
    assert text.index("--cups") < text.index("--extra-parts") < text.index("--out")


@pytest.mark.parametrize(("name", "cls"), [("fit", Options), ("compare", Study)])
def test_every_field_is_an_option_with_its_text(name, cls):
    text = " ".join(CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "100"}).output.split())
    for spec in fields(cls):
        assert (spec.name if spec.metadata.get("argument") else f"--{spec.name.replace('_', '-')} ") in text
        assert spec.metadata["help"].removesuffix(".") in text


def test_every_option_is_in_the_file_and_comes_back():
    options = replace(Options(), drop=("a", "b"), epochs=3, validation=1)
    plain = {spec.name: getattr(options, spec.name) for spec in fields(Options)}
    assert Options.from_json({**plain, "drop": ["a", "b"]}) == options
    for wrong in ({"epochs": "many"}, {"validation": "0.2"}, {"target": 3}, {"dtype": None}):
        with pytest.raises(ValueError, match="is "):
            Options.from_json({**plain, **wrong})
