"""What a source keeps between batches: kept with the run, for each replica, without a trace of probes."""

import pytest
import torch

import weft
from weft import Learner
from weft.core import Field, Source
from weft.core.random import fold, gauss
from weft.core.state import State
from weft.engine.replicas import apart, batches, begun, fresh
from weft.objectives import LeastSquares, Regression
from weft.sources import Arrays
from weft.strategies import EWC
from weft.testing import ContractError, check_source


class Memory(Source):
    """Draws a few rows a step, keeps all of them up to a size, and gives some of what it keeps."""

    epoch, size = None, None

    def __init__(self, size=12, grows=False):
        self.spec = {"x": Field((2,), torch.float32), "y": Field((), torch.float32)}
        self.room, self.grows = size, grows

    def init(self, state):
        rows = 0 if self.grows else self.room
        return {"rows": {"x": torch.zeros(rows, 2)}, "seen": torch.tensor(0)}

    def batches(self, state):
        while True:
            seen, x = int(state.source["seen"]), state.source["rows"]["x"]
            new = gauss(state.key("new"), (3, 2))
            if self.grows:
                state.source = {"rows": {"x": torch.cat([x, new])}, "seen": torch.tensor(seen + 3)}
            else:
                x[(seen + torch.arange(3)) % self.room] = new  # in place
                state.source["seen"] = torch.tensor(seen + 3)
            kept = state.source["rows"]["x"][: seen + 3]
            chosen = kept[(fold(state.key("chosen"), torch.arange(4)) & 2**31) % len(kept)]
            yield {"x": chosen, "y": chosen[:, 0] * (1 + state.progress)}

    def report(self, state):
        return {"seen": state.source["seen"].double(), "share": torch.tensor(state.progress)}


class Stacked(Memory):
    """Serves all replicas itself."""

    stacks = True

    def init(self, state):
        return {"seen": torch.zeros(() if state.replicas is None else (state.replicas,), dtype=torch.int64)}

    def batches(self, state):
        while True:
            state.source = {"seen": state.source["seen"] + 3}
            x = gauss(fold(state.key("x"), state.source["seen"]), (4, 2))
            yield {"x": x, "y": x[..., 0]}


class Restarting(Memory):
    resumes = "restart"


SOURCES = {"in place": Memory, "grown": lambda: Memory(grows=True), "stacked": Stacked}


@pytest.fixture(params=SOURCES)
def source(request):
    return SOURCES[request.param]()


def learner(**settings):
    return Learner(Regression(hidden=(4,)), **{"steps": 12, "random_state": 0, "optimizer": "sgd", **settings})


def state_of(learner):
    return learner.training_.runs[0].state


def equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        equal(a[name], b[name]) if isinstance(a[name], dict) else torch.testing.assert_close(
            a[name], b[name], rtol=0, atol=0
        )


def same_weights(one, other):
    for p, q in zip(one.objective_.parameters(), other.objective_.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0)


def test_the_contract_holds(source):
    check_source(source, steps=6)


def test_records_tell_what_the_source_reports(source):
    found = learner().fit(source).history_
    assert found["seen"].tolist() == [3.0 * step for step in range(1, 13)]
    assert found["share"][[0, 5, 11]].tolist() == pytest.approx([1 / 12, 0.5, 1.0])


