"""Large tensors in blocks: a checkpoint writes those that have changed since the last one, and names the others.

A tensor's bytes are cut into blocks, each known by its digest, so that a memory of which a step changes a few rows, or
a net of which some layers are frozen, costs what has changed. New blocks go into a file of their own, `state-N.blocks`;
files of earlier checkpoints stay as long as they are worth it:

- at least half of each is still in use, so that the files hold at most twice what is in use;
- there are at most so many of them; beyond that the smaller half is written anew, into the new file.

No checkpoint writes a block twice: it costs at most the bytes of its tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from weft.core.values import Json

__all__ = ["BLOCK", "FILES", "LARGE", "Laid", "fetched", "laid", "large"]

LARGE = 2**17
"""Bytes from which on a tensor is cut into blocks."""
BLOCK = 2**13
FILES = 32
_DIGEST = 16
_KINDS = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
_DTYPES = {name: getattr(torch, name) for name in (*_KINDS, "complex64", "complex128")}


class Laid(NamedTuple):
    """Tensors as blocks.

    Attributes:
        index: which blocks make up each tensor, and which each file holds, in order.
        new: the bytes of the new file; empty where none is needed.
        still: earlier files that are still needed.
    """

    index: Json
    new: bytes
    still: list[str]


def large(tensor: Tensor) -> bool:
    """Whether a tensor is cut into blocks."""
    return tensor.numel() * tensor.element_size() >= LARGE and str(tensor.dtype).removeprefix("torch.") in _DTYPES


def laid(tensors: Mapping[str, Tensor], before: Json, name: str) -> Laid:
    """Lays tensors out in blocks.

    Args:
        tensors: on the CPU, contiguous.
        before: the last checkpoint's index; empty where there is none.
        name: of the new file.

    Example:
        >>> memory = torch.zeros(3 * BLOCK, dtype=torch.uint8)
        >>> first = laid({"memory": memory}, {}, "state-0.blocks")
        >>> memory[:9] = 1
        >>> second = laid({"memory": memory}, first.index, "state-1.blocks")
        >>> len(first.new) // BLOCK, len(second.new) // BLOCK, second.still
        (1, 1, ['state-0.blocks'])
        >>> files = {"state-0.blocks": first.new, "state-1.blocks": second.new}
        >>> torch.equal(fetched(second.index, files)["memory"], memory)
        True
    """
    found: dict[bytes, memoryview] = {}  # equal blocks are one: a memory that is still empty costs next to nothing
    told: Json = {}
    for key, tensor in tensors.items():
        data = memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
        marks = []
        for start in range(0, len(data), BLOCK):
            block = data[start : start + BLOCK]
            mark = hashlib.blake2b(block, digest_size=_DIGEST).digest()
            found.setdefault(mark, block)
            marks.append(mark)
        kind = str(tensor.dtype).removeprefix("torch.")
        told[key] = {"shape": list(tensor.shape), "dtype": kind, "blocks": b"".join(marks).hex()}
    still = _worth_keeping({file: _marks(text) for file, text in before.get("files", {}).items()}, found.keys())
    known = {mark for marks in still.values() for mark in marks}
    new = {mark: block for mark, block in found.items() if mark not in known}
    files = {file: b"".join(marks).hex() for file, marks in still.items()}
    if new:
        files[name] = b"".join(new).hex()
    whole = b"".join(bytes(block).ljust(BLOCK, b"\0") for block in new.values())
    return Laid({"block": BLOCK, "tensors": told, "files": files}, whole, list(still))


def _worth_keeping(files: dict[str, list[bytes]], used: object) -> dict[str, list[bytes]]:
    """The earlier files that stay as they are."""
    needed = set(used)  # type: ignore[call-overload]
    still = {file: marks for file, marks in files.items() if 2 * len(needed.intersection(marks)) >= len(marks)}
    if len(still) < FILES:
        return still
    by_size = sorted(still, key=lambda file: len(still[file]), reverse=True)
    return {file: still[file] for file in by_size[: FILES // 2]}


def _marks(text: str) -> list[bytes]:
    data = bytes.fromhex(text)
    if len(data) % _DIGEST:
        raise ValueError(f"expected digests of {_DIGEST} bytes, got {len(data)} bytes")
    return [data[start : start + _DIGEST] for start in range(0, len(data), _DIGEST)]


def fetched(index: Json, files: Mapping[str, bytes]) -> dict[str, Tensor]:
    """The tensors that an index tells of, from the bytes of its files."""
    if not index:
        return {}
    size, where = int(index["block"]), {}
    for file, text in index["files"].items():
        for i, mark in enumerate(_marks(text)):
            where[mark] = memoryview(files[file])[i * size : (i + 1) * size]
    tensors = {}
    for key, told in index["tensors"].items():
        dtype, data = _DTYPES[told["dtype"]], bytearray().join(where[mark] for mark in _marks(told["blocks"]))
        values = torch.frombuffer(data, dtype=torch.uint8)
        count = torch.Size(told["shape"]).numel() * dtype.itemsize
        if not len(data) - size < count <= len(data):
            raise ValueError(f"expected blocks of {count} bytes for a tensor, got {len(data)}")
        tensors[key] = values[:count].view(dtype).reshape(told["shape"])
    return tensors
