"""Adversarial training: minimize the loss at the worst input near each input."""

from __future__ import annotations

from weft.attacks import PGD
from weft.core.configured import Configured, Range
from weft.core.legal import Such
from weft.core.objective import Objective, Output
from weft.core.source import Batch
from weft.core.strategy import Loss, Strategy, StrategyState
from weft.core.trees import Params

__all__ = ["AdversarialTraining"]


def _attacks(given: object) -> bool:
    return isinstance(given, Configured) and callable(given)


class AdversarialTraining(Strategy):
    """Trains on inputs perturbed to raise the loss, within a ball around each.

    Minimizes the mean of max over |delta| <= eps of loss(theta; x + delta, y), the inner maximum found
    by the attack. The attack's own passes leave running statistics alone: the clean forward commits them.

    Args:
        attack: how the perturbation is found; default: one step of `PGD`, with eps 0.1.

    References:
        Madry, Makelov, Schmidt, Tsipras and Vladu, "Towards deep learning models resistant to
        adversarial attacks", arXiv 1706.06083.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft import Classifier
        >>> X, y = load_iris(return_X_y=True)
        >>> robust = Classifier(strategy=AdversarialTraining(PGD(eps=0.1, steps=2)), epochs=30, random_state=0)
        >>> bool(robust.fit(X, y).score(X, y) > 0.8)
        True
    """

    neutral = {"attack": PGD(eps=0.0)}
    sweeps = ("attack__eps",)
    legal = {"attack": Such("an attack such as PGD(eps=0.1)", _attacks) | None}

    def __init__(self, attack: PGD | None = None) -> None:
        self.attack = attack

    @property
    def space(self) -> dict[str, Range]:  # type: ignore[override]
        return {} if self.attack is None else {"attack__eps": Range(0.01, 1.0, log=True)}

    def refuses(self, objective: Objective) -> str | None:
        if objective.on_policy:
            return "it moves the inputs x, and this objective's batches are drawn by the learner's own actions"
        if "x" not in objective.fields:
            return f"it moves the inputs x, and {type(objective).__name__} reads none: {', '.join(objective.fields)}"
        if objective.players:
            return (
                "it raises one loss by moving the inputs, and in a game what raises one player's loss lowers another's"
            )
        return super().refuses(objective)

    def wrap(self, loss: Loss, state: StrategyState) -> Loss:
        attack = self.attack if self.attack is not None else PGD(eps=0.1)

        def worst(params: Params, batch: Batch) -> Output:
            output = loss(params, {**batch, "x": attack(loss, params, batch)})
            if output.buffers:
                output.buffers = loss(params, batch).buffers
            return output

        return worst
