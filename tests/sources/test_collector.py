"""Playing, against a loop that plays every row by itself; and everything that is strange in it, told."""

import pytest
import torch
from tests.sources.grounds import Guarded, Policy, Remembering, Walk, state_of

from weft.core import Field
from weft.core.random import fold, key_of, unit
from weft.sources import Rollouts, Segments
from weft.sources.collector import Collector, even_action
from weft.sources.stage import Tensors, stage_of

KEY = key_of(7)


def collector_of(world, envs=4, **settings):
    return Collector(stage_of(world), envs, name=type(world).__name__, **settings)


def played(world=None, turns=40, seeds=(0,), objective=None, envs=4, key=KEY, **settings):
    """What a collector plays in one call from the beginning: (before, after, rows)."""
    world = Walk() if world is None else world
    collector = collector_of(world, envs)
    _, state = state_of(Segments(world, envs=envs, length=8), objective or Policy(), seeds)
    key = key if len(seeds) == 1 else torch.stack([key] * len(seeds))
    before = collector.begin(state, key)
    return (before, *collector.play(state, before, turns, key, **settings), state)


def by_hand(state, world, row, turns, envs=4, key=KEY, horizon=9, again=True):
    """The same row, played by itself one step after another."""
    own = fold(fold(key, "episode"), torch.tensor([row]))
    position, seen = world.reset(fold(own, "reset"))
    age, rows = 0, []
    for t in range(turns):
        every = torch.zeros(envs, 2).index_copy(0, torch.tensor([row]), seen)
        action = state.call("sample_action", every, key=fold(fold(key, "action"), t), rows=torch.arange(envs))[
            row : row + 1
        ]
        turn = fold(own, t)
        position, after, reward, done = world.step(position, action, turn)
        age += 1
        cut = age >= horizon and not done.item()
        rows.append((seen, action, reward, done, torch.tensor([cut]), after))
        seen = after
        if done.item() or cut:
            if not again:
                break
            position, seen = world.reset(fold(turn, "reset"))
            age = 0
    names = ("observation", "action", "reward", "terminated", "truncated", "next_observation")
    return {name: torch.cat([row[i] for row in rows]) for i, name in enumerate(names)}


def test_play_is_the_loop_over_rows():
    before, after, rows, state = played()
    for i in range(4):
        mine = by_hand(state, Walk(), i, 40)
        for name, values in mine.items():
            assert torch.equal(rows[name][i], values), (i, name)
    assert rows["terminated"].any()
    assert rows["truncated"].any()
    assert not (rows["terminated"] & rows["truncated"]).any()
    assert after["steps"].item() == 160
    assert before["steps"].item() == 0


def test_an_end_is_an_end_and_a_cut_is_a_cut():
    *_, rows, _ = played(turns=200)
    at_an_end = (rows["next_observation"][..., 0] == 0) | (rows["next_observation"][..., 0] == 1)
    assert torch.equal(rows["terminated"], at_an_end)  # the last observation is the true one, not that of a new episode
    over = rows["terminated"] | rows["truncated"]
    goes_on = ~over[:, :-1]
    assert torch.equal(rows["observation"][:, 1:][goes_on], rows["next_observation"][:, :-1][goes_on])
    begins = rows["observation"][:, 1:][over[:, :-1]][:, 0]
    assert ((begins > 0) & (begins < 1)).all()
    ages = torch.zeros(4, dtype=torch.int64)
    for t in range(200):
        ages += 1
        assert torch.equal(rows["truncated"][:, t], (ages >= 9) & ~rows["terminated"][:, t])
        ages[over[:, t]] = 0


def test_an_end_at_the_horizon_is_an_end():
    class Sure(Walk):
        def step(self, position, action, keys):
            after, seen, reward, _ = super().step(position, action, keys)
            return after, seen, reward, torch.ones_like(after, dtype=torch.bool)

    *_, rows, _ = played(Sure(horizon=1))
    assert rows["terminated"].all()
    assert not rows["truncated"].any()


