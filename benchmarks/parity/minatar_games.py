"""What MinAtar does in episodes of its five games, kept for the tests: tests/fixtures/parity/minatar_*.npz.

    .venv-peers/bin/python benchmarks/parity/minatar_games.py

Episodes played at random and by scripts that see the game's insides, with and without sticky actions and ramping. Kept
are the actions, the numbers that the game drew, and what it showed, rewarded and ended. Every line of the games' rules
must have run by then, or nothing is written.

    lengths, sticky, ramping (episodes,)      steps of each episode, and how it was set
    start (episodes, k), drawn (steps, 1 + k) what was drawn, in [0, 1), in 65536ths; whole numbers as the middle of
                                              their share; zero where nothing was
    action, reward, terminated (steps,)       of all episodes, end to end
    ramps (steps,)                            how often the difficulty has risen by then
    staged (episodes, 3, 5)                   of the last ones of Seaquest, with what they begin
    seen (steps + episodes, bits)             the cells seen at the start and after each step, channels first, as packed
                                              bits, each row the exclusive or with the row before it
"""

from __future__ import annotations

import copy
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

logging.disable()  # MinAtar warns that there is nothing to draw pictures with

from minatar import Environment  # noqa: E402

OUT = Path(__file__).parents[2] / "tests" / "fixtures" / "parity"
GRID = 2**16
N, L, U, R, D, F = range(6)
Player = Callable[[Any, np.random.Generator], int]


class Recorder:
    """A RandomState that keeps what it gives, as numbers in [0, 1), in 65536ths."""

    def __init__(self, seed: int) -> None:
        self.state, self.told = np.random.RandomState(seed), []

    def rand(self, *shape: int) -> Any:
        drawn = self.state.rand(*shape)
        kept = np.ravel(drawn * GRID).astype(int)
        for edge in (0.1, 1 / 3, 1 / 2):  # what they are compared with, and kept on their side of
            kept += ((kept + 0.5) / GRID < edge).astype(int) - (np.ravel(drawn) < edge)
        self.told += kept.tolist()
        return drawn

    def randint(self, low: int, high: int | None = None, size: int | None = None) -> Any:
        low, high = (0, low) if high is None else (low, high)
        drawn = self.state.randint(low, high, size)
        self.told += np.ravel((drawn - low + 0.5) / (high - low) * GRID).astype(int).tolist()
        return drawn


# --- players -----------------------------------------------------------------------------------------


def anyhow(*weights: float) -> Player:
    """At random, the six actions with these weights."""
    share = np.array(weights) / sum(weights)
    return lambda env, rng: int(rng.choice(6, p=share))


ANY, ASIDE = anyhow(1, 1, 1, 1, 1, 1), anyhow(1, 1, 0, 1, 0, 0)


def lives(env: Any, *actions: int) -> bool:
    """Whether the game goes on after these actions."""
    trial = copy.deepcopy(env)
    for action in actions:
        trial.act(action)
    return not trial.terminal


def cautious(wish: Player, ahead: int = 5) -> Player:
    """What is wished for, or else what is survived for longest."""

    def play(env: Any, rng: np.random.Generator) -> int:
        first = wish(env, rng)
        order = [first, *rng.permutation([a for a in range(6) if a != first])]
        for steps in range(ahead, 0, -1):
            for action in order:
                if any(lives(env, int(action), *[then] * (steps - 1)) for then in (N, U, D, L, R)):
                    return int(action)
        return first

    return play


def now_and_then(player: Player, other: Player, share: float) -> Player:
    return lambda env, rng: (other if rng.random() < share else player)(env, rng)


def towards(x: int, y: int, to_x: int, to_y: int) -> int:
    if y != to_y:
        return D if y < to_y else U
    return N if x == to_x else R if x < to_x else L


def keeper(env: Any, rng: np.random.Generator) -> int:
    """Under the ball, or, by the number of bricks, where it goes next."""
    ahead = env.ball_x + (1 if env.ball_dir in (1, 2) else -1)
    goal = min(9, max(0, ahead)) if env.brick_map.sum() % 3 == 0 else env.ball_x
    return towards(env.pos, 0, goal, 0)


