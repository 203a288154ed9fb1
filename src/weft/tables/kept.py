"""What a run on a table keeps in `recipe.json` about its data: which file, and how its columns become numbers.

The file is written before training starts, so that whatever happens afterwards, the run can go on and answer. Like
weft's other files it holds values only, nothing that could be run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from weft.core import manifest
from weft.core.files import sealed, unsealed, write_text
from weft.tables.files import Columns, read_columns
from weft.tables.recipe import Recipe

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["KeptTable", "keep", "opened"]

FORMAT = 2  # of which 1 had no digest
_Read = TypeVar("_Read")


def keep(folder: Path, plain: Json) -> None:
    """Writes `recipe.json` to a run's folder, which is made if need be."""
    from weft import __version__

    plain = {"weft": __version__, "format": FORMAT, **plain}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "recipe.json", sealed(plain))
    except OSError as error:
        raise OSError(f"expected a folder that can be written, got {folder}: {error.strerror}") from error


def opened(folder: Path, read: Callable[[Json], _Read]) -> _Read:
    """What `read` makes of a run's `recipe.json`; a file that it cannot read is damaged or foreign."""
    path, found = folder / "recipe.json", manifest.opened(folder)
    if not path.exists() and not (found is not None and path.name in found.files):
        raise ValueError(
            f"expected a run that `weft fit` made in {folder}, got one without recipe.json, made in Python; go on "
            "there: weft.load(folder)"
        )
    try:
        if found is not None:  # what is beside a run must be of that run
            manifest.contents(folder, path.name)
        plain = unsealed(path, must=False)
        if plain["format"] not in (1, FORMAT):
            raise ValueError(f"format {plain['format']!r}, of another version of weft")
        if plain["format"] == FORMAT:
            plain = unsealed(path)
        return read(plain)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        told = str(error) if isinstance(error, ValueError) else repr(error)
        raise ValueError(f"expected weft's recipe in {path}, got a damaged or foreign file: {told}") from error


@dataclass(frozen=True)
class KeptTable:
    """A table that a run was begun with: where it is, its bytes, and how its columns become numbers.

    Attributes:
        path: the file's absolute path.
        size, sha256: its bytes' number and checksum.
        encoding: of a CSV file.
        recipe: how columns become numbers.
    """

    path: str
    size: int
    sha256: str
    encoding: str
    recipe: Recipe

    @classmethod
    def of(cls, columns: Columns, recipe: Recipe, *, encoding: str = "utf-8") -> KeptTable:
        """The record of columns that were read."""
        return cls(str(columns.path.resolve()), columns.size, columns.sha256, encoding, recipe)

    @classmethod
    def open(cls, folder: Path) -> KeptTable:
        """The table of a run that `weft fit` made."""
        return opened(folder, cls.from_json)

    @classmethod
    def from_json(cls, plain: Json) -> KeptTable:
        """The table from what `recipe.json` holds; the encoding is one of the run's options there."""
        data, encoding = plain["data"], plain["options"]["encoding"]
        if not isinstance(encoding, str):
            raise ValueError(f"encoding is {encoding!r}")
        recipe = Recipe.from_json(plain["recipe"])
        return cls(str(data["path"]), int(data["bytes"]), str(data["sha256"]), encoding, recipe)

    def to_json(self) -> Json:
        """The table as `recipe.json` holds it, but for the encoding, which is one of the run's options there."""
        return {
            "data": {"path": self.path, "bytes": self.size, "sha256": self.sha256},
            "recipe": self.recipe.to_json(),
        }

    def read(self, path: Path | None = None) -> Columns:
        """The data that the run was begun with; raises where the file has changed.

        Args:
            path: where it is now, if it was moved.
        """
        path = path or Path(self.path)
        if not path.exists():
            raise FileNotFoundError(
                f"expected the run's data in {path}, which is not there; if it was moved: --data PATH"
            )
        columns = read_columns(path, encoding=self.encoding)
        if columns.sha256 != self.sha256:
            raise ValueError(
                f"expected the data that the run was begun with, {self.size} bytes with SHA-256 {self.sha256[:12]}..., "
                f"got {path} with {columns.size} bytes, {columns.sha256[:12]}...; put the file back, or fit anew"
            )
        return columns
