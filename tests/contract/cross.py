"""Every strategy with every objective in every setting: `make contract`, or a part of it: `make contract SHARD=3/8`.

`make test` does not collect this file, whose name is not a test's.
"""

import os

from .cases import OBJECTIVES, STRATEGIES
from .cells import cross, shard
from .training import check_cell


def pytest_generate_tests(metafunc):
    chosen = shard(cross(STRATEGIES, OBJECTIVES), os.environ.get("WEFT_SHARD") or "1/1")
    metafunc.parametrize("cell", chosen, ids=str)


def test_full_cross(cell):
    check_cell(**cell._asdict())
