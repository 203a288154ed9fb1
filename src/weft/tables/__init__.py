"""Tables: files, kinds of columns, and the recipe by which columns become numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.tables.files import Columns, read_columns
    from weft.tables.kept import KeptTable
    from weft.tables.recipe import Recipe

__getattr__, __dir__, __all__ = flat(__name__, __file__)
