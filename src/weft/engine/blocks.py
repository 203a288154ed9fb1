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
        told: which blocks make up each tensor, and which each file holds, in order.
        new: the bytes of the new file; empty where none is needed.
        still: earlier files that are still needed.
    """

    told: Json
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
        >>> second = laid({"memory": memory}, first.told, "state-1.blocks")
        >>> len(first.new) // BLOCK, len(second.new) // BLOCK, second.still
        (1, 1, ['state-0.blocks'])
        >>> files = {"state-0.blocks": first.new, "state-1.blocks": second.new}
        >>> torch.equal(fetched(second.told, files)["memory"], memory)
        True
    """
    found: dict[bytes, memoryview] = {}  # equal blocks are one: a memory that is still empty costs next to nothing
    marks: dict[str, list[bytes]] = {}
    for key, tensor in tensors.items():
        data = tensor.reshape(-1).view(torch.uint8).numpy().data
        cut = [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)]
        marks[key] = [hashlib.blake2b(block, digest_size=_DIGEST).digest() for block in cut]
        for mark, block in zip(marks[key], cut, strict=True):
            found.setdefault(mark, block)
    if not found:
        return Laid({}, b"", [])
    still = _worth_keeping({file: _marks(text) for file, text in before.get("files", {}).items()}, found.keys())
    held = {mark for listed in still.values() for mark in listed}
    new = {mark: block for mark, block in found.items() if mark not in held}
    files = {**still, **({name: list(new)} if new else {})}
    number = {mark: n for n, mark in enumerate(mark for listed in files.values() for mark in listed)}
    told = {
        key: {
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "blocks": _runs([number[mark] for mark in marks[key]]),
        }
        for key, tensor in tensors.items()
    }
    listed = {file: b"".join(each).hex() for file, each in files.items()}
    whole = b"".join(bytes(block).ljust(BLOCK, b"\0") for block in new.values())
    return Laid({"block": BLOCK, "tensors": told, "files": listed}, whole, list(still))


def _runs(numbers: list[int]) -> list[list[int]]:
    """Numbers as runs, each with its first and how many there are.

    >>> _runs([4, 5, 6, 2, 2])
    [[4, 3], [2, 1], [2, 1]]
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return runs


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
    size = int(index["block"])
    where = [
        memoryview(files[file])[i * size : (i + 1) * size]
        for file, text in index["files"].items()
        for i in range(len(_marks(text)))
    ]
    tensors = {}
    for key, told in index["tensors"].items():
        dtype, data = _DTYPES[told["dtype"]], bytearray()
        for first, count in told["blocks"]:
            if not 0 <= first < first + count <= len(where):
                raise ValueError(f"expected blocks among {len(where)}, got {count} from {first} on")
            for block in where[first : first + count]:
                data += block
        length = torch.Size(told["shape"]).numel() * dtype.itemsize
        if not len(data) - size < length <= len(data):
            raise ValueError(f"expected blocks of {length} bytes for a tensor, got {len(data)}")
        values = torch.frombuffer(data, dtype=torch.uint8)[:length]
        tensors[key] = values.view(dtype).reshape(told["shape"])
    return tensors
