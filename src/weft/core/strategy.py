"""Strategy: how a loss becomes an update. Optional verbs, composed by `weave`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from weft.core.configured import Configured, Range, closest
from weft.core.objective import Objective, Output

if TYPE_CHECKING:
    from weft.core.source import Batch

__all__ = ["Local", "Loss", "Params", "Strategy", "StrategyState", "Weave", "by_group", "weave", "weighted_mean"]

Params = dict[str, Tensor]
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
        needs: gradients of the `mean` loss, one per `group`, or one per `example`. What `combine` is given
            of the mean loss is a single group.
        per_group: `wrap` must see one group at a time even if only the mean's gradient is needed.
        across: `wrap` must see the rows of all groups in one pass, for a penalty that couples them. Its
            batch has the field `group`, of shape `(n, groups)`, True where a row is of that group; rows
            of a group stand together and all groups have as many (see `by_group`). It takes grouped
            batches, so `needs` is `group`, but what is differentiated is one loss, the mean over all.
        episodic: its groups are episodes with a `support` and a `query` part.
        reads: what it reads of `Output` or of the objective beyond the losses.
        neutral: hyperparameters at which it is ERM.
        sweeps: hyperparameters that may differ between replicas trained at once; inside a step they
            are tensors, so the code must not branch on them.
    """

    needs: str = "mean"
    per_group: bool = False
    across: bool = False
    episodic: bool = False
    reads: frozenset[str] = frozenset()
    neutral: ClassVar[dict[str, Any]] = {}
    sweeps: ClassVar[tuple[str, ...]] = ()

    def validate(self) -> None:
        """Raises ValueError or TypeError for hyperparameters out of range; called when work starts."""

    def refuses(self, objective: Objective) -> str | None:
        """The mathematical reason why it cannot train this objective, or None."""
        if hasattr(objective, "solve") and any(self.does(verb) for verb in _VERBS):
            return "the mean loss has its minimizer in closed form, so no loss, gradient or step is there to change"
        if self.needs == "example" and not objective.decomposable:
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
_ORDER = {"wrap": "loss", "combine": "gradient", "steer": "combined gradient", "update": "step"}