def test_replicas_keep_a_tree_each(source):
    both = learner(replicas=2).fit(source)
    assert state_of(both).source["seen"].tolist() == [36, 36]
    assert both.history_["seen"].shape == (12, 2)
    for k in range(2):
        one = learner(random_state=k).fit(source)
        equal(state_of(both.replica(k)).source, state_of(one).source)
        for p, q in zip(both.replica(k).objective_.parameters(), one.objective_.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


class Killed(Exception):  # noqa: N818
    pass


def killed_at(step):
    def stop(record):
        if record["step"] == step:
            raise Killed

    return [stop]


@pytest.mark.parametrize("replicas", [None, 2])
def test_a_resumed_run_is_the_uninterrupted_one(source, replicas, tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)
    whole = learner(replicas=replicas).fit(source)
    with pytest.raises(Killed):
        learner(replicas=replicas, folder=tmp_path, callbacks=killed_at(7)).fit(source)
    loaded = weft.load(tmp_path)
    before = state_of(loaded).source["seen"]
    assert torch.equal(before, torch.full_like(before, 18))
    assert state_of(loaded).progress == 0.5
    resumed = loaded.resume(source)
    equal(state_of(resumed).source, state_of(whole).source)
    same_weights(resumed, whole)
    assert resumed.history_["seen"].tolist() == whole.history_["seen"].tolist()


def test_what_restarts_is_left_out_of_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)
    with pytest.raises(Killed):
        learner(folder=tmp_path, callbacks=killed_at(7)).fit(Restarting())
    loaded = weft.load(tmp_path)
    assert state_of(loaded).source == {}
    with pytest.warns(UserWarning, match="Restarting begins anew at step 6"):
        loaded.resume(Restarting())
    assert state_of(loaded).source["seen"] == 3 * 6  # the last six steps alone


def test_a_large_memory_is_written_once_and_only_when_due(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr("weft.learner.folder.SECONDS", 1e9)
    from weft.core import manifest

    switch = manifest.switch
    monkeypatch.setattr(
        "weft.core.manifest.switch",
        lambda folder, whole, **told: (written.append(sum(map(len, whole.values()))), switch(folder, whole, **told)),
    )
    learner(folder=tmp_path).fit(Memory(size=100_000))
    assert len(written) == 2  # at the beginning, before anything is kept, and at the end
    assert written[-1] < 100_000, "of 800,000 bytes, most of which are still zeros: equal blocks are kept once"


def test_probes_and_looks_leave_no_trace(source):
    plain = learner(replicas=2).fit(source)  # replicas are probed before training
    watched = learner(replicas=2, validation=SOURCES["in place"]()).fit(source)
    equal(state_of(watched).source, state_of(plain).source)
    same_weights(watched, plain)


def test_copies_to_look_with_have_buffers_of_their_own():
    state = State(objective=None, params={}, buffers={"seen": torch.tensor(1)}, seeds=torch.tensor(0))
    state.source = {"seen": torch.tensor(1)}
    for view in (apart(state), fresh(Memory(), state)):
        view.buffers["seen"] = view.buffers["seen"] + 1
        assert state.buffers["seen"] == 1


def test_a_validation_source_has_a_tree_of_its_own():
    class Held(Arrays):
        def init(self, state):
            return {"mine": torch.ones(3 if state.replicas is None else (state.replicas, 3))}

        def once(self, state, rows):
            assert set(state.source) == {"mine"}
            return super().once(state, rows)

    held = Held(torch.randn(6, 2), torch.randn(6))
    for replicas in (None, 2):
        found = learner(validation=held, replicas=replicas).fit(Memory())
        assert set(state_of(found).source) == {"rows", "seen"}


def test_each_task_begins_anew(source):
    found = learner(steps=4).partial_fit(source, task="a").partial_fit(source, task="b")
    assert state_of(found).source["seen"] == 12
    assert found.history_["share"][-1] == 1.0


def test_what_a_strategy_looks_back_on_leaves_no_trace(source):
    found = learner(steps=4, strategy=EWC()).partial_fit(source, task="a")
    assert state_of(found).source["seen"] == 12


def test_a_solved_objective_reads_and_records_it():
    class Fixed(Stacked):
        def once(self, state, rows):
            assert set(state.source) == {"seen"}
            yield {"x": torch.eye(2), "y": torch.ones(2)}

    found = Learner(LeastSquares(), random_state=0).fit(Fixed())
    assert found.history_["seen"].tolist() == [0.0]


def test_progress_is_that_of_the_plan_and_of_each_replica():
    state = State(objective=None, params={}, buffers={}, seeds=torch.tensor([0, 1]), replicas=2, active=torch.ones(2))
    assert state.progress == 0.0
    state.origin, state.step, state.planned = 20, 25, 10
    state.late, state.ended = torch.tensor([0, 3]), {0: 22}
    assert state.progress == 0.5
    assert [state.replica(k).progress for k in range(2)] == [0.2, 0.5]
    state.step = 40
    assert state.progress == 1.0


class InItself(Memory):
    """Counts in itself."""

    count = 0

    def batches(self, state):
        while True:
            self.count += 1
            x = gauss(fold(state.key("x"), self.count), (4, 2))
            yield {"x": x, "y": x[:, 0]}


class InItsIterator(Memory):
    def batches(self, state):
        count = 0
        while True:
            count += 1
            x = gauss(fold(state.key("x"), count), (4, 2))
            yield {"x": x, "y": x[:, 0]}


class TooLate(Memory):
    """Writes down what it has done after the batch is given, when the checkpoint may have been made."""

    def batches(self, state):
        while True:
            x = gauss(fold(state.key("x"), state.source["seen"]), (4, 2))
            yield {"x": x, "y": x[:, 0]}
            state.source["seen"] = state.source["seen"] + 1


class PutBack(InItself):
    """Counts in itself from the state's count, and believes itself: a probe in between shows."""

    def batches(self, state):
        self.count = int(state.source["seen"])
        while True:
            self.count += 1
            state.source["seen"] = torch.tensor(self.count)
            x = gauss(fold(state.key("x"), self.count), (4, 2))
            yield {"x": x, "y": x[:, 0]}


class Numbers(Memory):
    def init(self, state):
        return {"seen": 0}


class Unstacked(Stacked):
    def init(self, state):
        return {"seen": torch.tensor(0)}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (InItself, "the same seed twice"),
        (InItsIterator, "after a resume"),
        (TooLate, "after a resume"),
        (PutBack, "with a probe before each"),
    ],
)
def test_state_kept_elsewhere_is_caught(broken, message):
    with pytest.raises(ContractError, match=message):
        check_source(broken())


