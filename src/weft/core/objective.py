"""Objective: what is learned. A batch becomes one loss per example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from weft.core.configured import Configured

if TYPE_CHECKING:
    from weft.core.source import Batch, Source, Spec
    from weft.core.state import State

__all__ = ["PROVIDED", "TARGETS", "Capability", "Objective", "Output", "capability", "reduce"]

PROVIDED = {
    "logits": "the logits of each row",
    "features": "the features of each row before the head",
    "rescore": "the losses as a function of the logits",
    "distribution": "the distribution that the model predicts for each row",
}
"""What an objective may provide beyond its losses, in words."""
TARGETS = ("classes", "multilabel", "values", "counts", "amounts")
"""What `y` may hold."""


@dataclass
class Output:
    """What a forward gives: one loss per example, and what strategies and measures may read.

    Attributes:
        losses: shape `(n,)`, never reduced.
        logits: the predictive distribution's parameters, where there is one.
        features: the representation before the head, where there is one.
        rescore: the losses as a function of the logits, where they are one; `rescore(logits)` gives `losses`.
        weight: one weight per loss, where the batch has them; set by the engine.
        buffers: the module's buffers after this forward (running statistics), set by the engine.
        distribution: `distribution()` gives the objective's, where it provides one; set by the engine.
        parts: the outputs of the parts, by name, of an objective built of several.
        left: a detached tree for each strategy that sees all groups and is to be handed it in `combine`; whoever wraps
            a loss keeps what is there: `replace(output, losses=...)`, and adds its own behind it.
    """

    losses: Tensor
    logits: Tensor | None = None
    features: Tensor | None = None
    rescore: Callable[[Tensor], Tensor] | None = None
    weight: Tensor | None = None
    buffers: dict[str, Tensor] = field(default_factory=dict)
    distribution: Callable[[], Any] | None = None
    parts: dict[str, Output] = field(default_factory=dict)
    left: tuple[dict[str, Tensor], ...] = ()


def reduce(values: Tensor, weight: Tensor | None = None) -> Tensor:
    """The weighted mean over the examples (the last axis): the one place where losses are reduced.

    A batch whose weights are all zero (a group absent from it) reduces to zero.

    >>> reduce(torch.tensor([1.0, 3.0]), torch.tensor([3.0, 1.0]))
    tensor(1.5000)
    """
    if weight is None:
        return values.mean(-1)
    weight = weight.to(values.dtype)
    return (values * weight).sum(-1) / weight.sum(-1).clamp_min(torch.finfo(values.dtype).tiny)


@dataclass(frozen=True)
class Capability:
    """How a capability answers when several replicas were trained.

    Attributes:
        merge: `mean`, `logmeanexp` (densities), `share` (samples: each replica draws its share) or
            `refuse` (the answer of one replica only: representations, actions).
        finish: applied to the merged answer (class probabilities become a class).
        reads: whether it is asked about rows like those of training; not so a prior's, about latents.
    """

    merge: str = "mean"
    finish: Callable[[Tensor], Tensor] | None = None
    reads: bool = True


Method = TypeVar("Method", bound=Callable[..., Any])


def capability(*, merge: str = "mean", finish: Callable[[Tensor], Tensor] | None = None) -> Callable[[Method], Method]:
    """Marks a method of an objective as something that the Learner offers under the same name."""

    def mark(method: Method) -> Method:
        method.capability = Capability(merge, finish)  # type: ignore[attr-defined]
        return method

    return mark


class Objective(Configured, nn.Module):
    """A pure function from a batch to one loss per example, with the networks it needs.

    A subclass keeps its hyperparameters in `__init__` (assigned and nothing else), makes its
    networks in `build` once shapes are known, and writes its mathematics in `forward`. What it can
    do once trained are plain methods marked with `capability`; they take and give tensors with one
    row per example (`sample` takes a number).

    Attributes:
        players: the names of the submodules that learn by losses of their own, in the order of their
            moves within a step; empty for the usual one player that owns every parameter. A game's
            `forward` takes the player as its second argument, and what it provides it provides for each of them.
        decomposable: whether an example's loss depends on that example alone, given the net's outputs. Coupled losses
            (contrastive) say False, and single-example gradients are refused; a net that mixes the rows (batch
            normalization) is found out by itself.
        likelihood: whether the losses are negative log-likelihoods, up to a constant.
        on_policy: whether the loss is right only for batches that the current policy has drawn, so that rows of
            an earlier policy must not be learned from. Whoever acts says it, True or False.
        solved: whether `solve` gives the parameters, so that there is no descent.
        provides: what `Output` holds beside the losses (`logits`, `features`, `rescore`), and `distribution` where
            the method of that name tells what is predicted.
        fields: what it reads of a batch, in the order of `fit`'s arguments; those after `x`, `y` and `environment` are
            given to `fit` by their names.
        kinds: what such a field holds, by name: one of `TARGETS`, `classes` being labels in any shape; `values` where
            it says nothing. `y` is what `targets` says, unless it is named here: `classes` for a mask of labels.
        progress: the measure that says how training goes, and whether it should fall or rise.
        optimizer: the optimizer's name or settings that its paper uses.
        targets: what `y` holds: `classes` (labels to be numbered), `multilabel` (0 or 1 for each label), `values`
            (numbers), `counts` (0, 1, 2, ...) or `amounts` (numbers > 0).
        ordered: whether the order of the classes counts, so that labels without one (text) are refused.
        class_weight: weights by class label, `balanced`, or None.
    """

    players: ClassVar[tuple[str, ...]] = ()
    decomposable: bool = True
    likelihood: bool = False
    on_policy: bool = False
    solved: bool = False
    provides: frozenset[str] = frozenset()
    fields: tuple[str, ...] = ("x", "y")
    kinds: Mapping[str, str] = MappingProxyType({})
    progress: tuple[str, str] = ("loss", "min")
    optimizer: Any = "adam"
    targets: str = "values"
    ordered: bool = False
    class_weight: Any = None

    def build(self, spec: Spec) -> None:
        """Makes the networks, given the names, shapes and dtypes of a batch."""
        raise NotImplementedError(f"{type(self).__name__} does not define build(spec)")

    def forward(self, batch: Batch, player: str = "") -> Output:
        """One loss per example; in a game, the player's."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward(batch)")

    def distribution(self, output: Output) -> Any:
        """What the model predicts for each row, from what `forward` gave: a `torch.distributions.Distribution`, or a
        tuple of them for targets that are independent given the row."""
        raise NotImplementedError(
            f"{type(self).__name__} does not tell the distribution that it predicts: define distribution(output) and "
            "name it in provides"
        )

    def solve(self, source: Source, state: State) -> dict[str, Tensor]:
        """The minimizer's parameters by name, where it is solved and not descended."""
        raise NotImplementedError(f"{type(self).__name__} is descended, not solved: it does not define solve(source)")

    def credit(self, batch: Batch) -> Batch:
        """Further fields for rows that were collected together (an advantage over the others), where it acts."""
        return {}

    def every(self, player: str) -> int:
        """A player moves at every so-many-th step."""
        return 1

    def measure(self, batch: Batch) -> dict[str, Tensor]:
        """What to report of a batch, each of shape `(n,)` or already one number."""
        if self.players:
            return {f"{player}_loss": self(batch, player).losses for player in self.players}
        return {"loss": self(batch).losses}

    def capabilities(self) -> dict[str, Capability]:
        """The methods that a Learner offers once trained."""
        marked = {}
        for name in dir(type(self)):
            mark = getattr(getattr(type(self), name, None), "capability", None)
            if isinstance(mark, Capability):
                marked[name] = mark
        return marked

    def holds(self, name: str) -> str:
        """What a field holds."""
        return self.kinds.get(name, self.targets if name == "y" else "values")

    def orders(self, name: str) -> bool:
        """Whether the order of a field's classes counts."""
        return name == "y" and self.ordered

    def declares(self, trait: str) -> bool:
        """Whether it says a trait itself, in place of the default that every objective has."""
        own = (vars(cls) for cls in type(self).__mro__[: type(self).__mro__.index(Objective)])
        return trait in vars(self) or any(trait in said for said in own)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "solve" in vars(cls) and not cls.solved:
            raise TypeError(f"expected {cls.__name__}, which defines solve, to say solved = True, got False")

    def __copy__(self) -> Self:
        twin = type(self).__new__(type(self))
        own = ((name, dict(kept) if name in _HELD else kept) for name, kept in vars(self).items())
        vars(twin).update(own)  # else a copy with another part would put it into the first as well
        return twin

    def __repr__(self) -> str:
        return Configured.__repr__(self)


_HELD = ("_modules", "_parameters", "_buffers")
