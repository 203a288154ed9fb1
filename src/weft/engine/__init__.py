"""The engine that runs every loop. No method's name appears here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.engine.engine import Diverged, Engine
    from weft.engine.loop import History, Plan, train
    from weft.engine.vectorize import VectorizationWarning

__getattr__, __dir__, __all__ = flat(__name__, __file__)
