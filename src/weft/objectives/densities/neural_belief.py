"""Belief nets with neural conditionals: hidden units for each entry, which see what comes before it."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.configured import Range
from weft.core.legal import Whole
from weft.nets.masked import MaskedMLP
from weft.objectives.densities.masked import Masked

__all__ = ["NeuralBelief"]


class NeuralBelief(Masked):
    """A belief net whose conditionals are neural: each entry brings hidden units that see the entries before it.

        h_i = tanh(c_i + W_i x_<i),      theta_i = b_i + sum_{k <= i} V_ik h_k

    Each entry's law, of parameters theta_i, reads its own hidden units h_i and those of the entries before it: the
    conditionals are tied through them, and nothing else. The number of parameters grows with the square of the entries.

    Args:
        hidden: units that each entry brings.
        law, classes, parts, order, conditional: see `weft.objectives.densities.autoregressive.Autoregressive`.

    References:
        Bengio and Bengio, "Modeling high-dimensional discrete data with multi-layer neural networks", NeurIPS 1999.

    Example:
        >>> import numpy as np
        >>> from weft import Learner, Optimizer
        >>> bits = np.array([[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])  # the last is the xor
        >>> adam = Optimizer("adam", lr=0.05)
        >>> learner = Learner(NeuralBelief(law="bernoulli"), epochs=200, optimizer=adam, random_state=0).fit(bits)
        >>> bool(np.exp(learner.log_prob(bits)).sum() > 0.9)
        True
    """

    space = {"hidden": Range(2, 64, log=True, whole=True)}
    legal = {"hidden": Whole(1)}

    def __init__(
        self,
        hidden: int = 8,
        *,
        law: str = "auto",
        classes: int | None = None,
        parts: int = 10,
        order: str | Sequence[int] = "given",
        conditional: bool = False,
    ) -> None:
        super().__init__(law=law, classes=classes, parts=parts, order=order, conditional=conditional)
        self.hidden = hidden

    def connect(self) -> None:
        groups = max(len(self.entries) - 1, 1)  # the first has nothing to see
        self.net = MaskedMLP(
            self.reads, self.answers, order=self.sequences[0], hidden=(groups * int(self.hidden),), activation="tanh"
        )
