"""Natural gradients: the steepest way where distance is how much what is predicted changes."""

from __future__ import annotations

import torch

from weft.core.legal import Number, Whole
from weft.core.objective import Objective
from weft.core.strategy import Move, Strategy, StrategyState
from weft.core.trees import Params
from weft.strategies.descent.fisher import KNOWN, conjugate_gradients, information, predicting

__all__ = ["NaturalGradient"]


class NaturalGradient(Strategy):
    """Steps along the gradient as the Fisher information of what is predicted measures lengths.

    With g the gradient,

        step = - lr (F + damping I)^-1 g,    F = mean over the rows of E[(grad log p) (grad log p)^T],

    the expectation over what the model itself predicts. To first order it does not depend on how the model is
    parameterized, and to second order it is the shortest in KL. F is never formed: conjugate gradients need its
    products with vectors alone. Parameters that do not move what is predicted (those of a critic) step along g. g is
    the gradient that all other strategies leave, penalties included.

    Args:
        damping: added to F's diagonal.
        iterations: of the conjugate gradients, two backward passes each; with 0 it is plain gradient descent.

    References:
        Amari, "Natural gradient works efficiently in learning", Neural Computation 10, 1998; Kakade, "A natural policy
        gradient", NIPS 2001; Martens, "Deep learning via Hessian-free optimization", ICML 2010 (by products).

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft import Classifier, Optimizer
        >>> X, y = load_iris(return_X_y=True)
        >>> sgd = {"optimizer": Optimizer("sgd", lr=0.5), "batch_size": None, "steps": 20, "random_state": 0}
        >>> plain, natural = Classifier("linear", **sgd), Classifier("linear", strategy=NaturalGradient(), **sgd)
        >>> bool(natural.fit(X, y).history_["loss"][-1] < 0.5 * plain.fit(X, y).history_["loss"][-1])
        True
    """

    own_step = True
    reads = frozenset({"distribution"})
    legal = {"damping": Number(0, ends="()"), "iterations": Whole(0)}
    neutral = {"iterations": 0}

    def __init__(self, *, damping: float = 0.1, iterations: int = 10) -> None:
        self.damping = damping
        self.iterations = iterations

    def refuses(self, objective: Objective) -> str | None:
        return refused(self, objective) or super().refuses(objective)

    def update(self, move: Move, state: StrategyState) -> tuple[Params, StrategyState]:
        if not self.iterations:
            return move.step, state
        moves = predicting(move)
        step = {name: s * moves[name] for name, s in move.step.items()}
        natural = conjugate_gradients(information(move, self.damping), step, self.iterations)
        return {name: torch.where(moves[name] > 0, natural[name], s) for name, s in move.step.items()}, state


def refused(strategy: Strategy, objective: Objective) -> str | None:
    """Why the Fisher information of an objective is not told by products of its divergence."""
    if objective.players:
        return "what is predicted is one distribution, and each player of a game has a part in it"
    if "distribution" in objective.provides and (other := strategy.unlawful(objective, KNOWN)):
        return f"it knows the divergence between distributions of classes, and between normal ones, and {other}"
    return None
