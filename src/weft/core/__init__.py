"""The four nouns: Source, Objective, Strategy, State; keyed randomness and the catalogue.

Read in this order: `objective`, `strategy`, `source`, `state`, `random`, then `configured` and
`catalogue`. The engine that runs them is in `weft.engine`.
"""

from weft.core.objective import Objective, Output, capability, reduce
from weft.core.source import Batch, Field, Source, Spec
from weft.core.state import State
from weft.core.strategy import Local, Strategy
from weft.core.weave import weave

__all__ = [
    "Batch",
    "Field",
    "Local",
    "Objective",
    "Output",
    "Source",
    "Spec",
    "State",
    "Strategy",
    "capability",
    "reduce",
    "weave",
]
