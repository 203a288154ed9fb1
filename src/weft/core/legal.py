"""What a hyperparameter may be: declared beside `space` as `legal`, checked in one place when work starts."""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import inf
from numbers import Integral, Real

__all__ = ["WIDTHS", "Choice", "Flag", "Legal", "Number", "Several", "Such", "Whole", "check", "legal_of", "told"]


def told(value: object, limit: int = 80) -> str:
    """A value for a message: on one line, not too long; a class where an instance should be is the commonest slip."""
    if inspect.isclass(value):
        return f"the class {value.__name__}; make one: {value.__name__}()"
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else f"{text[:limit]}..."


class Legal:
    """What a hyperparameter may be; `a | b` is either of two, `a | None` also None.

    >>> (Number(0, 1) | None).words
    'a number in [0, 1] or None'
    >>> Whole(1).check("3", "PGD's steps")
    Traceback (most recent call last):
        ...
    TypeError: expected PGD's steps to be an integer >= 1, got '3' (str); write 3, without quotes

    Attributes:
        words: what is expected, for messages.
    """

    words: str

    def kind(self, value: object) -> bool:
        """Whether it is of a type that can do."""
        raise NotImplementedError

    def fits(self, value: object) -> bool:
        """Whether a value of the right kind is in range."""
        return True

    def near(self, value: object) -> str:
        """What was probably meant, or ""."""
        return ""

    def allows(self, value: object) -> bool:
        """Whether it is legal."""
        return self.kind(value) and self.fits(value)

    def check(self, value: object, what: str, default: object = inspect.Parameter.empty) -> None:
        """Raises where a value is not legal: TypeError where its type can never do, ValueError elsewhere."""
        if self.allows(value):
            return
        right = self.kind(value)
        fix = self.near(value) or self._unquoted(value)
        if not fix and not inspect.isclass(value) and default is not inspect.Parameter.empty:
            fix = f"the default is {default!r}"
        plain = right or value is None or inspect.isclass(value)
        got = told(value) if plain else f"{told(value)} ({type(value).__name__})"
        error = ValueError if right else TypeError
        raise error(f"expected {what} to be {self.words}, got {got}{fix and '; '}{fix}")

    def _unquoted(self, value: object) -> str:
        try:
            read = ast.literal_eval(value) if isinstance(value, str) else None
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return ""
        return f"write {read!r}, without quotes" if read is not None and self.allows(read) else ""

    def __or__(self, other: Legal | None) -> Legal:
        options = self.options if isinstance(self, _Either) else (self,)
        return _Either(*options, _NONE if other is None else other)


def _real(value: object) -> float | None:
    """The number that it is, or None."""
    if _from("torch", value):  # a swept one may be a tensor; the command line starts without torch
        import torch

        number = isinstance(value, torch.Tensor) and value.dim() == 0
        value = value.item() if number else None  # type: ignore[attr-defined]
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return int(value) if isinstance(value, Integral) else float(value)


def _from(package: str, value: object) -> bool:
    return type(value).__module__.partition(".")[0] == package


class Number(Legal):
    """A finite number between two ends, which belong to it (`[`, `]`) or not (`(`, `)`); never a bool."""

    noun = "a number"

    def __init__(self, low: float = -inf, high: float = inf, ends: str = "[]") -> None:
        self.low, self.high, self.ends = low, high, ends
        above, below = ">=" if ends[0] == "[" else ">", "<=" if ends[1] == "]" else "<"
        limits = {(True, False): f" {above} {low}", (False, True): f" {below} {high}", (False, False): ""}
        self.words = self.noun + limits.get((low > -inf, high < inf), f" in {ends[0]}{low}, {high}{ends[1]}")

    def kind(self, value: object) -> bool:
        return _real(value) is not None

    def fits(self, value: object) -> bool:
        number = _real(value)
        if number is None or self.near(number):
            return False
        above = number >= self.low if self.ends[0] == "[" else number > self.low
        return above and (number <= self.high if self.ends[1] == "]" else number < self.high)

    def most(self, number: float) -> float:
        """The largest that can be meant: what float32 holds, of integers what a tensor takes."""
        return 2**63 - 1 if isinstance(number, int) else (2.0 - 2.0**-23) * 2.0**127

    def near(self, value: object) -> str:
        number = _real(value)
        return f"at most {self.most(number):,.10g}" if number is not None and abs(number) > self.most(number) else ""


