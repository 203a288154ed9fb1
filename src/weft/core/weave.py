"""The weave: strategies in the order in which the loss flows through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from weft.core.configured import Range, closest
from weft.core.objective import Objective
from weft.core.sight import joined
from weft.core.strategy import Strategy

__all__ = ["Weave", "weave"]

_ORDER = {"wrap": "loss", "combine": "gradient", "steer": "combined gradient", "update": "step"}


def _seen(parts: Sequence[Strategy]) -> str:
    """What they see together; raises where they do not agree, naming two that do not."""
    together = [p for p in parts if p.sees == "all groups"]
    apart = [p for p in parts if p.sees not in ("rows", "all groups")]
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


def _refuse(parts: Sequence[Strategy]) -> None:
    """Raises for what cannot be woven: two of which there can be one, or an order that goes back."""
    combiners = [p for p in parts if p.does("combine") and p.sees != "all groups"]
    steppers = [p for p in parts if p.own_step]
    for several, what in ((combiners, "combines the groups' gradients"), (steppers, "chooses a step of its own")):
        if len(several) > 1:
            raise ValueError(
                f"expected at most one strategy that {what}, got {several[0]!r} and {several[1]!r}; keep one of them"
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


class Weave(Strategy):
    """Strategies in the order in which the loss flows through them; made by `weave`. The engine asks each of them.

    Hyperparameters are those of the parts, by the parts' names in lower case.
    """

    def __init__(self, *parts: Strategy) -> None:
        self.named: dict[str, Strategy] = {}
        for part in parts:
            if not isinstance(part, Strategy):
                raise TypeError(f"expected strategies, such as weave(EWC(), ANDMask()), got {part!r}")
            name = type(part).__name__.lower()
            count = sum(n.rstrip("0123456789") == name for n in self.named)
            self.named[f"{name}{count + 1}" if count else name] = part
        _refuse(parts)
        self.reads = frozenset().union(*(p.reads for p in parts))
        self.sees = _seen(parts)
        self.own_step = any(p.own_step for p in parts)

    @property
    def parts(self) -> tuple[Strategy, ...]:
        return tuple(self.named.values())

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        inner = {f"{name}__{k}": v for name, part in self.named.items() for k, v in part.get_params().items()}
        return {**self.named, **(inner if deep else {})}

    def set_params(self, **params: Any) -> Weave:
        parts: dict[str, Any] = dict(self.named)
        for name, value in params.items():
            outer, _, inner = name.partition("__")
            if outer not in parts:
                raise closest(outer, parts, "a strategy of the weave")
            parts[outer] = parts[outer].set_params(**{inner: value}) if inner else value
        self.__init__(*parts.values())  # type: ignore[misc]
        return self

    def having(self, **params: Any) -> Weave:
        parts = dict(self.named)
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
        return tuple(f"{name}__{s}" for name, part in self.named.items() for s in part.sweeps)

    @property
    def space(self) -> dict[str, Range]:  # type: ignore[override]
        return {f"{name}__{s}": r for name, part in self.named.items() for s, r in part.space.items()}

    def does(self, verb: str) -> bool:
        return any(part.does(verb) for part in self.parts)

    def validate(self) -> None:
        for part in self.parts:
            part.validate()

    def refuses(self, objective: Objective) -> str | None:
        return next((reason for part in self.parts if (reason := part.refuses(objective))), None)

    def _asked(self, *given: object, **named: object) -> NoReturn:
        raise TypeError(f"expected one of the weave's parts to be asked, got {self!r}; its parts are in .parts")

    init = begin = warns = wrap = combine = steer = update = answer = consolidate = release = adapt = _asked


def weave(*strategies: Strategy) -> Strategy:
    """Composes strategies, left to right as the loss flows: losses, then gradients, then steps.

    Losses are wrapped in the order given (the last one is the outermost), at most one strategy combines the groups'
    gradients, the one gradient is steered in the order given, the sum of the penalties is added wherever they stand,
    and steps are changed in the order given.

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
