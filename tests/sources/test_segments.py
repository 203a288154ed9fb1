"""Stretches of play: what is played once, learned from in passes, and gone on from."""

import pytest
import torch
from tests.objectives.third_party.ppo import PPO
from tests.sources.grounds import Crediting, Guarded, Policy, Remembering, Walk, Whole, state_of
from torch.utils._python_dispatch import TorchDispatchMode

from weft import Learner
from weft.objectives import REINFORCE
from weft.sources import Replay, Rollouts, Segments
from weft.sources.segments import taken
from weft.testing import ContractError, check_source


def batches_of(source, objective=None, seeds=(0,), count=12):
    engine, state = state_of(source, objective or Policy(), seeds)
    stream, found = engine.batches(source, state), []
    for _ in range(count):
        found.append({n: v.clone() for n, v in next(stream).items()})
        state.step += 1
    return found, state


def rows_of(batches):
    """All rows as a set, by what was observed, done and earned."""
    parts = [torch.cat([b["observation"], b["action"].unsqueeze(-1), b["next_observation"]], -1) for b in batches]
    return sorted(map(tuple, torch.cat(parts).tolist()))


MAKERS = {
    "once": lambda **more: Segments(Walk(), envs=3, length=10, **more),
    "passes": lambda **more: Segments(Walk(), envs=3, length=10, passes=2, batch_size=15, **more),
    "groups": lambda **more: Segments([Walk(), Walk(slip=0.0)], envs=3, length=10, passes=2, batch_size=15, **more),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("objective", [None, Crediting()], ids=["plain", "crediting"])
def test_the_contract(make, objective):
    check_source(make(), steps=6, objective=objective)


def test_the_contract_sees_what_is_kept_elsewhere():
    class Forgetful(Segments):
        def _order(self, state, batch):
            self.calls = getattr(self, "calls", 0) + 1
            return super()._order(state, batch).roll(self.calls, -1)

    with pytest.raises(ContractError):
        check_source(Forgetful(Walk(), envs=3, length=10, passes=2, batch_size=15), steps=6)


def test_each_pass_gives_every_row_once_in_another_order():
    found, _ = batches_of(MAKERS["passes"]())
    first, second = rows_of(found[0:2]), rows_of(found[2:4])
    assert first == second
    assert len(first) == 30
    in_order = [b["observation"].tolist() for b in found[0:2]]
    assert in_order != [b["observation"].tolist() for b in found[2:4]]
    assert rows_of(found[4:6]) != first  # the next segment


@pytest.mark.parametrize("seeds", [(0,), (0, 1)], ids=["one", "stacked"])
def test_a_batch_that_is_the_whole_segment_has_no_order(seeds):
    """All of its rows as they were played, in every pass; then those of the next segment."""
    found, state = batches_of(Segments(Walk(), envs=3, length=10, passes=3), seeds=seeds, count=4)
    for again in found[1:3]:
        assert all(torch.equal(value, found[0][name]) for name, value in again.items())
    assert not torch.equal(found[3]["observation"], found[0]["observation"])
    assert "order" not in state.source


def test_play_goes_on_where_it_stood():
    found, _ = batches_of(Segments(Walk(), envs=4, length=5), count=8)
    seen = torch.cat([b["observation"].unflatten(0, (4, 5)) for b in found], 1)
    after = torch.cat([b["next_observation"].unflatten(0, (4, 5)) for b in found], 1)
    over = torch.cat([(b["terminated"] | b["truncated"]).unflatten(0, (4, 5)) for b in found], 1)[:, :-1]
    assert torch.equal(seen[:, 1:][~over], after[:, :-1][~over])
    assert (~over)[:, 4::5].any()


def test_credit_sees_environments_and_time():
    found, _ = batches_of(Segments(Walk(), envs=4, length=5), Crediting(), count=2)
    for batch in found:
        reward, following = (batch[n].unflatten(0, (4, 5)) for n in ("reward", "following"))
        torch.testing.assert_close(following, reward.flip(1).cumsum(1).flip(1))


def test_rows_are_stretches_for_what_learns_from_trajectories():
    found, _ = batches_of(Segments(Walk(), envs=4, length=5, passes=2, batch_size=2), Whole(), count=4)
    assert found[0]["observation"].shape == (2, 5, 2)
    assert sorted(map(str, torch.cat([b["reward"] for b in found[:2]]).tolist())) == sorted(
        map(str, torch.cat([b["reward"] for b in found[2:]]).tolist())
    )
    with pytest.raises(
        ValueError, match=r"expected a batch_size that divides the 4 stretches of a segment, got 3.*as 2"
    ):
        state_of(Segments(Walk(), envs=4, length=5, batch_size=3), Whole())


def test_replicas_and_their_orders_are_their_own():
    both, _ = batches_of(MAKERS["passes"](), Crediting(), (3, 4))
    for k, seed in enumerate((3, 4)):
        one, _ = batches_of(MAKERS["passes"](), Crediting(), (seed,))
        for mine, theirs in zip(both, one, strict=True):
            assert all(torch.equal(mine[n][k], theirs[n]) for n in theirs)


def test_the_memory_of_a_policy_is_there():
    found, _ = batches_of(Segments(Walk(), envs=4, length=5), Remembering(), count=3)
    assert torch.equal(found[0]["action"], found[0]["memory_steps"] % 2)
    assert found[1]["memory_seen"].shape == (20, 2)


def test_what_is_told():
    source = MAKERS["passes"]()
    found, state = batches_of(source, count=8)
    told = source.report(state)
    assert told["env_steps"].item() == 60
    ends = torch.cat([b["terminated"] | b["truncated"] for b in (*found[0:2], *found[4:6])]).sum()
    assert (~state.source["0"]["returns"].isnan()).sum() == ends
    assert told["length"].item() == pytest.approx(state.source["0"]["lengths"].nanmean().item())


def test_env_steps_are_counted():
    source = MAKERS["passes"]()
    assert source.updates(95, Policy()) == 3 * 4  # three whole segments of 30 steps, of four updates
    assert MAKERS["groups"]().updates(125, Policy()) == 2 * 4
    learner = Learner(Policy(), env_steps=95, every=1, random_state=0).fit(source)
    assert len(learner.history_) == 12
    assert learner.history_[-1]["env_steps"] == 90
    with pytest.raises(
        ValueError, match=r"expected env_steps for at least one update, got 29, fewer than Segments plays"
    ):
        Learner(Policy(), env_steps=29).fit(MAKERS["passes"]())


def test_a_validation_is_told_as_returns():
    fresh = Segments(Walk(), envs=20, length=5)
    learner = Learner(Policy(), env_steps=60, replicas=2, validation=fresh, random_state=0).fit(MAKERS["once"]())
    assert {"valid_return", "valid_length"} <= learner.history_[-1].keys()
    assert learner.history_[-1]["valid_return"].shape == (2,)


class Strict(Policy):
    on_policy = True


def test_bad_input():
    Learner(Strict(), steps=2).fit(Segments(Walk(), envs=3, length=10))
    with pytest.raises(
        ValueError, match=r"expected a batch_size that divides the 30 steps of a segment, got 7.*such as 6"
    ):
        state_of(Segments(Walk(), envs=3, length=10, batch_size=7), Policy())
    with pytest.raises(ValueError, match=r"Strict learns from what the current policy does, got Segments.*earlier"):
        Learner(Strict(), steps=2).fit(Segments(Walk(), envs=3, length=10, passes=2))
    with pytest.raises(ValueError, match=r"expected play with 'mask', which REINFORCE reads, got Segments.*Rollouts"):
        Learner(REINFORCE(), steps=2).fit(Segments(Walk(), envs=3, length=10))
    with pytest.raises(ValueError, match=r"Replay gives steps one by one, and PPO credits rows.*Rollouts or Segments"):
        Learner(PPO(), steps=2).fit(Replay(Walk(), start=64))
    for name in ("envs", "length", "passes", "batch_size"):
        with pytest.raises(ValueError, match=f"expected Segments' {name} to be an integer >= 1.*got 0"):
            Segments(Walk(), **{name: 0})

    class Lame(Policy):
        def credit(self, batch):
            return {"late": batch["reward"].sum(1, keepdim=True).expand(-1, 3)[:2]}

    with pytest.raises(
        ValueError, match=r"expected credit to give 'late' for each of the \(3, 10\) steps played, got shape"
    ):
        Learner(Lame(), steps=1).fit(MAKERS["once"]())


@pytest.mark.parametrize(
    "source", [lambda: MAKERS["passes"](), lambda: Rollouts(Walk(), envs=4)], ids=["segments", "whole"]
)
def test_an_interrupted_run_ends_as_it_would_have(source, tmp_path, monkeypatch):
    import contextlib

    import weft

    monkeypatch.setattr("weft.learner.folder.SECONDS", 0.0)
    settings = {"steps": 11, "every": 1, "random_state": 0, "replicas": 2}
    objective = PPO(hidden=(8,))
    whole = Learner(objective, **settings).fit(source())

    class StopError(Exception):
        pass

    def stop(record):
        if record["step"] == 6:  # within a segment
            raise StopError

    with contextlib.suppress(StopError):
        Learner(objective, **settings, folder=tmp_path / "run", callbacks=[stop]).fit(source())
    again = weft.load(tmp_path / "run", objective=PPO(hidden=(8,)), callbacks=[]).resume(source())
    for name, value in whole.training_.runs[0].state.params.items():
        assert torch.equal(again.training_.runs[0].state.params[name], value), name
    assert [r["env_steps"].tolist() for r in again.history_] == [r["env_steps"].tolist() for r in whole.history_]


def test_masks_reach_the_rows():
    class Masked(Policy):
        def sample_action(self, observation, legal):
            return legal.long().argmax(-1) + 0 * observation[..., 0].long()

    found, _ = batches_of(Segments(Guarded(), envs=4, length=5), Masked(), count=2)
    assert found[0]["legal"].shape == (20, 2)
    assert found[0]["legal"].dtype == torch.bool


def test_taken_takes_rows_of_stacked_replicas():
    values = torch.arange(24).reshape(2, 4, 3)
    index = torch.tensor([[3, 0], [1, 1]])
    assert torch.equal(taken(values, index), torch.stack([values[0, [3, 0]], values[1, [1, 1]]]))
    assert torch.equal(taken(values[0], index[0]), values[0, [3, 0]])


class Largest(TorchDispatchMode):
    """The entries of the largest tensor that is made, views aside."""

    def __init__(self, *known):
        super().__init__()
        self.known, self.entries = {t.untyped_storage().data_ptr() for t in known}, 0

    def __torch_dispatch__(self, call, types, args=(), kwargs=None):
        made = call(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in self.known:
            self.entries = max(self.entries, made.numel())
        return made


def test_rows_are_taken_without_going_through_the_whole_memory():
    """Of replicas' memories, each of which may hold a million steps."""
    memory, index = torch.arange(3 * 1000 * 2).reshape(3, 1000, 2), torch.randint(1000, (3, 7))
    with Largest(memory, index) as largest:
        rows = taken(memory, index)
    assert torch.equal(rows, torch.stack([own[at] for own, at in zip(memory, index, strict=True)]))
    assert largest.entries <= rows.numel()
