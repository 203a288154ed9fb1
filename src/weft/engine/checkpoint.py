"""Trees of tensors and plain values, written so that a crash at any moment leaves the old or the new.

A checkpoint is two files: `state-<number>.safetensors` holds the tensors, `state.json` the rest and the
first one's name, size and checksum. The tensors are written first; renaming `state.json` into place
commits both at once; then older tensors are removed. Neither file can hold code: JSON and
safetensors hold values only, and nothing is imported because a file names it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from torch import Tensor

from weft.core.files import write_bytes
from weft.core.values import Json, pack, unpack

__all__ = ["FORMAT", "read", "write"]

FORMAT = 2
_READ = (1, FORMAT)  # of format 1, arrays have no mark of their own: see `weft.learner.folder`


def write(folder: Path, tree: Json) -> None:
    """Keeps a tree in a folder, in place of what was kept there before."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    plain = pack(tree, tensors)
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


def _header(folder: Path) -> Json | None:
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
    if header["format"] not in _READ:
        raise ValueError(
            f"expected a checkpoint of format {FORMAT} in {path}, got format {header['format']}, which another version "
            "of weft wrote; read it with that version"
        )
    return header


def read(folder: Path) -> Json:
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
    tree = unpack(header["tree"], tensors)
    if not isinstance(tree, dict):
        raise ValueError(f"expected a dictionary in {folder / 'state.json'}, got {type(tree).__name__}")
    return tree
