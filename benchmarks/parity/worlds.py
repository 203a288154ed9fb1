"""What gymnasium's and bsuite's worlds do, kept for the tests: tests/fixtures/parity/worlds.npz.

    .venv-peers/bin/python benchmarks/parity/worlds.py

Of classic control whole episodes, played so that they end in every way they can, and single steps from anywhere: where
each stood, what was done (numbers also beyond the bounds), where that led, what was seen and earned. Of the text worlds
all tables: a row for each outcome (state, action, probability, next state, reward, whether it ends), the first states,
and Taxi's masks. Of bsuite's Catch some episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import bsuite
import gymnasium
import numpy as np
from bsuite.environments.catch import Catch
from numpy.typing import NDArray

OUT = Path(__file__).parents[2] / "tests" / "fixtures" / "parity" / "worlds.npz"
Array = NDArray[Any]
Steer = Callable[[Array, int, np.random.Generator], Any]


def grid(u: float) -> Array:
    """A torque that single precision holds with room to spare, so that nothing is rounded on the way."""
    return np.array([np.round(64 * u) / 64], dtype=np.float32)


# How to act, given what is seen, by episode: the first ways reach the goal where there is one, the others do not.
CLASSIC: dict[str, tuple[Steer, ...]] = {
    "Acrobot-v1": (
        lambda seen, t, rng: 2 if seen[5] > 0 else 0,
        lambda seen, t, rng: int(rng.integers(3)),
    ),
    "MountainCar-v0": (
        lambda seen, t, rng: 2 if seen[1] > 0 else 0,
        lambda seen, t, rng: 0 if t < 40 else 2 if seen[1] > 0 else 0,
        lambda seen, t, rng: int(rng.integers(3)),
    ),
    "MountainCarContinuous-v0": (
        lambda seen, t, rng: grid(1.0 if seen[1] > 0 else -1.0),
        lambda seen, t, rng: grid(rng.uniform(0.5, 2.0) * (1.0 if seen[1] > 0 else -1.0)),
        lambda seen, t, rng: grid(rng.uniform(-1.5, 1.5)),
    ),
    "Pendulum-v1": (
        lambda seen, t, rng: grid(2.0 if seen[2] > 0 else -2.0),
        lambda seen, t, rng: grid(rng.uniform(-3.0, 3.0)),
    ),
}
# Between which ends positions lie from which a single step is taken: where speeds are clipped and angles wrap.
REACH = {
    "Acrobot-v1": ([-np.pi, -np.pi, -4 * np.pi, -9 * np.pi], [np.pi, np.pi, 4 * np.pi, 9 * np.pi]),
    "MountainCar-v0": ([-1.2, -0.07], [0.6, 0.07]),
    "MountainCarContinuous-v0": ([-1.2, -0.07], [0.6, 0.07]),
    "Pendulum-v1": ([-20.0, -8.0], [20.0, 8.0]),
}
SINGLE = 300
TEXT: dict[str, tuple[str, dict[str, Any]]] = {
    "lake 4x4": ("FrozenLake-v1", {"map_name": "4x4"}),
    "lake 4x4 dry": ("FrozenLake-v1", {"map_name": "4x4", "is_slippery": False}),
    "lake 8x8": ("FrozenLake8x8-v1", {}),
    "lake own": ("FrozenLake-v1", {"desc": ["SFFSF", "FHFFG", "FFGHF"], "success_rate": 0.75}),
    "taxi": ("Taxi-v4", {}),
    "cliff": ("CliffWalking-v1", {}),
}


def played(name: str, ways: tuple[Steer, ...]) -> dict[str, Array]:
    """Episodes of a world, step by step, and single steps (episode -1) from anywhere."""
    env = gymnasium.make(name, disable_env_checker=True)
    inner: Any = env.unwrapped
    rng = np.random.default_rng(0)
    kept: dict[str, list[Any]] = {}

    def step(episode: int, action: Any, of: Any) -> tuple[Array, bool]:
        position = np.array(inner.state, dtype=np.float64)
        seen, reward, terminated, truncated, _ = of.step(action)
        row = {
            "episode": episode,
            "position": position,
            "action": action,
            "after": np.array(inner.state, dtype=np.float64),
            "seen": seen,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
        }
        for what, value in row.items():
            kept.setdefault(what, []).append(value)
        return seen, terminated or truncated

    for episode, way in enumerate(ways):
        seen, over, t = env.reset(seed=episode)[0], False, 0
        kept.setdefault("first", []).append(seen)
        while not over:
            seen, over = step(episode, way(seen, t, rng), env)
            t += 1
    for single in range(SINGLE):
        inner.state = rng.uniform(*REACH[name])
        step(-1, ways[-1](np.zeros(6), single, rng), inner)
    return {what: np.array(values) for what, values in kept.items()} | {"limit": np.array(env.spec.max_episode_steps)}


def tables(name: str, arguments: dict[str, Any]) -> dict[str, Array]:
    """Everything that can happen, as rows of outcomes."""
    env = gymnasium.make(name, **arguments)
    inner: Any = env.unwrapped
    rows = [(s, a, *outcome) for s, ways in inner.P.items() for a, found in ways.items() for outcome in found]
    columns = {"outcomes": np.array(rows, dtype=np.float64), "start": inner.initial_state_distrib}
    if hasattr(inner, "action_mask"):
        columns["mask"] = np.array([inner.action_mask(s) for s in inner.P], dtype=bool)
    return columns | {"limit": np.array(env.spec.max_episode_steps or 0)}


def caught() -> dict[str, Array]:
    """Episodes of Catch, drawn at random."""
    env, rng = Catch(seed=0), np.random.default_rng(0)
    boards, actions, rewards, lasts = [], [], [], []
    for _ in range(30):
        step = env.reset()
        boards.append([step.observation])
        while not step.last():
            actions.append(int(rng.integers(3)))
            step = env.step(actions[-1])
            boards[-1].append(step.observation)
            rewards.append(step.reward)
            lasts.append(step.last())
    shape = (len(boards), -1)
    told = {"action": np.array(actions), "reward": np.array(rewards), "last": np.array(lasts)}
    return {"board": np.array(boards, dtype=bool)} | {name: values.reshape(shape) for name, values in told.items()}


def main() -> None:
    """Plays, reads and writes."""
    parts = {name: played(name, ways) for name, ways in CLASSIC.items()}
    parts |= {name: tables(*made) for name, made in TEXT.items()}
    parts["catch"] = caught()
    kept: dict[str, Any] = {f"{part}/{name}": value for part, found in parts.items() for name, value in found.items()}
    versions = f"gymnasium {gymnasium.__version__}, bsuite {bsuite.__version__}"
    np.savez_compressed(OUT, **kept, peer=versions, command="make parity")


if __name__ == "__main__":
    main()
