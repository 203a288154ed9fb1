"""Merging: the answers of several runs, and of several pieces of what was asked, as one; as NumPy has it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["as_numpy", "each", "joined", "leaves", "merged", "refuse_other"]


def merged(how: str, answers: list[object]) -> object:
    """The answers of several runs, as one."""
    if len(answers) == 1:
        return answers[0]

    def merge(*leaves: Tensor) -> Tensor:
        if isinstance(leaves[0], list):
            raise ValueError("expected one replica to answer with lists, got several; ask one of them: .replica(0)")
        stacked = torch.stack(leaves)
        return torch.logsumexp(stacked, 0) - math.log(len(leaves)) if how == "logmeanexp" else stacked.mean(0)

    return each(merge, *answers)


def _is_list(part: object) -> bool:
    """A list is a leaf: its entries are the rows, of any length each."""
    return isinstance(part, list)


def each(function: Callable[..., Any], *trees: object) -> Any:
    """A function of the leaves of trees; of a tensor it is the tensor."""
    if isinstance(trees[0], Tensor):
        return function(*trees)
    return pytree.tree_map(function, *trees, is_leaf=_is_list)


def leaves(tree: object) -> list[Any]:
    """The leaves of a tree."""
    if isinstance(tree, Tensor):
        return [tree]
    return pytree.tree_leaves(tree, is_leaf=_is_list)


def refuse_other(leaf: object, rows: int, name: str) -> None:
    """Raises for what is not one answer per row."""
    found = tuple(leaf.shape) if isinstance(leaf, Tensor) else (len(leaf),) if isinstance(leaf, list) else None
    if not found or found[0] != rows:
        got = type(leaf).__name__ if found is None else f"shape {found}"
        raise ValueError(
            f"expected one answer of {name!r} for each of {rows} rows, got {got}; give a tensor with the rows on its "
            "leading axis (before capability(finish=...), which an override inherits), a tree of them, or a list"
        )


def joined(*parts: Any) -> Any:
    """The chunks of a leaf, as NumPy has it."""
    if isinstance(parts[0], list):
        return [as_numpy(row) if isinstance(row, Tensor) else row for part in parts for row in part]
    return as_numpy(torch.cat(parts) if len(parts) > 1 else parts[0].clone())  # none of the model's own memory


def as_numpy(answer: Tensor) -> NDArray[Any]:
    """NumPy knows no bfloat16."""
    answer = answer.float() if answer.dtype == torch.bfloat16 else answer
    array: NDArray[Any] = answer.numpy() if answer.device.type == "cpu" else answer.cpu().numpy()
    return array
