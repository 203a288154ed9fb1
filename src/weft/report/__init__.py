"""What people look at: a run's curves in the terminal and as a picture; pages of runs, studies, claims and samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.report.comparing import SampleComparison, compare_samples

__getattr__, __dir__, __all__ = flat(__name__, __file__)
