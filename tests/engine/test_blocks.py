"""Large tensors in blocks: what a checkpoint writes is what has changed, and what it reads is what was written."""

import json
import random

import numpy as np
import pytest
import torch
from tests.faults.hostile import reseal

import weft
from weft import Classifier, Learner
from weft.core import Field, Source, files, manifest
from weft.core.random import fold, gauss, unit
from weft.engine import blocks, checkpoint
from weft.objectives import Regression

ROWS, CHANGED, WIDTH = 100_000, 64, 20
DTYPES = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.complex64)


class Replay(Source):
    """A memory of many rows, of which a step changes a few: in turn, or anywhere."""

    def __init__(self, *, scattered=False):
        self.scattered = scattered
        self.spec = {"x": Field((WIDTH,), torch.float32), "y": Field((), torch.float32)}

    def init(self, state):
        x = gauss(fold(state.key("memory"), torch.arange(ROWS)), (WIDTH,))
        return {"x": x.float(), "y": torch.zeros(ROWS), "seen": torch.tensor(0)}

    def batches(self, state):
        while True:
            kept, seen = state.source, int(state.source["seen"])
            place = (seen + torch.arange(CHANGED)) % ROWS
            if self.scattered:
                place = (unit(fold(state.key("place"), place), ()) * ROWS).long()
            kept["x"][place] = gauss(fold(state.key("new"), place), (WIDTH,)).float()
            kept["seen"] = torch.tensor(seen + CHANGED)
            yield {name: kept[name][place] for name in ("x", "y")}


@pytest.fixture
def written(monkeypatch):
    """The bytes of every file that is written, by the kind of file."""
    fill, found = files.fill, []

    def counting(file, data, kind):
        found.append((kind, len(data)))
        fill(file, data, kind)

    monkeypatch.setattr(files, "fill", counting)
    monkeypatch.setattr(manifest, "fill", counting)
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)  # a checkpoint at every record
    return found


def in_blocks(written):
    return [size for kind, size in written if kind == ".blocks"]


@pytest.mark.parametrize("scattered", [False, True])
def test_a_checkpoint_of_a_large_memory_costs_what_has_changed(scattered, written, tmp_path):
    source, steps = Replay(scattered=scattered), 40
    memory = ROWS * (WIDTH + 1) * 4
    Learner(Regression(hidden=(2,)), steps=steps, random_state=0, folder=tmp_path).fit(source)
    first, *later = in_blocks(written)
    assert 0.9 * memory < first < 1.1 * memory, "the whole memory, once"
    assert len(later) == steps - 1, "nothing at the end, since when nothing has changed"
    touched = (CHANGED if scattered else 2) * blocks.BLOCK
    assert min(later) <= touched
    assert sum(later) <= 3 * len(later) * touched, "what was touched, and blocks of files that are given up"
    assert max(later) <= 1.1 * memory, "those that write old blocks anew write none twice"
    assert sum(size for _, size in written) / memory < (6 if scattered else 1.6), (
        "of 40 checkpoints, which would write 40 memories"
    )
    on_disk = sum(path.stat().st_size for path in tmp_path.glob("*.blocks"))
    assert on_disk <= 2.1 * memory
    assert len(list(tmp_path.glob("*.blocks"))) <= blocks.FILES
    assert {p.name for p in tmp_path.iterdir()} == {*manifest.opened(tmp_path).files, manifest.NAME}


def test_what_was_resumed_writes_what_has_changed(written, tmp_path):
    class Killed(Exception):  # noqa: N818
        pass

    def stop(record):
        if record["step"] == 5:
            raise Killed

    settings = {"steps": 8, "random_state": 0}
    whole = Learner(Regression(hidden=(2,)), **settings).fit(Replay())
    with pytest.raises(Killed):
        Learner(Regression(hidden=(2,)), callbacks=[stop], folder=tmp_path, **settings).fit(Replay())
    written.clear()
    resumed = weft.load(tmp_path).resume(Replay())
    assert max(in_blocks(written)) <= 2 * blocks.BLOCK
    kept, wanted = (one.training_.runs[0].state.source for one in (resumed, whole))
    assert all(torch.equal(kept[name], wanted[name]) for name in wanted)
    copy = tmp_path / "copy"
    resumed.save(copy)  # a folder of its own needs all of it
    again = weft.load(copy).training_.runs[0].state.source
    assert all(torch.equal(again[name], wanted[name]) for name in wanted)


