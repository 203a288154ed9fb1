"""A memory of steps: what it keeps, what it draws, how it explores, and what it refuses."""

import contextlib

import numpy as np
import pytest
import torch
from scipy import stats
from tests.objectives.third_party.dqn import DQN
from tests.sources.grounds import Crediting, Guarded, Policy, Remembering, Walk, Whole, state_of

import weft
from weft import Learner
from weft.core import Output
from weft.data import Pendulum
from weft.sources import Replay
from weft.testing import ContractError, check_source

SMALL = {"envs": 2, "capacity": 50, "start": 20, "batch_size": 16, "every": 3, "updates_each": 2}


def source_of(world=None, **more):
    return Replay(Walk() if world is None else world, **{**SMALL, **more})


class Ranked(Policy):
    """What is further right has more to teach."""

    def priority(self, batch):
        return 0.01 + batch["observation"][..., 0]


def batches_of(source, objective=None, seeds=(0,), count=12):
    engine, state = state_of(source, objective or Policy(), seeds)
    stream, found, kept = engine.batches(source, state), [], []
    for _ in range(count):
        found.append({n: v.clone() for n, v in next(stream).items()})
        kept.append({n: v.clone() for n, v in state.source["memory"].items()})
        state.step += 1
    return found, kept, state


@pytest.mark.parametrize("more", [{}, {"priority": 0.6}, {"envs": 1, "every": 1, "updates_each": 1}], ids=str)
def test_the_contract(more):
    check_source(source_of(**more), steps=8, objective=Ranked() if more.get("priority") else None)


def test_the_contract_sees_what_is_kept_elsewhere():
    class Aside(Replay):
        def _drawn(self, state, tree, key):
            self.calls = getattr(self, "calls", 0) + 1
            batch = super()._drawn(state, tree, key)
            return {**batch, "reward": batch["reward"].roll(self.calls, -1)}

    with pytest.raises(ContractError):
        check_source(Aside(Walk(), **SMALL), steps=8)


def test_the_oldest_make_room():
    """What was played in order, beside the memory as it was told to be: a ring."""
    source = source_of()
    played, place = [], source._play

    def listening(state, tree, turns, key, *, stray):
        before = int(tree["filled"])
        place(state, tree, turns, key, stray=stray)
        memory, count = tree["memory"], int(tree["filled"]) - before
        index = (torch.arange(count) + before) % 50
        played.extend(map(tuple, torch.cat([memory["observation"], memory["next_observation"]], -1)[index].tolist()))

    source._play = listening
    _, kept, state = batches_of(source, count=30)
    filled = int(state.source["filled"])
    assert filled == len(played) == 20 + 15 * 6
    memory = torch.cat([kept[-1]["observation"], kept[-1]["next_observation"]], -1)
    for age, row in enumerate(reversed(played[-50:])):
        assert tuple(memory[(filled - 1 - age) % 50].tolist()) == row


def test_steps_of_a_row_follow_each_other():
    """Before the ring is full: `every` steps of both rows by turns, in the order of time."""
    _, kept, state = batches_of(source_of(), count=4)
    seen, after = kept[-1]["observation"][:32], kept[-1]["next_observation"][:32]
    over = (kept[-1]["terminated"] | kept[-1]["truncated"])[:32]
    for row in range(2):
        a, b, ended = seen[row::2][1:], after[row::2][:-1], over[row::2][:-1]
        assert torch.equal(a[~ended], b[~ended])
    assert int(state.source["filled"]) == 32


def test_batches_are_drawn_evenly_from_what_there_is():
    source = source_of(capacity=20, every=1, envs=1, updates_each=400, batch_size=16)
    found, kept, _ = batches_of(source, count=300)
    assert all(torch.equal(kept[0][n], kept[-1][n]) for n in kept[0])
    rows = {
        tuple(r): i for i, r in enumerate(torch.cat([kept[0]["observation"], kept[0]["next_observation"]], -1).tolist())
    }
    drawn = torch.cat([torch.cat([b["observation"], b["next_observation"]], -1) for b in found]).tolist()
    named = np.array([rows[tuple(r)] for r in drawn])
    own = torch.cat([kept[0]["observation"], kept[0]["next_observation"]], -1).tolist()
    expected = np.array([sum(tuple(r) == tuple(own[i]) for r in own) for i in set(rows.values())]) / 20
    seen = np.array([(named == i).sum() for i in set(rows.values())])
    assert stats.chisquare(seen, expected * seen.sum()).pvalue > 1e-3


