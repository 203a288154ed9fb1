"""Files larger than memory: what is read is what was written, in the seed's own order, a window at a time."""

import io
import json
import tarfile
import weakref

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import weft
from weft import Learner
from weft.core.state import State
from weft.engine.replicas import batches, begun, once
from weft.objectives import Regression
from weft.sources import Parquet, Shards
from weft.testing import check_source

ROWS, WIDTH = 300, 3
rng = np.random.default_rng(0)
TABLE = pd.DataFrame(rng.normal(size=(ROWS, WIDTH)).astype(np.float32), columns=["a", "b", "c"])
X = torch.tensor(TABLE.to_numpy().copy())
TABLE["number"] = np.arange(ROWS)
TABLE["label"] = np.arange(ROWS) % 2


def members(shard, rows):
    """Adds rows by what their parts' names end with."""
    for stem, parts in rows.items():
        for ending, data in parts.items():
            info = tarfile.TarInfo(f"{stem}.{ending}")
            info.size = len(data)
            shard.addfile(info, io.BytesIO(data))


def npy(array, **settings):
    found = io.BytesIO()
    np.save(found, array, **settings)
    return found.getvalue()


def png(array, mode=None):
    found, image = io.BytesIO(), Image.fromarray(array)
    (image if mode is None else image.convert(mode)).save(found, "png")
    return found.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("chunks")
    for i in range(3):
        TABLE[i * 100 : (i + 1) * 100].to_parquet(made / f"part-{i}.parquet", row_group_size=12)
        with tarfile.open(made / f"shard-{i}.tar", "w") as shard:
            rows = {}
            for row in TABLE[i * 100 : (i + 1) * 100].itertuples():
                x = np.array([row.a, row.b, row.c], dtype=np.float32)
                told = json.dumps({"row": {"Number": row.number}, "list": [row.number, 1]}).encode()
                rows[f"s/{row.number:05}"] = {"npy": npy(x), "cls": str(row.label).encode(), "json": told}
            members(shard, rows)
    return made


def parquet(folder, **settings):
    fields = {"x": ["a", "b", "c"], "y": "number"}
    return Parquet(f"{folder}/part-*.parquet", fields, **{"batch_size": 32, "buffer": 40, **settings})


def shards(folder, **settings):
    fields = {"x": "npy", "y": "json:row.Number"}
    return Shards(f"{folder}/shard-*.tar", fields, **{"batch_size": 32, "buffer": 40, **settings})


@pytest.fixture(params=[parquet, shards], ids=["parquet", "shards"])
def make(request, folder):
    return lambda **settings: request.param(folder, **settings)


def begin(source, seed=0):
    state = State(objective=None, params={}, buffers={}, seeds=torch.tensor(seed))
    state.source = begun(source, state)
    return state


def read(source, steps, seed=0):
    state = begin(source, seed)
    stream, found = batches(source, state), []
    for _ in range(steps):
        found.append(next(stream))
        state.step += 1
    return found


def test_the_contract_holds(make):
    check_source(make(), steps=25)  # passes have ten batches


def test_every_pass_gives_every_row_as_it_was_written(make):
    source = make()
    assert (source.size, source.epoch, source.resumes) == (ROWS, 10, "exact")
    passes = read(source, 20)
    for turn in range(2):
        rows = passes[10 * turn : 10 * turn + 10]
        assert {len(batch["x"]) for batch in rows} == {30}
        number = torch.cat([batch["y"] for batch in rows])
        assert torch.equal(number.sort().values, torch.arange(ROWS))
        wanted = X[number]
        assert torch.equal(torch.cat([batch["x"] for batch in rows]), wanted)
    first, second = (torch.cat([b["y"] for b in passes[i : i + 10]]) for i in (0, 10))
    assert not torch.equal(first, second)
    assert not torch.equal(first, torch.cat([b["y"] for b in read(source, 10, seed=1)]))


