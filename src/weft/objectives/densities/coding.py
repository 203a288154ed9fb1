"""Lossless compression: rows become about -log2 p(x) bits by an arithmetic coder, and come back as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.objectives.densities.autoregressive import Autoregressive
from weft.objectives.densities.laws import Law

__all__ = ["compress", "decompress"]

Words = NDArray[np.uint32]


def compress(density: Autoregressive, X: Any, y: Any = None) -> Words:
    """Rows of whole numbers as words of 32 bits, altogether about -sum log2 p(x).

    Entry by entry in the order of the model, a range coder takes as many bits for each as its conditional probability
    says. Probabilities are rounded to 24 bits, so that rare outcomes cost a little; whatever the rows, they come back.

    Args:
        density: a fitted model with one order, such as `learner.objective_`, of bits, classes or levels.
        X: rows, as it was fitted to: an array, no table.
        y: the class number of each row, of a conditional model.

    References:
        Bamler, "Understanding entropy coding with asymmetric numeral systems (ANS): a statistician's perspective",
        arXiv 2201.01741, whose `constriction` codes.
    """
    stream = _constriction()
    rows = torch.as_tensor(np.asarray(X), dtype=torch.float64)
    if rows.shape[1:] != density.shape:
        of = f"{len(density.entries)} numbers" if len(density.shape) == 1 else f"shape {density.shape}"
        raise ValueError(f"expected rows of {of}, got shape {tuple(rows.shape)}")
    _refuse_other(density)
    rows = density.flat(rows)
    density.entries.refuse(rows)
    coder = stream.queue.RangeEncoder()

    def code(entry: int, shares: NDArray[np.float64]) -> Tensor:
        coder.encode(rows[:, entry].numpy().astype(np.int32), _family(stream), shares)
        return rows[:, entry]

    _walk(density, len(rows), y, code)
    words: Words = coder.get_compressed()
    return words


def decompress(density: Autoregressive, words: Words, n: int, y: Any = None) -> NDArray[np.int64]:
    """The rows that `compress` was given, by the same model on a machine that computes alike.

    Args:
        density: the model.
        words: what `compress` gave.
        n: how many rows there were.
        y: as for `compress`.
    """
    stream = _constriction()
    _refuse_other(density)
    coder = stream.queue.RangeDecoder(np.asarray(words, dtype=np.uint32))

    def code(entry: int, shares: NDArray[np.float64]) -> Tensor:
        return torch.as_tensor(coder.decode(_family(stream), shares), dtype=torch.float64)

    rows = _walk(density, n, y, code)
    if not coder.maybe_exhausted():
        raise ValueError(
            f"expected the words of {n} rows by this very model, got some that are left over or of others; give the n, "
            "y and parameters that they were compressed with"
        )
    return rows.unflatten(-1, density.shape).numpy().astype(np.int64)


def _constriction() -> Any:
    try:
        import constriction
    except ImportError as error:
        raise ImportError(
            "expected constriction, the entropy coder, to be installed, got none; pip install 'weft[coding]'"
        ) from error
    return constriction.stream


def _family(stream: Any) -> Any:
    return stream.model.Categorical(perfect=False)


def _refuse_other(density: Autoregressive) -> None:
    if density.table:
        raise ValueError("expected a model of arrays, got one of a table; fit it to the columns' numbers")
    if density.members > 1:
        raise ValueError(
            f"expected a model with one order to code entries by, got the mean of {density.members}; take one with "
            "orderings=1 and masks=1"
        )
    for law, name in zip(density.entries.laws, density.entries.names, strict=True):
        if not law.outcomes:
            raise ValueError(
                f"expected laws of finitely many outcomes ('bernoulli', 'categorical', 'logistic-mixture') to code by, "
                f"got {law.name!r} of {name}"
            )


@torch.no_grad()
def _walk(density: Autoregressive, n: int, y: Any, code: Any) -> Tensor:
    """All entries in order: `code` is told the shares of an entry's outcomes in each row, and gives its numbers.

    Both ways do the very same sums on the very same numbers: a probability that differed in its last bit would make
    everything after it wrong.
    """
    like = next(density.parameters())
    density.eval()
    classes = None if y is None else torch.as_tensor(np.asarray(y), device=like.device)
    if classes is not None and not bool(((classes >= 0) & (classes < density.given)).all()):
        raise ValueError(f"expected class numbers 0..{density.given - 1} as y, got others; their places in classes_")
    x = torch.zeros(n, len(density.entries), dtype=like.dtype, device=like.device)
    inputs = density.read(x, classes)
    kept = density.begin(inputs)
    for known, j in enumerate(density.sequences[0]):
        law = density.entries.laws[j]
        told = code(j, _shares(law, density.advance(known, inputs, kept)))
        x[:, j] = told.to(x)
        inputs[:, density.spans[j]] = law.read(x[:, j])
    return x.cpu()


def _shares(law: Law, theta: Tensor) -> NDArray[np.float64]:
    """The probability of each outcome in each row."""
    level = torch.arange(law.outcomes, device=theta.device, dtype=torch.float64)
    shares: NDArray[np.float64] = law.log_prob(theta.double().unsqueeze(-2), level).exp().cpu().numpy()
    return shares
