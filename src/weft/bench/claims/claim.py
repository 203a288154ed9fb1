"""A claim: what is stated, by whom, in which settings it is run, and how far its figures may be off."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from weft.bench.claims.telling import Report
    from weft.core.values import Json

__all__ = ["SCALES", "TEXTS", "Claim"]

SCALES = ("quick", "full")
TEXTS = ("title", "statement", "reference", "tolerance")


class Claim:
    """A statement of a paper that can be run; the base class of every claim file.

    Attributes:
        title: a few words.
        statement: what is claimed, in a sentence or two.
        reference: the paper.
        tolerance: how far from the paper's figures the measured ones may be, and why.
        quick, full: the settings at the two scales; `seeds` in them is the number of replicas.
        first_seed: the first of the seeds.
    """

    title: ClassVar[str] = ""
    statement: ClassVar[str] = ""
    reference: ClassVar[str] = ""
    tolerance: ClassVar[str] = ""
    quick: ClassVar[Json] = {}
    full: ClassVar[Json] = {}
    first_seed: ClassVar[int] = 0

    def run(self, setting: SimpleNamespace, seeds: list[int], report: Report) -> None:
        """Measures, and tells the report.

        Args:
            setting: the scale's setting, its values as attributes; `setting.scale` is the scale.
            seeds: one for each replica.
            report: takes figures, tables and pictures.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define run(setting, seeds, report)")

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
