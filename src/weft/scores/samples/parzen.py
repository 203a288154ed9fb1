"""The likelihood of a sampler by Gaussian balls around its draws: a poor judge, here so that this can be seen."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weft.core.legal import Number
from weft.scores.predictions import mean_interval
from weft.scores.samples.reading import Samples, between, blocks, pair

__all__ = ["Parzen", "parzen_likelihood"]

_WIDTH = Number(0, ends="()")
_TRIED = np.geomspace(0.02, 2.0, 47)  # in deviations of the validation rows


@dataclass(frozen=True)
class Parzen:
    """What Gaussian balls around draws say of rows; `float(answer)` is the mean.

    Attributes:
        value: the mean log-density of rows, in nats, of the balls: neither bound nor estimate of the sampler's own.
        interval: of 95%, over rows; of other draws it says nothing.
        bandwidth: the deviation of a ball.
    """

    value: float
    interval: tuple[float, float]
    bandwidth: float

    def __float__(self) -> float:
        return self.value


def parzen_likelihood(
    samples: Samples, X: Samples, *, validation: Samples, bandwidths: Sequence[float] | None = None
) -> Parzen:
    """The log-likelihood of rows under Gaussian balls around draws of a sampler that has no density of its own:

        log p^(x) = log 1/S sum_s N(x; x_s, h^2 I),

    the h that is likeliest on validation rows, in the mean over X. Known as the Parzen window estimate, and no way to
    rank samplers: it is the likelihood of another model, and what is good for balls is not what is good.

    - Draws of the right law lose to far fewer points that are placed well: a sampler that draws nothing but the mean of
      a Gaussian has the true likelihood (the example), one that draws centroids of k-means beats draws of the truth.
    - In tens of dimensions thousands of draws of the right law stay nats below the likelihood of the law itself.
    - A sampler that draws its training rows again is as good as the truth.

    For comparing draws with rows see `weft.scores.c2st` and `weft.scores.mmd`; for a bound, a model that has one.

    Args:
        samples: draws of the sampler, `(S, ...)`.
        X: rows to judge by.
        validation: other rows, by which h is chosen.
        bandwidths: those tried; by default 47 from .02 to 2 of the validation rows' deviation.

    References:
        Breuleux, Bengio and Vincent, "Quickly generating representative samples from an RBM-derived process", Neural
        Computation 23, 2011. Theis, van den Oord and Bethge, "A note on the evaluation of generative models",
        arXiv 1511.01844, section 3.2: the faults.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X, others, right = rng.normal(size=(3, 1000, 10))
        >>> truth = -0.5 * (X**2).sum(1).mean() - 5 * np.log(2 * np.pi)
        >>> silly = parzen_likelihood(np.zeros((1, 10)), X, validation=others)  # one point, again and again
        >>> honest = parzen_likelihood(right, X, validation=others)
        >>> bool(abs(silly.value - truth) < 0.1), silly.value - honest.value > 0.5
        (True, True)
    """
    draws, rows = pair(samples, X, least=1)
    _, held = pair(samples, validation, least=1)
    for name, given in (("X", rows), ("validation", held)):
        if len(given) < 2:
            raise ValueError(f"expected at least two rows in {name}, got {len(given)}; give more of them")
    if rows.shape == held.shape and bool((rows == held).all()):
        raise ValueError("expected validation rows other than X, got the same; the width would be chosen by the answer")
    if bandwidths is None:
        tried = _TRIED * float(held.std(0).square().mean().sqrt())
    else:
        tried = np.sort(np.asarray(bandwidths, dtype=np.float64).reshape(-1))
        for width in tried.tolist():
            _WIDTH.check(width, "a bandwidth")
    if not len(tried) or not tried[0] > 0:
        raise ValueError("expected bandwidths > 0 to try, got none; give bandwidths=[...]")
    scores = _log_balls(draws, held, torch.as_tensor(tried, device=draws.device)).mean(1)
    best = int(scores.argmax())
    if len(tried) > 1 and best in (0, len(tried) - 1):
        warnings.warn(
            f"expected the likeliest bandwidth between those tried, got the {'least' if best == 0 else 'largest'}, "
            f"{tried[best]:.3g}; try others: bandwidths=[...]; validation rows that were drawn again ask for none",
            stacklevel=2,
        )
    own = _log_balls(draws, rows, torch.as_tensor(tried[best : best + 1], device=draws.device))[0].cpu().numpy()
    return Parzen(float(own.mean()), mean_interval(own), float(tried[best]))


def _log_balls(draws: Tensor, rows: Tensor, widths: Tensor) -> Tensor:
    """log p^ of each row, for each width: `(widths, rows)`."""
    centre = draws.mean(0)
    found = []
    for first, last in blocks(len(rows), len(draws)):
        squares = between(rows[first:last] - centre, draws - centre)
        found.append(torch.stack([torch.logsumexp(-squares / (2 * h**2), 1) for h in widths]))
    constant = math.log(len(draws)) + 0.5 * draws.shape[1] * torch.log(2 * math.pi * widths**2)
    return torch.cat(found, 1) - constant[:, None].to(found[0].dtype)
