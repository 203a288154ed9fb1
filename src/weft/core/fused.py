"""Draws on a GPU by one kernel: the hash of `weft.core.random` and what it makes of a word, without going by memory.

The words are the same, so that uniforms are the same bit for bit, and normals but for the last digits of a cosine.
Without Triton, which comes with PyTorch for GPUs on Linux, there is none, and plain operations serve.
"""

from __future__ import annotations

import math
from importlib.util import find_spec

import torch
from torch import Tensor

__all__ = ["BLOCK"]

BLOCK = 1024

if find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit
    def _fill(keys, out, words, pairs, count, NORMAL: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        word = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        there = word < words
        row, column = word // pairs, word % pairs
        x = tl.load(keys + row, mask=there).to(tl.uint64, bitcast=True)
        x += (column + 1).to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB
        x = x ^ (x >> 31)
        if NORMAL:
            radius = ((x >> 32) & 0x7FFFFFFF).to(tl.int32).to(tl.float32) + 0.5
            radius = tl.sqrt(-2.0 * tl.log(radius * 4.656612873077393e-10))  # 2**-31
            angle = x.to(tl.int32).to(tl.float32) * 1.4629180792671596e-09  # pi * 2**-31
            first, second = radius * tl.cos(angle), radius * tl.sin(angle)
        else:
            first = (x & 0xFFFFFF).to(tl.int32).to(tl.float32) * 5.960464477539063e-08  # 2**-24
            second = ((x >> 32) & 0xFFFFFF).to(tl.int32).to(tl.float32) * 5.960464477539063e-08
        tl.store(out + row * count + column, first, mask=there)
        tl.store(out + row * count + pairs + column, second, mask=there & (pairs + column < count))

    @torch.library.custom_op("weft::drawn", mutates_args=(), device_types="cuda")
    def drawn(key: Tensor, count: int, normal: bool) -> Tensor:
        """So many single-precision numbers for each key, normal or uniform: shape `key.shape + (count,)`."""
        out = torch.empty((*key.shape, count), dtype=torch.float32, device=key.device)
        pairs = (count + 1) // 2
        words = key.numel() * pairs
        if words:
            _fill[(math.ceil(words / BLOCK),)](key.contiguous(), out, words, pairs, count, NORMAL=normal, BLOCK=BLOCK)
        return out

    @drawn.register_vmap
    def _(info: object, dims: tuple[int | None, ...], key: Tensor, count: int, normal: bool) -> tuple[Tensor, int]:
        return drawn(key.movedim(dims[0] or 0, 0), count, normal), 0
