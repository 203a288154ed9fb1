"""CartPole by the PPO and the DQN of the tests, which a third party could have written: how many seeds solve it.

Solved is a mean return of 475 of 500 over 100 fresh episodes by the best action, after 100,000 steps of PPO and 50,000
of DQN, on at least 9 of 10 seeds: stacked as replicas, and each as a run of its own. Then one run of each is killed
within a segment, or between two plays, and resumed: its parameters must be those of the uninterrupted run, bit for bit.

    python benchmarks/solved.py [ppo dqn]

Takes half an hour on two cores; by itself. Writes `results/solved.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.objectives.third_party.dqn import DQN
from tests.objectives.third_party.ppo import PPO

import weft
from weft import Learner, Optimizer
from weft.data import CartPole
from weft.learner import folder as folders
from weft.sources import Replay, Rollouts, Segments

SEEDS, EPISODES, ASKED, LEAST = 10, 100, 475.0, 9
CLIPS = {"ppo": 0.5, "dqn": 10.0}
STEPS = {"ppo": 100_000, "dqn": 50_000}


def source_of(method: str) -> Any:
    """Where it learns."""
    if method == "ppo":
        return Segments(CartPole(), envs=8, length=32, passes=20, batch_size=256)
    return Replay(CartPole(), every=64, updates_each=64, explore=(1.0, 0.04, 0.16))


def learner_of(method: str, **settings: Any) -> Learner:
    """One training."""
    made = {"ppo": PPO, "dqn": DQN}[method]()
    adam = Optimizer("adam", lr=1e-3)
    given = {"env_steps": STEPS[method], "optimizer": adam, "schedule": "linear", "clip": CLIPS[method], **settings}
    return Learner(made, **given)


def earned(learner: Learner) -> list[float]:
    """The mean return of fresh episodes, by the best action, of each replica."""
    run = learner.training_.runs[0]
    told = Rollouts(CartPole(), envs=EPISODES, greedy=True).judge(run.state)
    return [float(value) for value in told["return"].reshape(-1)]


def resumed(method: str) -> bool:
    """Whether a run that was killed ends as it would have."""
    short = {"env_steps": 6000, "random_state": 0, "every": 1}
    whole = learner_of(method, **short).fit(source_of(method))

    class StopError(Exception):
        pass

    def stop(record: dict[str, Any]) -> None:
        if record["step"] == 77:
            raise StopError

    folders.SECONDS = 0.0  # a checkpoint at every record
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(StopError):
            learner_of(method, **short, folder=f"{folder}/run", callbacks=[stop]).fit(source_of(method))
        loaded = weft.load(f"{folder}/run", objective={"ppo": PPO, "dqn": DQN}[method](), callbacks=[])
        again = loaded.resume(source_of(method))
    mine, theirs = again.training_.runs[0].state.params, whole.training_.runs[0].state.params
    return all(torch.equal(mine[name], value) for name, value in theirs.items())


def measure(method: str) -> dict[str, Any]:
    """All of it for one method."""
    started = time.perf_counter()
    stacked = earned(learner_of(method, replicas=SEEDS, random_state=0).fit(source_of(method)))
    together = time.perf_counter() - started
    print(method, "stacked", [round(v) for v in stacked], f"{together:.0f} s", flush=True)
    started, single = time.perf_counter(), []
    for seed in range(SEEDS):
        single += earned(learner_of(method, random_state=seed).fit(source_of(method)))
        print(method, seed, round(single[-1]), flush=True)
    solved = {how: sum(v >= ASKED for v in each) for how, each in (("stacked", stacked), ("single", single))}
    return {
        "method": method,
        "env_steps": STEPS[method],
        "stacked": stacked,
        "single": single,
        "solved": solved,
        "asked": LEAST,
        "met": min(solved.values()) >= LEAST,
        "killed and resumed bit for bit": resumed(method),
        "seconds": {"stacked": together, "one by one": time.perf_counter() - started},
    }


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=["ppo", "dqn"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "solved.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": platform.processor() or "cpu"}
    about |= {"torch": torch.__version__, "command": "python benchmarks/solved.py"}
    lines = [measure(method) for method in given.methods]
    print(json.dumps(lines, indent=1))
    given.out.write_text(json.dumps({**about, "lines": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