def fetcher(env: Any, rng: np.random.Generator) -> int:
    """To the nearest treasure."""
    gold = [e for e in env.entities if e is not None and e[3]]
    if not gold:
        return int(rng.integers(5))
    x, y = min((abs(e[0] - env.player_x) + abs(e[1] - env.player_y), e[0], e[1]) for e in gold)[1:]
    return towards(env.player_x, env.player_y, x, y)


def gunner(env: Any, rng: np.random.Generator) -> int:
    """Below some alien, firing."""
    columns = np.flatnonzero(env.alien_map.any(0))
    goal = int(columns[np.argmin(abs(columns - env.pos))])
    if env.shot_timer == 0 and abs(goal - env.pos) <= 1 and rng.random() < 0.8:
        return F
    return towards(env.pos, 0, goal, 0)


def marksman(env: Any, rng: np.random.Generator) -> int:
    """The first step of what hits soonest: some steps aside, and a shot."""
    best, first = -1.0, N
    for aside in range(-7, 8):
        plan = [L if aside < 0 else R] * abs(aside) + [F] + [N] * 10
        if aside < 0 < env.shot_timer or 0 <= aside < env.shot_timer:
            plan = plan[: abs(aside)] + [N] * max(0, env.shot_timer - abs(aside)) + plan[abs(aside) :]
        trial, earned = copy.deepcopy(env), 0.0
        for step, action in enumerate(plan):
            reward, ended = trial.act(action)
            earned += (reward > 0) * 0.97**step
            if ended:
                earned -= 10
                break
        if earned > best:
            best, first = earned, plan[0]
    return first


def rammer(env: Any, rng: np.random.Generator) -> int:
    """Leaves twelve aliens, and runs into the first that has come all the way down, or away from it."""
    down = np.flatnonzero(env.alien_map[9])
    if len(down) and env.pos % 2:
        return towards(env.pos, 0, int(down[np.argmin(abs(down - env.pos))]), 0)
    return (cautious(gunner) if env.alien_map.sum() > 12 else cautious(ASIDE, 9))(env, rng)


def diver(env: Any, rng: np.random.Generator) -> int:
    """After divers and enemies; up when air is short or six are on board; below none on board, up and down."""
    if env.diver_count < 0 and env.e_spawn_speed > 1:
        return D if env.sub_y == 0 else U
    if (env.diver_count and env.oxygen < 50) or env.diver_count == 6:
        return U
    ways = {(e[1], e[0] > env.sub_x) for e in env.e_fish + env.e_subs}
    if env.shot_timer == 0 and (env.sub_y, env.sub_or) in ways:
        return F
    if env.divers:
        x, y = min((abs(d[0] - env.sub_x) + abs(d[1] - env.sub_y), d[0], d[1]) for d in env.divers)[1:]
        return towards(env.sub_x, env.sub_y, x, y)
    rows = [(abs(e[1] - env.sub_y), e[1], e[0]) for e in env.e_fish + env.e_subs]
    return towards(env.sub_x, env.sub_y, 5, min(rows)[1]) if rows else D if env.sub_y == 0 else int(rng.integers(6))


def full(env: Any, rng: np.random.Generator) -> int:
    """As `diver`, but goes to divers with six on board, too, as long as there is air."""
    if env.diver_count == 6 and env.oxygen > 40:
        x, y = env.divers[0][:2] if env.divers else (5, 4)
        return towards(env.sub_x, env.sub_y, x, y)
    return diver(env, rng)


def hunter(env: Any, rng: np.random.Generator) -> int:
    """Below none on board up and down, and once enemies come in swarms, to them."""
    if env.diver_count < 0 and env.e_spawn_speed == 1:
        beside = {(e[1], e[0] > env.sub_x) for e in env.e_fish + env.e_subs}
        if env.shot_timer == 0 and (env.sub_y, env.sub_or) in beside:
            return F
        if env.sub_y == 0 and not env.surface:
            return D
        return int(rng.choice([L, R, U, D, F]))
    return diver(env, rng)


