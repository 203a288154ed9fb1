"""Objective: what is learned. A batch becomes one loss per example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from weft.core.configured import Configured

if TYPE_CHECKING:
    from weft.core.source import Batch, Source, Spec
    from weft.core.state import State

__all__ = ["PROVIDED", "Capability", "Objective", "Output", "capability", "reduce"]

PROVIDED = {
    "logits": "the logits of each row",
    "features": "the features of each row before the head",
    "rescore": "the losses as a function of the logits",
    "distribution": "the distribution that the model predicts for each row",
    "mass": "how much each row counts of itself",
}
"""What an objective may provide beyond its losses, in words."""


@dataclass
class Output:
    """What a forward gives: one loss per example, and what strategies and measures may read.

    Attributes:
        losses: shape `(n,)`, never reduced.
        logits: the predictive distribution's parameters, where there is one.
        features: the representation before the head, where there is one.
        rescore: the losses as a function of the logits, where they are one; `rescore(logits)` gives `losses`.
        weight: one weight per loss, where the batch has them, times its mass; set by the engine.
        buffers: the module's buffers after this forward (running statistics), set by the engine.
        distribution: `distribution()` gives the objective's, where it provides one; set by the engine.
        parts: the outputs of the parts, by name, of an objective built of several.
        left: a detached tree for each strategy that sees all groups and is to be handed it in `combine`; whoever wraps
            a loss keeps what is there: `replace(output, losses=...)`, and adds its own behind it.
        mass: how much each row counts of itself (the tokens whose mean its loss is), where rows do not count alike:
            shape `(n,)`, not negative, a function of the row and its draws and not of the parameters.
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
    mass: Tensor | None = None


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
        carried: patterns of the names of buffers that go on from step to step (chains, slow copies) and are never
            averaged over groups or processes; others are statistics.
        provides: what `Output` holds beside the losses (`logits`, `features`, `rescore`, `mass`), and `distribution`
            where the method of that name tells what is predicted.
        fields: what it reads of a batch, in the order of `fit`'s arguments.
        progress: the measure that says how training goes, and whether it should fall or rise.
        optimizer: the optimizer's name or settings that its paper uses.
        targets: `classes` where `y` holds labels to be numbered, `values` where it holds numbers.
        class_weight: weights by class label, `balanced`, or None.
    """

    players: ClassVar[tuple[str, ...]] = ()
    decomposable: bool = True
    likelihood: bool = False
    on_policy: bool = False
    solved: bool = False
    carried: tuple[str, ...] = ()
    provides: frozenset[str] = frozenset()
    fields: tuple[str, ...] = ("x", "y")
    progress: tuple[str, str] = ("loss", "min")
    optimizer: Any = "adam"
    targets: str = "values"
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

    def masses(self, batch: Batch) -> Tensor:
        """How much each row counts of itself, where it provides that."""
        mass = self(batch).mass
        if mass is None:
            raise ValueError(f"expected Output of {type(self).__name__} to hold 'mass', as provides says, got None")
        return mass

    def project(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """The parameters by name, those that live on a set (non-negative, of unit norm) put back on it.

        Asked at the beginning and after each step of what has moved, as a strategy has amended it. It may give only
        those that it puts back, computes with tensors alone, and gives back what is on the set already.
        """
        return params

    @property
    def projects(self) -> bool:
        """Whether some parameters live on a set: whoever defines `project` says so."""
        return type(self).project is not Objective.project

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
