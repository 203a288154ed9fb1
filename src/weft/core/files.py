"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["point", "write_bytes", "write_text"]


def point(name: str) -> None:
    """A named moment of a write; the fault tests put a crash here."""


def _sync(folder: Path) -> None:
    """Makes a rename durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, data: bytes) -> None:
    """The whole file or none of it: written aside, synced, renamed."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(aside, "wb") as file:
            half = len(data) // 2
            file.write(data[:half])
            point(f"during {path.suffix}")
            file.write(data[half:])
            file.flush()
            os.fsync(file.fileno())
        point(f"before rename {path.suffix}")
        os.replace(aside, path)
        _sync(path.parent)
        point(f"after rename {path.suffix}")
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically."""
    write_bytes(path, text.encode())
