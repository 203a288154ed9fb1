"""Sharpness-aware minimization: the gradient where the loss is worst nearby."""

from __future__ import annotations

import torch

from weft.core.configured import Range
from weft.core.legal import Number
from weft.core.strategy import GradientAt, OwnLoss, Strategy, StrategyState
from weft.core.trees import Params

__all__ = ["SAM"]


class SAM(Strategy):
    """Seeks flat minima: parameters around which the loss is low as well.

    In place of the gradient g at theta, the step follows the gradient at the point nearby where the loss is worst,
    to first order:

        g(theta + radius g / |g|),

    with the norm over all parameters together. It costs a second gradient. Both are of the loss as it is wrapped and
    combined, so that under an AND-mask both are masked; batch statistics are those of the first.

    Args:
        radius: rho; 0 is ERM.

    References:
        Foret, Kleiner, Mobahi and Neyshabur, "Sharpness-aware minimization for efficiently improving generalization",
        arXiv 2010.01412, algorithm 1.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft import Classifier
        >>> X, y = load_iris(return_X_y=True)
        >>> bool(Classifier(strategy=SAM(radius=0.05), epochs=30, random_state=0).fit(X, y).score(X, y) > 0.9)
        True
    """

    legal = {"radius": Number(0)}
    neutral = {"radius": 0.0}
    sweeps = ("radius",)
    space = {"radius": Range(0.01, 0.5, log=True)}

    def __init__(self, *, radius: float = 0.05) -> None:
        self.radius = radius

    def steer(
        self, gradient: Params, params: Params, loss: OwnLoss, gradient_at: GradientAt, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        square = torch.stack([g.square().sum() for g in gradient.values()]).sum()
        scale = self.radius / square.sqrt().clamp_min(torch.finfo(square.dtype).tiny)
        return gradient_at({name: p + scale * gradient[name] for name, p in params.items()}), state