class Weave(Strategy):
    """Strategies in the order in which the loss flows through them; made by `weave`."""

    def __init__(self, *parts: Strategy) -> None:
        self.parts = parts
        self.names: list[str] = []
        for part in parts:
            if not isinstance(part, Strategy):
                raise TypeError(f"expected strategies, such as weave(EWC(), ANDMask()), got {part!r}")
            name = type(part).__name__.lower()
            count = sum(n.rstrip("0123456789") == name for n in self.names)
            self.names.append(f"{name}{count + 1}" if count else name)
        combiners = [p for p in parts if p.does("combine")]
        if len(combiners) > 1:
            raise ValueError(
                f"expected at most one strategy that combines the groups' gradients, got {combiners[0]!r} and "
                f"{combiners[1]!r}; keep one of them"
            )
        recalling = [p for p in parts if p.does("recall")]
        if len(recalling) > 1:
            raise ValueError(
                f"expected at most one strategy that recalls rows of earlier tasks, got {recalling[0]!r} and "
                f"{recalling[1]!r}; keep one of them"
            )
        latest: tuple[int, Strategy | None] = (0, None)
        names = list(_ORDER.values())
        for part in parts:
            stages = [i for i, verb in enumerate(_ORDER) if part.does(verb)]
            if stages and stages[0] < latest[0]:
                raise ValueError(
                    f"expected the order loss, gradient, step, got {part!r} (acts on the {names[stages[0]]}) after "
                    f"{latest[1]!r} (acts on the {names[latest[0]]}); put {type(part).__name__} first"
                )
            if stages:
                latest = (max(latest[0], stages[0]), part)  # by where each begins: one may act on losses and steps
        ranks = ("mean", "group", "example")
        self.needs = max((p.needs for p in parts), key=ranks.index, default="mean")
        self.per_group = any(p.per_group for p in parts)
        self.across = any(p.across for p in parts)
        self.episodic = any(p.episodic for p in parts)
        self.reads = frozenset().union(*(p.reads for p in parts))
        if self.needs == "example" and self.per_group:
            whole = next(p for p in parts if p.per_group)
            single = next(p for p in parts if p.needs == "example")
            raise ValueError(
                f"expected strategies that agree on what a group is, got {whole!r}, which needs whole groups, and "
                f"{single!r}, which makes every example its own group; let the latter work on environments"
            )
        if self.across:
            joint = next(p for p in parts if p.across)
            for part in parts:
                if not part.across and (part.does("combine") or part.per_group or part.needs != "mean"):
                    raise ValueError(
                        f"expected strategies that agree on what a loss is, got {joint!r}, whose penalty couples the "
                        f"groups, and {part!r}, which takes each group by itself; keep one of them"
                    )

    # Hyperparameters are those of the parts, by the parts' names in lower case.
    def get_params(self, deep: bool = True) -> dict[str, Any]:
        params: dict[str, Any] = dict(zip(self.names, self.parts, strict=True))
        if deep:
            for name, part in zip(self.names, self.parts, strict=True):
                params.update({f"{name}__{k}": v for k, v in part.get_params().items()})
        return params

    def set_params(self, **params: Any) -> Weave:
        parts = dict(zip(self.names, self.parts, strict=True))
        for name, value in params.items():
            outer, _, inner = name.partition("__")
            if outer not in parts:
                raise closest(outer, parts, "a strategy of the weave")
            if inner:
                parts[outer].set_params(**{inner: value})
            else:
                parts[outer] = value
        self.__init__(*parts.values())  # type: ignore[misc]
        return self

    def having(self, **params: Any) -> Weave:
        parts = dict(zip(self.names, self.parts, strict=True))
        for name, value in params.items():
            outer, _, inner = name.partition("__")
            parts[outer] = parts[outer].having(**{inner: value})
        return Weave(*parts.values())

    def __sklearn_clone__(self) -> Weave:
        from sklearn.base import clone

        return Weave(*(clone(part, safe=False) for part in self.parts))

    def __repr__(self) -> str:
        return f"weave({', '.join(map(repr, self.parts))})"

    @property
    def sweeps(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"{n}__{s}" for n, p in zip(self.names, self.parts, strict=True) for s in p.sweeps)

    @property
    def space(self) -> dict[str, Range]:  # type: ignore[override]
        return {f"{name}__{s}": r for name, part in self._named() for s, r in part.space.items()}

    def does(self, verb: str) -> bool:
        return any(part.does(verb) for part in self.parts)

    def validate(self) -> None:
        for part in self.parts:
            part.validate()

    def refuses(self, objective: Objective) -> str | None:
        reasons = (part.refuses(objective) for part in self.parts)
        return next((reason for reason in reasons if reason), None)

    def _named(self) -> list[tuple[str, Strategy]]:
        return list(zip(self.names, self.parts, strict=True))

    def init(self, params: Params) -> StrategyState:
        return {name: part.init(params) for name, part in self._named()}

    def wrap(self, loss: Loss, state: StrategyState) -> Loss:
        for name, part in self._named():
            loss = part.wrap(loss, state[name])
        return loss

    def observe(self, output: Output, batch: Batch, state: StrategyState) -> StrategyState:
        return {name: part.observe(output, batch, state[name]) for name, part in self._named()}

    def combine(
        self, gradients: Params, losses: Tensor, weights: Tensor, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        for name, part in self._named():
            if part.does("combine"):
                combined, after = part.combine(gradients, losses, weights, state[name])
                return combined, {**state, name: after}
        return weighted_mean(gradients, weights), state

    def summarize(self, gradients: Params, weights: Tensor) -> StrategyState:
        return next(part for part in self.parts if part.does("combine")).summarize(gradients, weights)

    def conclude(
        self, sums: StrategyState, losses: Tensor, weights: Tensor, state: StrategyState
    ) -> tuple[Params, StrategyState]:
        name, part = next((name, part) for name, part in self._named() if part.does("combine"))
        combined, after = part.conclude(sums, losses, weights, state[name])
        return combined, {**state, name: after}

    def recall(self, batch: Batch, state: StrategyState) -> Batch | None:
        found = [part.recall(batch, state[name]) for name, part in self._named() if part.does("recall")]
        return found[0] if found else None

    def steer(self, gradient: Params, recalled: Params | None, state: StrategyState) -> tuple[Params, StrategyState]:
        for name, part in self._named():
            gradient, after = part.steer(gradient, recalled if part.does("recall") else None, state[name])
            state = {**state, name: after}
        return gradient, state

    def penalty(self, params: Params, state: StrategyState) -> Tensor:
        terms = [part.penalty(params, state[name]) for name, part in self._named() if part.does("penalty")]
        return torch.stack(terms).sum()

    def pull(self, params: Params, state: StrategyState) -> Params | None:
        pulls = [part.pull(params, state[name]) for name, part in self._named() if part.does("penalty")]
        total, *others = pulls
        for other in others:
            if total is not None:
                total = None if other is None else {name: p + other[name] for name, p in total.items()}
        return total

    def update(self, step: Params, params: Params, state: StrategyState) -> tuple[Params, StrategyState]:
        for name, part in self._named():
            step, after = part.update(step, params, state[name])
            state = {**state, name: after}
        return step, state

    def consolidate(self, local: Local, state: StrategyState, task: str) -> StrategyState:
        return {name: part.consolidate(local, state[name], task) for name, part in self._named()}

    def adapt(self, loss: Loss, params: Params, batch: Batch, state: StrategyState) -> Params:
        for name, part in self._named():
            if part.does("adapt"):
                params = part.adapt(loss, params, batch, state[name])
            else:
                loss = part.wrap(loss, state[name])
        return params

    def release(self, state: StrategyState, task: str) -> StrategyState:
        return {name: part.release(state[name], task) for name, part in self._named()}


def weave(*strategies: Strategy) -> Strategy:
    """Composes strategies, left to right as the loss flows: losses, then gradients, then steps.

    Losses are wrapped in the order given (the last one is the outermost), penalties are summed, at
    most one strategy combines the groups' gradients, and steps are changed in the order given.

    >>> from weft.strategies import EWC, ANDMask
    >>> weave(EWC(strength=10.0), ANDMask(threshold=0.8))
    weave(EWC(strength=10.0), ANDMask(threshold=0.8))
    >>> weave(ANDMask(), ANDMask(threshold=0.5))
    Traceback (most recent call last):
        ...
    ValueError: expected at most one strategy that combines the groups' gradients, got ANDMask() and \
ANDMask(threshold=0.5); keep one of them
    """
    parts: list[Strategy] = []
    for strategy in strategies:
        parts.extend(strategy.parts if isinstance(strategy, Weave) else [strategy])
    return parts[0] if len(parts) == 1 else Weave(*parts)