def test_two_calls_go_on_where_one_stood():
    world = Walk()
    collector = collector_of(world)
    _, state = state_of(Segments(world, envs=4, length=8), Policy())
    tree = collector.begin(state, KEY)
    found = []
    for turn in range(5):
        tree, rows = collector.play(state, tree, 8, fold(KEY, turn))
        found.append(rows)
    after = torch.cat([rows["next_observation"] for rows in found], 1)
    seen = torch.cat([rows["observation"] for rows in found], 1)
    over = torch.cat([rows["terminated"] | rows["truncated"] for rows in found], 1)
    goes_on = ~over[:, :-1]
    assert torch.equal(seen[:, 1:][goes_on], after[:, :-1][goes_on])
    assert goes_on[:, 7::8].any()  # an episode that two calls have played
    length = torch.zeros(4)
    lengths = []
    for t in range(40):
        length += 1
        lengths += length[over[:, t]].tolist()
        length[over[:, t]] = 0
    told = tree["lengths"][~tree["lengths"].isnan()]
    assert told.tolist() == lengths


def test_returns_are_sums_over_episodes():
    _, after, rows, _ = played(turns=60)
    over, earned, found = rows["terminated"] | rows["truncated"], torch.zeros(4, dtype=torch.float64), []
    for t in range(60):
        earned += rows["reward"][:, t].double()
        found += earned[over[:, t]].tolist()
        earned[over[:, t]] = 0
    told = after["returns"][~after["returns"].isnan()]
    torch.testing.assert_close(told, torch.tensor(found, dtype=torch.float64)[-100:])


@pytest.mark.parametrize("again", [True, False])
def test_replicas_are_single_runs(again):
    _, _, both, _ = played(seeds=(3, 4), again=again)
    for k, seed in enumerate((3, 4)):
        *_, one, _ = played(seeds=(seed,), again=again)
        for name, values in one.items():
            turns = values.shape[1]
            torch.testing.assert_close(both[name][k][:, :turns], values, rtol=0, atol=0)
            if "mask" in both:
                assert not both["mask"][k][:, turns:].any()


def test_a_row_does_not_depend_on_the_others():
    *_, few, _ = played(envs=2)
    *_, many, _ = played(envs=5)
    for name, values in few.items():
        assert torch.equal(values, many[name][:2]), name


def test_whole_episodes_wait_for_the_last_one():
    _, after, rows, state = played(again=False)
    lengths = rows["mask"].sum(1).long().tolist()
    for i, length in enumerate(lengths):
        mine = by_hand(state, Walk(), i, 40, again=False)
        assert len(mine["reward"]) == length
        for name, values in mine.items():
            assert torch.equal(rows[name][i, :length], values), name
        for name in ("reward", "terminated", "truncated", "action", "mask"):
            assert not rows[name][i, length:].any()
        assert (rows["observation"][i, length:] == rows["observation"][i, length - 1]).all()
    assert rows["mask"].shape[1] == max(lengths)
    assert min(lengths) < max(lengths)
    assert after["steps"].item() == sum(lengths)


def test_a_policy_remembers_until_the_episode_ends():
    _, after, rows, _ = played(objective=Remembering(), turns=50)
    over = rows["terminated"] | rows["truncated"]
    steps, seen = torch.zeros(4, dtype=torch.int64), torch.zeros(4, 2)
    for t in range(50):
        assert torch.equal(rows["memory_steps"][:, t], steps)
        torch.testing.assert_close(rows["memory_seen"][:, t], seen)
        assert torch.equal(rows["action"][:, t], steps % 2)
        steps, seen = steps + 1, seen + rows["observation"][:, t]
        steps[over[:, t]], seen[over[:, t]] = 0, 0.0
    assert torch.equal(after["memory"]["steps"], steps)
    assert over.any(0).sum() > 5


def test_memories_of_replicas_are_their_own():
    _, _, both, _ = played(objective=Remembering(), seeds=(3, 4))
    for k, seed in enumerate((3, 4)):
        *_, one, _ = played(objective=Remembering(), seeds=(seed,))
        for name, values in one.items():
            assert torch.equal(both[name][k], values), name


