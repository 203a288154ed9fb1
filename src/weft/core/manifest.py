"""A folder's manifest: which files belong together, each with its digest, and all switched at once.

New files are written aside, as `.NAME.next`. Renaming `manifest.json` into place is the switch: from then on the new
ones count, also where they still lie aside; then they get their names. So whoever reads finds, at any moment of a
write and after a crash in it, all of the old files or all of the new ones.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.core import files as writing
from weft.core.files import fill, read_bytes, sealed, sync, unsealed, write_text

__all__ = [
    "FORMAT",
    "NAME",
    "Manifest",
    "contents",
    "next_of",
    "opened",
    "sealed_beside",
    "settle",
    "snapshot",
    "switch",
    "unsealed_beside",
]

NAME = "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """What a folder holds.

    Attributes:
        weft: the version that wrote it.
        run: the run whose files these are: a name that no other has.
        number: how often files were switched before.
        files: by name each file's number of bytes and SHA-256.
        data: digests of what was trained on, by name.
    """

    weft: str
    run: str
    number: int = 0
    files: dict[str, list[Any]] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)


def next_of(path: Path) -> Path:
    """Where a file lies until it gets its name."""
    return path.with_name(f".{path.name}.next")


def _mark(data: bytes) -> list[Any]:
    return [len(data), hashlib.sha256(data).hexdigest()]


def opened(folder: Path) -> Manifest | None:
    """A folder's manifest, or None where it has none."""
    path = folder / NAME
    if not path.exists():
        return None
    plain = unsealed(path)
    if plain.pop("format", None) != FORMAT:
        raise ValueError(
            f"expected a manifest of format {FORMAT} in {path}, got another, which another version of weft "
            f"({plain.get('weft')}) wrote; read it with that version"
        )
    try:
        found = Manifest(**plain)
        odd = [name for name in found.files if Path(name).name != name or name.startswith(".")]
        marks = [mark for mark in found.files.values() if not isinstance(mark, list) or len(mark) != 2]
    except (TypeError, AttributeError) as error:
        raise ValueError(f"expected weft's manifest in {path}, got a foreign file: {error}") from error
    if odd or marks or not isinstance(found.data, dict) or not isinstance(found.number, int):
        raise ValueError(f"expected weft's manifest in {path}, of files beside it, got a foreign file: {odd or marks}")
    return found


def contents(folder: Path, *names: str) -> list[bytes]:
    """The bytes of some of a folder's files, all of one moment, each as the manifest says."""
    return snapshot(folder, *names)[1]


def snapshot(folder: Path, *names: str, fitting: str = "") -> tuple[Manifest, list[bytes]]:
    """A folder's manifest with the bytes of some of its files, all of one moment.

    A name may be a pattern, such as `*.safetensors`, for the one file that fits it; all files that are `fitting` come
    after the named ones, in the manifest's order.
    """
    while True:
        found = opened(folder)
        if found is None:
            raise FileNotFoundError(f"expected a run of weft in {folder}, got no {NAME} there; is it the right folder?")
        try:
            all_of_them = [*(_fitting(name, found) for name in names), *fnmatch.filter(found.files, fitting)]
            return found, [_checked(folder, name, found) for name in all_of_them]
        except (ValueError, OSError):
            if opened(folder) == found:  # else it was switched meanwhile
                raise


def _fitting(pattern: str, manifest: Manifest) -> str:
    fitting = fnmatch.filter(manifest.files, pattern)
    return fitting[0] if len(fitting) == 1 else pattern


def _checked(folder: Path, name: str, manifest: Manifest) -> bytes:
    """One file's bytes, under its name or aside."""
    if name not in manifest.files:
        raise ValueError(
            f"expected {folder / name} among the files of the run there, got a manifest without it: it is no file of "
            "that run; remove it, or put back what it belongs to"
        )
    told = "no such file"
    for path in (folder / name, next_of(folder / name), folder / name):  # it may have got its name meanwhile
        with suppress(FileNotFoundError):
            data = read_bytes(path)
            if _mark(data) == manifest.files[name]:
                return data
            told = f"{len(data)} bytes or other ones" if path.name == name else told
    raise ValueError(
        f"expected {manifest.files[name][0]} bytes in {folder / name} as {NAME} says, got {told}: the file is damaged, "
        "truncated or was changed; put it back from a copy, or train anew"
    )


def switch(
    folder: Path,
    files: Mapping[str, bytes],
    *,
    weft: str,
    run: str,
    data: Mapping[str, str],
    beside: Sequence[str] = (),
) -> None:
    """Puts files in place of those that a folder's manifest names, all at once.

    Whoever calls it holds the folder (`weft.core.files.alone`).

    Args:
        folder: where.
        files: the new files by name.
        weft, run, data: as in the manifest.
        beside: files that are there already and belong to these; where they belonged to the last ones of the same
            run, they are taken to be as they were.
    """
    kept = opened(folder)
    settle(folder, kept)
    known = {} if kept is None or kept.run != run else kept.files
    marks = {name: known.get(name) or _mark(read_bytes(folder / name)) for name in beside}
    marks |= {name: _mark(content) for name, content in files.items()}
    number = 0 if kept is None else kept.number + 1
    plain = {"weft": weft, "format": FORMAT, "run": run, "number": number, "files": marks, "data": dict(data)}
    try:
        for name, content in files.items():
            with open(next_of(folder / name), "wb") as file:
                fill(file, content, Path(name).suffix)
        sync(folder)
        write_text(folder / NAME, sealed(plain))
    except OSError:
        settle(folder, opened(folder))  # the switch itself may have been made
        raise
    for name in files:
        writing.point(f"before naming {Path(name).suffix}")
        os.replace(next_of(folder / name), folder / name)


def settle(folder: Path, manifest: Manifest | None) -> None:
    """Gives their names to files that a killed writer had switched to; removes those that it had not switched to."""
    files = {} if manifest is None else manifest.files
    for path in folder.glob(".*.next"):
        name = path.name[1 : -len(".next")]
        if files.get(name) == _mark(read_bytes(path)):
            os.replace(path, folder / name)
        else:
            path.unlink(missing_ok=True)


# --- what is written beside a run, afterwards ---------------------------------------------------------


def sealed_beside(folder: Path, plain: dict[str, Any]) -> str:
    """JSON about the run in a folder, with its own digest and that run's name."""
    found = opened(folder)
    return sealed(plain if found is None else {**plain, "run": found.run})


def unsealed_beside(path: Path) -> dict[str, Any]:
    """What was written beside a run; raises where it tells of another."""
    plain, found = unsealed(path, must=False), opened(path.parent)
    if "run" in plain:
        plain = unsealed(path)  # only earlier versions named no run, and sealed nothing
    whose = plain.pop("run", None)
    if found is not None and whose not in (None, found.run):
        raise ValueError(f"expected what tells of the run that {NAME} names, got {path} of another run; remove it")
    return plain
