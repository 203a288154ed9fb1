"""The contract, for third parties too: what every objective, strategy and source must hold to.

Each check raises `ContractError` with what was expected and what came; none of them needs pytest.
"""

from weft.testing.checks import ContractError, check_objective, check_source, check_strategy
from weft.testing.pairwise import pairwise
from weft.testing.vectorization import vectorization_table

__all__ = ["ContractError", "check_objective", "check_source", "check_strategy", "pairwise", "vectorization_table"]
