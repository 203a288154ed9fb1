"""Kills trainings and studies and resumes them: `python -m tests.faults.worker SCENARIO FOLDER MOMENTS`.

With MOMENTS 0 it kills at named points, else at so many moments by chance; prints JSON lines.

One process imports torch and forks for every training, so that a kill costs a training and no start.
"""

import json
import os
import shutil
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # torch.optim imports it when first used: here, once, before the forks

import weft
import weft.learner.folder
from weft import Classifier, Learner, Optimizer, weave
from weft.core import Field, Source, files, manifest
from weft.core.random import fold, gauss
from weft.data import FiniteMDP, ring
from weft.engine import checkpoint
from weft.engine.engine import Engine
from weft.learner.kept import files_of, listed
from weft.nets import MLP
from weft.objectives import GAN, REINFORCE, Classification, LeastSquares
from weft.sources import Rollouts
from weft.strategies import EWC, ANDMask

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 5))
Y = (X[:, 0] * X[:, 1] > 0).astype(int)
SITE = np.arange(120) % 3
MONTH = np.repeat(["may", "june"], 60)


WAITING = partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, factor=0.5, threshold=0.1)


def net(inputs, outputs):
    return MLP(inputs, outputs, hidden=(16,), dropout=0.3, batch_norm=True)


def tasks(folder):
    learner = Classifier(net, strategy=EWC(strength=5.0), epochs=2, batch_size=8, validation=0.2, patience=2)
    return learner.set_params(random_state=3, folder=folder), {"X": X, "y": Y, "task": MONTH}


def game(folder):
    learner = Learner(GAN(latent=2, hidden=(16,), critic_steps=2), steps=12, batch_size=16, schedule="cosine")
    return learner.set_params(random_state=3, folder=folder, keep=2, every=3), {"X": ring(200)}


def replicas(folder):
    strategy = weave(EWC(strength=1.0), ANDMask(threshold=0.2))
    sweep = {"random_state": [1, 2, 3], "optimizer__lr": [1e-3, 1e-2, 3e-2]}
    learner = Classifier(net, strategy=strategy, epochs=6, batch_size=16, replicas=sweep, validation=0.25, patience=3)
    learner.set_params(schedule=WAITING, keep=2)
    return learner.set_params(folder=folder, optimizer=Optimizer("adam")), {"X": X, "y": Y, "environment": SITE}


def stopped(folder):
    """Replicas that stop each at its own step of the first task, and begin the second by their own clocks."""
    learner = Classifier(net, strategy=EWC(strength=1.0), epochs=8, batch_size=16, replicas=3, validation=0.3)
    return learner.set_params(patience=2, random_state=0, folder=folder), {"X": X, "y": Y, "task": MONTH}


def one_by_one(folder):
    """Replicas that cannot be stacked: one run after another."""
    sweep = {"hidden": [(4,), (8, 8)]}
    learner = Classifier(epochs=4, batch_size=16, replicas=sweep, random_state=0, folder=folder)
    return learner, {"X": X, "y": Y}


def rollouts(folder):
    left, right = torch.eye(3).roll(-1, 1), torch.eye(3).roll(1, 1)
    world = FiniteMDP(torch.stack([left, right], 1), torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), horizon=6)
    learner = Learner(REINFORCE(hidden=(8,)), steps=12, random_state=0, folder=folder)
    return learner, {"X": Rollouts(world, envs=8)}


def solved(folder):
    """A sweep that is solved at once, in a task after another."""
    learner = Learner(LeastSquares(), replicas={"objective__ridge": [0.0, 3.0, 100.0]}, validation=0.3, random_state=0)
    return learner.set_params(folder=folder), {"X": X, "y": X[:, 0] * X[:, 1], "task": MONTH}


