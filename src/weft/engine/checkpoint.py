"""Trees of tensors and plain values, written so that a crash at any moment leaves the old or the new.

A checkpoint is two files: `state-<number>.safetensors` holds the tensors, `state.json` the rest and the
first one's name, size and checksum. The tensors are written first; renaming `state.json` into place
commits both at once; then older tensors are removed. Neither file can hold code: JSON and
safetensors hold values only, and nothing is imported because a file names it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any

from torch import Tensor

__all__ = ["FORMAT", "read", "write", "write_bytes", "write_text"]

FORMAT = 1


def point(name: str) -> None:
    """A named moment of a write; the fault tests put a crash here."""


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """A tree as JSON, its tensors put aside under numbers."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"$tensor": name}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, tuple):
        return {"$tuple": [_pack(v, tensors) for v in value]}
    if isinstance(value, list):
        return [_pack(v, tensors) for v in value]
    if isinstance(value, dict):
        if all(isinstance(k, str) and not k.startswith("$") for k in value):
            return {k: _pack(v, tensors) for k, v in value.items()}
        return {"$pairs": [[_pack(k, tensors), _pack(v, tensors)] for k, v in value.items()]}
    raise TypeError(f"expected tensors, numbers, text, lists and dictionaries in a state, got {type(value).__name__}")


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(v, tensors) for v in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((kind, inner),) = value.items()
        if kind == "$tensor":
            return tensors[inner]
        if kind == "$float":
            return float(inner)
        if kind == "$tuple":
            return tuple(_unpack(v, tensors) for v in inner)
        if kind == "$pairs":
            return {_unpack(k, tensors): _unpack(v, tensors) for k, v in inner}
    return {k: _unpack(v, tensors) for k, v in value.items()}


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


def write(folder: Path, tree: dict[str, Any]) -> None:
    """Keeps a tree in a folder, in place of what was kept there before."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    plain = _pack(tree, tensors)
    previous = _header(folder)
    number = 0 if previous is None else int(previous["number"]) + 1
    data = save(tensors)
    name = f"state-{number}.safetensors"
    write_bytes(folder / name, data)
    header = {
        "format": FORMAT,
        "number": number,
        "tensors": name,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "tree": plain,
    }
    write_bytes(folder / "state.json", json.dumps(header, allow_nan=False).encode())
    for old in folder.glob("state-*.safetensors"):
        if old.name != name:
            old.unlink(missing_ok=True)
    for leftover in folder.glob(".state*.tmp"):
        leftover.unlink(missing_ok=True)


def _header(folder: Path) -> dict[str, Any] | None:
    path = folder / "state.json"
    if not path.exists():
        return None
    try:
        header = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"expected a checkpoint in {path}, got a file that is not JSON ({error}); it is damaged"
        ) from error
    if not isinstance(header, dict) or not {"format", "number", "tensors", "tree"} <= header.keys():
        raise ValueError(f"expected weft's checkpoint in {path}, got another kind of file; is this the right folder?")
    if header["format"] != FORMAT:
        raise ValueError(
            f"expected a checkpoint of format {FORMAT} in {path}, got format {header['format']}, which another version "
            "of weft wrote; read it with that version"
        )
    return header


def read(folder: Path) -> dict[str, Any]:
    """The tree kept in a folder, checked."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    header = _header(folder)
    if header is None:
        raise FileNotFoundError(f"expected a run of weft in {folder}, got no state.json there")
    name = str(header["tensors"])
    if Path(name).name != name:
        raise ValueError(
            f"expected the tensors beside state.json in {folder}, got the path {name!r}; the file is not weft's"
        )
    path = folder / name
    if not path.exists():
        raise ValueError(f"expected {path}, which state.json names, got no such file; the folder is damaged")
    data = path.read_bytes()
    if len(data) != header["bytes"] or hashlib.sha256(data).hexdigest() != header["sha256"]:
        raise ValueError(
            f"expected {header['bytes']} bytes in {path} as state.json says, got {len(data)} or other ones; the file "
            "is truncated or was changed"
        )
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise ValueError(f"expected safetensors in {path}, got something else ({error})") from error
    tree = _unpack(header["tree"], tensors)
    if not isinstance(tree, dict):
        raise ValueError(f"expected a dictionary in {folder / 'state.json'}, got {type(tree).__name__}")
    return tree
