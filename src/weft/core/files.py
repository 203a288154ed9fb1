"""Files that are written whole or not at all, read only where they are files, and a folder held by one writer."""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import json
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

__all__ = ["alone", "parsed", "point", "read_bytes", "read_json", "sealed", "unsealed", "write_bytes", "write_text"]


def point(name: str) -> None:
    """A named moment of a write; the fault tests put a crash here."""


# --- writing ------------------------------------------------------------------------------------------


def sync(folder: Path) -> None:
    """Makes a folder's names durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fill(file: IO[bytes], data: bytes, kind: str) -> None:
    """Writes and syncs an open file."""
    half = len(data) // 2
    file.write(data[:half])
    point(f"during {kind}")
    file.write(data[half:])
    file.flush()
    os.fsync(file.fileno())


def write_bytes(path: Path, data: bytes) -> None:
    """The whole file or none of it: written aside, synced, renamed; what killed writers of it left is removed."""
    for left in glob.glob(f".{glob.escape(path.name)}.*.tmp", root_dir=path.parent):
        # Whoever is still writing holds a lock on what he writes.
        with suppress(OSError), open(path.parent / left, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path.parent / left)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _taken(aside) as file:
            fill(file, data, path.suffix)
            point(f"before rename {path.suffix}")
            os.replace(aside, path)
        sync(path.parent)
        point(f"after rename {path.suffix}")
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def _taken(path: Path) -> IO[bytes]:
    """A new file under a lock that tells others that its writer lives."""
    while True:
        file = open(path, "wb")  # noqa: SIM115 (given to the caller)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if _named(file, path):  # nobody took it for a leftover meanwhile
            return file
        file.close()


def _named(file: IO[Any], path: Path) -> bool:
    """Whether an open file is the one of that name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    return False


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically."""
    write_bytes(path, text.encode())


# --- reading ------------------------------------------------------------------------------------------


def read_bytes(path: Path) -> bytes:
    """A file's bytes; raises where the name is a pipe or a device, which could be waited for without end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"expected a file at {path}, got a folder, a pipe or a device; is this the right folder?")
    return path.read_bytes()


def parsed(data: bytes, path: Path) -> Any:
    """The value of JSON that was read from a file.

    >>> parsed(b"[" * 100_000, Path("state.json"))
    Traceback (most recent call last):
        ...
    ValueError: expected JSON in state.json, got a damaged or foreign file: nested too deeply
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        told = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"expected JSON in {path}, got a damaged or foreign file: {told}") from error


def read_json(path: Path) -> Any:
    """A JSON file's value."""
    return parsed(read_bytes(path), path)


def sealed(plain: dict[str, Any]) -> str:
    """JSON that holds its own digest, so that a change of any value is seen.

    >>> "sha256" in sealed({"a": 1})
    True
    """
    plain = json.loads(json.dumps(plain, allow_nan=False))
    return json.dumps({**plain, "sha256": _digest(plain)}, indent=1, allow_nan=False) + "\n"


def unsealed(path: Path, *, must: bool = True) -> dict[str, Any]:
    """What was sealed, without its digest; unless it `must`, what never was sealed is given as it is."""
    plain = read_json(path)
    if not isinstance(plain, dict):
        raise ValueError(f"expected a JSON object in {path}, got a damaged or foreign file: {type(plain).__name__}")
    told = plain.pop("sha256", None)
    try:
        fits = told == _digest(plain) or (told is None and not must)
    except RecursionError as error:
        raise ValueError(f"expected JSON in {path}, got a damaged or foreign file: nested too deeply") from error
    if not fits:
        raise ValueError(
            f"expected {path} as weft wrote it, got a damaged or foreign file: its values are not those of its digest; "
            "put it back from a copy"
        )
    return plain


def _digest(plain: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


# --- one writer at a time -----------------------------------------------------------------------------


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Within it no other process, and nobody else in this one, holds the folder; a writer that dies lets go of it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, alone(Path(folder)), alone(Path(folder)):
    ...     pass
    Traceback (most recent call last):
        ...
    ValueError: expected to write alone in ..., got another writer at work there (process ...
    """
    path = folder / ".lock"
    while True:
        file = open(path, "a+")  # noqa: SIM115 (held below)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            who = file.read(20).strip() or "of another machine"
            file.close()
            raise ValueError(
                f"expected to write alone in {folder}, got another writer at work there (process {who}); wait until it "
                "has ended, or choose another folder"
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                file.close()
                raise
            warnings.warn(
                f"expected a file system with locks at {folder}, got {error.strerror}: nothing keeps two writers apart "
                "there; see to it that there is one",
                stacklevel=4,
            )
        if _named(file, path):
            break
        file.close()  # its holder has removed it since it was opened
    try:
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()
