"""What the stage of gymnasium's environments costs, beside loops over the same ones written by hand.

    python benchmarks/gymnasium_stage.py [--out FILE]

Steps per second of CartPole-v1 with 8 environments under the same actions, on one thread, in turns: by weft's stage; by
a loop that takes actions as a tensor and gives observations, rewards and ends as tensors, as whoever learns in PyTorch
writes it; and by a loop that hands nothing on. The ratio is the median over the rounds of that round's ratio, of the
processor's time; the aim is 1.2 beside the first loop.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import gymnasium
import numpy as np
import torch
from torch import Tensor

from weft.core.random import fold, key_of
from weft.sources.stage import stage_of

NAME, ENVS, TURNS, ROUNDS, AIM = "CartPole-v1", 8, 2000, 15, 1.2


def by_stage(actions: Tensor) -> float:
    """Seconds of the turns."""
    keys = fold(key_of(0), torch.arange(ENVS))
    stage = stage_of(NAME)
    kept, _ = stage.begin(keys)
    begun = time.process_time()
    for action in actions.unbind():
        kept, _, _, terminated, truncated = stage.step(kept, action, keys)
        over = terminated | truncated
        if bool(over.any()):
            kept, _ = stage.restart(kept, over, keys)
    return time.process_time() - begun


def by_tensors(actions: Tensor) -> float:
    """Seconds of a loop by hand, tensors in and out, the last observation of an episode kept apart."""
    environments = [gymnasium.make(NAME) for _ in range(ENVS)]
    for i, env in enumerate(environments):
        env.reset(seed=i)
    begun = time.process_time()
    for t, action in enumerate(actions.unbind()):
        seen, reward, terminated, truncated, _ = zip(
            *(env.step(a) for env, a in zip(environments, action.tolist(), strict=True)), strict=True
        )
        observation = torch.from_numpy(np.stack(seen))
        torch.tensor(reward)
        over = torch.tensor(terminated) | torch.tensor(truncated)
        if bool(over.any()):
            observation = observation.clone()
            for i in over.nonzero().squeeze(1).tolist():
                observation[i] = torch.from_numpy(environments[i].reset(seed=t)[0])
    return time.process_time() - begun


def bare(actions: Tensor) -> float:
    """Seconds of a loop that hands nothing on."""
    environments = [gymnasium.make(NAME) for _ in range(ENVS)]
    for i, env in enumerate(environments):
        env.reset(seed=i)
    begun = time.process_time()
    for t, action in enumerate(actions.tolist()):
        for env, a in zip(environments, action, strict=True):
            _, _, terminated, truncated, _ = env.step(a)
            if terminated or truncated:
                env.reset(seed=t)
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    ways: dict[str, Callable[[Tensor], float]] = {"weft": by_stage, "tensors by hand": by_tensors, "bare": bare}
    actions = torch.randint(0, 2, (TURNS, ENVS), generator=torch.Generator().manual_seed(0))
    taken = [{name: way(actions) for name, way in ways.items()} for _ in range(ROUNDS)]
    steps = {name: TURNS * ENVS / statistics.median(each[name] for each in taken) for name in ways}
    ratio = {name: statistics.median(each["weft"] / each[name] for each in taken) for name in ways if name != "weft"}
    for name, rate in steps.items():
        beside = f", weft takes {ratio[name]:.2f} times as long" if name in ratio else ""
        print(f"{name}: {rate:,.0f} steps per second{beside}")
    print(f"aim {AIM}: {'met' if ratio['tensors by hand'] <= AIM else 'missed'}")
    if asked.out:
        versions = {"torch": torch.__version__, "gymnasium": gymnasium.__version__, "python": platform.python_version()}
        told = {"steps_per_second": steps, "ratio": ratio, "aim": AIM, "versions": versions}
        asked.out.write_text(json.dumps({**told, "when": datetime.now(UTC).isoformat()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
