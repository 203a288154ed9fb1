"""Finite decision processes that end, gridworlds and corridors: against plain references and closed forms."""

import copy

import pytest
import torch

from weft.core.random import fold, key_of
from weft.data import CliffWalking, FiniteMDP, FrozenLake, GridWorld, ShortCorridor, TMaze

KEYS = fold(key_of(0), torch.arange(20000))
CHAIN = torch.eye(3).roll(1, 1)[:, None].expand(3, 2, 3)  # 0 to 1 to 2 to 0, whatever is done
NOTHING = torch.zeros(3, 2)
FIRST = torch.tensor([1.0, 0.0, 0.0])


def test_an_episode_ends_in_a_state():
    world = FiniteMDP(CHAIN, NOTHING, start=FIRST, ends=torch.tensor([False, False, True]), horizon=None)
    state, _ = world.reset(KEYS[:4])
    action = torch.tensor([0, 1, 0, 1])
    for expected in (False, True):
        state, _, _, ended = world.step(state, action, KEYS[:4])
        assert ended.tolist() == [expected] * 4


def test_an_episode_ends_on_a_way():
    ends = torch.zeros(3, 2, 3, dtype=torch.bool)
    ends[0, 1, 1] = True
    world = FiniteMDP(CHAIN, NOTHING, start=FIRST, ends=ends, horizon=None)
    state, _ = world.reset(KEYS[:2])
    after, _, _, ended = world.step(state, torch.tensor([0, 1]), KEYS[:2])
    assert (after.tolist(), ended.tolist()) == ([1, 1], [False, True])


def test_an_episode_ends_with_a_probability():
    ends = torch.tensor([0.0, 0.25, 1.0])
    world = FiniteMDP(CHAIN, NOTHING, start=FIRST, ends=ends)
    state, _ = world.reset(KEYS)
    state, _, _, ended = world.step(state, torch.zeros_like(KEYS), KEYS)
    assert abs(ended.double().mean().item() - 0.25) < 5 * (0.25 * 0.75 / len(KEYS)) ** 0.5
    again = world.step(state, torch.zeros_like(KEYS), fold(KEYS, 1))[-1]
    assert bool(again.all())
    way = FiniteMDP(CHAIN, NOTHING, start=FIRST, ends=ends.expand(3, 2, 3))
    assert torch.equal(way.step(torch.zeros_like(KEYS), torch.zeros_like(KEYS), KEYS)[-1], ended)


def test_the_end_is_drawn_apart_from_the_state():
    """Where one gets to by chance and ends by chance, both are independent."""
    even = torch.full((2, 1, 2), 0.5)
    world = FiniteMDP(even, torch.zeros(2, 1), ends=torch.tensor([0.5, 0.5]))
    state, _, _, ended = world.step(torch.zeros_like(KEYS), torch.zeros_like(KEYS), KEYS)
    both = (state.bool() & ended).double().mean().item()
    assert abs(both - 0.25) < 5 * (0.25 * 0.75 / len(KEYS)) ** 0.5


def test_a_reward_may_depend_on_the_next_state():
    reward = torch.arange(12.0).reshape(2, 3, 2)
    moves = torch.full((2, 3, 2), 0.5)
    world = FiniteMDP(moves, reward)
    state, action = torch.arange(600) % 2, torch.arange(600) % 3
    after, _, paid, _ = world.step(state, action, KEYS[:600])
    assert torch.equal(paid, (state * 6 + action * 2 + after).float())
    assert after.unique().tolist() == [0, 1]


def test_what_never_happens_does_not():
    """Single precision sums to a little less than 1: what is left is given to nobody."""
    odd = torch.tensor([1 / 3, 1 / 3, 1 / 3 - 4e-6, 0.0])
    world = FiniteMDP(torch.eye(4)[:, None], torch.zeros(4, 1), start=odd)
    drawn = torch.cat([world.reset(fold(key_of(s), torch.arange(10**6)))[0] for s in range(2)])
    assert drawn.unique().tolist() == [0, 1, 2]


