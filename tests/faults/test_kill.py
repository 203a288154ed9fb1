"""Kill the process at any moment: what is resumed ends, bit for bit, where the uninterrupted run ends.

`make faults` kills more often, and also replicas that stop early and studies: see `thorough.py`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def attempts(scenario, folder, moments):
    command = [sys.executable, "-m", "tests.faults.worker", scenario, str(folder), str(moments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    failed = [r for r in results if not (r["resumed"] and r["equal"])]
    assert not failed, (failed, done.stderr[-3000:])
    return results


@pytest.mark.parametrize(
    "scenario", ["tasks", "game", "replicas", "stopped", "one_by_one", "rollouts", "solved", "memory"]
)
@pytest.mark.turns(
    "src/weft/learner/folder.py",
    "src/weft/learner/loading.py",
    "src/weft/engine/checkpoint.py",
    "src/weft/engine/blocks.py",
)
def test_named_points(scenario, tmp_path):
    results = attempts(scenario, tmp_path, 0)
    assert len(results) >= 7
    assert all(r["killed"] for r in results), "each of these points is passed"


@pytest.mark.parametrize(
    ("scenario", "moments"), [("tasks", 8), ("game", 4), ("replicas", 4), ("rollouts", 4), ("memory", 4)]
)
@pytest.mark.turns(
    "src/weft/learner/folder.py",
    "src/weft/learner/loading.py",
    "src/weft/engine/checkpoint.py",
    "src/weft/engine/blocks.py",
)
def test_random_moments(scenario, moments, tmp_path):
    results = attempts(scenario, tmp_path, moments)
    assert len(results) == moments
    assert any(r["killed"] for r in results)