@pytest.mark.parametrize(
    ("broken", "replicas", "message"),
    [(Numbers, None, "kept as torch.tensor"), (Numbers, 2, "kept as torch.tensor"), (Unstacked, 2, "2 replicas on")],
)
def test_what_cannot_be_kept_is_refused(broken, replicas, message):
    with pytest.raises((TypeError, ValueError), match=message):
        learner(replicas=replicas).fit(broken())


def test_replicas_that_keep_unlike_trees_are_refused():
    class Ragged(Memory):
        def init(self, state):
            return {"rows": torch.zeros(1 + int(state.seeds))}

    state = State(objective=None, params={}, buffers={}, seeds=torch.tensor([0, 1]), replicas=2, active=torch.ones(2))
    with pytest.raises(ValueError, match="same names and shapes for every replica"):
        begun(Ragged(), state)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"loss": torch.tensor(1.0)}, "'loss', which the record has already"),
        ({"step": torch.tensor(1.0)}, "'step', which the record has already"),
        ({"many": torch.ones(2)}, r"of shape \(\), got shape \(2,\)"),
        ({"number": 1.0}, "as a tensor"),
    ],
)
def test_reports_that_cannot_be_recorded_are_refused(told, message):
    class Telling(Memory):
        def report(self, state):
            return told

    with pytest.raises((TypeError, ValueError), match=message):
        learner().fit(Telling())


def test_replicas_change_their_trees_in_place():
    state = State(objective=None, params={}, buffers={}, seeds=torch.tensor([0, 1]), replicas=2, active=torch.ones(2))
    memory = Memory()
    state.source = begun(memory, state)
    before = state.source["rows"]["x"]
    next(batches(memory, state))
    assert state.source["rows"]["x"] is before  # large ones are not copied because a count beside them is new
    assert bool((before[:, :3] != 0).all())
    assert state.source["seen"].tolist() == [3, 3]
