"""The house: a room imports only from those above it, a method's name imports its file alone, files stay short."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "weft"
ROOMS = (
    *("core", "engine", "nets", "sources", "attacks", "objectives", "strategies", "tables", "scores", "data"),
    *("learner", "measures", "report", "bench", "commands", "testing"),
)
FORBIDDEN = {"objectives": {"engine"}, "strategies": {"engine", "learner"}}
LONGEST, ANYS = 450, 20


def imported(tree):
    """What a file imports, wherever it stands in it: pairs of a module and the name that is taken from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((name.name, "") for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (("." * node.level + (node.module or ""), name.name) for name in node.names)


def broken(src):
    """Every import in a tree of weft that goes down the house, past it, or to a room that is closed to it."""
    told = []
    for path in sorted(src.rglob("*.py")):
        place = path.relative_to(src)
        room = place.parts[0] if len(place.parts) > 1 else ""
        if room and room not in ROOMS:
            told.append(f"{place} stands in no room")
            continue
        for module, name in imported(ast.parse(path.read_text(encoding="utf-8"))):
            parts = [*module.split("."), name] if module == "weft" else module.split(".")
            if parts[0] not in ("weft", "") or not room:
                continue
            other = parts[1] if len(parts) > 1 else ""
            above = other in ROOMS[: ROOMS.index(room) + 1] and other not in FORBIDDEN.get(room, ())
            if parts[0] == "" or not (above or (room != "core" and (module, name) == ("weft", "__version__"))):
                told.append(f"{place} imports {module} {name}".rstrip())
    return told


def test_a_room_imports_from_those_above_it():
    told = broken(SRC)
    assert not told, "\n".join(told)


@pytest.mark.parametrize(
    ("room", "line", "holds"),
    [
        ("engine", "from weft.core.trees import Params", True),
        ("engine", "from weft.engine.loop import x", True),
        ("commands", "from weft import __version__", True),
        ("report", "import os, weft.core.files", True),
        ("engine", "from weft.learner.runs import x", False),
        ("core", "from weft.engine import Engine", False),
        ("core", "if TYPE_CHECKING:\n    from weft.nets import MLP", False),
        ("core", "def late():\n    import weft.data", False),
        ("core", "from weft import nets", False),
        ("core", "from weft import __version__", False),
        ("objectives", "from weft.engine import Engine", False),
        ("strategies", "from weft.engine.build import build", False),
        ("report", "from weft.commands.job import x", False),
        ("learner", "import weft", False),
        ("bench", "from weft import Learner", False),
        ("nets", "from weft.nest import x", False),
        ("nets", "from ..core import x", False),
        ("utils", "import os", False),
    ],
)
def test_what_breaks_the_house_is_told(tmp_path, room, line, holds):
    (tmp_path / room).mkdir()
    (tmp_path / room / "file.py").write_text(line)
    assert (broken(tmp_path) == []) == holds


@pytest.mark.parametrize("neighbour", ["continual.ewc", "invariance.irm"])
def test_naming_a_method_imports_its_file_alone(neighbour):
    code = f"""import sys
from weft.strategies import ANDMask
assert "weft.strategies.invariance.and_mask" in sys.modules
sys.exit("weft.strategies.{neighbour}" in sys.modules)"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_long_file_says_why_it_is_one():
    long = {}
    for path in sorted(SRC.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        first = (ast.get_docstring(ast.parse(text)) or "").splitlines()[:5]
        if len(text.splitlines()) > LONGEST and "one idea" not in " ".join(first):
            long[str(path.relative_to(SRC))] = len(text.splitlines())
    assert long == {}


def test_the_code_asserts_nothing():
    trees = {path.relative_to(SRC): ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SRC.rglob("*.py"))}
    asserts = (
        f"{path}:{node.lineno}" for path, tree in trees.items() for node in ast.walk(tree) if type(node) is ast.Assert
    )
    assert list(asserts) == []


def test_types_say_what_they_mean():
    text = "".join(path.read_text(encoding="utf-8") for path in SRC.rglob("*.py"))
    share = 1000 * len(re.findall(r"\bAny\b", text)) / text.count("\n")
    assert share < ANYS
