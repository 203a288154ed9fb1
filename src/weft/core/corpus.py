"""Measures of a corpus: of all rows together, and no mean over them. Perplexity, BLEU, F1, average precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.core.trees import Tree, tree_leaves, tree_map

__all__ = ["Corpus", "explained_variance"]


@dataclass(frozen=True)
class Corpus:
    """A measure that is concluded from all rows: from sums over them, or from the rows themselves.

    `Objective.measure` gives it in the place of a tensor. The batches of an evaluation, and the processes that share
    it, are joined before `conclude` is asked, once for each replica, so that how the rows were cut does not matter.

        perplexity = Corpus(sums={"nats": losses * tokens, "tokens": tokens}, conclude=perplexity_of)

    Args:
        sums: tensors by name with the rows on their leading axis, which are summed over the rows in double precision,
            each row times its weight.
        rows: the same, which are kept row by row, in their order and at their cost in memory; `conclude` finds each
            row's weight beside them, as `weight`, and no row of weight 0.
        conclude: from the sums, or the rows, to one number; a function of its argument alone.

    Example:
        >>> f1 = Corpus(
        ...     sums={"hit": torch.tensor([1, 0, 1]), "said": torch.tensor([1, 1, 1]), "true": torch.tensor([1, 0, 1])},
        ...     conclude=lambda n: 2 * n["hit"] / (n["said"] + n["true"]),
        ... )
        >>> f1.conclude({name: column.sum() for name, column in f1.sums.items()})
        tensor(0.8000)
    """

    sums: Mapping[str, Tree] | None = None
    rows: Mapping[str, Tree] | None = None
    conclude: Callable[..., Tensor | float] | None = None

    def checked(self, name: str, count: int) -> Corpus:
        """It; raises where there are not sums or rows, of as many rows as the batch has, and a conclusion."""
        if (self.sums is None) == (self.rows is None) or not callable(self.conclude):
            raise TypeError(f"expected {name!r} to be Corpus(sums=..., conclude=...) or Corpus(rows=..., conclude=...)")
        for leaf in tree_leaves(self.tree):
            if not isinstance(leaf, Tensor) or leaf.shape[:1] != (count,):
                got = tuple(leaf.shape) if isinstance(leaf, Tensor) else repr(leaf)
                raise ValueError(f"expected {name!r} of a value for each of the {count} rows, got {got}")
        if self.rows is not None and "weight" in self.rows:
            raise ValueError(f"expected the rows of {name!r} without 'weight', which is added; call it otherwise")
        return self

    @property
    def tree(self) -> dict[str, Tree]:
        """The sums or the rows."""
        return dict((self.sums if self.sums is not None else self.rows) or {})

    def gathered(self, weight: Tensor) -> dict[str, Tree]:
        """What a batch with these weights adds: sums in double precision, or rows with their weights."""
        if self.rows is not None:
            return {**self.tree, "weight": weight}

        def total(values: Tensor) -> Tensor:
            counts = weight.double().reshape(-1, *(1,) * (values.dim() - 1))
            return torch.where(counts == 0, 0.0, values.double() * counts).sum(0)  # whatever stands in padding

        return tree_map(total, self.tree)

    def concluded(self, name: str, tree: dict[str, Tree], dtype: torch.dtype) -> Tensor:
        """The number, from everything that was gathered."""
        if self.rows is not None:
            real = tree["weight"] > 0  # type: ignore[operator]
            tree = tree_map(lambda leaf: leaf[real], tree)
        found = self.conclude(tree)  # type: ignore[misc]
        value = found if isinstance(found, Tensor) else torch.tensor(found, dtype=torch.float64)
        if value.dim():
            raise ValueError(f"expected {name!r} to conclude in one number, got shape {tuple(value.shape)}")
        return value.to(dtype)


def explained_variance(said: Tensor, true: Tensor) -> Corpus:
    """The share of the variance of `true` that `said` explains, `1 - Var(true - said) / Var(true)`, as a measure.

    It is 1 where all is explained, 0 where a constant would do as well, and may be negative; NaN where nothing varies.

    >>> measure = explained_variance(torch.tensor([1.0, 2.0, 3.5]), torch.tensor([1.0, 2.0, 3.0]))
    >>> measure.concluded("explained", measure.gathered(torch.ones(3)), torch.float32)
    tensor(0.9167)
    """
    error = (true - said).double()
    true = true.double()
    sums = {"rows": torch.ones_like(true), "true": true, "error": error}
    return Corpus(sums={**sums, "true squared": true.square(), "error squared": error.square()}, conclude=_explained)


def _explained(sums: dict[str, Tensor]) -> Tensor:
    count = sums["rows"]
    left, whole = (sums[f"{n} squared"] / count - (sums[n] / count).square() for n in ("error", "true"))
    return 1 - left / whole
