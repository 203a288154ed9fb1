"""The command `weft list`."""

import pytest
from tests.commands.command_cases import run

from weft.core.catalogue import entries


@pytest.mark.parametrize("family", ["objectives", "strategies", "sources", "nets"])
def test_lists_a_family(family):
    result = run("list", family)
    assert result.exit_code == 0
    others = {e.name for e in entries()} - {e.name for e in entries(family)}
    names = {line.split("│")[1].strip() for line in result.output.splitlines() if line.startswith("│")}
    assert {e.name for e in entries(family)} <= names
    assert not names & others


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
