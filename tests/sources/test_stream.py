"""Streams: loaders read as needed, in an order of the seed's own, resumed as they say."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import weft
from weft import Learner
from weft.core.state import State
from weft.engine.replicas import batches, begun, once
from weft.objectives import Classification, Regression
from weft.sources import Stream
from weft.testing import check_source

X = torch.arange(40.0)[:, None].repeat(1, 3) / 40
Y = X.sum(-1)


class Noisy(Dataset):
    """Draws from all three generators at each reading."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        noise = 0.01 * (torch.randn(3) + np.random.randn() + random.random())
        return X[i] + noise.float(), Y[i]


class Shards(IterableDataset):
    """Two shards, whose rows come in an order of chance within each, and which nobody has counted."""

    def __init__(self):
        self.read = 0

    def __iter__(self):
        for shard in (0, 20):
            for i in torch.randperm(20).tolist():
                self.read += 1
                yield {"x": X[shard + i], "y": Y[shard + i]}


class Telling:
    """Tells where it is, as torchdata's StatefulDataLoader does: what it tells at the end of a pass begins another."""

    def __init__(self, rows=40, name="telling"):
        self.rows, self.name = rows, name
        self.order, self.at, self.loaded, self.read = torch.arange(0), 0, None, 0

    def __iter__(self):
        if self.loaded is None or self.loaded["at"] >= self.rows:
            self.order, self.at = torch.randperm(self.rows), 0
        else:
            self.order, self.at = self.loaded["order"], self.loaded["at"]
        self.loaded = None
        while self.at < self.rows:
            rows = self.order[self.at : self.at + 12] % 40
            self.at += 12
            self.read += 1
            yield X[rows] + 0.01 * torch.rand(len(rows), 1), Y[rows]

    def state_dict(self):
        return {"at": self.at, "order": self.order.clone(), "name": self.name, "more": [None, {"a": 0.5}, (1, True)]}

    def load_state_dict(self, told):
        assert told["name"] == self.name
        assert told["more"] == [None, {"a": 0.5}, (1, True)]
        self.loaded = told


class Ending(Telling):
    """Has nothing more from where it told that it was."""

    def __iter__(self):
        return iter(()) if self.loaded else super().__iter__()


class Silent(Telling):
    """Tells what cannot be kept."""

    def state_dict(self):
        return {"at": self.at, "generator": random.Random()}


SOURCES = {
    "telling": lambda: Stream(Telling()),
    "data set": lambda: Stream(TensorDataset(X, Y), batch_size=12),
    "drawn": lambda: Stream(DataLoader(Noisy(), batch_size=12, shuffle=True)),
    "drawn by its own generator": lambda: Stream(
        DataLoader(Noisy(), batch_size=12, shuffle=True, generator=torch.Generator().manual_seed(5))
    ),
    "shards": lambda: Stream(Shards(), batch_size=12, resumes="exact"),
}


@pytest.fixture(params=SOURCES)
def source(request):
    return SOURCES[request.param]()


def test_the_contract_holds(source):
    check_source(source, steps=9)  # passes have four batches


def test_ambient_generators_are_left_as_they_were_and_make_no_difference(source):
    found = []
    for seed in (3, 4):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        before = torch.get_rng_state()
        found.append(read(source, 6))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(*found)


def begin(source, step=0):
    state = State(objective=None, params={}, buffers={}, seeds=torch.tensor(0), step=step)
    state.source = begun(source, state)
    return state


def read(source, steps, step=0):
    state = begin(source, step)
    stream = batches(source, state)
    found = []
    for _ in range(steps):
        found.append(next(stream)["x"])
        state.step += 1
    return torch.cat(found)


def test_every_pass_sees_every_row_in_an_order_of_its_own():
    rows = read(SOURCES["data set"](), 8)[:, 0]
    first, second = rows[:40], rows[40:]
    assert torch.equal(first.sort().values, X[:, 0])
    assert torch.equal(second.sort().values, X[:, 0])
    assert not torch.equal(first, second)


def test_one_pass():
    source = SOURCES["data set"]()
    found = list(once(source, begin(source), 5))
    assert max(len(batch["x"]) for batch in found) == 5
    assert torch.equal(torch.cat([batch["y"] for batch in found]).sort().values, Y)


def test_no_epoch_where_the_length_is_not_known():
    shards = Stream(Shards(), batch_size=12)
    assert (shards.epoch, shards.size, shards.resumes) == (None, None, "restart")
    with pytest.raises(ValueError, match="Stream has no end to a pass"):
        Learner(Regression(), epochs=2).fit(shards)
    known = SOURCES["drawn"]()
    assert (known.epoch, known.size, known.resumes) == (4, 40, "exact")


def test_only_what_is_needed_is_read():
    shards = Shards()
    stream = batches(source := Stream(shards, batch_size=4), begin(source))
    before = shards.read
    next(stream)
    assert shards.read == before + 4


