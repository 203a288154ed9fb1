"""Calibration: do probabilities and posteriors say how sure one may be?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.func import jacrev

from weft.core.trees import Params

__all__ = ["Posterior", "coverage", "expected_calibration_error", "posterior"]


def expected_calibration_error(y: Any, probabilities: Any, *, classes: Any = None, bins: int = 15) -> float:
    """The gap between how sure a classifier is and how often it is right. With the rows in bins B by confidence,

        ECE = sum_B |B| / n |accuracy(B) - confidence(B)|,

    confidence the largest probability of a row, bins of equal width. 0 is calibrated. (With few rows it is biased
    upwards, as chance alone makes a gap in every bin.)

    Args:
        y: the labels, (n,).
        probabilities: (n, classes), as `predict_proba` gives them.
        classes: the label of each column, as `classes_` has them; by default 0, 1, ...
        bins: how many.

    References:
        Naeini, Cooper and Hauskrecht, "Obtaining well calibrated probabilities using Bayesian binning", AAAI 2015;
        Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", arXiv 1706.04599.

    Example:
        >>> expected_calibration_error([0, 0, 0, 1], [[0.75, 0.25]] * 4)
        0.0
        >>> expected_calibration_error([0, 0, 1, 1], [[0.75, 0.25]] * 4)
        0.25
    """
    labels, p = np.asarray(y), np.asarray(probabilities, dtype=float)
    if p.ndim != 2 or labels.shape != p.shape[:1] or not len(p):
        raise ValueError(
            f"expected a label for each row of probabilities (n, classes), got shapes {labels.shape} and {p.shape}"
        )
    if not (p >= 0).all() or not np.allclose(p.sum(1), 1.0, atol=1e-3):
        raise ValueError("expected rows of probabilities >= 0 that sum to 1, got others")
    if not isinstance(bins, int) or bins < 1:
        raise ValueError(f"expected bins to be a number >= 1, got {bins!r}")
    names = np.arange(p.shape[1]) if classes is None else np.asarray(classes)
    if names.shape != p.shape[1:]:
        raise ValueError(f"expected a class for each of the {p.shape[1]} columns, got shape {names.shape}")
    sure, right = p.max(1), names[p.argmax(1)] == labels
    where = np.clip(np.ceil(sure * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.abs(np.bincount(where, right - sure, minlength=bins))
    return float(gaps.sum() / len(p))


def coverage(truth: Any, mean: Any, deviation: Any, *, level: float = 0.95) -> float:
    """The share of true values within the central intervals of normal distributions, |t - m| <= z s.

    Of a calibrated posterior it is `level`, over repeated draws of parameters and data; less, where the posterior is
    too sure.

    Args:
        truth: the values, of any shape.
        mean, deviation: of the distribution of each.
        level: in (0, 1).

    Example:
        >>> coverage([0.0, 1.0, 3.0], mean=[0.0, 0.0, 0.0], deviation=[1.0, 1.0, 1.0])
        0.6666666666666666
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"expected level in (0, 1), got {level!r}")
    t, m, s = np.broadcast_arrays(*(np.asarray(v, dtype=float) for v in (truth, mean, deviation)))
    if not t.size or not (s >= 0).all():
        raise ValueError("expected values with deviations >= 0, got none or others")
    z = math.sqrt(2.0) * torch.erfinv(torch.tensor(level, dtype=torch.float64)).item()
    return float((np.abs(t - m) <= z * s).mean())


@dataclass(frozen=True)
class Posterior:
    """A normal distribution of the parameters.

    Attributes:
        mean: by parameter name.
        covariance: of all parameters, flattened one after another, (d, d).
    """

    mean: Params
    covariance: Tensor

    @property
    def deviation(self) -> Params:
        """The standard deviation of each parameter."""
        flat = self.covariance.diagonal().sqrt()
        parts = flat.split([m.numel() for m in self.mean.values()])
        return {name: part.reshape(m.shape) for (name, m), part in zip(self.mean.items(), parts, strict=True)}


def posterior(learner: Any, *, rows: float = 1.0, prior: float = 0.0, most: int = 4096) -> Posterior:
    """The posterior that a strategy such as `Laplace` carries after the tasks learned so far.

    Later tasks of n rows minimize a mean loss plus the strategy's penalty P, so n times that is a negative
    log-posterior, and n P the negative logarithm of the Gaussian that earlier tasks left:

        N(theta, Lambda^-1),    Lambda = n grad^2 P(theta) + prior I,

    theta the parameters reached. With `Laplace(strength=1/n, normalize=False)` Lambda is the sum of the F_t.

    Args:
        learner: fitted on tasks, by a strategy with a quadratic penalty; one replica.
        rows: n.
        prior: the precision of the prior on every parameter that F_t does not hold.
        most: parameters that it may have, for Lambda is made whole.

    References:
        Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", arXiv 1612.00796, section 2;
        MacKay, "A practical Bayesian framework for backpropagation networks", Neural Computation 4, 1992.

    Example:
        >>> from weft import Regressor
        >>> from weft.strategies import Laplace
        >>> X, y = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]]), torch.zeros(4)
        >>> kept = Laplace(strength=1.0, normalize=False, curvature="full")
        >>> line = Regressor("linear", strategy=kept, steps=10, random_state=0).partial_fit(X, y, task="first")
        >>> {name: s.flatten().tolist() for name, s in posterior(line).deviation.items()}
        {'net.1.weight': [0.5], 'net.1.bias': [0.5]}
    """
    check_is_fitted(learner)
    if sum(state.replicas or 1 for _, state in learner._runs) > 1 or learner._objective().players:
        raise ValueError("expected one trained run of one player, got several; measure one: learner.replica(0)")
    engine, state = learner._runs[0]
    if not engine.strategy.does("penalty") or not state.tasks:
        raise ValueError(
            f"expected a learner that has consolidated tasks by a penalty, such as Laplace's, got {engine.strategy!r} "
            f"after the tasks {state.tasks}; give partial_fit a task"
        )
    mean = {name: state.params[name].detach().double() for name in engine.names[""]}
    size = sum(m.numel() for m in mean.values())
    if size > most:
        raise ValueError(
            f"expected at most {most:,} parameters, whose covariance is made whole, got {size:,}, which takes "
            f"{8 * size**2 / 2**30:.3g} GiB; raise most"
        )
    kept = _wide(state.strategy[""])

    def penalty(flat: Tensor) -> Tensor:
        parts = flat.split([m.numel() for m in mean.values()])
        given = {name: part.reshape(m.shape) for (name, m), part in zip(mean.items(), parts, strict=True)}
        return engine.strategy.penalty(given, kept)

    flat = torch.cat([m.flatten() for m in mean.values()])
    precision = float(rows) * jacrev(jacrev(penalty))(flat).detach()
    precision += float(prior) * torch.eye(size, dtype=flat.dtype, device=flat.device)
    factor, failed = torch.linalg.cholesky_ex((precision + precision.T) / 2)
    if int(failed):
        raise ValueError(
            "expected a precision without flat directions, got one that tasks leave undetermined; give prior > 0"
        )
    return Posterior(mean, torch.cholesky_inverse(factor))


def _wide(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _wide(part) for name, part in tree.items()}
    return tree.double() if isinstance(tree, Tensor) and tree.is_floating_point() else tree