def test_where_nothing_ends_and_nothing_cuts():
    ends = torch.tensor([False, False, True])
    stuck = torch.eye(3)[torch.tensor([[0, 1], [1, 1], [2, 2]])]
    with pytest.raises(ValueError, match=r"can end from wherever it gets to, got horizon=None and states \[0, 1, 2\]"):
        FiniteMDP(CHAIN, NOTHING, horizon=None)
    with pytest.raises(ValueError, match=r"states \[0, 1, 2\]"):
        FiniteMDP(CHAIN, NOTHING, ends=torch.zeros(3), horizon=None)
    with pytest.raises(ValueError, match=r"states \[0, 1\] from which none can"):
        FiniteMDP(stuck, NOTHING, start=FIRST, ends=ends, horizon=None)
    FiniteMDP(stuck, NOTHING, start=FIRST, ends=ends, horizon=5)
    left = torch.eye(3)[torch.tensor([[0, 2], [1, 1], [2, 2]])]  # the second is never got to
    FiniteMDP(left, NOTHING, start=FIRST, ends=ends, horizon=None)
    trap = torch.eye(3)[torch.tensor([[1, 2], [1, 1], [2, 2]])]  # the second is, and never left
    with pytest.raises(ValueError, match=r"states \[1\] from which none can"):
        FiniteMDP(trap, NOTHING, start=FIRST, ends=ends, horizon=None)
    FiniteMDP(trap, NOTHING, start=FIRST, ends=torch.tensor([0.0, 0.1, 1.0]), horizon=None)
    beyond = torch.eye(3)[torch.tensor([[0, 2], [1, 1], [1, 1]])]  # only from where it has ended
    FiniteMDP(beyond, NOTHING, start=FIRST, ends=ends, horizon=None)


BAD = {
    "reward NaN": ({"reward": torch.tensor([[0.0, torch.nan]] * 3)}, ValueError, "finite rewards, got nan at"),
    "reward inf": ({"reward": torch.full((3, 2, 3), torch.inf)}, ValueError, "finite rewards, got inf"),
    "reward flat": ({"reward": torch.zeros(3)}, ValueError, r"reward of shape \(S, A\) or \(S, A, S\), got \(3,\)"),
    "reward odd": ({"reward": torch.zeros(3, 2, 2)}, ValueError, r"or \(3, 2, 3\), got \(3, 2, 2\)"),
    "actions": ({"reward": torch.zeros(3, 4)}, ValueError, "expected transition of shape"),
    "start odd": ({"start": torch.ones(2) / 2}, ValueError, r"start of shape \(3,\)"),
    "start NaN": ({"start": torch.full((3,), torch.nan)}, ValueError, "start to hold probabilities"),
    "ends odd": ({"ends": torch.zeros(2)}, ValueError, r"ends of shape \(3,\) or \(3, 2, 3\), got \(2,\)"),
    "ends by action": ({"ends": torch.zeros(3, 2)}, ValueError, r"ends of shape"),
    "ends numbers": ({"ends": torch.tensor([0, 1, 2])}, TypeError, "ends as truths .* torch.isin"),
    "ends above 1": ({"ends": torch.tensor([0.0, 0.0, 1.5])}, ValueError, r"probabilities in \[0, 1\]"),
    "ends NaN": ({"ends": torch.full((3,), torch.nan)}, ValueError, r"probabilities in \[0, 1\]"),
    "begins ended": ({"ends": torch.ones(3)}, ValueError, r"begin where they have not ended, got a start in states"),
    "horizon 0": ({"horizon": 0}, ValueError, "FiniteMDP's horizon"),
    "horizon text": ({"horizon": "5"}, TypeError, "FiniteMDP's horizon"),
}


@pytest.mark.parametrize(("changed", "error", "said"), BAD.values(), ids=BAD)
def test_bad_tables_are_refused(changed, error, said):
    right = {"transition": CHAIN, "reward": NOTHING, "start": FIRST, "ends": torch.tensor([0.0, 0.0, 1.0])}
    FiniteMDP(**right)
    with pytest.raises(error, match=said):
        FiniteMDP(**{**right, **changed})


def test_a_changed_table_is_used_where_it_was_copied_to():
    """Copies for another device follow the table: told here by one that is no device of tables at all."""
    world = FiniteMDP(CHAIN, NOTHING.clone(), start=FIRST)
    meta = torch.device("meta")
    copies = [world._there("reward", meta)]
    assert world._there("reward", meta) is copies[0]
    world.reward = torch.ones(3, 2)
    copies.append(world._there("reward", meta))
    world.reward[0, 0] = 2.0
    copies.append(world._there("reward", meta))
    assert len({id(one) for one in copies}) == 3
    assert copy.deepcopy(world)._copies == {}


