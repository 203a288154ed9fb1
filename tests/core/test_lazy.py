"""Names of a room: each imported with its own file, when it is first named."""

import subprocess
import sys

import pytest

INIT = """
from typing import TYPE_CHECKING
from weft.core.lazy import flat
if TYPE_CHECKING:
    from {room}.first import One, Two as Second
    from {room}.second import {name}
__getattr__, __dir__, __all__ = flat(__name__, __file__)
"""


@pytest.fixture
def room(tmp_path, monkeypatch):
    """Makes a package of two files whose second one says when it is imported."""

    def make(name, second="Three"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text(INIT.format(room=name, name=second))
        (folder / "first.py").write_text("class One: pass\nclass Two: pass\n")
        (folder / "second.py").write_text(f"print('second is imported')\n{second} = 3\n")
        return name

    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return make


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_name_imports_its_file_alone(room):
    name = room("room_a")
    done = run(f"from {name} import One, Second; import {name}; print(sorted({name}.__all__), Second.__name__)")
    assert done.stdout == "['One', 'Second', 'Three'] Two\n", done.stderr
    assert run(f"from {name} import Three; print(Three)").stdout == "second is imported\n3\n"
    assert run(f"from {name} import *; print(Three)").stdout == "second is imported\n3\n"


def test_what_is_not_there_is_told(room):
    name = room("room_b")
    assert "cannot import name 'Four'" in run(f"from {name} import Four").stderr
    assert "module 'room_b' has no attribute 'Four'" in run(f"import {name}; {name}.Four").stderr


def test_a_file_may_not_hide_the_name_that_it_gives(room):
    name = room("room_c", second="second")
    done = run(f"import {name}")
    assert "expected a file called otherwise than the name it gives, got room_c.second for 'second'" in done.stderr


def test_submodules_are_imported_as_ever(room):
    name = room("room_d")
    assert run(f"from {name} import first; print(first.One.__name__)").stdout == "One\n"
