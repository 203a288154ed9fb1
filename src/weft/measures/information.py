"""Fisher information of a fitted learner, and how far two tasks depend on the same parameters."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from weft.core.source import Batch, rows_of
from weft.core.trees import Params
from weft.engine.gradients.squares import Passes, rows_to_square, squares
from weft.learner.estimator import Learner
from weft.measures.fitted import Fitted
from weft.strategies.continual.laplace import Laplace

__all__ = ["fisher", "fisher_overlap"]


def fisher(learner: Learner, X: Any, y: Any = None, *, kind: str = "true") -> Params:
    """The diagonal of a fitted learner's Fisher information, a mean over rows,

        F_i = 1/n sum_x E_{y ~ p(y|x)} [(d log p(y|x) / d theta_i)^2],

    in evaluation mode and double precision, exactly, by parameter name.

    Args:
        learner: fitted; one replica.
        X, y: rows, as for `fit`.
        kind: `true` (the expectation over the model's own labels, as above), `sampled` (one draw of them for each
            row) or `empirical` (y itself).

    Example:
        >>> from weft import Regressor
        >>> X, y = torch.tensor([[1.0], [3.0]]), torch.zeros(2)
        >>> line = Regressor("linear", steps=1, random_state=0).fit(X, y)
        >>> {name: f.flatten().tolist() for name, f in fisher(line, X, y).items()}
        {'net.1.weight': [5.0], 'net.1.bias': [1.0]}
    """
    way = Laplace(fisher=kind)
    way.validate()
    fitted = Fitted.of(learner, X, y)
    if reason := way.refuses(fitted.module):
        raise ValueError(f"{type(fitted.module).__name__} has no Fisher information of kind {kind!r}: {reason}")

    row = tuple((name, tuple(values.shape[1:])) for name, values in fitted.batch.items())
    few = {name: values[:16] for name, values in fitted.batch.items()}
    made = partial(
        Passes, fitted.module, fitted.params, fitted.others, fitted.buffers, key=fitted.key, memory=learner.memory
    )
    rows = rows_to_square(made, row, lambda: few, rows_of(fitted.batch))

    def batches() -> Iterator[Batch]:
        for first in range(0, rows_of(fitted.batch), rows):
            yield {name: values[first : first + rows] for name, values in fitted.batch.items()}

    total, examples = squares(made(batches), way.readout(fitted.module))
    return {name: f / examples for name, f in total.items()}


def fisher_overlap(first: Params, second: Params, *, by: str = "layer") -> dict[str, float]:
    """How far two tasks depend on the same parameters: 1 minus the squared Frechet distance of their Fisher matrices.

    With F and G the diagonals, each divided by its sum,

        overlap = 1 - d^2,    d^2 = 1/2 |sqrt(F) - sqrt(G)|^2,

    which is sum_i sqrt(F_i G_i): 1 where they are proportional, 0 where no parameter matters to both.

    Args:
        first, second: not negative, by parameter name, as `fisher` gives them for two tasks (or `EWC` keeps them as
            `precision`).
        by: normalized and compared by `layer` (weights and bias together), by `parameter` tensor, or as a `whole`.

    Returns:
        The overlap by name; NaN where one of them is zero.

    References:
        Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", arXiv 1612.00796, figure 3C and
        appendix 4.3.

    Example:
        >>> F = {"0.weight": torch.tensor([1.0, 1.0]), "1.weight": torch.tensor([1.0, 0.0])}
        >>> G = {"0.weight": torch.tensor([3.0, 3.0]), "1.weight": torch.tensor([0.0, 2.0])}
        >>> fisher_overlap(F, G)
        {'0': 1.0, '1': 0.0}
    """
    if by not in ("layer", "parameter", "whole"):
        raise ValueError(f"expected by to be 'layer', 'parameter' or 'whole', got {by!r}")
    if {n: f.shape for n, f in first.items()} != {n: f.shape for n, f in second.items()} or not first:
        raise ValueError(
            f"expected Fisher diagonals of the same parameters, got {[(n, tuple(f.shape)) for n, f in first.items()]} "
            f"and {[(n, tuple(f.shape)) for n, f in second.items()]}"
        )
    parts: dict[str, list[str]] = {}
    for name in first:
        where = name.rpartition(".")[0] if by == "layer" else name if by == "parameter" else "all"
        parts.setdefault(where, []).append(name)
    overlaps = {}
    for where, names in parts.items():
        F, G = (torch.cat([given[n].detach().double().flatten() for n in names]) for given in (first, second))
        if bool((F < 0).any()) or bool((G < 0).any()):
            raise ValueError(f"expected Fisher diagonals >= 0, got some less in {where!r}")
        distance = (F / F.sum()).sqrt() - (G / G.sum()).sqrt()
        overlaps[where] = 1.0 - 0.5 * float(distance.square().sum())
    return overlaps