# --- through the Learner --------------------------------------------------------------------------------


class Killed(Exception):  # noqa: N818
    pass


def stop(record):
    if record["step"] == 8:
        raise Killed


def learner(**settings):
    return Learner(Regression(hidden=(4,)), **{"steps": 12, "random_state": 0, **settings})


def weights(learner):
    return [p.detach() for p in learner.objective_.parameters()]


def test_replica_k_is_the_single_run(source):
    both = learner(replicas=2).fit(source)
    for k in range(2):
        one = learner(random_state=k).fit(source)
        torch.testing.assert_close(weights(both.replica(k)), weights(one), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("replicas", [None, 2])
def test_a_resumed_run_is_the_uninterrupted_one(source, replicas, tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)
    whole = learner(replicas=replicas).fit(source)
    with pytest.raises(Killed):
        learner(folder=tmp_path, callbacks=[stop], replicas=replicas).fit(source)
    resumed = weft.load(tmp_path).resume(source)
    torch.testing.assert_close(weights(resumed), weights(whole), rtol=0, atol=0)


def test_what_restarts_says_so_and_reads_in_another_order(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)
    with pytest.raises(Killed):
        learner(folder=tmp_path, callbacks=[stop]).fit(Stream(Shards(), batch_size=12))
    with pytest.warns(UserWarning, match="Stream begins anew at step 7: it resumes by restart"):
        resumed = weft.load(tmp_path).resume(Stream(Shards(), batch_size=12))
    state = resumed.training_.runs[0].state
    assert int(state.source["begun"]) == 7
    first, later = (read(Stream(Shards(), batch_size=12), 2, step) for step in (0, 7))
    assert not torch.equal(first, later)
    assert resumed.n_steps_ == 12


def test_a_loader_that_tells_where_it_is_is_not_read_again():
    source = Stream(Telling(400))
    assert source.resumes == "exact"
    state = begin(source)
    stream = batches(source, state)
    found = [next(stream)["x"] for _ in range(30)]
    later = Stream(Telling(400))
    again = begin(later)
    again.source, again.step = state.source, 30
    before = later.loader.read
    resumed = next(batches(later, again))["x"]
    assert later.loader.read - before == 2, "the last batch, and the next"
    assert torch.equal(resumed, next(stream)["x"])
    assert not torch.equal(resumed, found[0])
    shorter = Stream(Ending())
    again = begin(shorter)
    again.source = state.source
    with pytest.raises(ValueError, match="fewer from Ending after load_state_dict"):
        next(batches(shorter, again))


def test_a_loader_whose_words_cannot_be_kept_restarts():
    assert Stream(Silent()).resumes == "restart"
    assert Stream(Telling(), resumes="restart").resumes == "restart"
    assert "loader" not in begin(Stream(Telling(), resumes="restart")).source


def test_validation_and_classes():
    data = TensorDataset(X, (X[:, 0] > 0.5).long())
    source = Stream(data, batch_size=8, classes=2)
    found = Learner(Classification(hidden=(8,)), epochs=4, validation=Stream(data, classes=2), random_state=0)
    found.fit(source)
    assert found.predict(X.numpy()).shape == (40,)
    assert len(found.history_["valid_accuracy"]) == 4


class Once(IterableDataset):
    """Cannot begin anew."""

    def __init__(self):
        self.rows = iter(range(100))

    def __iter__(self):
        for i in self.rows:
            yield X[i % 40]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stream(iter([X])), "which ends once"),
        (lambda: Stream([X], batch_size=3), "beside list, which makes batches itself"),
        (lambda: Stream([(X, Y, Y)]), r"at most 2 parts, \('x', 'y'\), got 3"),
        (lambda: Stream([(X, Y[:3])]), "rows on the leading axis"),
        (lambda: Stream([("a", "b")]), "tensors or arrays of numbers"),
        (lambda: Stream(DataLoader(Noisy(), num_workers=1, persistent_workers=True)), "persistent_workers=True"),
        (lambda: Stream([]), "at least one batch"),
        (lambda: read(Stream(Once(), batch_size=30), 9), "a loader must begin anew"),
        (lambda: read(Stream([X, X, X[:, :2]]), 4), "rows of 'x' of shape"),
        (lambda: read(Stream([X, X, X / 0]), 4), "expected finite numbers"),
    ],
)
def test_what_cannot_be_read_is_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_a_resumed_pass_that_is_shorter_is_refused():
    source = Stream([X[:4], X[4:8]], resumes="exact")
    state = begin(source)
    state.source["read"] = torch.tensor(5)
    with pytest.raises(ValueError, match="not the data that the run was begun with"):
        next(batches(source, state))


def test_a_loader_given_to_fit_is_pointed_here():
    with pytest.raises(TypeError, match=r"weft\.sources\.Stream"):
        Learner(Regression()).fit(DataLoader(Noisy()))
