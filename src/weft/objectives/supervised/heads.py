"""Several targets at once: a weighted sum of objectives, each with a target of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from weft.core.composed import Composed
from weft.core.configured import closest
from weft.core.corpus import Corpus
from weft.core.legal import Number, Such
from weft.core.objective import Objective, Output
from weft.core.random import place
from weft.core.source import Batch, Spec

__all__ = ["Heads"]


def _by_name(kind: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda given: isinstance(given, Mapping) and all(map(kind, given.values()))


_HEADS = Such("objectives by name", _by_name(lambda part: isinstance(part, Objective))) | None
_WEIGHTS = Such("weights >= 0 by name", _by_name(Number().kind), _by_name(Number(0).allows)) | None


class Heads(Composed):
    """Learns several targets of the same rows, by a weighted sum of one loss for each.

        loss_i = sum_k weight_k loss_ik

    With losses that are likelihoods and weights 1 it is the likelihood of targets that are independent given x. A
    head `mass` reads the rows' `x` and its own target `mass_y`, and answers as `mass_predict`; its loss and its other
    measures are told as `mass_loss`, ... The logits are those of all heads side by side; features before *the* head
    there are none, as there are several.

    Every head has a net of its own. To share a body, give the heads nets that hold the same module:
    `Classification(nn.Sequential(body, nn.Linear(64, 3)))` and `Regression(nn.Sequential(body, nn.Linear(64, 1)))`.

    Args:
        heads: the objectives by name.
        weights: by name; 1 for those that are not named.

    References:
        Caruana, "Multitask learning", Machine Learning 28, 1997.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from weft import Learner
        >>> from weft.objectives import Classification, Regression
        >>> X, species = load_iris(return_X_y=True)
        >>> both = Heads({"species": Classification(hidden=(32,)), "width": Regression(hidden=(32,))})
        >>> learner = Learner(both, epochs=80, batch_size=32, random_state=0)
        >>> learner = learner.fit(X[:, :3], species_y=species, width_y=X[:, 3])
        >>> bool((learner.species_predict(X[:, :3]) == species).mean() > 0.9)
        True
    """

    legal = {"heads": _HEADS, "weights": _WEIGHTS}
    composes = ("heads",)
    shared = ("x",)

    def __init__(
        self, heads: Mapping[str, Objective] | None = None, *, weights: Mapping[str, float] | None = None
    ) -> None:
        super().__init__()
        self.heads: Any = heads  # modules, once built
        self.weights = weights

    def _weight(self, name: str) -> float:
        return float((self.weights or {}).get(name, 1.0))

    @property
    def likelihood(self) -> bool:  # type: ignore[override]
        return all(part.likelihood and self._weight(name) == 1.0 for name, part in self.parts().items())

    @property
    def provides(self) -> frozenset[str]:  # type: ignore[override]
        told = [part.provides for part in self.parts().values()]
        scored = {"logits", "rescore"} if all({"logits", "rescore"} <= one for one in told) else set()
        return frozenset(scored | ({"distribution"} if all("distribution" in one for one in told) else set()))

    @property
    def laws(self) -> frozenset[str]:  # type: ignore[override]
        every = [part.laws for part in self.parts().values()]
        return frozenset().union(*every) if all(every) else frozenset()

    def build(self, spec: Spec) -> None:
        parts = self.parts()
        if not parts:
            raise ValueError(
                "expected Heads to have objectives by name, such as Heads({'mass': Regression()}), got none"
            )
        self.refuse_parts()
        for name in self.weights or {}:
            if name not in parts:
                raise closest(name, parts, "a head to weigh")
        if not any(self._weight(name) for name in parts):
            raise ValueError("expected some of Heads' weights to be positive, got none")
        for name in self.fields:
            if name not in spec:
                raise ValueError(
                    f"expected rows with {name!r}, which Heads reads, got {sorted(spec)}; give it to the source, for "
                    f"example Arrays(x, {name}=..., classes={{{name!r}: 3}}) where it numbers classes"
                )
        self.assemble({name: self.view(name, spec) for name in parts})

    def forward(self, batch: Batch, player: str = "") -> Output:
        outputs = {name: self.ask(name, self.view(name, batch)) for name in self.parts()}
        total = self._sum({name: output.losses for name, output in outputs.items()})
        if "rescore" not in self.provides:
            return Output(total, parts=outputs)
        each: dict[str, Any] = {name: output.logits for name, output in outputs.items()}
        scores: dict[str, Any] = {name: output.rescore for name, output in outputs.items()}

        def rescore(z: Tensor) -> Tensor:
            columns = z.split([math.prod(own.shape[1:]) for own in each.values()], 1)
            parts = zip(each.items(), columns, strict=True)
            return self._sum({name: scores[name](own.reshape(logits.shape)) for (name, logits), own in parts})

        logits = torch.cat([own.reshape(len(own), -1) for own in each.values()], 1)
        return Output(total, logits=logits, rescore=rescore, parts=outputs)

    def distribution(self, output: Output) -> tuple[Any, ...]:
        """p(y_k | x) of each head, over the rows: given x the targets are independent."""
        told = [part.distribution(output.parts[name]) for name, part in self.parts().items()]
        return tuple(one for own in told for one in (own if isinstance(own, tuple) else (own,)))

    def _sum(self, losses: dict[str, Tensor]) -> Tensor:
        return torch.stack([self._weight(name) * loss for name, loss in losses.items()]).sum(0)

    def measure(self, batch: Batch) -> dict[str, Tensor | Corpus]:
        measures = dict(super().measure(batch))
        for name, part in self.parts().items():
            with place(name):
                own = part.measure(self.view(name, batch))
            measures.update({f"{name}_{measure}": value for measure, value in own.items()})
        return measures
