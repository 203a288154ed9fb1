"""Trees of tensors and plain values, written so that a crash at any moment leaves the old or the new.

A checkpoint is `state-<number>.safetensors`, which holds the tensors, `state-<number>.blocks`, which hold large ones
(see `weft.engine.blocks`), and `state.json`, which holds the rest; the folder's manifest names them with their digests
and switches to them at once, together with what is given beside. No file can hold code: they hold values only, and
nothing is imported because a file names it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from weft import __version__
from weft.core import manifest
from weft.core.files import parsed, read_bytes, read_json
from weft.core.manifest import Manifest
from weft.core.values import Json, pack, unpack
from weft.engine import blocks

__all__ = ["FORMAT", "kept", "opened", "packed", "read", "tidy", "write"]

FORMAT = 4
_BLOCKS = "state-*.blocks"
_LISTED = (3, FORMAT)  # of 3, all tensors are in one file
_UNLISTED = (1, 2)  # formats without a manifest; of 1, arrays have no mark of their own: see `weft.learner.loading`


def kept(folder: Path) -> bool:
    """Whether a checkpoint was ever written to the folder."""
    return (folder / manifest.NAME).exists() or (folder / "state.json").exists()


def write(
    folder: Path,
    tree: Json,
    *,
    files: Mapping[str, str | bytes] | None = None,
    run: str = "",
    data: Mapping[str, str] | None = None,
    beside: Sequence[str] = (),
) -> None:
    """Keeps a tree in a folder, in place of what was kept there before.

    Args:
        folder: held by the caller alone, see `weft.core.files.alone`.
        tree: tensors and plain values.
        files: the text or bytes of further files that are switched with it.
        run, data, beside: see `weft.core.manifest.switch`.
    """
    before = manifest.opened(folder)
    number = 0 if before is None else before.number + 1
    while (folder / f"state-{number}.safetensors").exists():  # of a format without a manifest
        number += 1
    name = f"state-{number}.safetensors"
    tensors: dict[str, Tensor] = {}
    plain = pack(tree, tensors)
    earlier = _index(folder) if before is not None and before.run == run else {}
    large = {key: tensors.pop(key) for key in list(tensors) if blocks.large(tensors[key])}
    index, new, still = blocks.laid(large, earlier, f"state-{number}.blocks")
    whole = _files(plain, tensors, "state.json", name, blocks=index)
    whole |= {each: text.encode() if isinstance(text, str) else text for each, text in (files or {}).items()}
    if new:
        whole[f"state-{number}.blocks"] = new
    manifest.switch(folder, whole, weft=__version__, run=run, data=data or {}, beside=[*beside, *still])
    tidy(folder)


def _index(folder: Path) -> Json:
    """The blocks that the last checkpoint has kept."""
    header: Json = parsed(manifest.contents(folder, "state.json")[0], folder / "state.json")
    return header.get("blocks", {})


def packed(tree: Json, plain: str, tensors: str) -> dict[str, bytes]:
    """The two files of a tree that stands by itself, by the names that they are to have."""
    found: dict[str, Tensor] = {}
    return _files(pack(tree, found), found, plain, tensors, blocks={})


def _files(tree: Json, tensors: dict[str, Tensor], plain: str, name: str, *, blocks: Json) -> dict[str, bytes]:
    from safetensors.torch import save

    header = {"format": FORMAT, "tensors": name, "blocks": blocks, "tree": tree}
    return {name: save(tensors), plain: json.dumps(header, allow_nan=False).encode()}


def tidy(folder: Path) -> None:
    """Removes what killed writers left, and tensors of earlier checkpoints; whoever calls it holds the folder."""
    found = manifest.opened(folder)
    if found is None:
        return
    manifest.settle(folder, found)
    left = ["state-*.safetensors", _BLOCKS, "kept-*", "kept.json", ".state*.tmp", f".{manifest.NAME}.*.tmp"]
    for old in (path for pattern in left for path in folder.glob(pattern)):
        if old.name not in found.files:
            old.unlink(missing_ok=True)


def _header(found: object, path: Path) -> Json:
    if not isinstance(found, dict) or not {"format", "tensors", "tree"} <= found.keys():
        raise ValueError(f"expected weft's checkpoint in {path}, got another kind of file; is this the right folder?")
    if found["format"] not in (*_UNLISTED, *_LISTED):
        raise ValueError(
            f"expected a checkpoint of format {FORMAT} in {path}, got format {found['format']}, which another version "
            "of weft wrote; read it with that version"
        )
    return found


def read(folder: Path) -> Json:
    """The tree kept in a folder, checked."""
    return opened(folder)[1]


def opened(
    folder: Path, *names: str, files: tuple[str, str] = ("state.json", "state-*.safetensors")
) -> tuple[Manifest | None, Json, list[bytes]]:
    """What is kept in a folder, all of one moment, checked: its manifest, the tree, and the bytes of further files.

    `files` are those of the tree: the last checkpoint's, or those of an earlier one that was kept beside it. Folders of
    earlier versions have no manifest.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    path, found, large = folder / files[0], None, {}
    if not kept(folder):
        raise FileNotFoundError(f"expected a run of weft in {folder}, got no {manifest.NAME} there")
    if (folder / manifest.NAME).exists():
        found, (text, data, *others) = manifest.snapshot(folder, *files, *names, fitting=_BLOCKS)
        header = _header(parsed(text, path), path)
        large = dict(zip(fnmatch.filter(found.files, _BLOCKS), others[len(names) :], strict=True))
        others = others[: len(names)]
    else:
        header = _header(read_json(path), path)
        data, others = _unlisted(folder, header), [read_bytes(folder / name) for name in names]
    try:
        tree = unpack(header["tree"], {**load(data), **blocks.fetched(header.get("blocks", {}), large)})
    except SafetensorError as error:
        tensors = folder / str(header["tensors"])
        raise ValueError(f"expected safetensors in {tensors}, got something else ({error})") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"expected weft's checkpoint in {path}, got a damaged or foreign file: {error!r}") from error
    if not isinstance(tree, dict):
        raise ValueError(f"expected a dictionary in {path}, got {type(tree).__name__}")
    return found, tree, others


def _unlisted(folder: Path, header: Json) -> bytes:
    """The tensors of a folder without a manifest, as earlier versions kept them; says that it has none."""
    if header["format"] not in _UNLISTED:
        raise ValueError(
            f"expected {folder / manifest.NAME}, which says what belongs to the run, got no such file; the folder is "
            "damaged: put it back from a copy"
        )
    name = str(header["tensors"])
    if Path(name).name != name:
        raise ValueError(
            f"expected the tensors beside state.json in {folder}, got the path {name!r}; the file is not weft's"
        )
    path = folder / name
    if not path.exists():
        raise ValueError(f"expected {path}, which state.json names, got no such file; the folder is damaged")
    data = read_bytes(path)
    if len(data) != header.get("bytes") or hashlib.sha256(data).hexdigest() != header.get("sha256"):
        raise ValueError(
            f"expected {header.get('bytes')} bytes in {path} as state.json says, got {len(data)} or other ones; the "
            "file is truncated or was changed"
        )
    warnings.warn(
        f"{folder} was kept by an earlier version of weft, without {manifest.NAME}: whether its configuration and its "
        "data are those of the run cannot be checked; save it again to have that",
        stacklevel=5,
    )
    return data
