"""Two sources side by side: each by its own clock and shuffled for itself, no row left out."""

import pytest
import torch

import weft
from weft import Learner
from weft.core import Field, Objective, Output, Source
from weft.core.random import fold, gauss
from weft.core.state import State
from weft.engine.replicas import batches, begun, once
from weft.sources import Arrays, Episodes, Mapped, Unpaired
from weft.testing import check_source

A, B = torch.arange(50.0)[:, None], 1000 + torch.arange(13.0)[:, None]


class Walk(Source):
    """Goes on from where it was: a source with a state, without an end."""

    def __init__(self):
        self.spec = {"x": Field((1,), torch.float32)}

    def init(self, state):
        return {"at": torch.zeros(1)}

    def batches(self, state):
        while True:
            steps = gauss(fold(state.key("walk"), torch.arange(5)), (1,))
            path = state.source["at"] + steps.cumsum(0)
            state.source = {"at": path[-1]}
            yield {"x": path}

    def report(self, state):
        return {"at": state.source["at"][0]}


class Shift(Objective):
    """The shift from one side to the other."""

    fields = ("a_x", "b_x")

    def build(self, spec):
        self.by = torch.nn.Parameter(torch.zeros(spec["a_x"].shape))

    def forward(self, batch):
        return Output((batch["a_x"] + self.by - batch["b_x"]).square().mean(-1))


def arrays():
    return Unpaired(Arrays(A, batch_size=12), Arrays(B, y=B[:, 0], batch_size=12), batch_size=10)


SOURCES = {
    "arrays": arrays,
    "with a state": lambda: Unpaired(Walk(), Arrays(B, batch_size=12), batch_size=7),
    "mapped": lambda: Unpaired(Mapped(Arrays(A, batch_size=12), lambda x: x + torch.randn(1)), Walk(), batch_size=4),
    "within itself": lambda: Mapped(
        Unpaired(Arrays(A, batch_size=12), Arrays(B)), lambda x: x + torch.randn(1), spec=None
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_contract_holds(name):
    check_source(SOURCES[name](), steps=8)


def begin(source, seeds=0):
    seeds = torch.as_tensor(seeds)
    replicas = len(seeds) if seeds.dim() else None
    state = State(None, {}, {}, seeds, replicas=replicas, active=torch.ones_like(seeds, dtype=torch.bool))
    state.source = begun(source, state)
    return state


def read(source, steps):
    state = begin(source)
    stream = batches(source, state)
    found = []
    for _ in range(steps):
        found.append(next(stream))
        state.step += 1
    return {name: torch.cat([batch[name] for batch in found]) for name in found[0]}


def test_no_row_is_left_out_on_either_side():
    source = arrays()
    assert source.epoch == 5
    assert sorted(source.spec) == ["a_x", "b_x", "b_y"]
    rows = read(source, 5 * 13)
    assert rows["a_x"].flatten().long().bincount().tolist() == [13] * 50
    assert (rows["b_x"].flatten() - 1000).long().bincount().tolist() == [50] * 13
    assert torch.equal(rows["b_x"][:, 0], rows["b_y"])  # a side's own fields stay together


def test_sides_of_one_length_are_not_shuffled_alike():
    rows = read(Unpaired(Arrays(A), Arrays(A), batch_size=50), 3)
    same = (rows["a_x"] == rows["b_x"]).sum()
    assert int(same) < 15  # one in a permutation of 50, on average


def test_a_side_goes_on_from_what_it_keeps():
    source = Unpaired(Walk(), Arrays(B), batch_size=5)
    state = begin(source)
    for _, batch in zip(range(3), batches(source, state), strict=False):
        assert torch.equal(state.source["a"]["kept"]["at"], batch["a_x"][-1])
        assert source.report(state)["a_at"] == batch["a_x"][-1, 0]
        state.step += 1


def test_maps_of_both_sides_draw_apart():
    side = Mapped(Arrays(torch.zeros(20, 1)), lambda x: x + torch.randn(1))
    rows = read(Unpaired(side, side, batch_size=20), 1)
    assert not torch.isclose(rows["a_x"], rows["b_x"]).any()


def test_the_extent_is_that_of_the_side():
    assert [arrays().extent(name) for name in ("a_x", "b_y")] == [(0.0, 49.0), (1000.0, 1012.0)]


def test_one_pass_is_over_the_longer_side():
    source = arrays()
    for rows in (7, 50, 64):
        found = list(once(source, begin(source), rows))
        assert torch.equal(torch.cat([batch["a_x"] for batch in found]), A)
        assert torch.equal(torch.cat([batch["b_x"] for batch in found]), B.repeat(4, 1)[:50])


class Killed(Exception):  # noqa: N818
    pass


def stop(record):
    if record["step"] == 9:
        raise Killed


@pytest.mark.parametrize("replicas", [None, 2])
def test_through_the_learner_replicas_and_resume_hold(replicas, tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)

    def make(**more):
        return Learner(Shift(), steps=16, **{"replicas": replicas, "random_state": 3, **more})

    source = SOURCES["with a state"]()
    whole = make().fit(source)
    assert whole.history_["a_at"].shape[0] == 16
    with pytest.raises(Killed):
        make(folder=tmp_path, callbacks=[stop]).fit(source)
    resumed = weft.load(tmp_path, objective=Shift()).resume(source)
    for k in range(replicas or 1):
        own = (whole.replica(k), resumed.replica(k), make(random_state=3 + k, replicas=None).fit(source))
        first, second, single = (one.training_.runs[0].state.params["by"] for one in own)
        assert torch.equal(first, second)
        torch.testing.assert_close(first, single)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": Arrays(A, environment=[0, 1] * 25, grouped=True)}, "plain rows for 'a', got Arrays, which gives groups"),
        ({"b": Episodes((A, A, [0, 1] * 25))}, "plain rows for 'b', got Episodes"),
        ({"b": Arrays(A, weight=torch.ones(50))}, "no weights in 'b'"),
        ({"names": ("a", "a")}, "two names"),
        ({"a": Arrays(None, b_x=A), "names": ("a", "a_b")}, "keep the fields of both apart"),
        ({"names": ("a", "b c")}, "two names"),
    ],
)
def test_what_cannot_stand_side_by_side_is_refused(given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Unpaired(**{"a": Arrays(A), "b": Arrays(B), **given})


def test_a_field_beyond_the_spec_is_refused():
    class More(Arrays):
        def batches(self, state):
            for batch in super().batches(state):
                yield {**batch, "weight": torch.ones(len(batch["x"]))}

    with pytest.raises(ValueError, match="got a difference"):
        read(Unpaired(More(A), Arrays(B)), 1)
