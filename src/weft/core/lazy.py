"""Names that a room re-exports flat, each imported with its own file when it is first named.

A room's `__init__` lists its imports once, under `if TYPE_CHECKING`, where editors and type checkers read them, and
hands itself over:

    if TYPE_CHECKING:
        from weft.strategies.invariance.and_mask import ANDMask

    __getattr__, __dir__, __all__ = flat(__name__, __file__)

So `from weft.strategies import ANDMask` imports one file, and nothing of its neighbours.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["flat"]


def flat(module: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a module, from the imports that it makes under `if TYPE_CHECKING`."""
    homes: dict[str, tuple[str, str]] = {}
    for block in ast.parse(Path(file).read_text()).body:
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            for line in block.body:
                if isinstance(line, ast.ImportFrom) and line.module:
                    homes.update({name.asname or name.name: (line.module, name.name) for name in line.names})
    for name, (home, _) in homes.items():
        if home == f"{module}.{name}":  # whoever imported the file first would hide the name behind it
            raise ImportError(f"expected a file called otherwise than the name it gives, got {home} for {name!r}")

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, called = homes[name]
        value = getattr(importlib.import_module(home), called)
        setattr(sys.modules[module], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[module]), *homes}), sorted(homes)
