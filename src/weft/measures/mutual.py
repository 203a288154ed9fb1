"""Lower bounds of the mutual information of two arrays, by critics that are judged on rows they have not seen."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from weft.measures.critics import Bound, Pairs, bound_of, infonce_of, parts, rows_of, tangent, trained
from weft.scores.samples.reading import Samples

__all__ = ["infonce", "mine"]


def infonce(
    X: Samples,
    Z: Samples,
    *,
    among: int = 128,
    held: float = 0.5,
    steps: int = 500,
    hidden: Sequence[int] = (64, 64),
    features: int = 32,
    random_state: int = 0,
) -> Bound:
    """I(X; Z) from below, by how well the own z of an x is told among K (InfoNCE), in nats.

        I(X; Z) >= E log (e^T(x_i, z_i) / (1/K sum_j e^T(x_i, z_j))),      j over a block of K rows,

    for every T that was made without these rows. It has little variance, and is at most log K: near that it tells
    nothing of how much larger I is, and a warning says so. T(x, z) = f(x)' g(z) + a(x) + b(z), of two nets that are
    trained by this very bound on one part of the rows; the blocks are of the other part.

    Args:
        X, Z: rows that belong together, `(n, ...)` each.
        among: K.
        held: the share of rows that the critic is judged on, in whole blocks.
        steps: of training, with batches of K.
        hidden, features: hidden widths of both nets, and the length of f and g.
        random_state: the seed of parts and of training.

    References:
        van den Oord, Li and Vinyals, "Representation learning with contrastive predictive coding", arXiv 1807.03748.
        Poole, Ozair, van den Oord, Alemi and Tucker, "On variational bounds of mutual information", arXiv 1905.06922.

    Example:
        >>> import numpy as np
        >>> X, noise = np.random.default_rng(0).normal(size=(2, 2000, 1))
        >>> found = infonce(X, 0.8 * X + 0.6 * noise, steps=200)  # I = -log(1 - .8^2) / 2 = .51
        >>> 0.35 < found.value < 0.6, found.kind, round(found.ceiling, 2)
        (True, 'lower bound', 4.85)
    """
    x, z = _paired(X, Z)
    learned, blocks, key = parts(len(x), among, held, random_state)
    critic = Pairs("infonce", hidden=hidden, features=features)
    _, said = trained(critic, {"x": x, "z": z}, learned, blocks, steps=steps, key=key)
    values = [float(infonce_of(own, every).mean()) for own, every in said]
    about = f"InfoNCE among K = {among}, {len(blocks)} blocks held out of {len(x):,} rows"
    return bound_of("infonce", values, "lower bound", math.log(among), math.log(among), about)


def mine(
    X: Samples,
    Z: Samples,
    *,
    among: int = 128,
    held: float = 0.5,
    steps: int = 500,
    hidden: Sequence[int] = (64, 64),
    features: int = 32,
    random_state: int = 0,
) -> Bound:
    """I(X; Z) from below, by Donsker and Varadhan's bound with a critic that is trained (MINE), in nats.

        I(X; Z) >= E T(x, z) - log E e^T(x, z'),      z' of another row.

    The paper takes the log of a batch's mean and a moving average in the gradient, since both are biased. Here neither
    is needed. Training takes all pairs of a batch that do not belong together in the log, so that the bias of its
    gradient is small, and whatever is left of it makes a worse critic, not a wrong bound. The value is not the log of a
    mean over held-out rows either, which is too high on average, but the tangent -a / c - log c + 1 at the mean c over
    the rows learned from: a lower bound in expectation, whatever c is.

    There is no ceiling, and much variance instead: e^T is large on pairs so rare that none may be seen. A warning says
    where more is claimed than so many rows can tell.

    Args:
        X, Z, held, steps, hidden, features, random_state: as in `infonce`.
        among: the rows of a batch, and of a block that is judged.

    References:
        Belghazi et al., "MINE: mutual information neural estimation", arXiv 1801.04062.
        Nguyen, Wainwright and Jordan, "Estimating divergence functionals", arXiv 0809.0853 (the tangent).
        McAllester and Stratos, "Formal limitations on the measurement of mutual information", arXiv 1811.04251.

    Example:
        >>> import numpy as np
        >>> X, noise = np.random.default_rng(0).normal(size=(2, 2000, 1))
        >>> found = mine(X, 0.8 * X + 0.6 * noise, steps=200)  # I = .51
        >>> 0.35 < found.value < 0.6, found.ceiling
        (True, None)
    """
    x, z = _paired(X, Z)
    learned, blocks, key = parts(len(x), among, held, random_state)
    critic = Pairs("tangent", hidden=hidden, features=features)
    values = tangent(*trained(critic, {"x": x, "z": z}, learned, blocks, steps=steps, key=key))
    about = f"the tangent of Donsker and Varadhan's bound, {len(blocks)} blocks of {among} held out of {len(x):,} rows"
    return bound_of("mine", values, "lower bound", None, math.log(len(blocks) * among), about)


def _paired(X: Samples, Z: Samples) -> tuple[Tensor, Tensor]:
    x, z = rows_of(X, "X"), rows_of(Z, "Z")
    if len(x) != len(z):
        raise ValueError(f"expected as many rows in Z as in X, since they belong together, got {len(z)} and {len(x)}")
    return x, z
