"""The contract, for third parties too: what every objective, strategy, source, world and stage must hold to.

Each check raises `ContractError` with what was expected and what came; none of them needs pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.testing.checks import ContractError, check_objective, check_refusal, check_strategy
    from weft.testing.classes import declared, trait_class
    from weft.testing.densities import check_density, every_row
    from weft.testing.players import Player
    from weft.testing.sources import check_source
    from weft.testing.stages import check_stage
    from weft.testing.vectorization import vectorization_table
    from weft.testing.worlds import any_action, check_world

__getattr__, __dir__, __all__ = flat(__name__, __file__)
