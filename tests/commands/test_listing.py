"""The command `weft list`."""

import pytest
from tests.commands.command_cases import run

from weft.core.catalogue import entries


@pytest.mark.parametrize("room", ["objectives", "strategies", "sources", "nets", "attacks"])
def test_lists_a_room_by_family(room):
    result = run("list", room)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    others = {e.name for e in entries()} - {e.name for e in entries(room)}
    names = {line.split("│")[1].strip() for line in lines if line.startswith("│")}
    assert {e.name for e in entries(room)} <= names
    assert not names & others
    titles = {line.strip() for line in lines if line.startswith(room)}
    assert titles == {f"{room}: {e.family}" if e.family else room for e in entries(room)}


def test_lists_everything_with_summary_and_reference():
    text = " ".join(run("list").output.replace("│", " ").split())
    for entry in entries():
        assert entry.name in text
    assert "Follows a gradient component only where enough environments agree on its sign." in text
    assert "arXiv 2009.00329" in text


def test_unknown_family_suggests_the_closest():
    result = run("list", "strategy")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "got 'strategy'; did you mean 'strategies'?" in result.stderr