def test_draws_by_priority_and_their_weights():
    """Against the paper's formulas: P(i) = p_i^a / sum p^a, w_i = (N P(i))^-b / max w."""
    source = source_of(capacity=20, every=1, envs=1, updates_each=10_000, priority=0.7, correction=0.3)
    found, _, state = batches_of(source, Ranked(), count=3)
    state.step, tree = 50, state.source
    tree["priority"] = (tree["memory"]["observation"][:, 0].double() + 0.01).clone()
    chance = tree["priority"] ** 0.7
    chance = chance / chance.sum()
    beta = 0.3 + 0.7 * 0.5
    counts, weights = np.zeros(20), {}
    for t in range(400):
        batch = source._drawn(state, tree, state.key("test", str(t)))
        index = tree["drawn"]
        counts += np.bincount(index.numpy(), minlength=20)
        raw = (20 * chance[index]) ** -beta
        torch.testing.assert_close(batch["weight"].double(), raw / raw.max(), rtol=1e-5, atol=1e-6)
        weights[t] = batch["weight"]
    assert stats.chisquare(counts, chance.numpy() * counts.sum()).pvalue > 1e-3
    assert all("weight" in b for b in found)


def test_priorities_are_as_when_a_step_was_last_learned_from():
    source = source_of(priority=1.0)
    _, _, state = batches_of(source, Ranked(), count=1)
    tree = state.source
    assert (tree["priority"][:26] == 1.0).all()  # what is new counts as the greatest so far
    index = tree["drawn"].clone()
    stream = source.batches(state)
    next(stream)
    place = state.source["memory"]["observation"][index, 0].double() + 0.01
    torch.testing.assert_close(state.source["priority"][index], place + 1e-6)


def test_exploring_falls_as_it_was_told():
    source = source_of(explore=(0.9, 0.1, 0.5))
    assert [round(source.share(p), 6) for p in (0.0, 0.25, 0.5, 1.0)] == [0.9, 0.5, 0.1, 0.1]
    assert source_of(explore=0.3).share(0.7) == 0.3
    learner = Learner(DQN(hidden=(8,)), steps=20, every=1, random_state=0).fit(source)
    told = [r["explore"] for r in learner.history_]
    assert told[0] > told[5] > told[-1] == pytest.approx(0.1)


def test_at_first_actions_are_drawn_evenly_then_by_the_policy():
    class Right(Policy):
        def sample_action(self, observation):
            return torch.ones(len(observation), dtype=torch.int64)

    _, kept, _ = batches_of(source_of(capacity=4000, start=2000, explore=0.0, every=50), Right(), count=20)
    first, later = kept[0]["action"][:2000], kept[-1]["action"][2000:3000]
    assert first.double().mean().item() == pytest.approx(0.5, abs=0.05)
    assert (later == 1).all()


def test_replicas_are_single_runs():
    for more, objective in (({}, Policy()), ({"priority": 0.6}, Ranked())):
        both, _, _ = batches_of(source_of(**more), objective, (3, 4))
        for k, seed in enumerate((3, 4)):
            one, _, _ = batches_of(source_of(**more), objective, (seed,))
            for mine, theirs in zip(both, one, strict=True):
                assert all(torch.equal(mine[n][k], theirs[n]) for n in theirs)


def test_env_steps_are_counted():
    source = source_of()
    updates = source.updates(80, Policy())
    assert updates == (80 - 20) // 6 * 2
    learner = Learner(Policy(), env_steps=80, every=1, random_state=0).fit(source)
    assert len(learner.history_) == updates
    assert learner.history_[-1]["env_steps"] == 80
    with pytest.raises(ValueError, match="env_steps for at least one update, got 25, fewer than Replay plays before"):
        Learner(Policy(), env_steps=25).fit(source_of())


