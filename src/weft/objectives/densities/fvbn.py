"""Fully visible belief nets: each bit is a logistic regression on those before it."""

from __future__ import annotations

from weft.nets.masked import MaskedMLP
from weft.objectives.densities.masked import Masked

__all__ = ["FVBN"]


class FVBN(Masked):
    """A fully visible belief net: the parameters of each entry are linear in those before it.

        p(x_i = 1 | x_<i) = sigmoid(b_i + sum_{j < i} w_ij x_j)

    Its likelihood is concave in the parameters of bits. Entries with other laws have their parameters linear in what
    comes before: of reals with the law `normal`, the mean and the log of the deviation.

    Args:
        law, classes, parts, order, conditional: see `weft.objectives.densities.autoregressive.Autoregressive`.

    References:
        Frey, Hinton and Dayan, "Does the wake-sleep algorithm produce good density estimators?", NeurIPS 1996.
        Frey, "Graphical models for machine learning and digital communication", 1998.

    Example:
        >>> import numpy as np
        >>> from weft import Learner, Optimizer
        >>> bits = np.repeat([[0.0, 0.0], [1.0, 1.0], [1.0, 0.0]], [20, 20, 10], axis=0)
        >>> adam = Optimizer("adam", lr=0.05)
        >>> learner = Learner(FVBN(law="bernoulli"), steps=300, optimizer=adam, random_state=0).fit(bits)
        >>> np.exp(learner.log_prob([[0, 0], [0, 1], [1, 0], [1, 1]])).round(1)
        array([0.4, 0. , 0.2, 0.4], dtype=float32)
        >>> learner.sample(3, prefix=(0,))
        array([[0., 0.],
               [0., 0.],
               [0., 0.]], dtype=float32)
    """

    def connect(self) -> None:
        self.net = MaskedMLP(self.reads, self.answers, order=self.sequences[0], hidden=())
