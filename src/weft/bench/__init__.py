"""The bench: which way of learning works on this data, and can that be trusted?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.bench.comparing import compare
    from weft.bench.curves import rate_distortion_picture
    from weft.bench.study import Study

__getattr__, __dir__, __all__ = flat(__name__, __file__)
