"""MinAtar's games: step for step as the reference, by what it was told to draw; and what is drawn has the right law."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

from weft import Learner
from weft.core.random import fold, key_of
from weft.core.world import World
from weft.data import Asterix, Breakout, Freeway, Seaquest, SpaceInvaders
from weft.objectives import REINFORCE
from weft.sources import Rollouts
from weft.testing import check_world

PARITY = Path(__file__).parents[1] / "fixtures" / "parity"
GAMES = {
    "breakout": Breakout,
    "asterix": Asterix,
    "freeway": Freeway,
    "seaquest": Seaquest,
    "space_invaders": SpaceInvaders,
}
RAMPS = ("asterix", "seaquest", "space_invaders")


@cache
def recorded(name):
    """The reference's episodes, side by side, by how they were set: (world, lengths, what was drawn and done, seen)."""
    with np.load(PARITY / f"minatar_{name}.npz") as file:
        kept = dict(file)
    lengths, width = kept["lengths"], 100 * len(GAMES[name].channels)
    seen = np.bitwise_xor.accumulate(kept["seen"], 0)
    seen = np.unpackbits(seen, axis=1, count=width).reshape(-1, width // 100, 10, 10)
    ends, parts = np.cumsum(lengths), []
    for sticky, ramping in sorted(set(zip(kept["sticky"].tolist(), kept["ramping"].tolist(), strict=True))):
        chosen = np.flatnonzero((kept["sticky"] == sticky) & (kept["ramping"] == ramping))
        rows = {key: padded([kept[key][ends[e] - lengths[e] : ends[e]] for e in chosen]) for key in STEPS}
        rows["seen"] = padded([seen[ends[e] - lengths[e] + e : ends[e] + e + 1] for e in chosen])
        rows["start"] = torch.tensor((kept["start"][chosen] + 0.5) / 65536, dtype=torch.float32)
        rows["drawn"] = (rows["drawn"].double() + 0.5).div(65536).float()
        rows["staged"] = torch.tensor(
            chosen - len(lengths) + len(kept.get("staged", ()))
        )  # which, of the last episodes
        late = chosen - len(lengths) + len(kept.get("staged", ()))  # the last episodes begin as they are staged
        rows["staged"] = [(row, kept["staged"][e]) for row, e in enumerate(late) if e >= 0 and "staged" in kept]
        settings = {"ramping": ramping} if name in RAMPS else {}
        parts.append((GAMES[name](sticky=sticky, **settings), torch.tensor(lengths[chosen]), rows))
    return parts


STEPS = ("action", "drawn", "reward", "terminated", "ramps")


def padded(episodes):
    longest = max(map(len, episodes))
    full = [np.pad(e.astype(np.int32), [(0, longest - len(e))] + [(0, 0)] * (e.ndim - 1)) for e in episodes]
    return torch.tensor(np.stack(full))


def staged(state, row, begun):
    """Five on board, two divers in the sea, the newest first, and an enemy submarine, where they are said."""
    x, y, right, wait, reload = begun.long().unbind(-1)
    there, way, chosen = (x >= 0).long(), 2 * right - 1, torch.tensor([row])
    divers = there[:2, None] * torch.stack([there, x, y, way, wait], -1)[:2]
    enemies = torch.zeros_like(state.enemies[0])
    enemies[0] = there[2] * torch.stack([2 * there, x, y, way, wait, reload], -1)[2]
    return state._replace(
        crew=state.crew.index_fill(0, chosen, 5),
        divers=state.divers.index_copy(0, chosen, divers.flip(0)[None]),
        enemies=state.enemies.index_copy(0, chosen, enemies[None]),
    )


@pytest.mark.parametrize("name", GAMES)
def test_games_are_played_as_the_reference_does(name):
    events = {}
    for world, lengths, rows in recorded(name):
        position, observation = world.start(rows["start"])
        for row, begun in rows["staged"]:
            position = (position[0], staged(position[1], row, torch.tensor(begun)))
        plain = [row for row in range(len(lengths)) if row not in dict(rows["staged"])]
        assert torch.equal(observation[plain], rows["seen"][plain, 0].float())
        for t in range(int(lengths.max())):
            going = lengths > t
            before = position[1]
            position, observation, reward, ended = world.move(
                position, rows["action"][:, t].long(), rows["drawn"][:, t]
            )
            ramps = getattr(position[1], "ramps", torch.zeros_like(lengths))
            if name == "space_invaders":
                ramps = 12 - position[1].move_every
            told = {"seen": observation, "reward": reward, "terminated": ended, "ramps": ramps}
            for what, ours in told.items():
                theirs = rows[what][:, t + (what == "seen")]
                wrong = (ours != theirs).reshape(len(lengths), -1).any(1) & going
                assert not wrong.any(), (what, t, wrong.nonzero()[:5].tolist())
            told = EVENTS[name](before, position[1], position[0], reward, ended)
            for event, happens in told.items():
                events[event] = events.get(event, 0) + int((happens & going).sum())
    assert min(events.values()) >= 1, events


def breakout(before, after, action, reward, ended):
    bare = ~before.bricks.flatten(1).any(1)
    return {
        "a brick is broken": reward == 1,
        "a brick is passed through": after.struck & (reward == 0),
        "a wall": after.dx != before.dx,
        "the ceiling": (after.y == 0) & (after.dy > 0),
        "caught above": (before.y == 8) & (after.dy < 0) & (after.dx == before.dx) & (after.x != after.last_x),
        "caught beside": (before.y == 8) & (after.dy < 0) & (after.dx != before.dx),
        "a new wall": bare & after.bricks.flatten(1).any(1),
        "lost": ended,
    }


def asterix(before, after, action, reward, ended):
    spawned, moved = before.spawn_in == 0, before.move_in == 0
    full = before.there.all(1)
    gone = (before.there & ~after.there & ((before.column == 0) | (before.column == 9))).any(1)
    return {
        "treasure": reward == 1,
        "treasure that comes": (reward == 1) & moved,
        "an enemy": ended,
        "an enemy that comes": ended & moved,
        "a new thing": spawned & (after.there.sum(1) > before.there.sum(1)),
        "no room for a new one": spawned & full,
        "out at the edge": gone,
        "sooner": after.spawn_every < before.spawn_every,
        "moves sooner": after.move_every < before.move_every,
        "one at each step": after.spawn_every == 1,
        "a move at each step": after.move_every == 1,
        "at the upper bound": (action == 2) & (before.y == 1),
        "at the lower bound": (action == 4) & (before.y == 8),
        "at the left bound": (action == 1) & (before.x == 0),
        "at the right bound": (action == 3) & (before.x == 9),
    }


def freeway(before, after, action, reward, ended):
    home = (after.row == 9) & (before.row < 9) & (reward == 0)
    return {
        "crossed": reward == 1,
        "hit": home,
        "hit by a car that stood there": home & ((before.car == 4) & (after.car == 4)).any(1),
        "down": after.row == before.row + 1,
        "must wait": (action == 2) & (before.pause > 0) & (after.row == before.row),
        "down at the bottom": (action == 4) & (before.row == 9) & (before.pause == 0),
        "around to the right": ((before.car == 9) & (after.car == 0)).any(1),
        "around to the left": ((before.car == 0) & (after.car == 9)).any(1),
        "the end": ended,
    }


def seaquest(before, after, action, reward, ended):
    kind, x, y = before.enemies.unbind(-1)[:3]
    cells = torch.where(kind > 0, y * 10 + x, -1 - torch.arange(30))
    crowded = (cells[:, :, None] == cells[:, None]).flatten(1).sum(1) > 30
    shots, left = (state.shots[..., 0].sum(1) for state in (before, after))
    up = after.surfaced & ~before.surfaced
    divers = before.divers[..., 0].sum(1)
    there, column, row, course = before.divers.unbind(-1)[:4]
    near = (column == after.x[:, None]) | (column + course == after.x[:, None])
    beside = (there > 0) & near & (row == after.y[:, None])
    return {
        "a shot": (action == 5) & (before.reload == 0),
        "no shot yet": (action == 5) & (before.reload > 0),
        "a hit": (reward == 1) & (after.y > 0),
        "two hits at once": (reward >= 2) & (after.y > 0),
        "two shots": left == 2,
        "enemies in one cell": crowded,
        "a hit among enemies in one cell": crowded & (reward > 0) & (after.y > 0),
        "a shot that misses": (left < shots) & (reward == 0),
        "a diver": after.crew > before.crew,
        "no room for a diver": (before.crew == 6) & (after.crew == 6) & beside.any(1),
        "room for one of two divers": (before.crew == 5) & (after.crew == 6) & beside.all(1),
        "a diver lost": (after.divers[..., 0].sum(1) < divers) & (after.crew == before.crew),
        "up with a few": up & (before.crew > 0) & (before.crew < 6),
        "up with six": up & (before.crew == 6),
        "up below none": up & (before.crew < 0),
        "up with none": ended & (after.y == 0) & (before.y > 0) & (before.crew == 0),
        "no air": ended & (before.air == 0),
        "sooner": after.spawn_every < before.spawn_every,
        "moves sooner": after.move_every < before.move_every,
        "one at each step": after.spawn_every == 1,
        "a submarine": (kind == 2).any(1),
        "a bomb to the left": after.left_bombs.flatten(1).any(1),
        "a bomb to the right": after.right_bombs.flatten(1).any(1),
        "the end": ended,
    }


def space_invaders(before, after, action, reward, ended):
    down = after.way != before.way
    lowest = before.aliens[:, -1]
    return {
        "a hit": reward == 1,
        "no shot yet": (action == 5) & (before.reload > 0),
        "down and turn": down,
        "landed": ended & lowest.any(1) & down,
        "rammed": ended & lowest.gather(1, after.cannon[:, None])[:, 0],
        "bombed": ended & ~lowest.any(1) & ~after.aliens[:, -1].any(1),
        "a bomb": before.fire_in == 0,
        "a wave": after.aliens.flatten(1).sum(1) > before.aliens.flatten(1).sum(1),
        "sooner": after.move_every < before.move_every,
        "fastest": after.move_every == 6,
        "few left move sooner": (before.move_in == 0) & (before.aliens.flatten(1).sum(1) < after.move_every),
    }


EVENTS = {
    "breakout": breakout,
    "asterix": asterix,
    "freeway": freeway,
    "seaquest": seaquest,
    "space_invaders": space_invaders,
}


# --- what is drawn --------------------------------------------------------------------------------------

MANY = 24000


def keys_of(n, place="keys"):
    return fold(key_of(0), place, torch.arange(n))


def even(*values, shares=None):
    """The p-value of a chi-square test that the cells of a table of whole numbers are filled as their shares say."""
    sizes = [int(v.max()) + 1 for v in values]
    counts = np.bincount(np.ravel_multi_index([v.numpy() for v in values], sizes), minlength=np.prod(sizes))
    expected = None if shares is None else np.array(shares).ravel() * counts.sum()
    return stats.chisquare(counts, expected).pvalue


def after_waiting(world, **changes):
    """The state of many episodes a step after something was due, from as many keys."""
    (last, state), _ = world.reset(keys_of(MANY))
    state = state._replace(
        **{name: torch.full_like(state[state._fields.index(name)], v) for name, v in changes.items()}
    )
    return world.step((last, state), last, keys_of(MANY, "step"))[0][1]


def test_actions_stick_as_often_as_said():
    for sticky, share in ((0.0, 0.0), (0.1, 0.1), (0.25, 0.25), (1.0, 1.0)):
        world = Breakout(sticky=sticky)
        (last, state), _ = world.reset(keys_of(MANY))
        (done, after), *_ = world.step((last + 1, state), last + 3, keys_of(MANY, "step"))
        assert set(done.unique().tolist()) <= {1, 3}
        assert torch.equal(after.paddle - state.paddle, done - 2)
        stuck = int((done == 1).sum())
        assert stuck == share * MANY if share in (0.0, 1.0) else stats.binomtest(stuck, MANY, share).pvalue > 0.01


def test_the_ball_starts_at_either_edge():
    assert Breakout().reset(keys_of(MANY))[0][1].x.unique().tolist() == [0, 9]
    assert even(Breakout().reset(keys_of(MANY))[0][1].x // 9) > 0.01


def test_cars_have_any_speed_and_way():
    (_, state), _ = Freeway().reset(keys_of(MANY))
    speed, right = state.speed.abs() - 1, (state.speed > 0).long()
    assert min(even(speed[:, i], right[:, i]) for i in range(8)) > 0.001
    assert min(even(speed[:, i], speed[:, i - 1]) for i in range(8)) > 0.001
    assert min(even(right[:, i], right[:, i - 1]) for i in range(8)) > 0.001
    anew = after_waiting(Freeway(sticky=0.0), row=1, pause=0)
    assert torch.equal(anew.speed, state.speed)  # nobody has crossed
    (last, _), _ = Freeway().reset(keys_of(MANY))
    crossed, _, reward, _ = Freeway(sticky=0.0).step(
        (last, state._replace(row=last + 1, pause=last)), last + 2, keys_of(MANY, "step")
    )
    speed, right = crossed[1].speed.abs() - 1, (crossed[1].speed > 0).long()
    assert torch.equal(reward, torch.ones(MANY))
    assert min(even(speed[:, i], right[:, i]) for i in range(8)) > 0.001
    assert min(even(speed[:, i], state.speed[:, i].abs() - 1) for i in range(8)) > 0.001


def test_treasure_and_enemies_come_from_anywhere():
    state = after_waiting(Asterix(), spawn_in=0)
    assert torch.equal(state.there.sum(1), torch.ones(MANY, dtype=torch.int64))
    row = state.there.long().argmax(1)
    right, gold = (part.gather(1, row[:, None])[:, 0].long() for part in (state.right, state.gold))
    assert torch.equal(state.column.gather(1, row[:, None])[:, 0], 9 - 9 * right)
    assert even(row, right, gold, shares=np.ones((8, 2, 1)) / 16 * np.array([2 / 3, 1 / 3])) > 0.01

    (last, state), _ = Asterix().reset(keys_of(MANY))
    taken = torch.tensor([1, 0, 1, 1, 0, 0, 1, 0], dtype=torch.bool).expand(MANY, 8)
    state = state._replace(there=taken, column=torch.full_like(state.column, 2), spawn_in=torch.zeros_like(last))
    (_, state), *_ = Asterix().step((last, state), last, keys_of(MANY, "step"))
    assert torch.equal(state.column[taken].unique(), torch.tensor([2]))
    assert even((state.there & ~taken)[:, [1, 4, 5, 7]].long().argmax(1)) > 0.01


def test_divers_and_enemies_come_from_anywhere():
    state = after_waiting(Seaquest(), spawn_in=0, divers_in=0)
    kind, x, y, way = state.enemies[:, 0, :4].unbind(-1)
    assert torch.equal(x, torch.where(way > 0, 0, 9))
    assert even(y - 1, (way + 1) // 2, kind - 1, shares=np.ones((8, 2, 1)) / 16 * np.array([2 / 3, 1 / 3])) > 0.01
    there, x, deep, course = state.divers[:, 0, :4].unbind(-1)
    assert torch.equal(x, torch.where(course > 0, 0, 9))
    assert there.min() == 1
    assert even(deep - 1, (course + 1) // 2) > 0.01
    assert even(deep - 1, y - 1) > 0.01
    assert even((course + 1) // 2, (way + 1) // 2) > 0.01


# --- as worlds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("minimal", [False, True])
@pytest.mark.parametrize("name", GAMES)
def test_games_hold_to_the_contract(name, minimal):
    world = GAMES[name](minimal=minimal)
    assert isinstance(world, World)
    assert world.action.classes == (len(world.useful) if minimal else 6)
    assert world.horizon == (2501 if name == "freeway" else None)
    check_world(world, steps=40)


@pytest.mark.parametrize("name", GAMES)
def test_the_minimal_actions_are_those_that_do_something(name):
    few, all_six = GAMES[name](minimal=True), GAMES[name]()
    keys = keys_of(len(few.useful) * 200)
    action = torch.arange(len(keys)) % len(few.useful)
    position, same = few.reset(keys)[0], all_six.reset(keys)[0]
    for t in range(30):
        position, observation, *_ = few.step(position, action, fold(keys, t))
        same, again, *_ = all_six.step(same, torch.tensor(few.useful)[action], fold(keys, t))
        assert torch.equal(observation, again)
    for idle in set(range(6)) - set(few.useful):  # the others are as good as nothing
        left, right = ([world.reset(keys)[0]] for world in (all_six, all_six))
        for t in range(30):
            left = all_six.step(left[0], torch.full_like(action, idle), fold(keys, t))
            right = all_six.step(right[0], torch.zeros_like(action), fold(keys, t))
            assert torch.equal(left[1], right[1])


@pytest.mark.parametrize("name", GAMES)
def test_ended_episodes_may_be_played_on(name):
    world, keys = GAMES[name](), keys_of(30)
    position, _ = world.reset(keys)
    over = torch.zeros(30, dtype=torch.bool)
    for t in range(1500):
        action = torch.arange(30) % 6 if t % 2 else (torch.arange(30) + t // 2) % 6
        position, observation, _, ended = world.step(position, action, fold(keys, t))
        over |= ended
    assert over.all() or name == "freeway"
    assert observation.min() >= 0
    assert observation.max() <= 1


def test_a_swarm_of_enemies_finds_room():
    world, most = Seaquest(), 0
    drawn = torch.tensor([[0.9, 0.1, 0.9, 0.5, 0.1, 0.5]])  # never sticky, always a fish from the left, in one row
    (last, state), _ = world.start(torch.zeros(1, 0))
    position = (last, state._replace(spawn_every=last + 1, spawn_in=last, move_every=last + 2))
    for _ in range(100):
        assert position[1].enemies[0, -1, 0] == 0  # who drops out is nobody
        position, *_ = world.move(position, last, drawn)
        most = max(most, int((position[1].enemies[..., 0] > 0).sum()))
    assert most == 29


@pytest.mark.parametrize("name", GAMES)
def test_pictures_show_the_board(name):
    world = GAMES[name]()
    position, observation = world.reset(keys_of(3))
    for t in range(25):
        position, observation, *_ = world.step(position, torch.tensor([0, 1, 5]), fold(keys_of(3), t))
    picture = world.render(position)
    assert picture.shape == (3, 80, 80, 3)
    assert picture.dtype == torch.uint8
    blocks = picture.unflatten(2, (10, 8)).unflatten(1, (10, 8))
    assert torch.equal(blocks, blocks[:, :, :1, :, :1].expand_as(blocks))
    colours = torch.tensor([(0, 0, 0), *world.channels.values()], dtype=torch.uint8)
    layer = (observation * torch.arange(1, len(colours))[:, None, None]).amax(1).long()
    assert torch.equal(blocks[:, :, 0, :, 0], colours[layer])


def test_what_is_wrong_is_told():
    with pytest.raises(ValueError, match=r"expected sticky .*, got 1.5"):
        Breakout(sticky=1.5)
    with pytest.raises((TypeError, ValueError), match="expected minimal"):
        Breakout(minimal="yes")
    for game in (Asterix, Seaquest, SpaceInvaders):
        with pytest.raises((TypeError, ValueError), match="expected ramping"):
            game(ramping=2)
    with pytest.raises(TypeError, match="ramping"):
        Freeway(ramping=False)
    world, keys = Breakout(minimal=True), keys_of(2)
    position, _ = world.reset(keys)
    for wrong in (torch.tensor([0, 3]), torch.tensor([-1, 0])):
        with pytest.raises(ValueError, match="expected actions from 0 to 2, got"):
            world.step(position, wrong, keys)
    for wrong in (torch.tensor([0.0, 1.0]), torch.tensor([[0], [1]]), torch.tensor([0])):
        with pytest.raises(ValueError, match="expected a whole number as action for each of 2 episodes"):
            world.step(position, wrong, keys)
    with pytest.raises(ValueError, match=r"expected numbers in \[0, 1\) as draws, of shape \(2, 1\), got \(2, 3\)"):
        world.move(position, torch.tensor([0, 1]), torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"of shape \(2, 16\), got \(2, 8\)"):
        Freeway().start(torch.zeros(2, 8))


@pytest.mark.parametrize("minimal", [False, True])
@pytest.mark.parametrize("name", GAMES)
def test_games_stay_on_the_keys_device_and_ask_it_nothing(name, minimal, monkeypatch):
    """Without a GPU: tensors that only say what they would be refuse two devices in one operation, and `item()`."""
    monkeypatch.setattr(
        "weft.core.random._fused", lambda key: False
    )  # the kernel that draws does not say what it would
    world = GAMES[name](minimal=minimal)
    with FakeTensorMode(allow_non_fake_inputs=True):
        keys = torch.empty(16, dtype=torch.int64, device="cuda")
        position, seen = world.reset(keys)
        action = torch.zeros(16, dtype=torch.int64, device="cuda")
        told = [*pytree.tree_leaves(position), seen, *pytree.tree_leaves(world.step(position, action, keys))]
        told.append(world.render(position))
        assert all(part.is_cuda for part in told)


@pytest.mark.filterwarnings("ignore:expected rewards to learn from")  # in so few steps
@pytest.mark.parametrize("name", GAMES)
def test_games_are_played_by_sources(name):
    world = GAMES[name](minimal=True)
    learner = Learner(REINFORCE(hidden=(8,)), steps=2, random_state=0).fit(Rollouts(world, envs=3, horizon=30))
    assert np.isfinite(learner.history_["loss"]).all()
    assert learner.act(world.reset(keys_of(5))[1].numpy()).shape == (5,)
    if name != "freeway":
        with pytest.raises(ValueError, match="without a limit of steps"):
            Rollouts(world, envs=3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", GAMES)
def test_on_a_gpu_nothing_is_waited_for_and_all_is_the_same(name):
    for world in (GAMES[name](), GAMES[name](minimal=True)):
        keys = keys_of(64)
        here, there = world.reset(keys)[0], world.reset(keys.cuda())[0]
        world.step(there, torch.zeros(64, dtype=torch.int64, device="cuda"), keys.cuda())  # tables are copied once
        turns = [fold(keys, t) for t in range(200)]
        actions = [(turn >> 7) % world.action.classes for turn in turns]
        again = [(turn.cuda(), action.cuda()) for turn, action in zip(turns, actions, strict=True)]
        seen = []
        torch.cuda.set_sync_debug_mode("error")
        try:
            for turn, action in again:
                there, *rest = world.step(there, action, turn)
                seen.append(rest)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for turn, action, theirs in zip(turns, actions, seen, strict=True):
            here, *ours = world.step(here, action, turn)
            assert all(torch.equal(a, b.cpu()) for a, b in zip(ours, theirs, strict=True))
