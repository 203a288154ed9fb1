"""Trees of tensors: nested dictionaries whose leaves are tensors, the one form in which weft keeps what it computes.

The same form comes out that went in, which no type can say of a recursion; `typing.cast` would say it at the price of a
call for every leaf of every step, hence the ignores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

__all__ = [
    "AnyTree",
    "Params",
    "Tree",
    "tree_add",
    "tree_cat",
    "tree_copy_",
    "tree_leaves",
    "tree_map",
    "tree_same",
    "tree_stack",
]

Params = dict[str, Tensor]
"""Tensors by name."""
Tree = Tensor | dict[str, "Tree"]
AnyTree = TypeVar("AnyTree")


def tree_map(function: Callable[[Tensor], Tensor], tree: AnyTree) -> AnyTree:
    """Applies a function to every tensor.

    >>> tree_map(torch.neg, {"a": torch.ones(1), "b": {"c": torch.zeros(1)}})
    {'a': tensor([-1.]), 'b': {'c': tensor([-0.])}}
    """
    if isinstance(tree, dict):
        return {name: tree_map(function, value) for name, value in tree.items()}  # type: ignore[return-value]
    return function(tree)  # type: ignore[arg-type,return-value]


def tree_stack(trees: list[AnyTree]) -> AnyTree:
    """Stacks equal trees on a new leading axis."""
    first = trees[0]
    if isinstance(first, dict):
        return {name: tree_stack([tree[name] for tree in trees]) for name in first}  # type: ignore[index,return-value]
    return torch.stack(trees)  # type: ignore[arg-type,return-value]


def tree_cat(trees: list[AnyTree]) -> AnyTree:
    """Puts equal trees end to end, along the leading axis."""
    first = trees[0]
    if isinstance(first, dict):
        return {name: tree_cat([tree[name] for tree in trees]) for name in first}  # type: ignore[index,return-value]
    return torch.cat(trees)  # type: ignore[arg-type,return-value]


def tree_leaves(tree: object) -> Iterator[Tensor]:
    """Every tensor, in order."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from tree_leaves(value)
    else:
        yield tree  # type: ignore[misc]


def tree_add(a: AnyTree, b: AnyTree) -> AnyTree:
    """The sum of two equal trees."""
    if isinstance(a, dict):
        return {name: tree_add(value, b[name]) for name, value in a.items()}  # type: ignore[index,return-value]
    return a + b  # type: ignore[operator]


def tree_copy_(into: AnyTree, value: AnyTree) -> None:
    """A tree's tensors into another's, in place; what is the same tensor already is left."""
    if isinstance(into, dict):
        for name in into:
            tree_copy_(into[name], value[name])  # type: ignore[index]
    elif into is not value:
        into.copy_(value)  # type: ignore[attr-defined]


def tree_same(a: object, b: object) -> bool:
    """Whether two trees have the same names and shapes."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(tree_same(a[name], b[name]) for name in a)
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape
