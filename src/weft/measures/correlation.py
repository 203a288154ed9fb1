"""Total correlation of codes: how far their entries are from independent."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from weft.core.legal import Choice
from weft.measures.critics import Bound, Columns, bound_of, parts, rows_of, tangent, trained
from weft.scores.predictions import mean_interval
from weft.scores.samples.reading import Samples

__all__ = ["total_correlation"]


def total_correlation(
    Z: Samples,
    *,
    by: str = "gaussian",
    among: int = 128,
    held: float = 0.5,
    steps: int = 500,
    hidden: Sequence[int] = (64, 64),
    random_state: int = 0,
) -> Bound:
    """TC(Z) = KL(p(z) || prod_j p(z_j)), in nats: 0 where the entries of a code are independent.

    `by="gaussian"` takes the codes for Gaussian: -1/2 log det of their correlations, plus what n rows of d entries put
    on top of it on average, exactly, 1/2 sum_j (digamma((n - j) / 2) - digamma((n - 1) / 2)). Of other codes it is that
    of the Gaussian with the same correlations, which may be too high or too low: entries that depend without
    correlating have 0. `by="critic"` is a lower bound for any codes: a net is trained to tell rows from rows whose
    entries come from different rows, and judged on rows it has not seen, as in `weft.measures.mine`; its warnings hold.

    Codes are draws, `learner.posterior(X)[:, 0]`; their means, `learner.transform(X)`, correlate more than they do.

    Args:
        Z: codes, `(n, d)`.
        by: `gaussian` or `critic`.
        among, held, steps, hidden, random_state: of the critic, as in `weft.measures.mine`.

    References:
        Watanabe, "Information theoretical analysis of multivariate correlation", IBM Journal 4, 1960.
        Kim and Mnih, "Disentangling by factorising", arXiv 1802.05983 (a critic of permuted codes).
        Chen, Li, Grosse and Duvenaud, "Isolating sources of disentanglement in VAEs", arXiv 1802.04942.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> Z = rng.multivariate_normal([0, 0], [[1.0, 0.8], [0.8, 1.0]], 4000)  # TC = -log(1 - .8^2) / 2 = .51
        >>> abs(total_correlation(Z).value - 0.51) < 0.05
        True
        >>> Z[:, 1] = abs(Z[:, 0]) + 0.3 * rng.normal(size=4000)  # depends, and does not correlate
        >>> total_correlation(Z).value < 0.01, total_correlation(Z, by="critic", steps=200).value > 0.2
        (True, True)
    """
    Choice("gaussian", "critic").check(by, "by", "gaussian")
    z = rows_of(Z, "Z")
    n, d = z.shape
    if d < 2:
        raise ValueError(f"expected codes of at least two entries, got {d}; one entry alone correlates with nothing")
    still = (z.std(0) == 0).nonzero().flatten().tolist()
    if still:
        raise ValueError(f"expected entries that vary, got a constant in columns {still[:8]}; leave such units out")
    if by == "critic":
        if among < d:
            raise ValueError(f"expected at least as many rows in a block as entries, got among={among} for {d} entries")
        learned, blocks, key = parts(n, among, held, random_state)
        critic = Columns("tangent", hidden=hidden)
        values = tangent(*trained(critic, {"x": z}, learned, blocks, steps=steps, key=key))
        about = f"the tangent of Donsker and Varadhan's bound, {len(blocks)} blocks of {among} held out of {n:,} rows"
        return bound_of("total correlation", values, "lower bound", None, math.log(len(blocks) * among), about)
    if n <= d + 1:
        raise ValueError(f"expected more rows than entries and one, got {n} rows of {d}; draw more codes")
    unit = (z - z.mean(0)) / z.std(0, correction=0)
    factor, wrong = torch.linalg.cholesky_ex(unit.mT @ unit / n)
    volume = 2 * factor.diagonal().log().sum()
    if int(wrong) or float(volume) < d * math.log(1e-12):
        raise ValueError(
            "expected entries of which none is a sum of others, got correlations without an inverse: their total "
            "correlation is infinite; leave out what repeats"
        )
    whitened = torch.linalg.solve_triangular(factor, unit.mT, upper=False)
    each = 0.5 * ((unit**2).sum(1) - (whitened**2).sum(0)) - 0.5 * volume  # log N(z) - sum_j log N(z_j), of each row
    halves = torch.arange(n - 1, n - 1 - d, -1, dtype=torch.float64) / 2
    excess = 0.5 * float((torch.digamma(halves) - torch.digamma(halves[0])).sum())
    value = -0.5 * float(volume) + excess
    low, high = mean_interval(each.numpy())
    return Bound(
        "total correlation",
        value,
        (low + excess, high + excess),
        "estimate",
        None,
        f"of the Gaussian with the correlations of {n:,} rows",
    )
