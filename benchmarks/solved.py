"""CartPole by the PPO and the DQN of the tests, which a third party could have written: how many seeds solve it.

Solved is a mean return of 475 of 500 over 100 fresh episodes by the best action, after 100,000 steps of PPO and 50,000
of DQN, on at least 9 of 10 seeds: stacked as replicas, and each as a run of its own. Then one run of each is killed
within a segment, or between two plays, and resumed: its parameters must be those of the uninterrupted run, bit for bit.

DQN's settings were chosen on seeds 100 to 107. Its policy swings while it learns, so that evaluations during training,
which the agent does not learn from and which are not counted among its steps, say which one is kept.

    python benchmarks/solved.py [ppo dqn] [--workers 16]

Takes some 25 minutes of one core, and as many workers share it out; by itself. Writes `results/solved.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.objectives.third_party.dqn import DQN
from tests.objectives.third_party.ppo import PPO

import weft
from weft import Learner, Optimizer
from weft.bench.fanout import pool
from weft.data import CartPole
from weft.learner import folder as folders
from weft.sources import Replay, Rollouts, Segments

SEEDS, EPISODES, ASKED, LEAST = 10, 100, 475.0, 9
STEPS = {"ppo": 100_000, "dqn": 50_000}


def source_of(method: str) -> Any:
    """Where it learns."""
    if method == "ppo":
        return Segments(CartPole(), envs=8, length=32, passes=20, batch_size=256)
    return Replay(CartPole(), every=256, updates_each=128, explore=(1.0, 0.04, 0.16))


def learner_of(method: str, **settings: Any) -> Learner:
    """One training."""
    made = {"ppo": PPO(), "dqn": DQN(hidden=(64, 64))}[method]
    own = {
        "ppo": {"schedule": "linear", "clip": 0.5},
        "dqn": {"clip": 10.0, "validation": Rollouts(CartPole(), envs=30, greedy=True), "every": 500},
    }
    adam = Optimizer("adam", lr=1e-3)
    return Learner(made, **{"env_steps": STEPS[method], "optimizer": adam, "device": "cpu", **own[method], **settings})


def earned(learner: Learner) -> list[float]:
    """The mean return of fresh episodes, by the best action, of each replica."""
    run = learner.training_.runs[0]
    told = Rollouts(CartPole(), envs=EPISODES, greedy=True).judge(run.state)
    return [float(value) for value in told["return"].reshape(-1)]


def resumed(method: str) -> bool:
    """Whether a run that was killed ends as it would have."""
    short = {"env_steps": 6000, "random_state": 0, "every": 77}
    whole = learner_of(method, **short).fit(source_of(method))

    class StopError(Exception):
        pass

    def stop(record: dict[str, Any]) -> None:
        if record["step"] == 154:
            raise StopError

    folders.SECONDS = 0.0  # a checkpoint at every record
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(StopError):
            learner_of(method, **short, folder=f"{folder}/run", callbacks=[stop]).fit(source_of(method))
        own = learner_of(method)
        given = {"objective": own.objective, "callbacks": [], "device": "cpu"}
        given |= {} if own.validation is None else {"validation": own.validation}
        again = weft.load(f"{folder}/run", **given).resume(source_of(method))
    mine, theirs = again.training_.runs[0].state.params, whole.training_.runs[0].state.params
    return all(torch.equal(mine[name], value) for name, value in theirs.items())


def stacked(method: str) -> list[float]:
    """What all seeds earn, trained at once."""
    return earned(learner_of(method, replicas=SEEDS, random_state=0).fit(source_of(method)))


def single(method: str, seed: int) -> list[float]:
    """What one seed earns, trained alone."""
    return earned(learner_of(method, random_state=seed).fit(source_of(method)))


def timed(work: Callable[..., Any], *given: Any) -> tuple[Any, float]:
    """What a piece of work gives, and its seconds."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    return work(*given), time.perf_counter() - started


def told(method: str, found: dict[str, Any], seconds: dict[str, float]) -> dict[str, Any]:
    """All of it for one method."""
    returns = {"stacked": found["stacked"], "single": [found[str(seed)][0] for seed in range(SEEDS)]}
    solved = {how: sum(v >= ASKED for v in each) for how, each in returns.items()}
    return {
        "method": method,
        "env_steps": STEPS[method],
        **returns,
        "solved": solved,
        "asked": LEAST,
        "met": min(solved.values()) >= LEAST,
        "killed and resumed bit for bit": found["resumed"],
        "seconds": {"stacked": seconds["stacked"], "one by one": sum(seconds[str(seed)] for seed in range(SEEDS))},
    }


def main() -> None:
    """Measures and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=["ppo", "dqn"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "solved.json")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": platform.processor() or "cpu"}
    about |= {"torch": torch.__version__, "command": "python benchmarks/solved.py"}
    about["workers"] = given.workers
    works = {
        (method, name): (timed, (work, method, *more))
        for method in reversed(given.methods)  # the longest first
        for name, work, more in [
            ("stacked", stacked, ()),
            *((str(seed), single, (seed,)) for seed in range(SEEDS)),
            ("resumed", resumed, ()),
        ]
    }
    found: dict[str, dict[str, Any]] = {method: {} for method in given.methods}
    seconds: dict[str, dict[str, float]] = {method: {} for method in given.methods}
    with pool("joblib", given.workers) as run:
        for number, answer in run(list(works.values())):
            method, name = list(works)[number]
            found[method][name], seconds[method][name] = answer
            print(method, name, answer[0], f"{answer[1]:.0f} s", flush=True)
    lines = [told(method, found[method], seconds[method]) for method in given.methods]
    print(json.dumps(lines, indent=1))
    given.out.write_text(json.dumps({**about, "lines": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
