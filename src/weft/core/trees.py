"""Trees of tensors: nested dictionaries whose leaves are tensors, the one form in which weft keeps what it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar, cast

import torch
from torch import Tensor

__all__ = ["Params", "Tree", "tree_add", "tree_copy_", "tree_leaves", "tree_map", "tree_same", "tree_stack"]

Params = dict[str, Tensor]
"""Tensors by name."""
Tree = Tensor | dict[str, "Tree"]
AnyTree = TypeVar("AnyTree")  # the same form comes out that went in


def tree_map(function: Callable[[Tensor], Tensor], tree: AnyTree) -> AnyTree:
    """Applies a function to every tensor.

    >>> tree_map(torch.neg, {"a": torch.ones(1), "b": {"c": torch.zeros(1)}})
    {'a': tensor([-1.]), 'b': {'c': tensor([-0.])}}
    """
    if isinstance(tree, dict):
        return cast(AnyTree, {name: tree_map(function, value) for name, value in tree.items()})
    return cast(AnyTree, function(cast(Tensor, tree)))


def tree_stack(trees: list[AnyTree]) -> AnyTree:
    """Stacks equal trees on a new leading axis."""
    first = trees[0]
    if isinstance(first, dict):
        return cast(AnyTree, {name: tree_stack([cast(dict[str, Tree], t)[name] for t in trees]) for name in first})
    return cast(AnyTree, torch.stack(cast(list[Tensor], trees)))


def tree_leaves(tree: object) -> Iterator[Tensor]:
    """Every tensor, in order."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from tree_leaves(value)
    else:
        yield cast(Tensor, tree)


def tree_add(a: AnyTree, b: AnyTree) -> AnyTree:
    """The sum of two equal trees."""
    if isinstance(a, dict):
        return cast(AnyTree, {name: tree_add(value, cast(dict[str, Tree], b)[name]) for name, value in a.items()})
    return cast(AnyTree, cast(Tensor, a) + cast(Tensor, b))


def tree_copy_(into: AnyTree, value: AnyTree) -> None:
    """A tree's tensors into another's, in place; what is the same tensor already is left."""
    if isinstance(into, dict):
        for name in into:
            tree_copy_(into[name], cast(dict[str, Tree], value)[name])
    elif into is not value:
        cast(Tensor, into).copy_(cast(Tensor, value))


def tree_same(a: object, b: object) -> bool:
    """Whether two trees have the same names and shapes."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(tree_same(a[name], b[name]) for name in a)
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape
