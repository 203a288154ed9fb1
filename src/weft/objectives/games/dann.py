"""Domain-adversarial networks: features from which an adversary cannot tell the environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.core.composed import Composed
from weft.core.configured import Range, closest
from weft.core.corpus import Corpus
from weft.core.legal import WIDTHS, Number, Such, Whole
from weft.core.objective import Objective, Output
from weft.core.random import key_of, keyed
from weft.core.source import Batch, Field, Spec
from weft.nets.make import NET, NetLike, make_net
from weft.objectives.supervised.labelled import Classification

__all__ = ["DANN"]


class DANN(Composed):
    """Learns any objective with features, against an adversary that tells the environment from them.

    With f the wrapped objective's features, e_i the environment of row i and A the adversary's softmax
    over environments, the players' losses are

        adversary:  -log A(f(x_i))_{e_i}
        objective:  loss_i + strength log A(f(x_i))_{e_i},

    the paper's saddle point. A gradient-reversal layer computes both gradients in one backward and moves
    both players at once; here each has its own optimizer and they take turns, so the adversary answers
    features that have just moved. The paper raises the strength from 0 to 1 over training; here it is
    constant, as in DomainBed. What the wrapped objective can do once trained (`predict`,
    `predict_proba`) this one can; its loss alone is measured as `task_loss`.

    Args:
        objective: what is learned, with features; None for `Classification()`.
        strength: lambda; at 0 the objective learns as if alone.
        adversary: an `nn.Module` from the features to one logit per environment, a factory, a name, or
            None for an MLP.
        hidden: hidden widths of the adversary's MLP.
        adversary_steps: the adversary's moves for each of the objective's.

    References:
        Ganin, Ustinova, Ajakan, Germain, Larochelle, Laviolette, Marchand and Lempitsky,
        "Domain-adversarial training of neural networks", arXiv 1505.07818.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft import Learner
        >>> X, y = load_iris(return_X_y=True)
        >>> game = Learner(DANN(Classification(hidden=(32,)), strength=0.1), epochs=60, random_state=0)
        >>> bool(game.fit(X, y, environment=[0, 1, 2] * 50).score(X, y) > 0.9)
        True
    """

    players = ("objective", "adversary")
    space = {"strength": Range(0.01, 100.0, log=True)}  # DomainBed's
    composes = ("objective",)
    wraps = "objective"
    legal = {
        "objective": Such("one such as Classification()", lambda given: isinstance(given, Objective)) | None,
        "strength": Number(0),
        "adversary": NET,
        "hidden": WIDTHS,
        "adversary_steps": Whole(1),
    }

    def __init__(
        self,
        objective: Objective | None = None,
        *,
        strength: float = 1.0,
        adversary: NetLike = None,
        hidden: Sequence[int] = (128, 128),
        adversary_steps: int = 1,
    ) -> None:
        super().__init__()
        self.objective = objective
        self.strength = strength
        self.adversary: Any = adversary  # a module, once built
        self.hidden = hidden
        self.adversary_steps = adversary_steps

    # --- what it says of itself -----------------------------------------------------------------------

    def given(self, name: str) -> object:
        given = super().given(name)
        return Classification() if given is None else given

    @property
    def fields(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*super().fields, "environment")

    @property
    def provides(self) -> frozenset[str]:  # type: ignore[override]
        return self.parts()["objective"].provides & {"features", "logits"}

    @property
    def progress(self) -> tuple[str, str]:  # type: ignore[override]
        name, direction = super().progress
        return ("task_loss" if name == "loss" else name), direction

    # --- the game -------------------------------------------------------------------------------------

    def build(self, spec: Spec) -> None:
        if "environment" not in spec:
            raise ValueError(
                "expected batches that tell each row's environment, got none; call fit(X, y, environment=...), or make "
                "the source with Arrays(..., environment=..., with_environment=True)"
            )
        environments = spec["environment"].classes or 0
        if environments < 2:
            raise ValueError(
                f"expected at least two environments for DANN's adversary to tell apart, got {environments}; with one "
                f"use {type(self.parts()['objective']).__name__}() itself"
            )
        self.assemble({"objective": spec})
        if "features" not in self.provides:
            raise ValueError(
                f"expected DANN's objective to give features, got {type(self.objective).__name__}, which does not; an "
                "objective with an MLP, or with an nn.Sequential that ends in a linear layer, does"
            )
        row = Field((_width(self.parts()["objective"], spec),), torch.get_default_dtype())
        self.adversary = make_net(self.adversary, row, environments, hidden=self.hidden, what="adversary")

    def every(self, player: str) -> int:
        return self.adversary_steps if player == "objective" else 1

    def forward(self, batch: Batch, player: str = "") -> Output:
        if player not in self.players:
            raise closest(player, self.players, "a player of DANN")
        output = self.ask("objective", batch)
        logits = self._told(output)
        told = F.cross_entropy(logits, batch["environment"], reduction="none")
        if player == "adversary":
            return Output(told, logits=logits, features=output.features)
        return replace(output, losses=output.losses - self.strength * told, rescore=None)

    def _told(self, output: Output) -> Tensor:
        """The adversary's logits."""
        return self.adversary(output.features.flatten(1))  # type: ignore[union-attr]

    def measure(self, batch: Batch) -> dict[str, Tensor | Corpus]:
        inner = self.parts()["objective"]
        measures = {"task_loss" if name == "loss" else name: value for name, value in inner.measure(batch).items()}
        if "environment" in batch:  # data held out by the user may come without
            output = inner(batch)
            right = self._told(output).argmax(-1) == batch["environment"]
            measures["adversary_accuracy"] = right.to(output.losses.dtype)
        return measures


def _width(inner: Objective, spec: Spec) -> int:
    """How many features a row has: two rows of zeros are run through."""
    usual = torch.get_default_dtype()
    rows = {n: torch.zeros(2, *f.shape, dtype=usual if f.dtype.is_floating_point else f.dtype) for n, f in spec.items()}
    training = inner.training
    inner.eval()
    with torch.no_grad(), keyed(key_of(0), torch.arange(2)):
        features = inner(rows).features
    inner.train(training)
    return features.flatten(1).shape[1]