def walked(rows, action, at, slip=None):
    """A plain step on a map: `slip` turns to the left (-1) or to the right (1)."""
    ways = ["up", "right", "down", "left"]
    way = ways[(ways.index(action) + (slip or 0)) % 4]
    row, column = at
    if way == "up":
        row -= 1
    elif way == "down":
        row += 1
    elif way == "left":
        column -= 1
    else:
        column += 1
    if not (0 <= row < len(rows) and 0 <= column < len(rows[0])) or rows[row][column] == "#":
        return at
    return row, column


def test_gridworld_against_a_plain_walk():
    rows = ["S.#G", "..#.", ".PS.", "...#"]
    slip, goal, pit, step = 0.3, 2.0, -3.0, -0.25
    world = GridWorld("\n".join(rows), slip=slip, goal=goal, pit=pit, step=step)
    squares = [(r, c) for r in range(4) for c in range(4) if rows[r][c] != "#"]
    assert world.squares.tolist() == [list(square) for square in squares]
    assert world.start.tolist() == [0.5 if rows[r][c] == "S" else 0.0 for r, c in squares]
    assert world.ends.tolist() == [rows[r][c] in "GP" for r, c in squares]
    for s, at in enumerate(squares):
        if rows[at[0]][at[1]] in "GP":
            assert world.transition[s, :, s].tolist() == [1.0] * 4
            assert not world.reward[s].any()
            continue
        for a, action in enumerate(["up", "right", "down", "left"]):
            chance = [0.0] * len(squares)
            for turn, share in ((0, 1 - slip), (-1, slip / 2), (1, slip / 2)):
                to = walked(rows, action, at, turn)
                chance[squares.index(to)] += share
                paid = step + {"G": goal, "P": pit}.get(rows[to[0]][to[1]], 0.0)
                assert world.reward[s, a, squares.index(to)].item() == pytest.approx(paid)
            assert world.transition[s, a].tolist() == pytest.approx(chance)


def test_gridworld_has_the_textbook_s_utilities():
    """Russell and Norvig's 4x3 world, with a step's reward of -.04: their figure of utilities."""
    world = GridWorld(["...G", ".#.P", "S..."], step=-0.04, slip=0.2)
    value = torch.zeros(11, dtype=torch.float64)
    for _ in range(200):
        value = (world.transition * (world.reward + value * ~world.ends)).sum(-1).amax(1)
    known = [0.812, 0.868, 0.918, 0.0, 0.762, 0.660, 0.0, 0.705, 0.655, 0.611, 0.388]
    assert value.tolist() == pytest.approx(known, abs=6e-4)


def test_without_a_start_one_begins_anywhere_on_the_floor():
    world = GridWorld(["..#", "PG."])
    assert world.start.tolist() == pytest.approx([1 / 3, 1 / 3, 0.0, 0.0, 1 / 3])


BAD_MAPS = {
    "ragged": (["S.G", ".."], {}, "rows are equally long, got rows of lengths"),
    "empty": ("", {}, "rows are equally long"),
    "letters": (["S G", "..X"], {}, "letters # . S G P, got ' ' 'X'"),
    "no goal": (["S.", "P."], {}, "a way to a goal G"),
    "no way": (["S#G", ".#."], {}, "none from 1 of 1 squares"),
    "no way by pits": (["SPG", "S#."], {}, "none from 2 of 2 squares"),
    "nowhere to begin": (["G#", "##"], {}, "a square to begin on"),
    "slip": (["S.G"], {"slip": 1.5}, "GridWorld's slip"),
    "goal": (["S.G"], {"goal": float("nan")}, "GridWorld's goal"),
    "step": (["S.G"], {"step": float("inf")}, "GridWorld's step"),
    "horizon": (["S.G"], {"horizon": 0}, "horizon"),
}


@pytest.mark.parametrize(("plan", "options", "said"), BAD_MAPS.values(), ids=BAD_MAPS)
def test_bad_maps_are_refused(plan, options, said):
    with pytest.raises(ValueError, match=said):
        GridWorld(plan, **options)


