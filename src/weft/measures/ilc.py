"""Invariant learning consistency: would the other environments have found the same optimum?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from weft.core.random import fold, gauss, key_of
from weft.learner.estimator import Learner
from weft.measures.fitted import Fitted

__all__ = ["Consistency", "consistency", "learner_consistency", "quadratic_consistency"]


def quadratic_consistency(hessians: Any, *, epsilon: float, values: Any = None) -> float:
    """The invariant learning consistency of an optimum that quadratic losses share, in closed form.

    The inconsistency of an optimum t for environments e is

        I(t) = max_{e, e'} max_{s in N_e} |L_e'(s) - L_e(t)|,

    N_e the largest path-connected region around t in which |L_e(s) - L_e(t)| <= epsilon; consistency is -I. For

        L_e(s) = v_e + (s - t)' H_e (s - t) / 2

    N_e is an ellipsoid, on which L_e' runs from v_e' to v_e' + epsilon q, with q the largest eigenvalue of
    H_e^-1 H_e' (infinite where e' is curved in a direction in which e is flat). Hence

        I = max_{e, e'} max(|v_e' - v_e|, |v_e' - v_e + epsilon q_ee'|),

    and epsilon max_i max(a_i / b_i, b_i / a_i) for two diagonal ones of equal values. Gradient descent on quadratics
    ends in t from every start, so that no mean over starts is needed.

    Args:
        hessians: (environments, d, d), symmetric and without negative eigenvalues; or (environments, d), diagonals.
        epsilon: how much worse an environment may get, > 0.
        values: v_e, the losses at the optimum; zeros by default.

    Returns:
        -I, at most -epsilon unless every environment is flat.

    References:
        Parascandolo, Neitz, Orvieto, Gresele and Schölkopf, "Learning explanations that are hard to vary", arXiv
        2009.00329, section 2.

    Example:
        >>> round(quadratic_consistency([[1.0, 2.0], [1.0, 8.0]], epsilon=0.1), 6)
        -0.4
    """
    H = np.asarray(hessians, dtype=float)
    if H.ndim == 2:
        H = H[:, :, None] * np.eye(H.shape[1])
    if H.ndim != 3 or H.shape[1] != H.shape[2] or not H.size:
        raise ValueError(f"expected hessians of shape (environments, d) or (environments, d, d), got {H.shape}")
    if not np.isfinite(H).all() or not np.allclose(H, H.transpose(0, 2, 1)):
        raise ValueError("expected finite symmetric hessians, got others")
    v = np.zeros(len(H)) if values is None else np.asarray(values, dtype=float)
    if v.shape != (len(H),):
        raise ValueError(f"expected one value for each of {len(H)} environments, got shape {v.shape}")
    _positive(epsilon=epsilon)
    worst = 0.0
    for e, own in enumerate(H):
        curved, axes = np.linalg.eigh(own)
        slack = 1e-12 * max(abs(curved).max(), np.finfo(float).tiny)
        if curved.min() < -slack:
            raise ValueError(f"expected a minimum, got an eigenvalue of {curved.min():.3g} in environment {e}")
        round_ = axes[:, curved > slack] / np.sqrt(curved[curved > slack])  # maps the unit ball onto directions of N_e
        flat = axes[:, curved <= slack]
        for f, other in enumerate(H):
            if np.abs(other @ flat).max(initial=0.0) > 1e-12 * np.abs(other).max():
                return -np.inf
            q = max(0.0, np.linalg.eigvalsh(round_.T @ other @ round_).max(initial=0.0))
            worst = max(worst, abs(v[f] - v[e]), abs(v[f] - v[e] + epsilon * q))
    return -float(worst)


@dataclass(frozen=True)
class Consistency:
    """An estimate of invariant learning consistency, with how it was searched for.

    Attributes:
        value: -I, averaged over the optima. The search finds points, not bounds: the true value is at most this.
        optima: -I of each optimum.
        pair: of the worst optimum, the environments (e, e') that differ most: leaving e unharmed harms e'.
        epsilon: how much the loss of e may change.
        steps, restarts: of the search, for each optimum and pair.
        settled: the share of searches that had come to rest; where it is small, more steps would find more.
    """

    value: float
    optima: list[float]
    pair: tuple[Any, Any]
    epsilon: float
    steps: int
    restarts: int
    settled: float


def consistency(
    losses: Callable[[Tensor], Tensor],
    optima: Any,
    *,
    epsilon: float,
    steps: int = 200,
    restarts: int = 2,
    radius: float = 1e-2,
    random_state: int = 0,
) -> Consistency:
    """A numerical estimate of invariant learning consistency for any losses that have gradients.

        ILC = -mean_t I(t),     I(t) = max_{e, e'} max_{s in N_e(t)} |L_e'(s) - L_e(t)|,

    with N_e(t) the largest path-connected region around t where |L_e(s) - L_e(t)| <= epsilon, and the mean over the
    optima t to which the starting points led. For each t, ordered pair and sign of the difference, a point walks from
    a random place close to t up the gradient of the difference. At the border of N_e it walks along it, by the
    gradient's tangential part, and is brought back by Newton steps along the gradient of L_e. A step is taken if it
    raises the difference and if its end and three points on the way lie in N_e, so that the way from t is a path in
    N_e as far as those points can tell; else it is halved. What is found is a lower bound of I.

    Args:
        losses: from parameters (d,) in float64 to the losses of the environments, (environments,).
        optima: (d,), or (optima, d): one for each starting point.
        epsilon: how much the loss of an environment may change, > 0.
        steps: of each walk.
        restarts: walks for each optimum, pair and sign.
        radius: the length of a walk's first step.
        random_state: draws the walks' first places.

    Returns:
        `Consistency`.

    References:
        Parascandolo, Neitz, Orvieto, Gresele and Schölkopf, "Learning explanations that are hard to vary", arXiv
        2009.00329, section 2. The search is ours.

    Example:
        >>> curved = torch.tensor([[1.0, 2.0], [1.0, 8.0]], dtype=torch.float64)
        >>> found = consistency(lambda s: (curved * s**2).sum(1) / 2, torch.zeros(2), epsilon=0.1)
        >>> round(found.value, 4), found.pair
        (-0.4, (0, 1))
    """
    _positive(epsilon=epsilon, radius=radius)
    for name, count in (("steps", steps), ("restarts", restarts)):
        if not isinstance(count, int | np.integer) or count < 1:
            raise ValueError(f"expected {name} to be an integer >= 1, got {count!r}")
    points = torch.as_tensor(optima, dtype=torch.float64)
    points = points.unsqueeze(0) if points.dim() == 1 else points
    if points.dim() != 2 or not points.numel():
        raise ValueError(f"expected optima of shape (d,) or (optima, d), got {tuple(points.shape)}")
    values, pairs, still = [], [], []
    for k, point in enumerate(points):
        key = fold(key_of(random_state), "consistency", k)
        worst, pair, rest = _inconsistency(losses, point, epsilon, steps, restarts, radius, key)
        values.append(-worst)
        pairs.append(pair)
        still.append(rest)
    return Consistency(
        value=float(np.mean(values)),
        optima=values,
        pair=pairs[int(np.argmin(values))],
        epsilon=epsilon,
        steps=steps,
        restarts=restarts,
        settled=float(np.mean(still)),
    )


def _inconsistency(
    losses: Callable[[Tensor], Tensor],
    optimum: Tensor,
    epsilon: float,
    steps: int,
    restarts: int,
    radius: float,
    key: Tensor,
) -> tuple[float, tuple[int, int], float]:
    """I of one optimum, the pair where it is largest and the share of walks at rest; all walks go at once."""
    start = losses(optimum).detach()
    E, d = len(start), len(optimum)
    kinds = torch.cartesian_prod(torch.arange(E), torch.arange(E), torch.arange(2), torch.arange(restarts))
    e, other = kinds[:, 0].to(optimum.device), kinds[:, 1].to(optimum.device)
    sign = (1.0 - 2.0 * kinds[:, 2]).to(optimum)
    every = torch.vmap(losses)

    def gained(values: Tensor) -> Tensor:
        return sign * (values.gather(1, other[:, None])[:, 0] - start[e])

    def off(values: Tensor) -> Tensor:
        return values.gather(1, e[:, None])[:, 0] - start[e]

    def slope(at: Tensor, which: Tensor) -> Tensor:
        weight = torch.nn.functional.one_hot(which, E).to(at)
        return torch.vmap(torch.func.grad(lambda s, w: (losses(s) * w).sum()))(at, weight)

    at = optimum.expand(len(e), d).clone()
    best = gained(every(at))
    length = torch.full_like(best, radius)
    direction = gauss(fold(key, torch.arange(len(e), device=key.device)), (d,), torch.float64).to(optimum)
    for turn in range(steps):
        if turn:
            direction = sign[:, None] * slope(at, other)
            out = slope(at, e)
            change = off(every(at))
            border = (change.abs() > (1 - 1e-5) * epsilon) & ((direction * out).sum(1) * change > 0)
            along = (direction * out).sum(1) / out.square().sum(1).clamp_min(1e-300)
            direction = torch.where(border[:, None], direction - along[:, None] * out, direction)
        direction = direction / direction.norm(dim=1, keepdim=True).clamp_min(1e-300)
        end = at + length[:, None] * direction
        for _ in range(3):  # back to the border where it is crossed
            change = off(every(end))
            out = slope(end, e)
            beyond = change - change.sign() * epsilon * (1 - 1e-6)
            back = torch.where(change.abs() > epsilon, beyond / out.square().sum(1).clamp_min(1e-300), 0.0)
            end = end - back[:, None] * out
        inside = torch.ones_like(best, dtype=torch.bool)
        for part in (0.25, 0.5, 0.75, 1.0):
            reached = every(torch.lerp(at, end, part))
            inside &= off(reached).abs() <= epsilon
        gain = gained(reached)
        # the first step only leaves the optimum, where there is no slope to follow
        taken = inside & torch.isfinite(gain) & ((gain > best) | (turn == 0))
        at = torch.where(taken[:, None], end, at)
        best = torch.where(taken, gain, best)
        length = torch.where(taken, length * 1.5, length * 0.5)
    reached = every(at)
    final = gained(reached)
    k = int(final.argmax())
    still = length < 1e-4 * (at - optimum).norm(dim=1).clamp_min(1e-12)
    return float(final[k]), (int(e[k]), int(other[k])), float(still.double().mean())


def learner_consistency(
    learner: Learner, X: Any, y: Any = None, *, environment: Any, epsilon: float, **search: Any
) -> Consistency:
    """The numerical estimate for a fitted learner: each replica is the optimum of a starting point of its own.

    See `consistency`. The losses are the means of the objective's own loss over the rows of each environment, in
    evaluation mode and double precision.

    Args:
        learner: fitted, at an optimum; with replicas the mean over starting points is over them.
        X, y: rows, as for `fit`.
        environment: of each row.
        epsilon: how much the loss of an environment may change.
        search: `steps`, `restarts`, `radius` and `random_state` of `consistency`.

    Example:
        >>> from weft import Optimizer, Regressor
        >>> X = torch.tensor([[1.0], [-1.0], [2.0], [-2.0]])
        >>> line = Regressor("linear", optimizer=Optimizer("sgd", lr=0.3), steps=200, batch_size=None, random_state=0)
        >>> line = line.fit(X, 3 * X[:, 0])
        >>> found = learner_consistency(line, X, 3 * X[:, 0], environment=["a", "a", "b", "b"], epsilon=0.1)
        >>> round(found.value, 3), found.pair  # curvatures of the weight are 1 and 4
        (-0.4, ('a', 'b'))
    """
    check_is_fitted(learner)
    each_run = [learner] if learner.replicas is None else [learner.replica(k) for k in range(len(learner.seeds_))]
    runs = [Fitted.of(run, X, y, environment) for run in each_run]
    shapes = {name: p.shape for name, p in runs[0].params.items()}

    def tree(flat: Tensor) -> dict[str, Tensor]:
        parts = flat.split([shape.numel() for shape in shapes.values()])
        return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    each = []
    for run in runs:
        flat = torch.cat([p.detach().reshape(-1) for p in run.params.values()])

        def losses(s: Tensor, run: Fitted = run) -> Tensor:
            return run.risks(tree(s))

        one = consistency(losses, flat, epsilon=epsilon, **search)
        e, other = one.pair
        each.append(replace(one, pair=(run.names[e], run.names[other])))
    values = [one.value for one in each]
    worst = each[int(np.argmin(values))]
    settled = float(np.mean([one.settled for one in each]))
    return Consistency(float(np.mean(values)), values, worst.pair, epsilon, worst.steps, worst.restarts, settled)


def _positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0.0 < number < np.inf:
            raise ValueError(f"expected {name} to be a positive number, got {number!r}")