class Whole(Number):
    """An integer between two ends; never a bool, and without an upper end at most 2**31."""

    noun = "an integer"

    def fits(self, value: object) -> bool:
        return isinstance(value, Integral) and super().fits(value)

    def most(self, number: float) -> float:
        return 2**31 if self.high == inf else self.high


class Flag(Legal):
    """True or False, and nothing that merely counts as one of them."""

    words = "True or False"

    def kind(self, value: object) -> bool:
        return isinstance(value, bool) or (_from("numpy", value) and type(value).__name__ in ("bool", "bool_"))


class Choice(Legal):
    """One of some words; the closest one is suggested."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.words = f"one of {', '.join(map(repr, names))}" if len(names) > 1 else repr(names[0])

    def kind(self, value: object) -> bool:
        return isinstance(value, str)

    def fits(self, value: object) -> bool:
        return value in self.names

    def near(self, value: object) -> str:
        close = difflib.get_close_matches(str(value), self.names, n=1)
        return f"did you mean {close[0]!r}?" if close else ""


class Several(Legal):
    """A list or tuple whose members are legal; no text, no bytes.

    Args:
        words: what is expected.
        each: what a member may be.
        least, most: how many there may be.
    """

    def __init__(self, words: str, each: Legal, *, least: int = 0, most: float = inf) -> None:
        self.words, self.each, self.least, self.most = words, each, least, most

    def kind(self, value: object) -> bool:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray | memoryview):
            return False
        return all(map(self.each.kind, value))

    def fits(self, value: object) -> bool:
        return isinstance(value, Sequence) and self.least <= len(value) <= self.most and all(map(self.each.fits, value))


class Such(Legal):
    """Whatever passes a test.

    Args:
        words: what is expected.
        kind: whether a value is of a type that can do.
        fits: whether one of that type is in range.
    """

    def __init__(
        self, words: str, kind: Callable[[object], bool], fits: Callable[[object], bool] = lambda value: True
    ) -> None:
        self.words, self._kind, self._fits = words, kind, fits

    def kind(self, value: object) -> bool:
        return self._kind(value)

    def fits(self, value: object) -> bool:
        return self._fits(value)


class _Either(Legal):
    def __init__(self, *options: Legal) -> None:
        self.options = options
        *first, last = [option.words for option in options]
        self.words = f"{', '.join(first)} or {last}"

    def kind(self, value: object) -> bool:
        return any(option.kind(value) for option in self.options)

    def fits(self, value: object) -> bool:
        return any(option.allows(value) for option in self.options)

    def near(self, value: object) -> str:
        return next(filter(None, (option.near(value) for option in self.options)), "")


_NONE = Such("None", lambda value: value is None)
WIDTHS = Several("widths of layers such as (128, 128)", Whole(1))


def legal_of(cls: type) -> dict[str, Legal]:
    """What a class declares of its hyperparameters, and what it inherits."""
    declared: dict[str, Legal] = {}
    for base in reversed(cls.__mro__):
        declared.update(vars(base).get("legal", {}))
    return declared


@lru_cache(maxsize=1024)
def _arguments(cls: type) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(cls).parameters


def check(cls: type, values: Mapping[str, object], whose: str = "") -> None:
    """Raises where a hyperparameter of a class is not what `legal` says; one that is not declared passes.

    Args:
        cls: the class.
        values: hyperparameters by name.
        whose: how the messages call the owner; default: by the class.
    """
    declared, signature = legal_of(cls), _arguments(cls)
    owner = whose or cls.__name__
    owner += "'" if owner.endswith("s") else "'s"
    for name, value in values.items():
        if name in declared:
            default = signature[name].default if name in signature else inspect.Parameter.empty
            declared[name].check(value, f"{owner} {name}", default)
