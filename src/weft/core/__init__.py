"""The four nouns, the weave, keyed randomness, trees, values, the catalogue and its spelling. Read this folder first.

In this order: `objective`, `strategy`, `weave`, `source`, `state`, `random`, `world`; the others when they are met.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.core.composed import Composed
    from weft.core.corpus import Corpus, explained_variance
    from weft.core.objective import Objective, Output, capability, reduce
    from weft.core.source import Batch, Field, Part, Source, Spec
    from weft.core.state import State
    from weft.core.strategy import Local, Move, Penalty, Strategy, Summing
    from weft.core.world import World

__getattr__, __dir__, __all__ = flat(__name__, __file__)
