"""Maximum mean discrepancy: features with the same distribution in every environment, as kernels see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from weft.core.legal import Number, Several
from weft.core.objective import Output
from weft.core.source import Batch
from weft.core.strategy import Loss, StrategyState
from weft.core.trees import Params
from weft.strategies.invariance.aligning import Aligning, shares_by_group

__all__ = ["MMD"]


class MMD(Aligning):
    """Aligns the features' distributions between environments, by maximum mean discrepancy.

    With the kernel k(a, b) = sum_j exp(-gamma_j |a - b|^2) and K_ef the mean of k over the pairs of a row
    of environment e and a row of f, adds to the loss the mean over pairs of environments of

        strength ( K_ee + K_ff - 2 K_ef ),

    the squared distance of the environments' mean embeddings (i = j included, so never negative).

    Args:
        strength: the penalty's factor.
        gammas: inverse bandwidths of the Gaussian kernels; default: those of DomainBed.

    References:
        Long, Cao, Wang and Jordan, "Learning transferable features with deep adaptation networks",
        arXiv 1502.02791; Li, Pan, Wang and Kot, "Domain generalization with adversarial feature
        learning", CVPR 2018; Gulrajani and Lopez-Paz, "In search of lost domain generalization",
        arXiv 2007.01434.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft import Classifier
        >>> X, y = load_iris(return_X_y=True)
        >>> aligned = Classifier(strategy=MMD(strength=0.1), epochs=30, batch_size=20, random_state=0)
        >>> bool(aligned.fit(X, y, environment=[0, 1, 2] * 50).score(X, y) > 0.9)
        True
    """

    legal = {"gammas": Several("numbers > 0 such as (0.1, 1.0)", Number(0, ends="()"), least=1)}

    def __init__(
        self, *, strength: float = 1.0, gammas: Sequence[float] = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
    ) -> None:
        super().__init__(strength=strength)
        self.gammas = gammas

    def wrap(self, loss: Loss, state: StrategyState) -> Loss:
        def aligned(params: Params, batch: Batch) -> Output:
            output = loss(params, batch)
            shares, present = shares_by_group(output, batch)
            members = batch["group"] * shares.flatten().unsqueeze(1)
            means = members.T @ self._kernel(output.features.flatten(1)) @ members  # type: ignore[union-attr]
            # Over pairs of k groups: the sum of K_ee + K_ff - 2 K_ef is k trace(K) - sum(K).
            k = present.sum()
            apart = 2.0 * (k * means.diagonal().sum() - means.sum()) / (k * (k - 1.0)).clamp_min(1.0)
            return replace(output, losses=output.losses + self.strength * apart)

        return aligned

    def _kernel(self, features: Tensor) -> Tensor:
        """k(a, b) between all rows; distances do not change with the origin, and cancel least near it."""
        rows = features - features.mean(0).detach()
        norms = rows.square().sum(1)
        squares = (norms.unsqueeze(1) + norms - 2.0 * rows @ rows.T).clamp_min(0.0)
        kernel = torch.zeros_like(squares)
        for gamma in self.gammas:
            kernel = kernel + torch.exp(-gamma * squares)
        return kernel