class Replay(Source):
    """Keeps the rows of the last steps, more than a checkpoint would like to write anew, and learns from some."""

    spec = {"x": Field((64,), torch.float32), "y": Field((), torch.int64, 2)}

    def init(self, state):
        return {"x": torch.zeros(6000, 64), "y": torch.zeros(6000, dtype=torch.int64), "seen": torch.tensor(0)}

    def batches(self, state):
        while True:
            kept, seen = state.source, int(state.source["seen"])
            new = gauss(fold(state.key("new"), torch.arange(64)), (64,))
            place = (97 * seen + torch.arange(64)) % 6000
            kept["x"][place], kept["y"][place] = new, (new[:, 0] > 0).long()
            kept["seen"] = torch.tensor(seen + 64)
            old = torch.nonzero(kept["x"].any(-1)).flatten()[:: max(1, seen // 64)]
            yield {name: kept[name][old] for name in ("x", "y")}


def memory(folder):
    """A source whose memory is kept in blocks, of which a checkpoint writes those that have changed."""
    learner = Learner(Classification(hidden=(4,)), steps=12, random_state=0, folder=folder)
    return learner, {"X": Replay()}


SCENARIOS = {f.__name__: f for f in (tasks, game, replicas, one_by_one, rollouts, stopped, solved, memory)}
OWN_NET = ("tasks", "replicas", "stopped")
# Each checkpoint writes four files aside and the manifest, renames that (the switch), and names the four.
POINTS = [f"{when} {kind}" for when in ("during", "before naming") for kind in (".safetensors", ".json")]
POINTS += ["before rename .json", "after rename .json", "during .jsonl"]
MEMORY_POINTS = [(f"{when} .blocks", count) for when in ("during", "before naming") for count in (1, 2, 7)]
STUDY = {"budget": 2, "batch": 2, "seeds": 2, "steps": 8, "workers": 1, "selection": "training-domain"}
STUDY_POINTS = [("during .toml", 1), ("before rename .json", 1), ("during .json", 3), ("after rename .json", 4)]
STUDY_POINTS += [(f"{when} .npz", count) for when, count in [("during", 1), ("before rename", 2), ("after rename", 1)]]


def forked(action):
    """Runs an action in a fork; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        import warnings

        warnings.simplefilter("ignore")
        action()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def run(scenario, folder):
    if scenario == "compare":
        from weft.bench import compare

        compare(out=folder, **STUDY)
        return
    learner, data = SCENARIOS[scenario](folder)
    learner.fit(**data)


def resume(scenario, folder):
    """What a user does after a crash: go on, or start again where nothing had been kept yet."""
    if scenario == "compare":
        run(scenario, folder)
        return
    learner, data = SCENARIOS[scenario](folder)
    given = {"module": net} if scenario in OWN_NET else {}
    given |= {"schedule": WAITING} if scenario == "replicas" else {}
    try:
        kept = weft.load(folder, **given)
    except FileNotFoundError:
        learner.fit(**data)
        return
    kept.resume(data.pop("X"), data.pop("y", None), **data)


def outcome(folder):
    """Everything that must be equal, bit for bit: the kept tree, or a study's results, without the clock."""
    study = folder / "results.json"
    tree = json.loads(study.read_text()) if study.exists() else {"last": checkpoint.read(folder)}
    for entry in () if study.exists() else listed(folder):
        tree[entry["name"]] = checkpoint.opened(folder, files=files_of(entry["name"]))[1]
    clock = {"seconds", "date", "command", "name", "ledger", "sha256"} if study.exists() else {"seconds"}

    def plain(value):
        if isinstance(value, torch.Tensor):
            return (str(value.dtype), value.shape, value.numpy().tobytes())
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k not in clock}
        if isinstance(value, list | tuple):
            return [plain(v) for v in value]
        return repr(value)

    return plain(tree)


def killing_at(point, count):
    """An action that dies at the count-th passing of a named point of the checkpoint's write."""
    seen = [0]

    def die(name):
        if name == point:
            seen[0] += 1
            if seen[0] == count:
                os.kill(os.getpid(), signal.SIGKILL)

    files.point = die


def killing_in_step(number, *, after=False):
    """Dies before or after the arithmetic of a step."""
    step = Engine.step

    def dying(self, state, batch):
        if state.step == number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = step(self, state, batch)
        if state.step == number and after:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    Engine.step = dying


def killing_in_solution(number):
    """Dies after so many solutions."""
    solve, done = LeastSquares.solve, []

    def dying(self, source, state):
        if len(done) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        done.append(state)
        return solve(self, source, state)

    LeastSquares.solve = dying


def killing_in_consolidation(task):
    consolidate = Engine.consolidate

    def dying(self, state, source, name, *args):
        if name == task:
            os.kill(os.getpid(), signal.SIGKILL)
        return consolidate(self, state, source, name, *args)

    Engine.consolidate = dying


def main():
    scenario, base = sys.argv[1], Path(sys.argv[2])
    moments = int(sys.argv[3])
    if scenario == "compare":  # what it imports is imported once, before the forks
        import optuna  # noqa: F401
        from sqlalchemy.dialects import sqlite  # noqa: F401

        import weft.bench.comparing  # noqa: F401
    started = time.perf_counter()
    assert os.waitpid(forked(lambda: run(scenario, base / "whole")), 0)[1] == 0
    length = time.perf_counter() - started
    expected = outcome(base / "whole")

    def attempt(name, prepare=None, delay=None):
        folder = base / name.replace(" ", "_")

        def work():
            if prepare is not None:
                prepare()
            run(scenario, folder)

        pid = forked(work)
        if delay is not None:
            time.sleep(delay)
            os.kill(pid, signal.SIGKILL)
        killed = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        ended = os.waitpid(forked(lambda: resume(scenario, folder)), 0)[1] == 0
        if scenario == "compare":
            left = [p for p in folder.rglob(".*") if p.name != ".lock"]
        else:  # a run's folder holds what its manifest names, and nothing else
            left = {p.name for p in folder.iterdir()} - {*manifest.opened(folder).files, manifest.NAME}
        equal = ended and outcome(folder) == expected and not left
        print(json.dumps({"name": name, "killed": killed, "resumed": ended, "equal": equal}), flush=True)
        shutil.rmtree(folder, ignore_errors=True)

    if moments == 0 and scenario == "compare":
        for point, count in STUDY_POINTS:
            attempt(f"{point} {count}", lambda point=point, count=count: killing_at(point, count))
    elif moments == 0:
        for i, point in enumerate(POINTS):
            for count in {"tasks": (1, 4), "solved": (1,)}.get(scenario, (1 + 3 * (i % 2),)):
                attempt(f"{point} {count}", lambda point=point, count=count: killing_at(point, count))
        if scenario == "memory":
            for point, count in MEMORY_POINTS:
                attempt(f"{point} {count}", lambda point=point, count=count: killing_at(point, count))
        if scenario == "solved":
            for number in (0, 1, 4):
                attempt(f"solution {number}", lambda number=number: killing_in_solution(number))
        else:
            attempt("first step", lambda: killing_in_step(0))
            attempt("middle of an epoch", lambda: killing_in_step(7, after=True))
        if scenario == "tasks":
            attempt("after the first step", lambda: killing_in_step(1, after=True))
            attempt("consolidation", lambda: killing_in_consolidation("june"))
            # between tasks: at the first write of the next task, and before it
            attempt("between tasks", lambda: killing_at("before rename .json", 5))
        if scenario == "stopped":  # two replicas stop at step 9, the third at 24, where the second task begins
            attempt("after some have stopped", lambda: killing_in_step(11))
            attempt("before the second task", lambda: killing_in_step(24))
            attempt("in the second task", lambda: killing_in_step(32, after=True))
            attempt("consolidation", lambda: killing_in_consolidation("june"))
    else:
        for k, share in enumerate(np.random.default_rng(len(scenario)).uniform(0.0, 1.0, size=moments)):
            attempt(f"moment {k}", delay=share * length)


if __name__ == "__main__":
    torch.set_num_threads(1)
    weft.learner.folder.SECONDS = 0.0  # a checkpoint at every record, to be killed in
    main()