def test_a_map_is_text():
    with pytest.raises(TypeError, match=r"rows as text, got rows such as \['S', 'G'\]"):
        GridWorld([["S", "G"]])


def test_bad_lakes_are_refused():
    with pytest.raises(ValueError, match="letters S F H G"):
        FrozenLake("5x5")
    with pytest.raises(ValueError, match="a square to begin on"):
        FrozenLake(["FFG"])
    with pytest.raises(ValueError, match="a way to a goal G"):
        FrozenLake(["SHG"])
    with pytest.raises(ValueError, match="FrozenLake's slip"):
        FrozenLake(slip=-0.1)
    with pytest.raises(ValueError, match="horizon"):
        CliffWalking(horizon=0)


@pytest.mark.parametrize("right", [0.05, 0.3, 2 - 2**0.5, 0.95])
def test_the_short_corridor_is_worth_what_the_book_says(right):
    world = ShortCorridor()
    chance = (torch.tensor([1 - right, right]).double()[None, :, None] * world.transition).sum(1)[:3, :3]
    value = torch.linalg.solve(torch.eye(3).double() - chance, torch.full((3,), -1.0).double())
    assert value[0].item() == pytest.approx(2 * (right - 2) / (right * (1 - right)))
    if right == 2 - 2**0.5:
        assert value[0].item() == pytest.approx(-11.6, abs=0.06)


def test_the_short_corridor_step_by_step():
    world = ShortCorridor()
    led = {}
    for s in range(3):
        for a in range(2):
            state, seen, reward, ended = world.step(torch.tensor([s]), torch.tensor([a]), KEYS[:1])
            assert (seen.tolist(), reward.tolist()) == ([[1.0]], [-1.0])
            led[s, a] = (state.item(), ended.item())
    assert led == {(0, 0): (0, False), (0, 1): (1, False), (1, 0): (2, False), (1, 1): (0, False)} | {
        (2, 0): (1, False),
        (2, 1): (3, True),
    }
    assert world.reset(KEYS)[0].unique().tolist() == [0]


class PlainTMaze:
    """Bakker's T-maze, told once more in plain words."""

    def __init__(self, length, north):
        self.length, self.north, self.x = length, north, 0

    def seen(self):
        if self.x == 0:
            return [0, 1, 1] if self.north else [1, 1, 0]
        return [0, 1, 0] if self.x == self.length else [1, 0, 1]

    def step(self, action):
        way = "NESW"[action]
        if self.x == self.length and way in "NS":
            return (4.0 if (way == "N") == self.north else -0.1), True
        if way == "E" and self.x < self.length:
            self.x += 1
            return 0.0, False
        if way == "W" and self.x > 0:
            self.x -= 1
            return 0.0, False
        return -0.1, False


@pytest.mark.parametrize("length", [1, 4])
def test_the_t_maze_against_a_plain_one(length):
    world, count = TMaze(length), 200
    position, seen = world.reset(KEYS[:count])
    plain = [PlainTMaze(length, bool(north)) for north in position[:, 1]]
    assert seen.tolist() == [one.seen() for one in plain]
    going, ways = torch.ones(count, dtype=torch.bool), set()
    for t in range(60):
        chance = torch.rand(count, 4, generator=torch.Generator().manual_seed(t)) * torch.tensor([1.0, 2.0, 1.0, 1.0])
        action = chance.argmax(-1)
        position, seen, reward, ended = world.step(position, action)
        for row in going.nonzero().flatten().tolist():
            paid, over = plain[row].step(int(action[row]))
            assert reward[row].item() == pytest.approx(paid)
            assert ended[row].item() == over
            ways.add((paid, over))
            if not over:
                assert seen[row].tolist() == plain[row].seen()
        going &= ~ended
    assert ways == {(4.0, True), (-0.1, True), (0.0, False), (-0.1, False)}
    assert abs(world.reset(KEYS)[0][:, 1].double().mean().item() - 0.5) < 5 * 0.5 / len(KEYS) ** 0.5


def test_bad_corridors_are_refused():
    with pytest.raises(ValueError, match="TMaze's length"):
        TMaze(0)
    with pytest.raises(ValueError, match="TMaze's horizon"):
        TMaze(3, horizon=0)
