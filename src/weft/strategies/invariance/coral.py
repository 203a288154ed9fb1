"""Correlation alignment: features with the same means and covariances in every environment."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from weft.core.objective import Output
from weft.core.source import Batch
from weft.core.strategy import Loss, StrategyState, by_group
from weft.core.trees import Params
from weft.strategies.invariance.aligning import Aligning, shares_by_group

__all__ = ["CORAL"]


class CORAL(Aligning):
    """Aligns the features' first two moments between environments.

    With mu_e and C_e the mean and the covariance (divisor n_e - 1) of the d features in environment e,
    adds to the loss the mean over pairs of environments of

        strength ( |mu_e - mu_f|^2 / d + |C_e - C_f|_F^2 / d^2 ).

    The paper has the covariances only, for a source and a target; this is the form of DomainBed, with
    the means, for any number of training environments. Pairs need not be gone through: the mean over
    pairs of |a_e - a_f|^2 is 2 / (k - 1) sum_e |a_e - mean a|^2 for k environments.

    Args:
        strength: the penalty's factor.

    References:
        Sun and Saenko, "Deep CORAL: correlation alignment for deep domain adaptation", arXiv 1607.01719;
        Gulrajani and Lopez-Paz, "In search of lost domain generalization", arXiv 2007.01434.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft import Classifier
        >>> X, y = load_iris(return_X_y=True)
        >>> aligned = Classifier(strategy=CORAL(strength=0.1), epochs=30, batch_size=20, random_state=0)
        >>> bool(aligned.fit(X, y, environment=[0, 1, 2] * 50).score(X, y) > 0.9)
        True
    """

    def __init__(self, *, strength: float = 1.0) -> None:
        super().__init__(strength=strength)

    def wrap(self, loss: Loss, state: StrategyState) -> Loss:
        def aligned(params: Params, batch: Batch) -> Output:
            output = loss(params, batch)
            shares, present = shares_by_group(output, batch)
            features = by_group(output.features.flatten(1), batch)  # type: ignore[union-attr]
            mean = torch.einsum("gn,gnd->gd", shares, features)
            centred = features - mean.unsqueeze(1)
            # With equal shares 1 / n the factor makes the divisor n - 1; one row alone has covariance 0.
            factor = 1.0 / (1.0 - shares.square().sum(1)).clamp_min(torch.finfo(shares.dtype).eps)
            covariance = torch.einsum("g,gn,gnd,gne->gde", factor, shares, centred, centred)
            penalty = _apart(mean, present) + _apart(covariance.flatten(1), present)
            return replace(output, losses=output.losses + self.strength * penalty)

        return aligned


def _apart(values: Tensor, present: Tensor) -> Tensor:
    """The mean, over pairs of present groups, of the mean squared difference of their values."""
    count = present.sum()
    centre = (present @ values) / count.clamp_min(1.0)
    apart = (values - centre).square().mean(1) @ present
    return 2.0 * apart / (count - 1.0).clamp_min(1.0)
