"""A table, and runs on it that several tests look at."""

import json

import numpy as np
import pytest
from tests.commands.command_cases import OPTIONS, fit, run


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    """A table with numbers, categories, true/false, gaps, a site and a formula as a class."""
    rng = np.random.default_rng(0)
    lines = ["age,colour,smokes,site,price,--target,kind"]
    for i in range(120):
        age, colour = rng.normal(40, 12), ["red", "green", "blue"][rng.integers(3)]
        cell = "" if i % 10 == 3 else f"{age:.2f}"
        kind = "=1+1" if (age > 40) != (colour == "red") else "no"
        smokes = ["true", "false"][rng.integers(2)]
        lines.append(f"{cell},{colour},{smokes},{'abc'[i % 3]},{5000 + 100 * age:.1f},{i % 2},{kind}")
    path = tmp_path_factory.mktemp("tables") / "people.csv"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="session")
def fitted(table, tmp_path_factory):
    """A run with environments and replicas, and what `weft fit --json` said."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = ["--target", "kind", "--environment", "site", "--strategy", "and-mask(threshold=0.3)"]
    result = run("fit", str(table), *options, "--replicas", "2", "--epochs", "20", "--out", str(folder), "--json")
    assert result.exit_code == 0, result.stderr
    return folder, json.loads(result.stdout)


@pytest.fixture(scope="session")
def uninterrupted(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert fit(table, folder, *OPTIONS).exit_code == 0
    return folder