def test_rows_are_shuffled_within_a_window_and_windows_among_each_other(make):
    numbers = torch.cat([batch["y"] for batch in read(make(buffer=100), 10)])
    window = numbers[:100]
    assert len(set((window // 12).tolist())) >= 7, "of several chunks"
    neighbours = (window[1:] - window[:-1]).abs() == 1
    assert neighbours.float().mean() < 0.1
    plain = torch.cat([batch["y"] for batch in read(make(shuffle=False), 10)])
    assert torch.equal(plain, torch.arange(ROWS))


def test_one_pass_is_in_order(make):
    source = make()
    found = list(once(source, begin(source), 7))
    assert max(len(batch["x"]) for batch in found) == 7
    assert torch.equal(torch.cat([batch["y"] for batch in found]), torch.arange(ROWS))


def test_memory_holds_a_window_and_no_more(make, monkeypatch):
    """Counts the rows that are alive of all that was read."""
    source = make(batch_size=10)
    alive, most = [0], [0]
    inner, empty = type(source)._read, torch.empty

    def note(tensor, rows):
        alive[0] += rows
        most[0] = max(most[0], alive[0])
        weakref.finalize(tensor, lambda: alive.__setitem__(0, alive[0] - rows))
        return tensor

    def counting(self, chunk, key):
        batch = inner(self, chunk, key)
        note(batch["y"], len(batch["y"]))
        return batch

    def holding(shape, **settings):
        made = empty(shape, **settings)
        return note(made, shape[0]) if settings.get("dtype") == torch.int64 else made

    monkeypatch.setattr(type(source), "_read", counting)
    monkeypatch.setattr("weft.sources.chunked.torch.empty", holding)
    assert len(read(source, 60)) == 60
    chunk = int(source._sizes.max())
    assert 40 <= most[0] <= (40 + chunk) + chunk, "a window, and the chunk that is being read into it"
    most[0] = 0
    for batch in once(source, begin(source), 7):
        assert len(batch["y"]) <= 7
    assert 0 < most[0] <= 2 * chunk


def test_a_row_belongs_to_one_of_two_ranks(make, monkeypatch):
    """Every rank reads the same batch, as of every source, and takes its share."""
    from weft.core.source import number_rows
    from weft.engine import distributed

    found = []
    for rank in (0, 1):
        monkeypatch.setattr(distributed, "world", lambda rank=rank: (rank, 2))
        found.append([distributed.share(number_rows(batch, 1), 0)["y"] for batch in read(make(), 10)])
    both = [torch.cat(each) for each in found]
    assert not set(both[0].tolist()) & set(both[1].tolist())
    assert torch.equal(torch.cat(both).sort().values, torch.arange(ROWS))


class Killed(Exception):  # noqa: N818
    pass


def stop(record):
    if record["step"] == 15:
        raise Killed


@pytest.mark.parametrize("replicas", [None, 2])
def test_a_resumed_run_is_the_uninterrupted_one(make, replicas, tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)

    def learner(**settings):
        return Learner(Regression(hidden=(4,)), steps=25, random_state=0, replicas=replicas, **settings)

    whole = learner().fit(make())
    with pytest.raises(Killed):
        learner(folder=tmp_path, callbacks=[stop]).fit(make())
    with pytest.raises(ValueError, match="got other order"):
        weft.load(tmp_path).resume(make(buffer=41))
    resumed = weft.load(tmp_path).resume(make())
    for p, q in zip(resumed.objective_.parameters(), whole.objective_.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("name", ["parquet", "shards"])
def test_other_files_are_refused_by_resume(name, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)
    make, copy = {"parquet": parquet, "shards": shards}[name], tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    kept = {"folder": tmp_path / "run", "callbacks": [stop]}
    with pytest.raises(Killed):
        Learner(Regression(hidden=(4,)), steps=20, random_state=0, **kept).fit(make(folder))
    table = TABLE[:100].copy()
    table["a"] += 1
    table.to_parquet(copy / "part-0.parquet", row_group_size=12)
    (copy / "shard-0.tar").write_bytes((folder / "shard-1.tar").read_bytes())
    with pytest.raises(ValueError, match=f"got other {name}"):
        weft.load(tmp_path / "run").resume(make(copy))
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert weft.load(tmp_path / "run").resume(make(copy)).n_steps_ == 20, "wherever they lie"


# --- Parquet ------------------------------------------------------------------------------------------


def written(path, group=4, **columns):
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return path


def test_one_row_group_is_shuffled_anew_in_every_pass_and_by_every_seed(tmp_path):
    source = Parquet(written(tmp_path / "a", group=40, a=np.arange(40.0)), {"x": "a"}, batch_size=40)
    (first, second), (other,) = read(source, 2), read(source, 1, seed=1)
    orders = {tuple(batch["x"].tolist()) for batch in (first, second, other)}
    assert len(orders) == 3


def test_lists_are_arrays_and_whole_numbers_stay_whole(tmp_path):
    tokens = np.arange(24).reshape(8, 3)
    images = rng.integers(0, 256, size=(8, 2, 2), dtype=np.uint8)
    path = written(
        tmp_path / "lists.parquet",
        tokens=pa.array(tokens.tolist(), type=pa.list_(pa.int32())),
        image=pa.array(images.tolist(), type=pa.list_(pa.list_(pa.uint8(), 2), 2)),
        mask=tokens[:, 0] % 2 == 0,
        small=np.arange(8, dtype=np.int8),
        half=np.arange(8, dtype=np.float64) / 2,
    )
    columns = {"x": "image", "tokens": "tokens", "mask": "mask", "mixed": ["small", "half"]}
    source = Parquet(path, columns, shuffle=False, batch_size=8)
    (batch,) = read(source, 1)
    assert torch.equal(batch["x"], torch.as_tensor(images))
    assert torch.equal(batch["tokens"], torch.as_tensor(tokens))
    assert batch["mask"].dtype == torch.bool
    assert batch["mixed"].dtype == torch.float64
    assert batch["mixed"].tolist() == [[i, i / 2] for i in range(8)]


def damaged(path):
    """Changes bytes of a row group, not of the footer."""
    data = bytearray(path.read_bytes())
    data[4:60] = bytes(56)
    path.write_bytes(data)
    return path


A = np.arange(8.0)
WRONG = {
    "no such file": (lambda d: Parquet(d / "none.parquet", {"x": ["a"]}), "expected files at .*none"),
    "folder": (lambda d: Parquet(d, {"x": ["a"]}), "got the folder"),
    "twice": (lambda d: Parquet([written(d / "a", a=A), d / "a"], {"x": ["a"]}), "every file once"),
    "other kind": (lambda d: Parquet(text(d / "a.csv"), {"x": ["a"]}), r"got .*a\.csv, which is damaged or another"),
    "column": (lambda d: Parquet(written(d / "a", age=A), {"x": ["agee"]}), "agee.*did you mean 'age'"),
    "second file": (
        lambda d: Parquet([written(d / "a", a=A), written(d / "b", b=A)], {"x": ["a"]}),
        "a column of .*/b",
    ),
    "schema": (
        lambda d: Parquet([written(d / "a", a=A), written(d / "b", a=A.astype(int))], {"x": ["a"]}),
        "'a' to be double in every file, as in .*/a, got int64 in .*/b",
    ),
    "empty": (
        lambda d: Parquet([written(d / "a", a=A), written(d / "b", a=A[:0])], {"x": ["a"]}),
        "got none in .*/b; leave it out",
    ),
    "missing values": (
        lambda d: Parquet(written(d / "a", a=pa.array([1.0, None])), {"x": ["a"]}),
        "1 missing in the column 'a' of row group 0 of .*/a",
    ),
    "NaN": (
        lambda d: read(Parquet(written(d / "a", a=np.where(A == 7, np.nan, A)), {"x": ["a"]}), 1),
        "NaN or infinity in 'x' in row group 1 of .*/a",
    ),
    "text": (lambda d: Parquet(written(d / "a", a=["m", "f"]), {"x": ["a"]}), "numbers in the column 'a', got string"),
    "ragged": (
        lambda d: Parquet(written(d / "a", a=[[1.0], [1.0, 2.0]]), {"x": "a"}),
        r"lists of one length in the column 'a', got \[1, 2\]",
    ),
    "lists among others": (
        lambda d: Parquet(written(d / "a", a=[[1.0], [2.0]], b=A[:2]), {"x": ["b", "a"]}),
        "got lists in 'a' of",
    ),
    "longer lists later": (
        lambda d: read(Parquet(written(d / "a", group=2, a=[[1.0]] * 2 + [[1.0, 2.0]] * 2), {"x": "a"}), 1),
        r"2 rows of 'x' of shape \(1,\)",
    ),
    "classes": (
        lambda d: read(Parquet(written(d / "a", a=A, y=A.astype(int)), {"x": ["a"], "y": "y"}, classes=5), 1),
        r"classes 0\.\.4 in 'y', got 4\.\.7 in row group 1",
    ),
    "classes of what is not there": (lambda d: Parquet(written(d / "a", a=A), {"x": ["a"]}, classes=2), "got them of"),
    "damaged": (
        lambda d: Parquet(damaged(written(d / "a", a=A)), {"x": ["a"]}),
        "row group 0 of .*/a as its footer tells, got a damaged|/a, which is damaged",
    ),
    "truncated": (lambda d: Parquet(cut(written(d / "a", a=A)), {"x": ["a"]}), r"/a, which is damaged"),
    "no fields": (lambda d: Parquet(written(d / "a", a=A), {}), "columns by field"),
}


def text(path):
    path.write_text("a,b\n1,2\n")
    return path


def cut(path, share=0.5):
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    return path


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_is_refused_by_its_file(case, tmp_path):
    make, message = WRONG[case]
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        make(tmp_path)


# --- shards -------------------------------------------------------------------------------------------


def sharded(path, rows):
    with tarfile.open(path, "w") as shard:
        members(shard, rows)
    return path


def test_images_json_and_names_with_folders(tmp_path):
    pixels = rng.integers(0, 256, size=(4, 5, 6, 3), dtype=np.uint8)
    rows = {
        f"a.d/{i}": {"PNG": png(pixels[i]), "seg.png": png(pixels[i][..., 0]), "json": json.dumps([i, 0.5]).encode()}
        for i in range(4)
    }
    rows["readme"] = {"txt": b"not looked at", "pkl": b"nor this"}
    fields = {"x": "png", "mask": "seg.png", "told": "json"}
    source = Shards(sharded(tmp_path / "a.tar", rows), fields, shuffle=False, batch_size=4)
    (batch,) = read(source, 1)
    assert torch.equal(batch["x"], torch.as_tensor(pixels).permute(0, 3, 1, 2) / 255)
    assert torch.equal(batch["mask"], torch.as_tensor(pixels[..., 0])[:, None] / 255)
    assert batch["told"].tolist() == [[i, 0.5] for i in range(4)]


def test_what_a_transform_draws_depends_on_seed_pass_and_row(folder):
    def source(**settings):
        return shards(folder, transform={"x": lambda x: x + torch.rand(3)}, **settings)

    check_source(source(), steps=12)
    noise = []
    for batch in read(source(), 20):
        noise.append(batch["x"] - X[batch["y"]])
    noise = torch.cat(noise)
    assert len(noise.round(decimals=4).unique(dim=0)) > 590, "each row, in each pass, by itself"
    larger = read(source(buffer=300, shuffle=False), 10)
    smaller = read(source(buffer=40, shuffle=False), 10)
    assert all(torch.equal(a["x"], b["x"]) for a, b in zip(larger, smaller, strict=True)), "not on the window"


def flipped(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 0xFF
    path.write_bytes(data)
    return path


ROW = {"npy": npy(np.ones(3)), "cls": b"1"}
SHARDS = {
    "other kind": (lambda d: Shards(text(d / "a.tar"), {"x": "npy"}), r"a tar file, got .*a\.tar"),
    "compressed": (lambda d: Shards(packed(d / "a.tar.gz"), {"x": "npy"}), "compressed: unpack it first"),
    "pickle": (lambda d: Shards(sharded(d / "a", {"1": {"pkl": b""}}), {"x": "pkl"}), "a pickle can run code"),
    "torch": (lambda d: Shards(sharded(d / "a", {"1": {"pth": b""}}), {"x": "image.pth"}), "a pickle can run code"),
    "objects": (
        lambda d: Shards(sharded(d / "a", {"1": {"npy": npy(np.array([{}]), allow_pickle=True)}}), {"x": "npy"}),
        "'npy' of row 0 of .*/a.*allow_pickle",
    ),
    "ending": (lambda d: Shards(sharded(d / "a", {"1": ROW}), {"x": "mp4"}), "one of npy, cls, json"),
    "key": (lambda d: Shards(sharded(d / "a", {"1": ROW}), {"x": "npy:a"}), "got 'npy:a'"),
    "nothing": (lambda d: Shards(sharded(d / "a", {"1": ROW}), {"x": "json"}), "members that end in .*got none"),
    "lacking": (
        lambda d: Shards(sharded(d / "a", {"1": ROW, "2": {"npy": ROW["npy"]}}), {"x": "npy", "y": "cls"}),
        "a 'cls' for every row, got none for '2' in .*/a",
    ),
    "twice": (
        lambda d: Shards(sharded(d / "a", {"1": {"npy": ROW["npy"], "NPY": ROW["npy"]}}), {"x": "npy"}),
        "one 'NPY' for each row, got two",
    ),
    "shapes": (
        lambda d: Shards(sharded(d / "a", {"1": ROW, "2": {"npy": npy(np.ones(4))}}), {"x": "npy"}),
        r"one shape and dtype in 'x', got \(3,\) of torch.float64 in row 0 and \(4,\) .* in row 1 of .*/a",
    ),
    "shapes of another shard": (
        lambda d: read(
            Shards([sharded(d / "a", {"1": ROW}), sharded(d / "b", {"1": {"npy": npy(np.ones(4))}})], {"x": "npy"}), 1
        ),
        r"1 rows of 'x' of shape \(3,\) .*rows 0\.\.0 of .*/b",
    ),
    "number": (
        lambda d: Shards(sharded(d / "a", {"1": {"cls": b"cat"}}), {"x": "cls"}),
        "a number in the 'cls' of row",
    ),
    "object": (
        lambda d: Shards(sharded(d / "a", {"1": {"json": b'{"age": 3}'}}), {"x": "json"}),
        r"an object with \['age'\]; name one of them: 'json:age'",
    ),
    "no such key": (lambda d: Shards(sharded(d / "a", {"1": {"json": b"{}"}}), {"x": "json:age"}), "'age'"),
    "image": (lambda d: Shards(sharded(d / "a", {"1": {"png": b"\x89PNG"}}), {"x": "png"}), "an image in the 'png'"),
    "palette": (
        lambda d: Shards(sharded(d / "a", {"1": {"png": png(np.zeros((2, 2, 3), np.uint8), "P")}}), {"x": "png"}),
        "an image of mode P",
    ),
    "truncated in a member": (
        lambda d: Shards(cut(sharded(d / "a", {str(i): ROW for i in range(40)}), 0.501), {"x": "npy"}),
        "/a, which is damaged",
    ),
    "truncated between members": (
        lambda d: Shards(cut_at(sharded(d / "a", {str(i): ROW for i in range(40)}), 20 * 2048), {"x": "npy"}),
        "/a, which is damaged .* no end of the archive at byte 40960",
    ),
    "a damaged header": (
        lambda d: Shards(flipped(sharded(d / "a", {str(i): ROW for i in range(40)}), 20 * 2048 + 5), {"x": "npy"}),
        "/a, which is damaged .* no end of the archive at byte 40960",
    ),
    "transform of what is not there": (
        lambda d: Shards(sharded(d / "a", {"1": ROW}), {"x": "npy"}, transform={"z": torch.neg}),
        "transforms of fields among",
    ),
    "transform to an array": (
        lambda d: Shards(sharded(d / "a", {"1": ROW}), {"x": "npy"}, transform={"x": lambda x: x.numpy()}),
        "to make a tensor, got ndarray",
    ),
}


def packed(path):
    with tarfile.open(path, "w:gz") as shard:
        members(shard, {"1": ROW})
    return path


def cut_at(path, size):
    path.write_bytes(path.read_bytes()[:size])
    return path


@pytest.mark.parametrize("case", SHARDS)
def test_shards_that_cannot_be_read_are_refused_by_their_file(case, tmp_path):
    make, message = SHARDS[case]
    with pytest.raises((ValueError, TypeError), match=message):
        make(tmp_path)


def test_a_shard_that_shrinks_while_it_is_read_is_seen(tmp_path):
    source = Shards(sharded(tmp_path / "a", {str(i): ROW for i in range(40)}), {"x": "npy"}, buffer=10, shuffle=False)
    state = begin(source)
    state.step = 0
    cut(tmp_path / "a", 0.4)
    with pytest.raises(ValueError, match=r"array of numbers in the 'npy' of row \d+ of .*/a, got"):
        list(once(source, state, 10))
