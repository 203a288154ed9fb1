"""The weave: strategies in the order in which the loss flows through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.core.configured import Range, closest
from weft.core.objective import Objective, Output
from weft.core.sight import joined
from weft.core.strategy import Local, Loss, Strategy, StrategyState, weighted_mean
from weft.core.trees import Params

if TYPE_CHECKING:
    from weft.core.source import Batch

__all__ = ["Weave", "weave"]

_ORDER = {"wrap": "loss", "combine": "gradient", "steer": "combined gradient", "update": "step"}


def _seen(parts: Sequence[Strategy]) -> str:
    """What they see together; raises where they do not agree, naming two that do not."""
    together = [p for p in parts if p.sees == "all groups"]
    apart = [p for p in parts if p.sees not in ("rows", "all groups") or p.does("combine")]
    if together and apart:
        raise ValueError(
            f"expected strategies that agree on what a loss is, got {together[0]!r}, whose penalty couples the "
            f"groups, and {apart[0]!r}, which takes each group by itself; keep one of them"
        )
    word = "rows"
    for part in parts:
        both = joined(word, part.sees)
        if both is None:
            other = next(p for p in parts if joined(p.sees, part.sees) is None)
            single, whole = (part, other) if part.sees == "examples" else (other, part)
            raise ValueError(
                f"expected strategies that agree on what a group is, got {whole!r}, which needs whole groups, and "
                f"{single!r}, which makes every example its own group; let the latter work on environments"
            )
        word = both
    return word


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
        self.reads = frozenset().union(*(p.reads for p in parts))
        self.sees = _seen(parts)

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
        recalled = [part.recall(batch, state[name]) for name, part in self._named() if part.does("recall")]
        return recalled[0] if recalled else None

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
