"""Two processes give what one gives; what cannot be shared is refused; a process that is lost is reported."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from weft.engine.distributed import gather, share, start, world

WORKER = Path(__file__).with_name("distributed_worker.py")
CASES = runpy.run_path(str(WORKER))["CASES"]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "WEFT_TIMEOUT": "100"}


@pytest.fixture(scope="module", autouse=True)
def lost(tmp_path_factory):
    """The folder into which trainings that lose a process write, and the process that starts them, meanwhile."""
    folder = tmp_path_factory.mktemp("lost")
    process = subprocess.Popen([sys.executable, WORKER, folder], env={**ENV, "WEFT_TIMEOUT": "5"})
    yield folder, process
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The folder into which two processes have written every case."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for _ in range(3):
        done = subprocess.run([*command, WORKER, folder], env=ENV, capture_output=True, text=True, timeout=120)
        if "EADDRINUSE" not in done.stderr:  # another test may take the port that torchrun has just found free
            break
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Warning" not in done.stderr, done.stderr
    return folder


@pytest.mark.filterwarnings("ignore:expected (tasks for|the same rows)")
@pytest.mark.parametrize("name", CASES)
def test_two_processes_are_one(together, name):
    first, second = (load_file(together / f"{list(CASES).index(name)}-{rank}.safetensors") for rank in (0, 1))
    alone = CASES[name]()
    assert first.keys() == second.keys() == alone.keys()
    for part, value in alone.items():
        assert torch.equal(first[part], second[part]) or part.startswith("history"), f"{part} differs between ranks"
        torch.testing.assert_close(
            first[part], value, rtol=1e-9, atol=1e-12, equal_nan=True, msg=lambda m, part=part: f"{part}: {m}"
        )


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are named by Linux")
def test_no_thread_of_the_group_outlives_it(together):
    for rank in (0, 1):
        names = (together / f"threads-{rank}.txt").read_text().split("\n")
        assert "gloo" not in " ".join(names), names
        assert any(name.startswith("p") for name in names), names  # the process's own


def test_what_cannot_be_shared_is_refused(together):
    for rank in (0, 1):
        said = (together / f"said-{rank}.txt").read_text().splitlines()
        assert len(said) == 11, said
        for line in (said[0], said.pop(1), said.pop(1)):
            assert "'net.1' (BatchNorm1d)" in line
            assert "one row at a time where 2 processes" in line
        for line in (said.pop(1), said.pop(1)):
            assert "net of Classification in which a row's loss depends on the rows beside it" in line
        assert "rows at hand where 2 processes share each batch, got 'net.mean', which" in said[1]
        assert "got Coupled, whose loss couples them; train it in one process" in said[2]
        assert "expected the same random_state and parameters and batch on all 2 processes" in said[3]
        assert "expected the same batch on all 2 processes" in said[4]
        assert said[5:] == ["agreed on 5", "anywhere True False"]


@pytest.mark.parametrize("how", ["die", "hang"])
def test_a_lost_process_is_reported(lost, how):
    """Rank 1 is killed, or hangs; rank 0 ends soon, with a message."""
    folder, process = lost
    assert process.wait(timeout=60) == 0
    message = (folder / f"{how}-0.txt").read_text()
    assert (folder / f"{how}-status.txt").read_text() == "1", message
    assert "Lost: expected all 2 processes to answer at step 4, got none from at least one" in message
    assert {"die": "by peer", "hang": "Timed out"}[how] in message
    assert "resume from the last checkpoint, on one process or on 2" in message


def test_one_process_takes_everything(monkeypatch):
    batch = {"x": torch.ones(3)}
    assert share(batch, 0) is batch
    assert gather(batch, 0, 3) is batch
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert start() == world() == (0, 1)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7])
def test_shares_cover_every_row_once(monkeypatch, count):
    """Every rank has equally many rows, at least one; those that are real are each row once."""
    row = torch.arange(count).expand(2, count)
    batch = {"query": {"x": row * 10.0, "row": row}, "support": {"row": row, "weight": torch.full((2, count), 0.5)}}
    seen = []
    for rank in range(3):
        monkeypatch.setattr("weft.engine.distributed.world", lambda rank=rank: (rank, 3))
        part = share(batch, 1)
        query = part["query"]
        assert query["x"].shape == (2, -(-count // 3))
        assert torch.equal(query["x"], query["row"] * 10.0)
        real = query["weight"] > 0 if count % 3 else torch.ones_like(query["row"], dtype=torch.bool)
        seen += query["row"][real].tolist()
        assert torch.equal(part["support"]["weight"] > 0, real)
    assert sorted(seen) == sorted(row.reshape(-1).tolist())


@pytest.mark.parametrize("given", ["soon", "-1", "0", "nan"])
def test_a_bad_timeout(monkeypatch, given):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("WEFT_TIMEOUT", given)
    with pytest.raises(ValueError, match=f"WEFT_TIMEOUT to be a positive number of seconds, got '{given}'"):
        start("cpu")


def test_half_of_torchruns_environment(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ValueError, match="no MASTER_ADDR; start by `torchrun --nproc-per-node 2"):
        start()
