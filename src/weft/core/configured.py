"""Hyperparameters as scikit-learn keeps them: the arguments of `__init__`, assigned and nothing else."""

from __future__ import annotations

import copy
import difflib
import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from typing import Any, ClassVar, Self

from weft.core.legal import Legal, check

__all__ = ["Configured", "Range", "closest", "shown"]


def shown(name: Any, limit: int = 60) -> str:
    """A name for a message: quoted, on one line, without control characters, not too long.

    >>> shown("a\\nb"), shown("x" * 100, limit=5)
    ("'a\\\\nb'", "'xxxxx...'")
    """
    text = str(name)
    return repr(text if len(text) <= limit else f"{text[:limit]}...")


def closest(name: str, known: Iterable[str], what: str) -> ValueError:
    """The error for an unknown name, with the closest known one suggested."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return ValueError(f"expected {what} among {', '.join(known) or 'none'}, got {name!r}{hint}")


@dataclass(frozen=True)
class Range:
    """Where a search over a hyperparameter may look; `log` where its order of magnitude matters, `whole` for counts.

    >>> Range(1, 100, log=True, whole=True).nearest(0.3), Range(1, 100, log=True, whole=True).nearest("auto")
    (1, 10)
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def nearest(self, value: object) -> float:
        """The value, if it is in the range, or the end that is nearest; of what is no number the middle."""
        if isinstance(value, Real) and not isinstance(value, bool):
            found = min(max(float(value), self.low), self.high)
        else:
            found = math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2
        return round(found) if self.whole else float(found)


@lru_cache(maxsize=1024)
def _names_of(init: Callable[..., None]) -> tuple[str, ...]:
    named = inspect.signature(init).parameters.values()
    return tuple(p.name for p in named if p.name != "self" and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))


class Configured:
    """`get_params`, `set_params` and a repr for any class whose `__init__` only assigns its arguments.

    >>> class Ball(Configured):
    ...     def __init__(self, *, radius=1.0):
    ...         self.radius = radius
    >>> Ball(radius=2.0).get_params(), Ball(), Ball().having(radius=3.0)
    ({'radius': 2.0}, Ball(), Ball(radius=3.0))

    Attributes:
        space: by hyperparameter, the range that a search takes where the user names none.
        legal: by hyperparameter, what it may be (see `weft.core.legal`); those of classes below are inherited.
    """

    space: ClassVar[dict[str, Range]] = {}
    legal: ClassVar[dict[str, Legal]] = {}

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return list(_names_of(cls.__init__))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Hyperparameters by name; with `deep`, those of hyperparameters as `outer__inner`."""
        params = {name: getattr(self, name) for name in self._get_param_names()}
        if deep:
            for name, value in list(params.items()):
                if hasattr(value, "get_params") and not isinstance(value, type):
                    params.update({f"{name}__{k}": v for k, v in value.get_params().items()})
        return params

    def set_params(self, **params: Any) -> Self:
        """Sets hyperparameters, nested ones by `outer__inner`."""
        known = self.get_params(deep=False)
        for name, value in params.items():
            outer, _, inner = name.partition("__")
            if outer not in known:
                raise closest(outer, known, f"a parameter of {type(self).__name__}")
            if inner:
                known[outer].set_params(**{inner: value})
            else:
                setattr(self, outer, value)
        return self

    def having(self, **params: Any) -> Self:
        """A shallow copy with other hyperparameters; nested ones are copied on the way."""
        twin = copy.copy(self)
        for name, value in params.items():
            outer, _, inner = name.partition("__")
            if inner:
                value = getattr(twin, outer).having(**{inner: value})
            setattr(twin, outer, value)
        return twin

    def validate(self) -> None:
        """Raises ValueError or TypeError for hyperparameters that are not `legal`; called when work starts."""
        params = self.get_params(deep=False)
        check(type(self), params)
        for value in params.values():
            if isinstance(value, Configured):
                value.validate()

    def __repr__(self) -> str:
        signature = inspect.signature(type(self).__init__).parameters
        shown = []
        for name, value in self.get_params(deep=False).items():
            default = signature[name].default if name in signature else inspect.Parameter.empty
            try:
                same = value is default or bool(value == default)
            except (RuntimeError, ValueError, TypeError):
                same = False
            if not same:
                shown.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"
