"""Strategy: how a loss becomes an update. Optional verbs, composed by `weft.core.weave`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from weft.core.configured import Configured
from weft.core.objective import PROVIDED, Objective, Output
from weft.core.sight import Sight, sight_of
from weft.core.trees import Params

if TYPE_CHECKING:
    from weft.core.source import Batch

__all__ = [
    "VERBS",
    "GradientAt",
    "Known",
    "Local",
    "Loss",
    "Move",
    "OwnLoss",
    "OwnMean",
    "Params",
    "Penalty",
    "Strategy",
    "StrategyState",
    "Summing",
    "by_group",
    "chosen",
    "weighted_mean",
]

StrategyState = dict[str, Any]
"""A documented tree of tensors: dictionaries whose leaves are tensors."""
Loss = Callable[[Params, "Batch"], Output]
OwnLoss = Callable[..., Tensor]
"""`loss(params, rows=None)`: the objective's own mean loss, on the step's batch or on other rows. It has the step's
draws and the buffers as they were before the step; what it changes of them is discarded."""
OwnMean = Callable[..., Tensor]
"""`mean(read, *params)`: the mean over the step's rows, taken as that of the losses, of what `read` tells of each row,
given the objective's own `Output` at each of some parameters: `mean(lambda now, then: ..., params, others)`."""
GradientAt = Callable[[Params], Params]
"""The gradient at other parameters, as the step's own was made: of the wrapped loss, and combined."""


@dataclass(frozen=True)
class Local:
    """What a strategy sees when a task ends: the trained state and the task's data, one replica of it.

    The three sums go over the task's examples, at the trained parameters, in evaluation mode; the loss is the
    objective's own, not the wrapped one. `readout(output, batch)` names scalars s_ik of each example with weights
    w_ik, and each sum comes with the number of examples.

    Attributes:
        objective: the objective, for what it declares (`distribution`, `likelihood`).
        params: the trainable parameters.
        squares: `squares(readout, absolute=False)`: sum_ik w_ik (grad s_ik)^2, or of absolute values.
        factors: `factors(readout)`: by layer `inputs` and `outputs`, whose Kronecker product approximates
            F = sum_ik w_ik (grad s_ik) (grad s_ik)^T; and F's diagonal for the parameters of no layer.
        products: `products(readout, vectors)`: F v for each vector of a leading axis.
        batches: `batches()`: the task's rows themselves, numbered, in batches.
        ask: `ask(name, *args, rows=...)`: a capability of the objective (`predict`, `sample`), of all players, at
            the trained state, in evaluation mode.
        refuse: `refuse(batch)`: raises for rows that the objective cannot learn from.
    """

    objective: Objective
    params: Params
    squares: Callable[..., tuple[Params, float]]
    factors: Callable[..., tuple[dict[str, Params], Params, float]]
    products: Callable[..., tuple[Params, float]]
    batches: Callable[[], Iterable[Batch]] = tuple
    ask: Any = None
    refuse: Callable[[Batch], object] = bool


@dataclass(frozen=True)
class Move:
    """What a strategy sees of a step before it is taken; behind clipping and the optimizer.

    Attributes:
        step: what is to be added to the parameters, as proposed by the optimizer and by strategies before this one.
        params: the parameters before the step.
        lr: the learning rate now.
        batch_rows: rows in the batch that count (weight above 0).
        data_rows: rows in the data, or None where it has no end.
        loss: the objective's own; see `OwnLoss`.
        mean: of what is read of its outputs; see `OwnMean`.
    """

    step: Params
    params: Params
    lr: Tensor
    batch_rows: Tensor | int
    data_rows: int | None
    loss: OwnLoss
    mean: OwnMean


@dataclass(frozen=True)
class Known:
    """What is known of a training: where it begins by its plan, and where it has ended.

    Attributes:
        steps: updates made by its end, those of earlier calls included.
        epoch: updates in one pass over the data, or None where it has no end.
        task: its name, or None where there are no tasks.
        open: whether further calls are to go on with it, as `partial_fit` without a task does.
        extent: `extent(field)`: the least and the largest value of a field among the rows, or None where the source
            does not tell.
    """

    steps: int
    epoch: int | None
    task: str | None
    open: bool
    extent: Callable[[str], tuple[float, float] | None]


def weighted_mean(gradients: Params, weights: Tensor) -> Params:
    """The groups' weighted mean, over the leading axis of every tensor."""
    return {name: torch.tensordot(weights.to(g.dtype), g, dims=1) for name, g in gradients.items()}


