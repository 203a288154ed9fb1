"""Where data sets lie: a folder that is given, those that `WEFT_DATA` lists, the user's cache, or the net."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

__all__ = ["cache", "sought"]

Found = TypeVar("Found")


def cache() -> Path:
    """The user's folder for what was downloaded."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft"


def sought(
    name: str,
    read: Callable[[Path], Found | None],
    download: Callable[[str, Path], str] | None = None,
    folder: str | Path | None = None,
) -> Found:
    """What the first folder holds that has it, or what was just downloaded into the cache.

    Args:
        name: of the data set, for messages.
        read: gives what a folder holds, or None.
        download: puts it into a folder, and says what went wrong where it did not; None where that is not allowed.
        folder: looked in before those of `WEFT_DATA` and the cache.
    """
    listed = [Path(entry) for entry in os.environ.get("WEFT_DATA", "").split(os.pathsep) if entry]
    places = [*([] if folder is None else [Path(folder)]), *listed, cache()]
    for place in places:
        if (found := read(place)) is not None:
            return found
    why = "downloading was not allowed" if download is None else download(name, cache())
    if (found := read(cache())) is not None:
        return found
    raise FileNotFoundError(
        f"expected {name} in one of {', '.join(map(str, places))}, got none there, and {why}; put it there, or name "
        "its folder in WEFT_DATA"
    )