class Masked(Policy):
    def sample_action(self, observation, legal):
        from weft.core.random import categorical

        return categorical(self.net(observation).masked_fill(~legal, -torch.inf), place="action")


def test_what_is_legal_is_told_to_the_policy():
    *_, rows, _ = played(Guarded(), objective=Masked(), turns=100)
    right = rows["action"] == 1
    assert rows["legal"][..., 1][right].all()
    assert right.any()
    place = (rows["observation"][..., 0] * 6).round()
    assert torch.equal(rows["legal"][..., 1], place % 2 == 0)
    after = (rows["next_observation"][..., 0] * 6).round()
    assert torch.equal(rows["next_legal"][..., 1], after % 2 == 0)
    *_, rows, _ = played(Guarded(), objective=Masked(), turns=100, stray=1.0)  # drawn evenly, among the legal ones
    assert rows["legal"].gather(-1, rows["action"].unsqueeze(-1)).all()
    assert 0.2 < rows["action"].float()[rows["legal"][..., 1]].mean() < 0.8


def test_a_policy_that_is_not_told_what_is_legal_is_refused():
    source = Segments(Guarded(), envs=4, length=8)
    with pytest.raises(
        TypeError, match=r"expected Policy.sample_action\(observation, \*, legal\) in Guarded.*not every"
    ):
        state_of(source, Policy())


def test_actions_of_others():
    *_, own, _ = played(turns=400)
    *_, even, _ = played(turns=400, stray=1.0)
    assert even["action"].float().mean().item() == pytest.approx(0.5, abs=0.05)
    assert own["action"].float().mean().item() != pytest.approx(0.5, abs=0.05)
    *_, right, _ = played(turns=50, stray=1.0, other=lambda seen: torch.ones(len(seen), dtype=torch.int64))
    assert (right["action"] == 1).all()
    *_, some, _ = played(turns=500, stray=0.25, other=lambda seen: torch.ones(len(seen), dtype=torch.int64))
    assert some["action"].dtype == torch.int64
    strays = fold(fold(fold(KEY, "episode"), torch.arange(4)), torch.arange(500).unsqueeze(-1))
    share = (unit(fold(strays, "stray"), (), torch.float64) < 0.25).double().mean().item()
    assert share == pytest.approx(0.25, abs=0.03)
    forced = (unit(fold(strays, "stray"), (), torch.float64) < 0.25).T
    assert (some["action"][forced] == 1).all()


def test_draws_are_made_ahead_and_are_the_same():
    """A policy that draws by two laws in a turn, asked turn by turn."""

    class Drawing(Policy):
        def sample_action(self, observation):
            from weft.core.random import bernoulli, normal

            noise = normal(observation.shape, place="noise")
            chance = (observation + noise).sum(-1).sigmoid()
            return bernoulli(chance, place="action").long()

    _, _, rows, state = played(objective=Drawing(), turns=30)
    for i in range(4):
        mine = by_hand(state, Walk(), i, 30)
        assert torch.equal(rows["action"][i], mine["action"])


# --- what is strange ------------------------------------------------------------------------------------


class Endless(Walk):
    def __init__(self):
        super().__init__(horizon=None)


def test_a_world_that_never_ends_is_refused():
    with pytest.raises(ValueError, match=r"expected a world whose episodes end, got Endless without a limit.*horizon="):
        Rollouts(Endless(), envs=2)
    assert Rollouts(Endless(), envs=2, horizon=5).horizon == 5


class Broken(Walk):
    """Numbers that are none, from a step on in one row."""

    what, bad = "observation", torch.nan

    def step(self, position, action, keys):
        after, seen, reward, done = super().step(position, action, keys)
        wrong = position == 4
        if self.what == "observation":
            seen = torch.where(wrong.unsqueeze(-1) & torch.tensor([False, True]), self.bad, seen)
        else:
            reward = torch.where(wrong, self.bad, reward)
        return after, seen, reward, done


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("what", ["observation", "reward"])
@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_numbers_that_are_none_are_told_with_their_place(what, bad, seeds):
    world = Broken()
    world.what, world.bad = what, bad
    entry = r" in entry \[1\]" if what == "observation" else ""
    where = r"in Broken, episode \d" + (r", replica \d" if len(seeds) > 1 else "") + r", about step \d+"
    with pytest.raises(ValueError, match=f"expected a finite .*{what}, got {bad}{entry} {where}.*horizon="):
        played(world, seeds=seeds)


