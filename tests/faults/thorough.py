"""Kills and damage by the hundred: `make faults`.

`make test` does not collect this file, whose name is not a test's.
"""

import pytest

from .fuzz import fuzz
from .test_fuzz import runs  # noqa: F401 (a fixture)
from .test_kill import attempts

# Kills at named points (0), or at so many moments by chance.
KILLS = [("tasks", 10), ("game", 8), ("replicas", 8), ("one_by_one", 8), ("rollouts", 8), ("memory", 12)]
KILLS += [("stopped", 0), ("stopped", 12), ("solved", 0), ("solved", 6), ("compare", 0), ("compare", 8)]
POINTS = {"stopped": 10, "solved": 7, "compare": 7}


def test_there_are_sixty_kills_and_more():
    assert sum(moments or POINTS[scenario] for scenario, moments in KILLS) >= 90
    for scenario in POINTS:
        assert {moments > 0 for name, moments in KILLS if name == scenario} == {False, True}


@pytest.mark.parametrize(("scenario", "moments"), KILLS)
def test_kills(scenario, moments, tmp_path):
    results = attempts(scenario, tmp_path, moments)
    assert len(results) >= (moments or POINTS[scenario])
    killed = sum(result["killed"] for result in results)
    assert killed == len(results) if not moments else killed >= 1


@pytest.mark.parametrize("seed", range(1, 6))
def test_no_damage_is_silent_or_obscure(seed, runs, tmp_path):  # noqa: F811
    wrong, counts = fuzz(runs, tmp_path, 200, seed)
    assert not wrong, wrong[:5]
    assert counts["refused"] > 100