def test_masks_and_memories_are_kept_with_the_steps():
    class Masked(Remembering):
        def sample_action(self, observation, memory, legal):
            action, memory = super().sample_action(observation, memory)
            return torch.where(legal[:, 1], action, 0), memory

    found, _, _ = batches_of(source_of(Guarded(), explore=0.0), Masked())
    for batch in found:
        assert batch["legal"].gather(-1, batch["action"].unsqueeze(-1)).all()
        assert batch["next_legal"].dtype == torch.bool
        assert batch["memory_seen"].shape == (16, 2)


@pytest.mark.parametrize("more", [{}, {"priority": 0.6}], ids=str)
def test_an_interrupted_run_ends_as_it_would_have(more, tmp_path, monkeypatch):
    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)
    settings = {"steps": 31, "every": 1, "random_state": 0, "replicas": 2}
    objective = DQN(hidden=(8,), renew=4)
    whole = Learner(objective, **settings).fit(source_of(**more))

    class StopError(Exception):
        pass

    def stop(record):
        if record["step"] == 12:
            raise StopError

    with contextlib.suppress(StopError):
        Learner(objective, **settings, folder=tmp_path / "run", callbacks=[stop]).fit(source_of(**more))
    loaded = weft.load(tmp_path / "run", objective=DQN(hidden=(8,), renew=4), callbacks=[])
    again = loaded.resume(source_of(**more))
    mine, theirs = (m.training_.runs[0].state for m in (again, whole))
    for name, value in {**theirs.params, **theirs.buffers}.items():
        assert torch.equal({**mine.params, **mine.buffers}[name], value), name
    for name, value in theirs.source["memory"].items():
        assert torch.equal(mine.source["memory"][name], value), name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 30}, r"a memory that a batch can be drawn from, .*got batch_size=30, start=20, capacity=50"),
        ({"capacity": 10, "start": 10, "batch_size": 16}, r"a memory that a batch can be drawn from"),
        ({"capacity": 15}, r"a memory that a batch can be drawn from, .*got batch_size=16, start=20, capacity=15"),
        (
            {"every": 40},
            r"a memory for at least the 80 steps \(every times envs\) that are played at once, got capacity=50",
        ),
        ({"explore": 1.5}, r"Replay's explore to be"),
        ({"explore": (1.0, 0.1)}, r"explore"),
        ({"priority": -1}, r"Replay's priority to be"),
        ({"capacity": 0}, r"Replay's capacity to be"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        source_of(**settings)


def test_what_cannot_learn_from_a_memory():
    with pytest.raises(ValueError, match=r"Replay gives steps one by one, and Whole learns from trajectories"):
        state_of(source_of(), Whole())
    with pytest.raises(ValueError, match=r"Replay gives steps one by one, and Crediting credits rows"):
        state_of(source_of(), Crediting())
    with pytest.raises(TypeError, match=r"expected Policy to say priority\(batch\).*beside priority=0.5, got none"):
        state_of(source_of(priority=0.5), Policy())
    with pytest.raises(ValueError, match=r"expected one world for Replay, whose memory is one, got 2"):
        source_of([Walk(), Walk()])

    class Strict(Policy):
        on_policy = True

    with pytest.raises(
        ValueError, match=r"Strict learns from what the current policy does, got Replay, whose rows an ear"
    ):
        Learner(Strict(), steps=2).fit(source_of())

    class Negative(Policy):
        def priority(self, batch):
            return -torch.ones_like(batch["reward"])

    with pytest.raises(ValueError, match=r"expected priority\(batch\) to give a number >= 0 for each of the 16 steps"):
        Learner(Negative(), steps=4).fit(source_of(priority=0.5))


def test_numbers_as_actions_are_kept_in_the_learner_s_precision():
    class Pushes(Policy):
        fields = ("observation", "action", "reward")

        def build(self, spec):
            self.net = torch.nn.Linear(spec["observation"].shape[0], 1)

        def forward(self, batch, player=""):
            return Output((self.net(batch["observation"])[:, 0] - batch["reward"]).square())

        def sample_action(self, observation):
            return self.net(observation).clamp(-1, 1)

    learner = Learner(Pushes(), steps=3, dtype="float64", random_state=0)
    learner.fit(Replay(Pendulum(), start=64, every=2, explore=0.5, batch_size=8))
    memory = learner.training_.runs[0].state.source["memory"]
    assert memory["action"].dtype == torch.float64
