"""CartPole: steps of the environment per second of training, 16 environments side by side.

Weft learns by REINFORCE on whole episodes, in its own environment of tensors and in gymnasium's;
stable-baselines3 by A2C with its defaults. They are different algorithms: A2C updates every five steps,
REINFORCE once an episode has ended, so this says how fast experience is gathered and used, not how well.
Only steps of episodes still going are counted. Each turn begins anew, from an untrained policy.
"""

from __future__ import annotations

import time
from typing import Any

from harness import Comparison, Turn, serve

ENVIRONMENTS, UPDATES, STEPS = 16, 40, 12_800


def _weft(tensors: bool, environments: int = ENVIRONMENTS) -> Turn:
    from harness import engine_of

    from weft import Optimizer
    from weft.data import CartPole
    from weft.objectives import REINFORCE
    from weft.sources import Rollouts
    from weft.strategies import ERM

    source = Rollouts(CartPole() if tensors else "CartPole-v1", envs=environments)

    def turn() -> dict[str, float]:
        engine, state = engine_of(REINFORCE(), ERM(), source, Optimizer("adam", lr=1e-2))
        stream, steps, started = engine.batches(source, state), 0.0, time.perf_counter()
        for _ in range(UPDATES):
            batch = next(stream)
            engine.step(state, batch)
            steps += float(batch["mask"].sum())
        return {"seconds": (time.perf_counter() - started) / steps}

    return turn


def a2c() -> Turn:
    from stable_baselines3 import A2C
    from stable_baselines3.common.env_util import make_vec_env

    def turn() -> dict[str, float]:
        model: Any = A2C("MlpPolicy", make_vec_env("CartPole-v1", n_envs=ENVIRONMENTS), device="cpu")
        started = time.perf_counter()
        model.learn(STEPS)
        return {"seconds": (time.perf_counter() - started) / model.num_timesteps}

    return turn


CONTESTANTS = {
    "weft, tensors": lambda: _weft(True),
    "weft, tensors, 256 environments": lambda: _weft(True, 256),
    "weft, gymnasium": lambda: _weft(False),
    "A2C of stable-baselines3": a2c,
}
PEERS = {"A2C of stable-baselines3"}
ROUNDS = 5
COUNTED = "steps"  # a turn gives the seconds of one of them
COMPARISONS = [Comparison(ours, "A2C of stable-baselines3") for ours in CONTESTANTS if ours.startswith("weft")]

if __name__ == "__main__":
    serve(CONTESTANTS)