# --- playing -------------------------------------------------------------------------------------------

# Of each game: (episodes, most steps, sticky, ramping, player).
PLAYED: dict[str, list[tuple[int, int, float, bool, Player]]] = {
    "breakout": [
        (40, 200, 0.1, True, ANY),
        (12, 400, 0.1, True, keeper),
        (6, 700, 0.0, True, now_and_then(keeper, ANY, 0.02)),
        (4, 800, 0.0, True, now_and_then(keeper, ANY, 0.003)),
    ],
    "asterix": [
        (20, 300, 0.1, True, ANY),
        (8, 500, 0.1, True, cautious(fetcher)),
        (3, 2600, 0.0, True, cautious(fetcher, 8)),
        (4, 500, 0.1, False, cautious(fetcher)),
    ],
    "freeway": [
        (2, 2501, 0.1, True, anyhow(1, 0, 6, 0, 1, 0)),
        (2, 400, 0.1, True, ANY),
        (2, 1500, 0.0, True, anyhow(0, 0, 1, 0, 0, 0)),
        (1, 800, 0.0, True, cautious(anyhow(0, 0, 1, 0, 0, 0))),
    ],
    "seaquest": [
        (20, 200, 0.1, True, ANY),
        (6, 300, 0.1, True, anyhow(1, 1, 1, 1, 2, 4)),
        (3, 300, 0.0, True, cautious(anyhow(1, 1, 0, 1, 3, 3))),
        (8, 700, 0.1, True, cautious(diver)),
        (8, 1000, 0.0, True, cautious(hunter)),
        (6, 1000, 0.0, True, now_and_then(cautious(diver), hunter, 0.02)),
        (4, 700, 0.0, True, cautious(full)),
        (4, 600, 0.1, False, cautious(diver)),
        (4, 30, 0.0, True, anyhow(0, 0, 0, 0, 1, 0)),  # these are begun as STAGED says
        (1, 30, 0.0, True, lambda env, rng: F if env.sub_y else D),
    ],
    "space_invaders": [
        (20, 300, 0.1, True, ANY),
        (8, 600, 0.1, True, cautious(gunner)),
        (5, 600, 0.0, True, cautious(gunner, 8)),
        (2, 1300, 0.0, True, cautious(marksman, 9)),
        (2, 600, 0.1, False, cautious(gunner)),
        (1, 400, 0.0, False, cautious(marksman, 9)),
        (2, 600, 0.0, True, cautious(ASIDE)),
        (12, 600, 0.0, True, rammer),
    ],
}

# Seaquest's last episodes begin with five on board, and the older diver, the newer one and an enemy submarine, each as
# (x, y, to the right, steps until it moves, until it fires), x below 0 for none: two divers where there is room for
# one, and a submarine that swims into a shot as it fires.
NONE = [-1, 0, 0, 0, 0]
STAGED = [
    [[5, 1, 1, 5, 0], [5, 1, 0, 3, 0], NONE],
    [[5, 1, 0, 0, 0], [5, 1, 1, 2, 0], NONE],
    [[4, 1, 1, 0, 0], [6, 1, 0, 0, 0], NONE],
    [[6, 1, 0, 0, 0], [5, 1, 1, 5, 0], NONE],
    [NONE, NONE, [3, 1, 1, 1, 1]],
]


def begin_staged(env: Any, older: list[int], newer: list[int], sub: list[int]) -> None:
    env.diver_count = 5
    env.divers = [[x, y, bool(right), wait] for x, y, right, wait, _ in (older, newer) if x >= 0]
    env.e_subs = [[x, y, bool(right), wait, reload] for x, y, right, wait, reload in (sub,) if x >= 0]


def spread(game: str, told: list[int]) -> list[int]:
    """What a step drew, each number at its place."""
    if game == "seaquest":  # an enemy draws three numbers, a diver two
        sticky, *rest = told
        enemy = rest[:3] if len(rest) in (3, 5) else [0] * 3
        return [sticky, *enemy, *(rest[-2:] if len(rest) in (2, 5) else [0] * 2)]
    width = {"breakout": 1, "asterix": 4, "freeway": 17, "space_invaders": 1}[game]
    return told + [0] * (width - len(told))


