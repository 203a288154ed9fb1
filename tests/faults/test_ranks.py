"""A process of two dies: the other says so, and its checkpoint goes on in one process or in two."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weft

from .ranks_worker import SITE, X, Y, learner

WORKER = Path(__file__).with_name("ranks_worker.py")


def pair(folder, dies):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WEFT_TIMEOUT": "20"}
    start = [sys.executable, str(WORKER), str(folder)]
    ranks = [
        subprocess.Popen([*start, rank, port, str(dies)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]
    said = [process.communicate(timeout=120)[1] for process in ranks]
    return [process.returncode for process in ranks], said


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks") / "run"
    codes, said = pair(folder, 8)
    assert codes[1] < 0, "killed"
    assert codes[0] == 1
    assert "resume" in said[0].splitlines()[-1], said[0][-800:]
    return folder


@pytest.fixture(scope="module")
def whole():
    return learner(None)[0].fit(X, Y, environment=SITE).predict_proba(X)


def test_it_goes_on_in_one_process(broken, whole, tmp_path):
    shutil.copytree(broken, tmp_path / "run")
    _, net = learner(None)
    kept = weft.load(tmp_path / "run", module=net)
    assert 0 < kept.n_steps_ <= 8
    np.testing.assert_allclose(kept.resume(X, Y, environment=SITE).predict_proba(X), whole, rtol=1e-8)


def test_it_goes_on_in_two(broken, whole, tmp_path):
    shutil.copytree(broken, tmp_path / "run")
    codes, said = pair(tmp_path / "run", 0)
    assert codes == [0, 0], said
    np.testing.assert_allclose(np.load(tmp_path / "answer.npy"), whole, rtol=1e-8)
