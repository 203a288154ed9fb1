"""The platform world: its rules against a plain script, its pictures, its expert, and what can be cloned."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from weft import Learner
from weft.core.random import fold, key_of
from weft.data import Platform, platform_clones
from weft.data.platform import PlatformState
from weft.objectives import REINFORCE
from weft.sources import Rollouts


def keys(n, seed=0):
    return fold(key_of(seed), torch.arange(n))


def by_hand(height, x, coin, action):
    """The rules once more, one player at a time."""
    way = 1 if action in (1, 3) else -1
    near, far = x + way, x + 2 * way
    if not 0 <= near < 16:
        end = x
    elif action < 2:
        end = near if height[near] <= height[x] else x
    elif height[near] > height[x]:
        end = near if height[near] - height[x] <= 2 else x
    else:
        end = far if 0 <= far < 16 and height[far] - height[x] <= 1 else near
    return end, float(end == coin), end == coin or height[end] == 0


def test_moves_against_the_rules_by_hand():
    world = Platform(range(3))
    state = world.start(keys(300))
    outcomes = set()
    for t in range(6):
        action = (torch.arange(300) * 7 + t) % 4
        after, reward, done = world.move(state, action)
        for i in range(300):
            height, x, coin = state.height[i].tolist(), int(state.x[i]), int(state.coin[i])
            expected = by_hand(height, x, coin, int(action[i]))
            assert (int(after.x[i]), float(reward[i]), bool(done[i])) == expected
            fell = height[expected[0]] == 0
            outcomes.add((int(action[i]), abs(expected[0] - x), "won" if expected[1] else "fell" if fell else "on"))
        state = after._replace(x=torch.where(done, state.x, after.x))
    for a in (0, 1):
        assert {(a, 0, "on"), (a, 1, "on"), (a, 1, "won"), (a, 1, "fell")} <= outcomes
    for a in (2, 3):
        assert {(a, 0, "on"), (a, 1, "on"), (a, 2, "on"), (a, 2, "won"), (a, 2, "fell")} <= outcomes


def test_the_ground():
    state = Platform().start(keys(5000))
    height, pit = state.height, state.height == 0
    assert 0.05 < pit.double().mean() < 0.3
    assert not (pit[:, 1:] & pit[:, :-1]).any()
    assert not pit[:, [0, -1]].any()
    rise = (height[:, 1:] - height[:, :-1]).abs()
    assert int(rise[~(pit[:, 1:] | pit[:, :-1])].max()) == 2
    across = (height[:, 2:] - height[:, :-2]).abs()[pit[:, 1:-1]]
    assert int(across.max()) == 1
    assert int(height[~pit].min()) >= 2
    assert int(height.max()) <= 9
    rows = torch.arange(5000)
    assert not pit[rows, state.x].any()
    assert not pit[rows, state.coin].any()
    assert (state.x != state.coin).all()
    assert torch.bincount(state.x, minlength=16).min() > 200
    assert torch.bincount(state.look, minlength=64).min() > 30


def test_the_expert_wins_in_as_many_steps_as_columns_less_pits():
    world = Platform(range(5))
    state = world.start(keys(2000, seed=3))
    c = torch.arange(16)
    low, high = torch.minimum(state.x, state.coin), torch.maximum(state.x, state.coin)
    between = (c > low[:, None]) & (c < high[:, None])
    expected = high - low - (between & (state.height == 0)).sum(1)
    took = torch.zeros(2000, dtype=torch.int64)
    for t in range(15):
        state, reward, done = world.move(state, world.expert(state))
        assert torch.equal(done & (took == 0), (reward > 0) & (took == 0))  # it never falls
        took = torch.where((reward > 0) & (took == 0), t + 1, took)
    assert torch.equal(took, expected)
    lost = world.start(keys(2000, seed=3))
    fallen = torch.zeros(2000, dtype=torch.bool)
    for _ in range(15):
        lost, reward, done = world.move(lost, torch.ones(2000, dtype=torch.int64))
        fallen |= done & (reward == 0)
    assert fallen.double().mean() > 0.1  # who only walks falls


def test_pictures_show_the_state():
    world = Platform(range(20), variety=1.0)
    state, seen = world.reset(keys(400))
    assert seen.shape == (400, 3, 16, 16)
    assert seen.dtype == torch.float32
    assert 0.0 <= float(seen.min()) < float(seen.max()) <= 1.0
    for i in range(400):
        look = {name: table[state.look[i]] for name, table in world.looks.items()}
        for row in range(16):
            for column in (0, 5, int(state.x[i]), int(state.coin[i])):
                y, ground = 15 - row, int(state.height[i, column])
                what = look["ground"][:, row, column] if y < ground else look["sky"][:, row, column]
                if y == ground and column == int(state.x[i]):
                    what = look["player"]
                elif y == ground and column == int(state.coin[i]):
                    what = look["coin"]
                torch.testing.assert_close(seen[i, :, row, column], what.clamp(0, 1))


def test_levels_differ_in_looks_only():
    state = Platform([3]).start(keys(50))
    pictures = [Platform([level]).see(state) for level in (3, 4, 5)]
    assert all(((a - b).abs() > 0.02).double().mean() > 0.5 for a, b in pairwise(pictures))
    torch.testing.assert_close(Platform([9, 3]).see(state._replace(look=state.look + 1)), pictures[0])
    alike = [Platform([level], variety=0.0).see(state) for level in (3, 4)]
    torch.testing.assert_close(alike[0], alike[1], rtol=0, atol=0)
    # sky and ground can be told apart in every level
    looks = Platform(range(500)).looks
    assert float((looks["sky"].mean((2, 3)) - looks["ground"].mean((2, 3))).abs().min()) > 0.1


def test_signs_tell_the_action_in_the_levels_own_script():
    levels = range(30)
    plain, signed = Platform(levels), Platform(levels, signs=0.3)
    state = plain.start(keys(2000))
    seen, action = signed.see(state), plain.expert(state)
    torch.testing.assert_close(seen[:, :, 1:], plain.see(state)[:, :, 1:], rtol=0, atol=0)
    row = seen[:, :, 0]
    torch.testing.assert_close((row - 0.5).abs(), torch.full_like(row, 0.3))
    glyphs = {}
    for level, a, glyph in zip(state.look.tolist(), action.tolist(), row, strict=True):
        assert torch.equal(glyphs.setdefault((level, a), glyph), glyph)  # the same wherever that is to be done
    every = torch.stack([glyphs[key] for key in sorted(glyphs)]).flatten(1)
    assert len(every) == 120
    agree = ((every[:, None] > 0.5) == (every > 0.5)).double().mean(-1)
    assert float(agree[~torch.eye(120, dtype=torch.bool)].max()) < 0.9  # and no two alike, in a level or across levels
    # what a script says elsewhere is chance: glyphs of an action in other levels are no nearer than those of others
    same = torch.arange(120)[:, None] % 4 == torch.arange(120) % 4
    other = torch.arange(120)[:, None] // 4 != torch.arange(120) // 4
    assert abs(float(agree[same & other].mean() - agree[~same & other].mean())) < 0.01


@pytest.mark.parametrize("r", [1, 3, 15])
def test_the_camera_follows_the_player(r):
    levels = range(9)
    world, near = Platform(levels), Platform(levels, camera=r)
    state = world.start(keys(200))
    state = state._replace(coin=torch.where(torch.arange(200) < 5, state.x, state.coin))  # some have taken it
    whole, part = world.see(state), near.see(state)
    assert near.observation.shape == part.shape[1:] == (3, 2 * r + 1, 2 * r + 1)
    for i in range(200):
        x, coin = int(state.x[i]), int(state.coin[i])
        y, goal = (15 - int(state.height[i, c]) for c in (x, coin))
        expected = torch.zeros(3, 2 * r + 1, 2 * r + 1)
        for row in range(2 * r + 1):
            for column in range(2 * r + 1):
                if 0 <= y + row - r < 16 and 0 <= x + column - r < 16:
                    expected[:, row, column] = whole[i, :, y + row - r, x + column - r]
        if coin != x:
            at = [min(max(d, -r), r) + r for d in (goal - y, coin - x)]
            expected[:, at[0], at[1]] = world.looks["coin"][state.look[i]].clamp(0, 1)
        torch.testing.assert_close(part[i], expected, rtol=0, atol=0)
    X, _, _ = platform_clones(5, levels=levels, camera=r, signs=0.2)
    assert X.shape == (45, 3, 2 * r + 1, 2 * r + 1)


def test_episodes_are_keyed():
    world = Platform(range(7))
    whole, part = world.start(keys(40)), world.start(keys(40)[10:20])
    for a, b in zip(whole, part, strict=True):
        assert torch.equal(a[10:20], b)
    assert isinstance(whole, PlatformState)


def test_clones():
    X, action, level = platform_clones(300, levels=[2, 5, 11], random_state=1)
    assert (X.shape, X.dtype, action.dtype) == ((900, 3, 16, 16), np.float32, np.int64)
    assert [int((level == k).sum()) for k in (2, 5, 11)] == [300, 300, 300]
    assert np.bincount(action, minlength=4).min() > 90
    again = platform_clones(300, levels=[5], random_state=1)  # a level's rows do not depend on the others
    np.testing.assert_array_equal(again[0], X[level == 5])
    np.testing.assert_array_equal(again[1], action[level == 5])
    other = platform_clones(300, levels=[5], random_state=2)
    assert (other[1] != again[1]).mean() > 0.3
    assert len(np.unique(X.reshape(900, -1), axis=0)) > 890


def test_the_picture_tells_what_the_expert_does():
    """Read off the pixels of a level: ground, player and coin, then the script by hand."""
    X, action, _ = platform_clones(200, levels=[0], variety=0.0)
    looks = Platform([0], variety=0.0).looks
    for x, a in zip(torch.from_numpy(X), action, strict=True):

        def found(name, x=x):
            return (x - looks[name][0][:, None, None].clamp(0, 1)).abs().sum(0) < 1e-5

        column = {name: int(found(name).any(0).nonzero()) for name in ("player", "coin")}
        solid = (x - looks["ground"][0]).abs().sum(0) < 1e-5
        height = solid.sum(0)
        right = column["coin"] > column["player"]
        ahead = height[column["player"] + (1 if right else -1)]
        assert a == right + 2 * bool(ahead == 0 or ahead > height[column["player"]])


def test_it_is_an_environment_for_rollouts():
    worlds = [Platform([0, 1]), Platform([2, 3])]
    learner = Learner(REINFORCE(hidden=(8,)), steps=2, random_state=0)
    learner.fit(Rollouts(worlds[0], envs=4, horizon=6))
    _, seen = worlds[1].reset(keys(5))
    assert set(learner.act(seen).tolist()) <= {0, 1, 2, 3}
    assert Rollouts(worlds, envs=2).grouped


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Platform([]), "expected numbers of levels"),
        (lambda: Platform([-1]), "expected numbers of levels"),
        (lambda: Platform(variety=2.0), r"expected variety in \[0, 1\]"),
        (lambda: Platform(signs=-0.1), "signs=-0.1"),
        (lambda: Platform(camera=0), "expected camera to be a whole number from 1 to 15, or None, got 0"),
        (lambda: Platform(camera=2.5), "got 2.5"),
        (lambda: platform_clones(0), "expected n_per_level to be an integer >= 1, got 0"),
        (lambda: platform_clones(5, stray=1.5), r"expected stray in \[0, 1\], got 1.5"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
