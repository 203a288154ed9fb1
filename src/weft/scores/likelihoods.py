"""Units of likelihoods: nats, bits, bits per dimension, perplexity; each says what bound it is.

A bound of the likelihood from below is one of the bits, or of the perplexity, from above.
"""

from __future__ import annotations

import math
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.core.configured import closest

__all__ = ["InUnits", "bits", "bits_per_dimension", "perplexity"]

_TURNED = {"exact": "", "lower bound": "upper bound", "upper bound": "lower bound", "estimate": "estimate"}
_DEQUANTIZED = ("uniform", "variational")


class InUnits(float):
    """A number that prints its unit, what bound it is, and how whole numbers became real ones.

    >>> InUnits(2.5, "bits per dimension", "upper bound", "uniform")
    2.5 bits per dimension by uniform dequantization (upper bound)

    Attributes:
        unit: what is counted.
        kind: `upper bound`, `lower bound`, `estimate`, `no bound`, or "" where it is exact.
        dequantized: by what noise, or "".
    """

    unit: str
    kind: str
    dequantized: str

    def __new__(cls, value: float, unit: str, kind: str = "", dequantized: str = "") -> Self:
        made = super().__new__(cls, value)
        made.unit, made.kind, made.dequantized = unit, kind, dequantized
        return made

    def __repr__(self) -> str:
        noise = f" by {self.dequantized} dequantization" if self.dequantized else ""
        return f"{float(self):.6g} {self.unit}{noise}{f' ({self.kind})' if self.kind else ''}"


def bits(nats: ArrayLike) -> NDArray[np.float64]:
    """Nats as bits: divided by log 2.

    >>> bits([math.log(2), math.log(8)]).round(3)
    array([1., 3.])
    """
    return np.asarray(nats, dtype=np.float64) / math.log(2)


def bits_per_dimension(
    log_prob: ArrayLike,
    dimensions: int,
    *,
    kind: str = "exact",
    dequantized: str | None = None,
    step: float = 1.0,
) -> InUnits:
    """How many bits a code for the rows needs in the mean for each of their entries: -mean(log p) / (D log 2).

    Of whole numbers to which noise was added, x + u, the density of the sum bounds their probability P from below,

        E_u log p(x + u) <= log P(x),   for u uniform on [0, 1)^D,

    so the bits are an upper bound, and say so. Where such numbers were divided as well, a level is narrower than 1 and
    the density larger by as much: `step` puts that right.

    Args:
        log_prob: of each row, in nats.
        dimensions: D, how many entries a row has.
        kind: what the log-densities are, as `learner.log_prob.kind` says.
        dequantized: by what noise whole numbers became real ones: `uniform`, `variational`, or None where none was
            added, and the bits are of the law that the model has itself.
        step: how far apart two levels lie in x: 1/256 for bytes that became numbers in [0, 1).

    References:
        Theis, van den Oord and Bethge, "A note on the evaluation of generative models", arXiv 1511.01844, section 3.1;
        Ho et al., "Flow++", arXiv 1902.00275 (variational dequantization).

    Example:
        >>> flat = np.zeros(10)  # bytes of any value alike, (x + u) / 256, have the density 1
        >>> bits_per_dimension(flat, 3, dequantized="uniform", step=1 / 256)
        8 bits per dimension by uniform dequantization (upper bound)
    """
    rows = _rows(log_prob)
    if isinstance(dimensions, bool) or not isinstance(dimensions, int | np.integer) or dimensions < 1:
        raise ValueError(f"expected the number of entries of a row, 1, 2, ..., got {dimensions!r}")
    if not (isinstance(step, int | float) and 0 < step < math.inf):
        raise ValueError(f"expected the distance of two levels, step > 0, got {step!r}")
    if dequantized is None and step != 1.0:
        raise ValueError(f"expected step with what was dequantized, got step={step!r} alone; say dequantized='uniform'")
    if dequantized is not None and dequantized not in _DEQUANTIZED:
        raise closest(dequantized, _DEQUANTIZED, "a dequantization")
    told = _turned(kind)
    if dequantized is not None and told != "estimate":
        told = "no bound" if told == "lower bound" else "upper bound"
    per = -(float(rows.mean()) / int(dimensions) + math.log(step))
    return InUnits(per / math.log(2), "bits per dimension", told, dequantized or "")


def perplexity(log_prob: ArrayLike, lengths: ArrayLike | None = None, *, kind: str = "exact") -> InUnits:
    """exp(-sum log p / sum lengths): among how many equally likely tokens the model is in doubt.

    Args:
        log_prob: of each row (text, sequence), in nats.
        lengths: how many tokens each row has; None for rows of one.
        kind: what the log-probabilities are, as `learner.log_prob.kind` says.

    Example:
        >>> perplexity([5 * math.log(1 / 6), 2 * math.log(1 / 6)], lengths=[5, 2])
        6 tokens
    """
    rows = _rows(log_prob)
    count = np.ones(len(rows)) if lengths is None else np.asarray(lengths, dtype=np.float64)
    if count.shape != rows.shape or not (count >= 1).all():
        raise ValueError(f"expected a length >= 1 for each of {len(rows)} rows, got shape {count.shape} or less")
    return InUnits(math.exp(-float(rows.sum()) / float(count.sum())), "tokens", _turned(kind))


def _rows(log_prob: ArrayLike) -> NDArray[np.float64]:
    rows = np.asarray(log_prob, dtype=np.float64)
    if rows.ndim != 1 or not len(rows):
        raise ValueError(
            f"expected one log-density for each row, got shape {rows.shape}; learner.log_prob(X) gives them"
        )
    if np.isnan(rows).any():
        raise ValueError(f"expected log-densities in nats, got NaN in {int(np.isnan(rows).sum())} of {len(rows)} rows")
    return rows


def _turned(kind: str) -> str:
    """What a negative of the likelihood is."""
    if kind not in _TURNED:
        raise closest(kind, _TURNED, "a kind")
    return _TURNED[kind]
