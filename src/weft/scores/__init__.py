"""Scores: functions of arrays that say how good answers are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.scores.predictions import accuracy, r_squared, score, wilson

__getattr__, __dir__, __all__ = flat(__name__, __file__)
