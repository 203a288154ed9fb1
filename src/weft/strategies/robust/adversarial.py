"""Adversarial training: minimize the loss at the worst input near each input."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.attacks import PGD
from weft.core.configured import Configured, Range
from weft.core.legal import Such
from weft.core.objective import Objective, Output
from weft.core.source import Batch
from weft.core.strategy import Known, Loss, Strategy, StrategyState
from weft.core.trees import Params

__all__ = ["AdversarialTraining"]


def _attacks(given: object) -> bool:
    return isinstance(given, Configured) and callable(given)


class AdversarialTraining(Strategy):
    """Trains on inputs perturbed to raise the loss, within a ball around each.

    Minimizes the mean of max over |delta| <= eps of loss(theta; x + delta, y), the inner maximum found
    by the attack. The attack's own passes leave running statistics alone: the clean forward commits them.

    Inputs stay in the range that the attack's `bounds` say: unless told otherwise, in that of the training rows, those
    held out included, from the least value of any component to the largest.

    Args:
        attack: how the perturbation is found; default: one step of `PGD`, with eps 0.1.
        field: what is perturbed, where it is another field than the inputs: `observation`, of a policy that may learn
            from what an earlier one has played. What it has been played by is left as it is: the advantage, and how
            probable the action was there.

    References:
        Madry, Makelov, Schmidt, Tsipras and Vladu, "Towards deep learning models resistant to
        adversarial attacks", arXiv 1706.06083; of observations: Pattanaik, Tang, Liu, Bommannan and Chowdhary, "Robust
        deep reinforcement learning with adversarial attacks", arXiv 1712.03632.

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
    legal = {
        "attack": Such("an attack such as PGD(eps=0.1)", _attacks) | None,
        "field": Such(
            "the name of a field, such as 'x' or 'observation'",
            lambda given: isinstance(given, str) and given.isidentifier(),
        ),
    }

    def __init__(self, attack: PGD | None = None, *, field: str = "x") -> None:
        self.attack = attack
        self.field = field

    @property
    def space(self) -> dict[str, Range]:  # type: ignore[override]
        return {} if self.attack is None else {"attack__eps": Range(0.01, 1.0, log=True)}

    def refuses(self, objective: Objective) -> str | None:
        if objective.on_policy:
            return "it moves the inputs x, and this objective's batches are drawn by the learner's own actions"
        if self.field not in objective.fields:
            other = "; name another by field='observation'" if "observation" in objective.fields else ""
            read = ", ".join(objective.fields)
            return f"it moves the inputs {self.field}, and {type(objective).__name__} reads none: {read}{other}"
        if objective.episodic:
            return f"it moves the inputs x of a row, and a row of {type(objective).__name__} is an episode, with many x"
        if not objective.movable:
            return (
                f"it moves the inputs x by the loss's gradient, and {type(objective).__name__} has none: its inputs "
                "are tokens, or are quantized"
            )
        if objective.players:
            return (
                "it raises one loss by moving the inputs, and in a game what raises one player's loss lowers another's"
            )
        return super().refuses(objective)

    def _attack(self) -> PGD:
        return self.attack if self.attack is not None else PGD(eps=0.1)

    def init(self, params: Params) -> StrategyState:
        """`low`, `high`: the range of the training rows, where the attack keeps to it; told where training begins."""
        if getattr(self._attack(), "bounds", None) != "rows":
            return {}
        like = next(iter(params.values()))
        return {"low": like.new_full((), -torch.inf), "high": like.new_full((), torch.inf)}

    def begin(self, known: Known, state: StrategyState) -> StrategyState:
        attack, extent = self._attack(), known.extent(self.field)
        bounds = getattr(attack, "bounds", None)
        if bounds == "rows":
            if not state:
                raise ValueError(f"expected {attack!r} to keep the bounds that training began with; fit anew")
            if extent is None:
                raise ValueError(
                    f"expected a source that tells the range of its rows, in which {attack!r} is to stay, got one that "
                    "does not; give it bounds=(low, high), or None for no such range"
                )
            low, high = (torch.full_like(state[name], end) for name, end in zip(("low", "high"), extent, strict=True))
            return {"low": low, "high": high}
        if bounds is not None and extent is not None and not bounds[0] <= extent[0] <= extent[1] <= bounds[1]:
            raise ValueError(
                f"expected rows within {bounds}, the bounds of {attack!r}, got values from {extent[0]:g} to "
                f"{extent[1]:g}; scale the rows, or give the bounds that they have"
            )
        return state

    def wrap(self, loss: Loss, state: StrategyState) -> Loss:
        attack = self._attack()
        if getattr(attack, "bounds", None) == "rows":  # None, where training has not begun by a Learner
            attack = attack.having(bounds=(state["low"], state["high"]) if state else None)

        field = self.field

        def named(params: Params, batch: Batch) -> Output:
            """The loss of a batch whose field goes by the name that attacks know."""
            return loss(params, {**batch, field: batch["x"]})

        def moved(params: Params, batch: Batch) -> Tensor:
            if field == "x":
                return attack(loss, params, batch)
            return attack(named, params, {**batch, "x": batch[field]})

        def worst(params: Params, batch: Batch) -> Output:
            output = loss(params, {**batch, field: moved(params, batch)})
            if output.buffers:
                output.buffers = loss(params, batch).buffers
            return output

        return worst
