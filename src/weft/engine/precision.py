"""Precision: layers that compute in bfloat16 over float32 parameters, and convolutions laid out as a GPU likes them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from weft.core.objective import Objective, Output
from weft.core.state import State

__all__ = ["lay_out", "lowering", "raise_output", "raised"]


def lowering(objective: Objective, device: torch.device) -> AbstractContextManager[object]:
    """Within it matrix products and convolutions are made in the objective's `lowered` dtype, if it has one.

    What PyTorch's autocast keeps in float32 stays so: losses, softmax, norms, sums; batch statistics too.
    """
    if objective.lowered is None:
        return nullcontext()
    # Casts are not kept from one use of a weight to the next: under vmap and in recorded graphs they would be stale.
    return torch.autocast(device.type, dtype=objective.lowered, cache_enabled=False)


def raised(answer: object) -> object:
    """A tree of tensors whose bfloat16 ones are float32 again."""
    return pytree.tree_map(lambda leaf: _raised(leaf) if isinstance(leaf, Tensor) else leaf, answer)


def raise_output(objective: Objective, output: Output) -> None:
    """Puts what a forward gave in lower precision into float32, for strategies and measures that compute with it."""
    if objective.lowered is None:
        return
    output.losses = _raised(output.losses)
    output.logits = None if output.logits is None else _raised(output.logits)
    output.features = None if output.features is None else _raised(output.features)
    for part in output.parts.values():
        raise_output(objective, part)


def _raised(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def lay_out(state: State) -> None:
    """On CUDA, the weights of convolutions channels last, in place of the same numbers channels first.

    The layers behind them follow. Stacked replicas are convolved in groups, which is faster channels first.
    """
    if state.device.type != "cuda" or state.replicas is not None:
        return
    for prefix, layer in state.objective.named_modules():
        name = f"{prefix}.weight" if prefix else "weight"
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) and layer.groups == 1 and name in state.params:
            state.params[name] = state.params[name].contiguous(memory_format=torch.channels_last)
