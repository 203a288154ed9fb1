"""Strategy: how a loss becomes an update. Optional verbs, composed by `weft.core.weave`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from weft.core.configured import Configured
from weft.core.objective import Objective, Output
from weft.core.sight import Sight, sight_of
from weft.core.trees import Params

if TYPE_CHECKING:
    from weft.core.source import Batch

__all__ = ["Local", "Loss", "Params", "Strategy", "StrategyState", "by_group", "chosen", "weighted_mean"]

StrategyState = dict[str, Any]
"""A documented tree of tensors: dictionaries whose leaves are tensors."""
Loss = Callable[[Params, "Batch"], Output]


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
    """

    objective: Objective
    params: Params
    squares: Callable[..., tuple[Params, float]]
    factors: Callable[..., tuple[dict[str, Params], Params, float]]
    products: Callable[..., tuple[Params, float]]
    batches: Callable[[], Iterable[Batch]] = tuple
    ask: Any = None


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
    2. `combine(gradients, losses, weights, state)`: the groups' gradients become one;
    3. `steer(gradient, recalled, state)`: acts on that one, beside the gradient of rows of earlier tasks, which
       `recall(batch, state)` gives;
    4. `penalty(params, state)`: a scalar whose gradient is added once, outside the groups; `pull` gives that
       gradient where it is simpler than differentiating;
    5. `update(step, params, state)`: acts on the step that the optimizer proposes;

    and `consolidate(local, state, task)` when a task ends. The strategy's own state, made by `init`,
    is a tree of tensors that flows through them.

    Attributes:
        sees: what it looks at, in one word: `rows`, `groups`, `examples`, `whole groups`, `all groups` or `episodes`
            (see `weft.core.sight`). Of rows `combine`, where there is one, is given a single group. Who sees all groups
            has a batch with the field `group`, of shape `(n, groups)`, True where a row is of that group; rows of a
            group stand together and all groups have as many (see `by_group`).
        reads: what it reads of `Output` or of the objective beyond the losses.
        neutral: hyperparameters at which it is ERM.
        sweeps: hyperparameters that may differ between replicas trained at once; inside a step they
            are tensors, so the code must not branch on them.
    """

    sees: str = "rows"
    reads: frozenset[str] = frozenset()
    neutral: ClassVar[dict[str, Any]] = {}
    sweeps: ClassVar[tuple[str, ...]] = ()

    @property
    def sight(self) -> Sight:
        """What the word that it sees asks of the engine."""
        return sight_of(self.sees)

    def refuses(self, objective: Objective) -> str | None:
        """The mathematical reason why it cannot train this objective, or None."""
        if hasattr(objective, "solve") and any(self.does(verb) for verb in _VERBS):
            return "the mean loss has its minimizer in closed form, so no loss, gradient or step is there to change"
        if self.sees == "examples" and not objective.decomposable:
            return "its loss couples the examples of a batch, so a single example has no gradient of its own"
        for name in sorted(self.reads):
            if name not in objective.provides and not hasattr(objective, name):
                return f"it reads {name!r}, which {type(objective).__name__} does not provide"
        return None

    def init(self, params: Params) -> StrategyState:
        """The state before the first step."""
        return {}

    def wrap(self, loss: Loss, state: StrategyState) -> Loss:
        """Another loss function of (params, batch)."""
        return loss

    def observe(self, output: Output, batch: Batch, state: StrategyState) -> StrategyState:
        """The state after a pass over all groups, where it is `across`; it may grow in the first one."""
        return state

    def combine(
        self, gradients: Params, losses: Tensor, weights: Tensor, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        """One gradient from the groups' gradients (leading axis), their losses and weights (sum 1)."""
        return weighted_mean(gradients, weights), state

    def summarize(self, gradients: Params, weights: Tensor) -> StrategyState:
        """Where `combine` needs only sums over the groups: a tree of such sums, of some of them.

        The engine then adds the sums of parts that fit its memory bound, and calls `conclude`.
        """
        raise NotImplementedError

    def conclude(
        self, sums: StrategyState, losses: Tensor, weights: Tensor, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        """One gradient from the sums over all groups."""
        raise NotImplementedError

    def recall(self, batch: Batch, state: StrategyState) -> Batch | None:
        """Rows whose gradient, of the objective's own mean loss, `steer` is given; None while there are none."""
        return None

    def steer(self, gradient: Params, recalled: Params | None, state: StrategyState) -> tuple[Params, StrategyState]:
        """The gradient to follow in place of the combined one, given that of the rows recalled; before the penalty."""
        return gradient, state

    def penalty(self, params: Params, state: StrategyState) -> Tensor:
        """A scalar added to the loss, outside the groups."""
        raise NotImplementedError

    def pull(self, params: Params, state: StrategyState) -> Params | None:
        """The gradient of `penalty`, or None where it is left to automatic differentiation."""
        return None

    def update(self, step: Params, params: Params, state: StrategyState) -> tuple[Params, StrategyState]:
        """The step to take in place of the one proposed."""
        return step, state

    def consolidate(self, local: Local, state: StrategyState, task: str) -> StrategyState:
        """The state after a task has ended; the same task again replaces what it left."""
        return state

    def release(self, state: StrategyState, task: str) -> StrategyState:
        """The state when a task begins (again): what it left before no longer counts."""
        return state

    def adapt(self, loss: Loss, params: Params, batch: Batch, state: StrategyState) -> Params:
        """After training, parameters adapted to a few labelled examples."""
        raise NotImplementedError

    def does(self, verb: str) -> bool:
        """Whether a verb is more than the identity."""
        return getattr(type(self), verb) is not getattr(Strategy, verb)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "penalty" in vars(cls) and "pull" not in vars(cls):
            cls.pull = Strategy.pull  # type: ignore[method-assign] # that of the class below is of another penalty


_VERBS = ("wrap", "combine", "steer", "penalty", "update", "consolidate")
