"""From an objective's hyperparameters to parameters: built, checked and initialized from the seed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from weft.core.objective import Objective
from weft.core.random import fold, integer, key_of
from weft.core.source import Spec
from weft.engine.ambient import refuse_hidden_randomness

__all__ = ["build", "initialize", "seeded"]


@contextmanager
def seeded(seed: int, *places: int | str) -> Iterator[None]:
    """PyTorch's generator set from (seed, place) for a while, then put back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(integer(fold(key_of(seed), *places)))
        yield


def build(objective: Objective, spec: Spec, seed: int, dtype: torch.dtype) -> Objective:
    """A copy of the objective with its networks made, for these shapes, by this seed."""
    built = copy.deepcopy(objective)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with seeded(seed, "build"):
            built.build(spec)
    finally:
        torch.set_default_dtype(default)
    built.to(dtype)
    refuse_hidden_randomness(built)
    if not any(True for _ in built.parameters()):
        raise ValueError(f"expected {objective!r} to have parameters after build, got none; check its net")
    return built


def initialize(built: Objective, seed: int, init: str, replicated: bool = False) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and buffers for a seed: every layer drawn anew (`reset`) or as it came (`keep`)."""
    module: Any = copy.deepcopy(built)
    if init == "reset":
        with seeded(seed, "init"):
            for name, layer in module.named_modules():
                reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
                if callable(reset):
                    reset()
                elif replicated and any(True for _ in layer.parameters(recurse=False)):
                    raise ValueError(
                        f"expected every layer with parameters to define reset_parameters(), got {name!r} "
                        f"({type(layer).__name__}) without: all replicas would start alike; define it, or pass "
                        "init='keep' if they should"
                    )
    params = {name: p.detach().clone() for name, p in module.named_parameters()}
    buffers = {name: b.detach().clone() for name, b in module.named_buffers()}
    return params, buffers