def bits(game: Any) -> NDArray[np.uint8]:
    return np.packbits(game.state().transpose(2, 0, 1))


def recorded(name: str) -> dict[str, NDArray[Any]]:
    """All episodes of a game."""
    rows: dict[str, list[Any]] = {key: [] for key in ("lengths", "sticky", "ramping", "start", "drawn", "action")}
    rows |= {"reward": [], "terminated": [], "ramps": [], "seen": []}
    seed = 0
    for count, most, sticky, ramping, player in PLAYED[name]:
        for _ in range(count):
            seed += 1
            game, rng, source = Environment(name, sticky, ramping), np.random.default_rng(seed), Recorder(seed)
            game.random = game.env.random = source
            game.reset()
            left = sum(played[0] for played in PLAYED[name]) - seed
            if name == "seaquest" and left < len(STAGED):
                begin_staged(game.env, *STAGED[-1 - left])
            rows["start"].append(source.told)
            rows["seen"].append(bits(game))
            for _ in range(most):
                action = player(game.env, rng)
                source.told = []
                reward, ended = game.act(action)
                rows["action"].append(action)
                rows["drawn"].append(spread(name, source.told))
                rows["reward"].append(reward)
                rows["terminated"].append(ended)
                rows["ramps"].append(game.env.difficulty_ramp() or 0)
                rows["seen"].append(bits(game))
                if ended:
                    break
            length = len(rows["action"]) - sum(rows["lengths"])
            for key, value in (("lengths", length), ("sticky", sticky), ("ramping", ramping)):
                rows[key].append(value)
    kept: dict[str, NDArray[Any]] = {key: np.array(value) for key, value in rows.items()}
    for key in ("start", "drawn"):
        kept[key] = kept[key].astype(np.uint16)
    for key in ("action", "reward", "ramps"):
        kept[key] = kept[key].astype(np.int8)
    kept["seen"][1:] ^= kept["seen"][:-1].copy()
    return kept


@contextmanager
def watched(game: str) -> Iterator[set[int]]:
    """Which lines of a game's rules are run meanwhile."""
    file, ran = inspect.getfile(type(Environment(game).env)), set()

    def each(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != file:
            return None
        ran.add(frame.f_lineno)
        return each

    sys.settrace(each)
    try:
        yield ran
    finally:
        sys.settrace(None)


def unseen(game: str, ran: set[int]) -> list[str]:
    """The lines of a game's rules that were not run."""
    kind, left = type(Environment(game).env), []
    idle = {"__init__", "difficulty_ramp", "state_shape", "minimal_action_set"}
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        lines, first = inspect.getsourcelines(method)
        code = [method.__code__, *(c for c in method.__code__.co_consts if inspect.iscode(c))]
        there = {line for part in code for *_, line in part.co_lines() if line is not None and line > first}
        if name not in idle:
            left += [f"{line}: {lines[line - first].strip()}" for line in sorted(there - ran)]
    return left


def main() -> None:
    """Plays and writes."""
    for game in sys.argv[1:] or PLAYED:
        with watched(game) as ran:
            kept = recorded(game)
        # Left out: an ended game played on, and aliens that are none.
        missing = [line for line in unseen(game, ran) if not line.endswith(("return r, self.terminal", "return None"))]
        print(f"{game}: {len(kept['lengths'])} episodes, {kept['lengths'].sum()} steps, reward {kept['reward'].sum()}")
        if missing:
            raise ValueError(f"expected every line of {game} to run, got none of\n" + "\n".join(missing))
        file = OUT / f"minatar_{game}.npz"
        if game == "seaquest":
            kept["staged"] = np.array(STAGED, np.int8)
        np.savez_compressed(file, **kept, peer="MinAtar 1.0.15", command="make parity")
        print(f"  {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