def test_a_large_state_is_written_less_often(tmp_path, monkeypatch):
    """A checkpoint that takes long is not made at every record: the wait is at least ten times what it took."""
    clock = [0.0]
    write = checkpoint.write

    def slow(*args, **kwargs):
        clock[0] += 3.0
        write(*args, **kwargs)

    made = []
    monkeypatch.setattr(checkpoint, "write", lambda *a, **k: (made.append(clock[0]), slow(*a, **k))[1])
    monkeypatch.setattr("weft.learner.folder.time.monotonic", lambda: clock[0])

    def tick(record):
        clock[0] += 1.0

    X = np.random.default_rng(0).normal(size=(8, 2))
    Classifier(epochs=100, random_state=0, folder=tmp_path, callbacks=[tick]).fit(X, X[:, 0] > 0)
    between = np.diff(made)[:-1]  # the last one is written at the end, whenever that is
    assert len(made) >= 4
    assert (between[between > 3.0] >= 30.0).all()


@pytest.mark.parametrize("seed", range(3))
def test_any_tensors_come_back_whatever_was_changed(seed, monkeypatch):
    """Against the tensors themselves: changed here and there, added, dropped, over many checkpoints."""
    monkeypatch.setattr(blocks, "FILES", 6)
    rng, index, disk = random.Random(seed), {}, {}
    draw = torch.Generator().manual_seed(seed)
    held = {}
    for turn in range(40):
        if rng.random() < 0.3 or not held:
            size = rng.randrange(1, 30 * blocks.BLOCK // 8)
            raw = torch.randint(0, 2, (size, 8), generator=draw, dtype=torch.uint8)
            dtype = rng.choice(DTYPES)
            held[str(turn)] = raw.to(dtype) if dtype == torch.bool else raw.view(-1).view(dtype)
        if rng.random() < 0.2 and len(held) > 1:
            del held[rng.choice(sorted(held))]
        for tensor in held.values():
            if rng.random() < 0.5:
                at = rng.randrange(len(tensor))
                tensor[at : at + 3] = tensor[:1].clone() + 1 if tensor.dtype != torch.bool else ~tensor[at : at + 3]
        name = f"state-{turn}.blocks"
        index, new, still = blocks.laid(held, index, name)
        index = json.loads(json.dumps(index))
        before, disk = disk, {file: disk[file] for file in still} | ({name: new} if new else {})
        assert disk.keys() == index["files"].keys()
        assert len(disk) <= 6
        found = blocks.fetched(index, disk)
        assert found.keys() == held.keys()
        for key, tensor in held.items():
            assert found[key].dtype == tensor.dtype
            assert found[key].shape == tensor.shape
            assert torch.equal(found[key].view(torch.uint8), tensor.view(torch.uint8))
        used = {n for told in index["tensors"].values() for first, k in told["blocks"] for n in range(first, first + k)}
        assert sum(map(len, disk.values())) <= 2 * len(used) * blocks.BLOCK
        assert len(new) <= len(used) * blocks.BLOCK
        assert before is not disk


def test_what_is_equal_is_kept_once():
    empty = {"a": torch.zeros(10 * blocks.BLOCK), "b": torch.zeros(7 * blocks.BLOCK)}
    index, new, _ = blocks.laid(empty, {}, "state-0.blocks")
    assert len(new) == blocks.BLOCK
    found = blocks.fetched(index, {"state-0.blocks": new})
    assert {name: t.shape for name, t in found.items()} == {name: t.shape for name, t in empty.items()}


@pytest.fixture
def kept(tmp_path):
    tree = {"memory": torch.arange(2.0**19), "small": torch.tensor(3)}
    tmp_path.mkdir(exist_ok=True)
    checkpoint.write(tmp_path, tree)
    return tmp_path


def damaged(kept, change):
    state = json.loads((kept / "state.json").read_text())
    change(state["blocks"])
    reseal(kept, state_json=state)


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index["files"].clear(),
        lambda index: index["tensors"]["0"].update(shape=[3]),
        lambda index: index["tensors"]["0"].update(shape=[2**20]),
        lambda index: index["tensors"]["0"].update(dtype="object"),
        lambda index: index["tensors"]["0"].update(blocks="zz"),
        lambda index: index["tensors"]["0"].update(blocks=[[0, 10**9]]),
        lambda index: index["tensors"]["0"].update(blocks=[[-1, 1]]),
        lambda index: index["tensors"]["0"].update(blocks=[[0, 0]]),
        lambda index: index["files"].update({"state-0.blocks": "00" * 17}),
        lambda index: index["files"].update({"other": "00" * 16}),
        lambda index: index.update(block="large"),
        lambda index: index.pop("tensors"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(kept, change):
    assert torch.equal(checkpoint.read(kept)["memory"], torch.arange(2.0**19))
    damaged(kept, change)
    with pytest.raises(ValueError, match="damaged or foreign"):
        checkpoint.read(kept)


def test_a_changed_block_is_seen(kept):
    (path,) = kept.glob("*.blocks")
    data = bytearray(path.read_bytes())
    data[12345] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"state-0\.blocks as manifest\.json says"):
        checkpoint.read(kept)
    path.unlink()
    with pytest.raises(ValueError, match="no such file"):
        checkpoint.read(kept)
