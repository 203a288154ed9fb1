"""What the agents on the classics are: methods, worlds, steps and settings, with where those are from."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft import Optimizer
from weft.data import Acrobot, CartPole, Pendulum
from weft.objectives import A2C, DQN, PPO, SAC, TD3

ADAM, FALLING = {"eps": 1e-5}, {"schedule": "linear", "clip": 0.5}
RMS = Optimizer("rmsprop", lr=7e-4, alpha=0.99, eps=1e-5)


class Agent(NamedTuple):
    """One method in one world: what RL-Zoo's agent earns there after how many steps, and how it learns here."""

    steps: int
    reported: float
    objective: Any
    source: dict[str, Any]
    learner: dict[str, Any]


AGENTS = {
    "CartPole: PPO": Agent(
        100_000,
        500.0,
        PPO(trace=0.8, discount=0.98),
        {"envs": 8, "length": 32, "passes": 20, "batch_size": 256},
        {"optimizer": Optimizer("adam", lr=1e-3, **ADAM), **FALLING},
    ),
    "CartPole: PPO, defaults": Agent(100_000, 500.0, PPO(), {}, {"validation": None}),
    "CartPole: DQN": Agent(
        50_000,
        500.0,
        DQN(hidden=(64, 64)),
        {"every": 256, "updates_each": 128, "explore": (1.0, 0.04, 0.16)},
        {"optimizer": Optimizer("adam", lr=1e-3), "clip": 10.0},
    ),
    "CartPole: A2C": Agent(500_000, 500.0, A2C(), {"envs": 8, "length": 5}, {"optimizer": RMS, "clip": 0.5}),
    "Acrobot: PPO": Agent(
        1_000_000,
        -73.5,
        PPO(trace=0.94),
        {"envs": 16, "length": 256, "passes": 4, "batch_size": 256},
        {"optimizer": Optimizer("adam", lr=3e-4, **ADAM), **FALLING},
    ),
    "Acrobot: DQN": Agent(
        100_000,
        -76.6,
        DQN(hidden=(64, 64)),
        {"envs": 4, "every": 64, "updates_each": 64, "explore": (1.0, 0.05, 0.16)},
        {"optimizer": Optimizer("adam", lr=1e-3), "clip": 10.0},
    ),
    "Acrobot: A2C": Agent(500_000, -83.4, A2C(), {"envs": 16, "length": 5}, {"optimizer": RMS, **FALLING}),
    "Pendulum: PPO": Agent(
        100_000,
        -172.2,
        PPO(discount=0.9),
        {"envs": 4, "length": 1024, "passes": 10, "batch_size": 64},
        {"optimizer": Optimizer("adam", lr=1e-3, **ADAM), **FALLING},
    ),
    "Pendulum: SAC": Agent(
        20_000,
        -157.0,
        SAC(hidden=(64, 64)),
        {"every": 8, "updates_each": 8, "batch_size": 64},
        {"optimizer": Optimizer("adam", lr=1e-3)},
    ),
    "Pendulum: TD3": Agent(
        20_000,
        -151.9,
        TD3(hidden=(64, 64)),
        {"every": 8, "updates_each": 8, "batch_size": 64},
        {"optimizer": Optimizer("adam", lr=1e-3)},
    ),
}
WORLDS = {"CartPole": CartPole(), "Acrobot": Acrobot(), "Pendulum": Pendulum()}


def means_of(evaluation: Any, count: int) -> NDArray[Any]:
    """The mean return of each seed; NaN of one that has diverged, which no figure gets over."""
    means, returns = np.full(count, np.nan), np.asarray(evaluation.returns)
    means[list(evaluation.replicas) or slice(None)] = returns.reshape(-1, returns.shape[-1]).mean(1)
    return means