def by_group(values: Tensor, batch: Batch) -> Tensor:
    """Rows of a batch with the field `group` as `(groups, rows of each, ...)`."""
    return values.unflatten(0, (batch["group"].shape[-1], -1))


class _Chosen:
    def __init__(self, setting: str, words: dict[str, str]) -> None:
        self.setting, self.words, self.last = setting, words, list(words.values())[-1]

    def __get__(self, strategy: object, owner: type) -> str:
        value = getattr(strategy, self.setting, "")
        return self.words.get(value, self.last) if isinstance(value, str) else self.last


def chosen(setting: str, **words: str) -> Any:
    """A trait that a hyperparameter decides; for another value (which `validate` refuses) it is the last one.

    >>> class Mask(Strategy):
    ...     sees = chosen("each", example="examples", environment="groups")
    ...     def __init__(self, *, each="environment"):
    ...         self.each = each
    >>> Mask().sees, Mask(each="example").sees
    ('groups', 'examples')
    """
    return _Chosen(setting, words)


class Strategy(Configured):
    """Turns an objective's loss into an update. Every verb has an identity as its default.

    The verbs in the order in which the engine calls them, at each step, for each player:

    1. `wrap(loss, state)`: another loss function (an attack, an inner loop, a penalty on the output);
    2. `combine(gradients, losses, weights, state)`: the groups' gradients become one (see `Summing`);
    3. `steer(gradient, params, loss, gradient_at, state)`: acts on that one; then penalties are added (see `Penalty`);
    4. `update(move, state)`: acts on the step that the optimizer proposes, or chooses another;

    `begin(known, state)` before the first of them; `answer(params, state)`: which parameters answer and are validated;
    `consolidate(local, state, task)` when a task ends, `release(state, task)` when it begins (again); `adapt` after
    training. The strategy's own state, made by `init`, is a tree of tensors that flows through them.

    Attributes:
        sees: what it looks at, in one word: `rows`, `groups`, `examples`, `whole groups`, `all groups` or `episodes`
            (see `weft.core.sight`). Of rows `combine`, where there is one, is given a single group. Who sees all groups
            has a batch with the field `group`, of shape `(n, groups)`, True where a row is of that group; rows of a
            group stand together and all groups have as many (see `by_group`).
        reads: what it reads of `Output` or of the objective beyond the losses.
        neutral: hyperparameters at which it is ERM.
        sweeps: hyperparameters that may differ between replicas trained at once; inside a step they
            are tensors, so the code must not branch on them.
        own_step: whether `update` chooses a step of its own from the gradient, so that the optimizer must be plain SGD
            (whose step is minus the learning rate times the gradient).
    """

    sees: str = "rows"
    reads: frozenset[str] = frozenset()
    neutral: ClassVar[dict[str, Any]] = {}
    sweeps: ClassVar[tuple[str, ...]] = ()
    own_step: bool = False

    @property
    def parts(self) -> tuple[Strategy, ...]:
        """Itself; of a weave its strategies."""
        return (self,)

    @property
    def sight(self) -> Sight:
        """What the word that it sees asks of the engine."""
        return sight_of(self.sees)

    def refuses(self, objective: Objective) -> str | None:
        """The mathematical reason why it cannot train this objective, or None."""
        if objective.solved and (isinstance(self, Penalty) or any(self.does(verb) for verb in VERBS)):
            return "the mean loss has its minimizer in closed form, so no loss, gradient or step is there to change"
        if objective.adapts and self.does("adapt"):
            return (
                "both adapt to a few examples, and neither knows of the other; keep one of them: the objective with "
                "another strategy, or the strategy with another objective"
            )
        if "index" in objective.fields and (self.does("consolidate") or self.sight.episodic):
            return (
                f"it learns from tasks or episodes, one after another, and {type(objective).__name__} has something of "
                "its own for each row of a single training"
            )
        if objective.episodic and self.sight.grouped:
            name = type(objective).__name__
            if self.sight.episodic:
                return f"it adapts by a loss of the support rows alone, and the loss of {name} needs both parts"
            return f"it compares groups of rows, and each row of {name} is an episode, which is of no group"
        if self.own_step and objective.projects:
            return (
                "it makes a step of its own, and would not know of the set on which parameters are put back after each "
                "step of an optimizer"
            )
        if self.sees == "examples" and not objective.decomposable:
            return "its loss couples the examples of a batch, so a single example has no gradient of its own"
        for name in sorted(self.reads - objective.provides):
            what = f": {PROVIDED[name]}" if name in PROVIDED else ""
            whom = f", for each of its players ({', '.join(objective.players)})" if objective.players else ""
            return f"it reads {name!r}, which {type(objective).__name__} does not provide{what}{whom}"
        return None

    def unlawful(self, objective: Objective, known: Collection[str]) -> str | None:
        """What an objective predicts that is not of the families known, in words; None where all of it is."""
        if not objective.laws:
            return f"what {type(objective).__name__} predicts is of no family that it names in laws"
        other = sorted(objective.laws - {*known})
        return f"what {type(objective).__name__} predicts is {' and '.join(other)}" if other else None

    def warns(self, known: Known) -> str | None:
        """Why it comes to nothing, or to another thing than it says, in a training such as this; or None."""
        if self.does("consolidate") and known.task is None:
            return (
                f"expected tasks for {self!r}, which acts by what it keeps of those that have ended, got a training "
                "without: it does nothing; name them, by fit(..., task=...) or partial_fit(..., task=...)"
            )
        return None

    def init(self, params: Params) -> StrategyState:
        """The state before the first step."""
        return {}

    def begin(self, known: Known, state: StrategyState) -> StrategyState:
        """The state where a Learner's training, or its next one, begins."""
        return state

    def wrap(self, loss: Loss, state: StrategyState) -> Loss:
        """Another loss function of (params, batch)."""
        return loss

    def combine(
        self, gradients: Params, losses: Tensor, weights: Tensor, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        """One gradient from the groups' gradients (leading axis), their losses and weights (sum 1).

        Who sees all groups is given one, and beside its state what its `wrap` has left in `Output.left`.
        """
        return weighted_mean(gradients, weights), state

    def steer(
        self, gradient: Params, params: Params, loss: OwnLoss, gradient_at: GradientAt, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        """The gradient to follow in place of the combined one, before penalties."""
        return gradient, state

    def update(self, move: Move, state: StrategyState) -> tuple[Params, StrategyState]:
        """The step to take in place of the one proposed."""
        return move.step, state

    def answer(self, params: Params, state: StrategyState) -> list[Params]:
        """The parameters that answer in place of those trained; several answer together, as replicas do."""
        return [params]

    def consolidate(self, local: Local, state: StrategyState, task: str) -> StrategyState:
        """The state after a task has ended; the same task again replaces what it left."""
        return state

    def release(self, state: StrategyState, task: str) -> StrategyState:
        """The state when a task begins (again): what it left before no longer counts."""
        return state

    def adapt(self, loss: Loss, params: Params, batch: Batch, state: StrategyState) -> Params:
        """After training, parameters adapted to a few labelled examples."""
        return params

    def does(self, verb: str) -> bool:
        """Whether a verb is more than the identity."""
        return getattr(type(self), verb) is not getattr(Strategy, verb)


VERBS = ("init", "begin", "wrap", "combine", "steer", "update", "answer", "consolidate", "release", "adapt")


class Penalty(Strategy):
    """Adds a scalar to the loss, outside the groups: after all steers, wherever it stands in a weave."""

    def penalty(self, params: Params, state: StrategyState) -> Tensor:
        """The scalar."""
        raise NotImplementedError(f"{type(self).__name__} does not define penalty(params, state)")

    def pull(self, params: Params, state: StrategyState) -> Params | None:
        """The gradient of `penalty`, where that is simpler than differentiating, or None."""
        return None

    @property
    def pulls(self) -> bool:
        """Whether `pull` is that of this `penalty`: of the class that defines it, or of one derived from that."""
        return next("pull" in vars(c) for c in type(self).__mro__ if {"pull", "penalty"} & vars(c).keys())


class Summing(Strategy):
    """Combines by sums over the groups, so that no more gradients than fit the memory bound are ever there."""

    def summarize(self, gradients: Params, weights: Tensor) -> StrategyState:
        """A tree of sums over some groups."""
        raise NotImplementedError(f"{type(self).__name__} does not define summarize(gradients, weights)")

    def conclude(
        self, sums: StrategyState, losses: Tensor, weights: Tensor, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        """One gradient from the sums over all groups."""
        raise NotImplementedError(f"{type(self).__name__} does not define conclude(sums, losses, weights, state)")

    def combine(
        self, gradients: Params, losses: Tensor, weights: Tensor, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        return self.conclude(self.summarize(gradients, weights), losses, weights, state)
