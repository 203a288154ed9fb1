"""Damaged files are refused by name, or make no difference; `make faults` tries a thousand."""

import pytest

from .fuzz import fuzz, made


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Runs whose folders hold every kind of file."""
    place = tmp_path_factory.mktemp("damaged")
    sites = [made(place / f"sites-{k}", k, environment="site", strategy="and-mask(threshold=0.3)") for k in range(2)]
    return [*sites, *(made(place / f"tasks-{k}", k, task="site", strategy="ewc", replicas=2) for k in range(2))]


def test_no_damage_is_silent_or_obscure(runs, tmp_path):
    wrong, counts = fuzz(runs, tmp_path, 40, seed=0)
    assert not wrong, wrong[:5]
    assert counts["refused"] > 20
