"""Penalties on the parameters' size: L1 (lasso) and L2 (ridge, weight decay)."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.configured import Range
from weft.core.legal import Number
from weft.core.strategy import Penalty, StrategyState
from weft.core.trees import Params

__all__ = ["L1", "L2"]


class _Size(Penalty):
    """A norm of the parameters, times a strength."""

    neutral = {"strength": 0.0}
    sweeps = ("strength",)
    space = {"strength": Range(1e-6, 1e-2, log=True)}
    legal = {"strength": Number(0)}

    def __init__(self, *, strength: float = 1e-4) -> None:
        self.strength = strength


class L1(_Size):
    """Keeps the parameters' absolute values small, many of them at zero.

    Adds strength sum_i |theta_i| to the loss, over all parameters trained, outside the groups: what a
    strategy makes of the groups' gradients (a mask, say) does not touch it.

    Args:
        strength: the penalty's factor.

    References:
        Tibshirani, "Regression shrinkage and selection via the lasso", Journal of the Royal Statistical
        Society B 58, 1996.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft import Classifier
        >>> X, y = load_iris(return_X_y=True)
        >>> bool(Classifier(strategy=L1(strength=1e-4), random_state=0).fit(X, y).score(X, y) > 0.9)
        True
    """

    def penalty(self, params: Params, state: StrategyState) -> Tensor:
        return self.strength * torch.stack([p.abs().sum() for p in params.values()]).sum()

    def pull(self, params: Params, state: StrategyState) -> Params:
        return {name: self.strength * p.sign() for name, p in params.items()}


class L2(_Size):
    """Keeps the parameters small.

    Adds strength / 2 sum_i theta_i^2 to the loss, over all parameters trained, outside the groups. Its
    gradient is strength theta: with SGD the same as `weight_decay=strength`; an adaptive optimizer
    rescales it with the rest, which decoupled decay (AdamW) avoids.

    Args:
        strength: the penalty's factor.

    References:
        Krogh and Hertz, "A simple weight decay can improve generalization", NIPS 1991; on the difference
        under Adam: Loshchilov and Hutter, "Decoupled weight decay regularization", arXiv 1711.05101.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft import Classifier
        >>> X, y = load_iris(return_X_y=True)
        >>> bool(Classifier(strategy=L2(strength=1e-4), random_state=0).fit(X, y).score(X, y) > 0.9)
        True
    """

    def penalty(self, params: Params, state: StrategyState) -> Tensor:
        return 0.5 * self.strength * torch.stack([p.square().sum() for p in params.values()]).sum()

    def pull(self, params: Params, state: StrategyState) -> Params:
        return {name: self.strength * p for name, p in params.items()}
