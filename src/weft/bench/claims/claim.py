"""A claim: what is stated, by whom, in which settings it is run, and how far its figures may be off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from weft.bench.claims.telling import Report
    from weft.core.values import Json

__all__ = ["SCALES", "TEXTS", "Claim", "Mutant", "altered"]

SCALES = ("quick", "full")
TEXTS = ("title", "statement", "reference", "tolerance")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A broken method, under which a claim's quick run must fail.

    Attributes:
        what: what is broken, in words.
        misses: the figures that must fail by it: a part of their names.
        names: what some names of the claim's file mean instead.
        setting: values of the quick setting that are others: to break it, to be sure, or to leave out what the
            mutant does not touch.
    """

    what: str
    misses: str
    names: Mapping[str, Any] = field(default_factory=dict)
    setting: Mapping[str, Any] = field(default_factory=dict)


def altered(right: Callable[..., Any], **values: object) -> Callable[..., Any]:
    """For a mutant's names: what makes the right thing, but with some arguments always as given here.

    >>> altered(dict, strength=0)(strength=3, rank=2)
    {'strength': 0, 'rank': 2}
    """
    return lambda *args, **given: right(*args, **{**given, **values})


class Claim:
    """A statement of a paper that can be run; the base class of every claim file.

    Attributes:
        title: a few words.
        statement: what is claimed, in a sentence or two.
        reference: the paper.
        tolerance: how far from the paper's figures the measured ones may be, and why.
        quick, full: the settings at the two scales; `seeds` in them is the number of replicas.
        first_seed: the first of the seeds.
        mutant: a broken method, under which the quick run must fail.
    """

    title: ClassVar[str] = ""
    statement: ClassVar[str] = ""
    reference: ClassVar[str] = ""
    tolerance: ClassVar[str] = ""
    quick: ClassVar[Json] = {}
    full: ClassVar[Json] = {}
    first_seed: ClassVar[int] = 0
    mutant: ClassVar[Mutant | None] = None

    def run(self, setting: SimpleNamespace, seeds: list[int], report: Report) -> None:
        """Measures, and tells the report.

        Args:
            setting: the scale's setting, its values as attributes; `setting.scale` is the scale.
            seeds: one for each replica.
            report: takes figures, tables and pictures.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define run(setting, seeds, report)")

    @contextmanager
    def broken(self) -> Iterator[Mutant]:
        """While it lasts, names of the claim's file mean what the mutant says."""
        if self.mutant is None:
            raise ValueError(f"expected {type(self).__name__}.mutant, a broken method that fails the claim, got none")
        known = type(self).run.__globals__
        for name in self.mutant.names:
            if name not in known:
                raise ValueError(
                    f"expected {name!r} of {type(self).__name__}.mutant in the claim's file, got no such name"
                )
        before = {name: known[name] for name in self.mutant.names}
        known.update(self.mutant.names)
        try:
            yield self.mutant
        finally:
            known.update(before)

    def check(self) -> None:
        """Raises ValueError for a claim that says too little."""
        for name in TEXTS:
            text = getattr(self, name)
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"expected {type(self).__name__}.{name} to be a text, got {text!r}; say it")
        for scale in SCALES:
            setting = getattr(self, scale)
            count = setting.get("seeds") if isinstance(setting, dict) else None
            if not isinstance(count, int) or count < 1:
                raise ValueError(
                    f"expected {type(self).__name__}.{scale} to be a dictionary with a number of 'seeds' >= 1, "
                    f"got {setting!r}"
                )
