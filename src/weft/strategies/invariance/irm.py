"""Invariant risk minimization: a representation on which one classifier is optimal everywhere."""

from __future__ import annotations

import torch
from torch.func import grad

from weft.core.objective import Objective, Output, reduce
from weft.core.source import Batch
from weft.core.strategy import Loss, Move, StrategyState
from weft.core.trees import Params
from weft.strategies.invariance.annealing import Annealed

__all__ = ["IRM"]


class IRM(Annealed):
    """Asks that no environment would gain by scaling the outputs, a sign that its own classifier differs.

    With the loss L_e of environment e as a function of the outputs z (IRMv1), minimizes the mean over e of

        L_e(z) + strength * D_e^2,    D_e = d/dw L_e(w z) at w = 1.

    D_e is zero where the outputs are calibrated in e along their own direction: a spurious feature whose
    use would be scaled up in one environment and down in another is paid for in both. D_e is taken on
    the rows of the batch, so small batches add its variance to the penalty; the paper uses full ones.

    Args:
        strength: lambda, the weight of the penalty.
        anneal: steps before the penalty takes that weight.
        before: the penalty's weight in those steps.
        rescale: divide loss and penalty by the penalty's weight where that is above 1, so that the
            gradient keeps its size when the weight jumps, as the authors' code does.

    References:
        Arjovsky, Bottou, Gulrajani and Lopez-Paz, "Invariant risk minimization", arXiv 1907.02893,
        section 3.1 and appendix D.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft import Classifier
        >>> X, y = load_iris(return_X_y=True)
        >>> invariant = Classifier(strategy=IRM(strength=1.0), epochs=30, random_state=0)
        >>> bool(invariant.fit(X, y, environment=X[:, 1] > 3.0).score(X, y) > 0.9)
        True
    """

    sees = "whole groups"
    reads = frozenset({"rescore"})

    def __init__(self, *, strength: float = 100.0, anneal: int = 0, before: float = 1.0, rescale: bool = True) -> None:
        super().__init__(strength=strength, anneal=anneal, before=before, rescale=rescale)

    def refuses(self, objective: Objective) -> str | None:
        if "rescore" not in objective.provides:
            return "it asks what scaling the outputs would gain, and this loss is not given as a function of outputs"
        return super().refuses(objective)

    def does(self, verb: str) -> bool:
        """Steps are counted (in `update`) only where something is annealed."""
        return super().does(verb) and (verb != "update" or self.anneal > 0)

    def init(self, params: Params) -> StrategyState:
        """`step`: the steps made, where the penalty is annealed."""
        return {"step": torch.zeros((), dtype=torch.int64)} if self.anneal else {}

    def wrap(self, loss: Loss, state: StrategyState) -> Loss:
        def penalized(params: Params, batch: Batch) -> Output:
            output = loss(params, batch)
            logits, rescore = output.logits, output.rescore

            def scaled(w: torch.Tensor) -> torch.Tensor:
                return reduce(rescore(w * logits), output.weight)  # type: ignore[misc, operator]

            slope = grad(scaled)(torch.ones_like(output.losses[0]))
            weight, size = self.weight(state, slope)
            output.losses = (output.losses + weight * slope.square()) / size
            return output

        return penalized

    def update(self, move: Move, state: StrategyState) -> tuple[Params, StrategyState]:
        return move.step, {"step": state["step"] + 1} if self.anneal else state
