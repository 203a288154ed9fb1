"""What the gradients of environments say: where they agree, and which features they are about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.core.trees import Params
from weft.engine import verbs
from weft.learner.estimator import Learner
from weft.measures.fitted import Fitted

__all__ = ["Agreement", "Signal", "environment_gradients", "feature_signal", "sign_agreement"]


def environment_gradients(learner: Learner, X: Any, y: Any = None, *, environment: Any) -> Params:
    """The gradient of each environment's mean loss at a fitted learner's parameters,

        g_e = grad_theta  mean_{i in e} loss_i.

    The objective's own loss, in evaluation mode and double precision, whatever strategy it was trained by.

    Args:
        learner: fitted; one replica.
        X, y: rows, as for `fit`.
        environment: of each row.

    Returns:
        For each trained parameter a tensor with the environments, sorted, on its leading axis.

    Example:
        >>> from weft import Regressor
        >>> X, y = torch.tensor([[1.0], [2.0], [3.0]]), torch.zeros(3)
        >>> line = Regressor("linear", steps=1, random_state=0).fit(X, y)
        >>> g = environment_gradients(line, X, y, environment=[0, 0, 1])
        >>> {name: tuple(t.shape) for name, t in g.items()}
        {'net.1.weight': (2, 1, 1), 'net.1.bias': (2, 1)}
    """
    fitted = Fitted.of(learner, X, y, environment)
    return torch.func.jacrev(fitted.risks)(fitted.params)


@dataclass(frozen=True)
class Agreement:
    """The share of gradient components on which environments agree.

    Attributes:
        share: of all components.
        tensors: by name of the parameter.
        threshold: the agreement asked for.
        environments: how many there are.
    """

    share: float
    tensors: dict[str, float]
    threshold: float
    environments: int


def sign_agreement(gradients: Params | Tensor, *, threshold: float = 1.0) -> Agreement:
    """The share of components on whose sign environments agree: what the AND-mask keeps.

    A component of the gradients g_1, ..., g_d agrees where

        |sum_e sign(g_e)| >= threshold d,

    that is where at least d (threshold + 1) / 2 signs are the same. Of independent components with symmetric
    distributions the share at threshold 1 is 2^(1 - d).

    Args:
        gradients: with the environments on the leading axis, as `environment_gradients` gives them, or one tensor.
        threshold: in [0, 1].

    Returns:
        `Agreement`.

    References:
        Parascandolo, Neitz, Orvieto, Gresele and Schölkopf, "Learning explanations that are hard to vary", arXiv
        2009.00329, section 3.

    Example:
        >>> sign_agreement(torch.tensor([[1.0, 2.0, -1.0, 0.0], [3.0, -1.0, -2.0, 1.0]])).share
        0.5
    """
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"expected threshold in [0, 1], got {threshold!r}")
    given = {"": gradients} if isinstance(gradients, Tensor) else dict(gradients)
    counts = {len(g) if g.dim() else 0 for g in given.values()}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(
            f"expected gradients with the environments on the leading axis, got shapes "
            f"{[tuple(g.shape) for g in given.values()]}"
        )
    d = counts.pop()
    least = math.ceil(threshold * d - 1e-4)  # as the AND-mask counts, up to rounding
    kept = {name: g.sign().sum(0, dtype=torch.float64).abs() >= least for name, g in given.items()}
    share = sum(int(k.sum()) for k in kept.values()) / max(1, sum(k.numel() for k in kept.values()))
    tensors = {name: float(k.double().mean()) for name, k in kept.items() if name}
    return Agreement(share, tensors, threshold, d)


@dataclass(frozen=True)
class Signal:
    """How much of a gradient is about a set of features.

    Attributes:
        share: of the squared norm, in [0, 1]; NaN where the gradient is zero.
        norm: the gradient's norm over the features asked for.
        rest: over the others.
        of: `inputs` or `weights`.
    """

    share: float
    norm: float
    rest: float
    of: str


def feature_signal(
    learner: Any,
    X: Any,
    y: Any = None,
    *,
    features: Sequence[int],
    of: str = "weights",
    environment: Any = None,
    strategy: Any = None,
) -> Signal:
    """How much of a fitted learner's gradient is about some of the features.

    Of `weights`: with G the gradient of the mean loss with respect to the first layer's weights, one column per
    feature,

        share = sum_{j in features} |G_{.j}|^2 / |G|^2,

    the part of the next update by which the net would learn to read those features. Of `inputs`:

        share = sum_i sum_{j in features} (d loss_i / d x_ij)^2 / sum_i |d loss_i / d x_i|^2,

    the part of what the net reads now. Shares of features that make up all of them sum to 1.

    Args:
        learner: fitted; one replica.
        X, y: rows, as for `fit`; each of d features.
        features: which of the d, by number.
        of: `weights` (of the first linear layer that reads the rows) or `inputs`.
        environment: of each row; then G is the mean of the environments' gradients, each counting the same, or what
            `strategy` combines them to.
        strategy: combines the environments' gradients, such as `ANDMask()`; None for the mean.

    Returns:
        `Signal`.

    References:
        Parascandolo, Neitz, Orvieto, Gresele and Schölkopf, "Learning explanations that are hard to vary", arXiv
        2009.00329, section 4.1, where the signal of mechanism and of shortcuts is told apart.

    Example:
        >>> from weft import Regressor
        >>> X = torch.tensor([[1.0, 3.0], [-1.0, -3.0]])
        >>> y = torch.tensor([1.0, -1.0])
        >>> line = Regressor("linear", steps=1, random_state=0).fit(X, y)
        >>> round(feature_signal(line, X, y, features=[1]).share, 6)
        0.9
    """
    fitted = Fitted.of(learner, X, y, environment)
    rows = fitted.batch["x"]
    if rows.dim() != 2:
        raise ValueError(f"expected rows of features (n, d), got shape {tuple(rows.shape)}; flatten them")
    d = rows.shape[1]
    chosen = sorted({int(j) for j in features})
    if not chosen or chosen[0] < 0 or chosen[-1] >= d:
        raise ValueError(f"expected features to be numbers in 0..{d - 1}, got {list(features)}")
    if of == "inputs":
        if environment is not None or strategy is not None:
            raise ValueError("expected neither environment nor strategy for the gradient of inputs, got one of them")
        columns = torch.func.grad(lambda x: fitted.losses(fitted.params, x=x).sum())(rows)
    elif of == "weights":
        name = _first_layer(fitted, d)
        gradients = torch.func.jacrev(fitted.risks)(fitted.params)
        weights = torch.full((len(fitted.names),), 1.0 / len(fitted.names), dtype=fitted.shares.dtype)
        if strategy is None:
            columns = gradients[name].mean(0)
        else:
            risks = fitted.risks(fitted.params).detach()
            state = verbs.init(strategy, fitted.params)
            combined, _ = verbs.combine(strategy, gradients, risks, weights.to(risks.device), state)
            columns = combined[name]
    else:
        raise ValueError(f"expected of to be 'weights' or 'inputs', got {of!r}")
    squares = columns.square().sum(0)
    inside = float(squares[chosen].sum())
    whole = float(squares.sum())
    share = inside / whole if whole > 0 else float("nan")
    return Signal(share, inside**0.5, max(0.0, whole - inside) ** 0.5, of)


def _first_layer(fitted: Fitted, d: int) -> str:
    """The name of the weights that read the features: of the first linear layer with d inputs."""
    for name, layer in fitted.module.named_modules():
        if isinstance(layer, nn.Linear) and layer.in_features == d and f"{name}.weight" in fitted.params:
            return f"{name}.weight"
    raise ValueError(
        f"expected a net whose first layer is linear in the {d} features, got {type(fitted.module).__name__} without "
        "one that is trained; ask for of='inputs'"
    )