class Wild(Policy):
    answer = 2

    def sample_action(self, observation):
        return torch.full((len(observation),), self.answer)


@pytest.mark.parametrize("answer", [2, -1])
def test_actions_outside_of_the_space_are_told(answer):
    policy = Wild()
    policy.answer = answer
    with pytest.raises(ValueError, match=rf"expected actions to be a class number in 0..1, got {answer} in Wa"):
        played(objective=policy)


class Shaped(Policy):
    def sample_action(self, observation):
        return self.net(observation)


def test_actions_of_another_kind_are_told():
    with pytest.raises(
        ValueError, match=r"expected actions of shape \(\) in torch.int64 for Walk, got \(2,\) in torch.fl"
    ):
        played(objective=Shaped())


class Pushed(Walk):
    action = Field((1,), torch.float32, low=(-1.0,), high=(1.0,))

    def step(self, position, action, keys):
        return super().step(position, (action.squeeze(-1) > 0).long(), keys)


class Strong(Policy):
    answer = 1.5

    def build(self, spec):
        self.net = torch.nn.Linear(2, 1)

    def sample_action(self, observation):
        return torch.full((len(observation), 1), self.answer)


@pytest.mark.parametrize(("answer", "said"), [(1.5, "1.5"), (-2.0, "-2"), (torch.nan, "nan")])
def test_numbers_outside_of_a_box_are_told(answer, said):
    policy = Strong()
    policy.answer = answer
    with pytest.raises(
        ValueError, match=rf"expected actions to be between \(-1.0,\) and \(1.0,\), got {said} in entry \[0\]"
    ):
        played(Pushed(), objective=policy)
    policy.answer = 1.0
    played(Pushed(), objective=policy)


def test_an_objective_that_does_not_act_is_refused():
    from weft import Learner
    from weft.objectives import Regression

    with pytest.raises((TypeError, ValueError), match=r"expected .* got"):
        Learner(Regression(), steps=2).fit(Rollouts(Walk(), envs=2))


def test_even_actions_need_bounds():
    class Unbounded(Pushed):
        action = Field((1,), torch.float32)

    with pytest.raises(ValueError, match=r"expected actions with finite bounds to be drawn evenly.*explore=0"):
        played(Unbounded(), objective=Strong(), stray=1.0)


def test_a_step_does_not_touch_what_was_kept():
    before, *_ = played()
    again, *_ = played()
    assert before["world"].keys() == again["world"].keys()
    assert all(torch.equal(before["world"][name], again["world"][name]) for name in before["world"])
    assert before["age"].sum() == 0


def test_tensors_restart_those_that_are_over_only():
    stage = Tensors(Walk())
    keys = fold(KEY, torch.arange(5))
    kept, _ = stage.begin(keys)
    over = torch.tensor([True, False, False, True, False])
    anew, seen = stage.restart(kept, over, fold(keys, "again"))
    fresh, first = stage.begin(fold(keys, "again"))
    assert torch.equal(anew["0"], torch.where(over, fresh["0"], kept["0"]))
    assert torch.equal(seen[over], first[over])


@pytest.mark.parametrize(
    "space",
    [
        Field((), torch.int64, classes=5),
        Field((2,), torch.int64, choices=(3, 4)),
        Field((2,), torch.float32, low=(-1.0, 0.0), high=(1.0, 2.0)),
    ],
    ids=["classes", "choices", "numbers"],
)
def test_even_actions_of_many_turns_are_those_of_each(space):
    keys = fold(key_of(0), torch.arange(12)).reshape(4, 3)
    ahead = even_action(space, keys)
    assert ahead.shape == (4, 3, *space.shape)
    assert all(torch.equal(ahead[t], even_action(space, keys[t])) for t in range(4))
