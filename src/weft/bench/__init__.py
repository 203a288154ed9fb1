"""The bench: which way of learning works on this data, and can that be trusted?"""

from typing import Any

__all__ = ["Study", "compare"]


def __getattr__(name: str) -> Any:
    if name == "compare":
        from weft.bench.comparing import compare

        return compare
    if name == "Study":
        from weft.bench.study import Study

        return Study
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
