"""Empirical risk minimization: the gradient of the mean loss, and nothing else."""

from __future__ import annotations

from weft.core.strategy import Strategy

__all__ = ["ERM"]


class ERM(Strategy):
    """Minimizes the mean loss: step along -grad (1/n) sum_i loss_i.

    Every other strategy, at its neutral setting, is this one.

    References:
        Vapnik, "Principles of risk minimization for learning theory", NIPS 1991.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft import Classifier
        >>> X, y = load_iris(return_X_y=True)
        >>> bool(Classifier(strategy=ERM(), random_state=0).fit(X, y).score(X, y) > 0.9)
        True
    """
