"""Kills a study at random moments and continues it, again and again, until it has ended; prints what came of it.

    python -m tests.bench.study_worker FOLDER KILLS SEED

Forks after the imports, so that an attempt is quick.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import optuna  # noqa: F401 (before the fork)
import torch._dynamo  # noqa: F401
from sqlalchemy.dialects import sqlite  # noqa: F401

import weft.bench.comparing as comparing
from weft.bench import compare

SMALL = {"budget": 4, "batch": 2, "seeds": 2, "steps": 12, "workers": 1, "selection": "training-domain"}


def attempt(folder, delay):
    """One go in a child that is killed after `delay` seconds (never, for None); whether it came to its end."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run = comparing.fit_batch

            def noted(study, data, method, settings):
                with open(folder.parent / "ran.jsonl", "a") as file:
                    file.write(json.dumps([method.name, settings]) + "\n")
                return run(study, data, method, settings)

            comparing.fit_batch = noted
            compare(out=folder, **SMALL)
            status = 0
        except BaseException as error:  # the parent sees the status
            print(repr(error), file=sys.stderr)
        finally:
            os._exit(status)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("the study failed")
    return os.WIFEXITED(status)


def main(folder, kills, seed):
    folder.mkdir(parents=True)
    begun = time.perf_counter()
    attempt(folder / "whole", None)
    lasted = time.perf_counter() - begun
    chance = random.Random(seed)
    killed = 0
    while killed < 2:  # a machine that was busy only at first ends the study too soon: again, with less time
        shutil.rmtree(folder / "torn", ignore_errors=True)
        (folder / "ran.jsonl").unlink(missing_ok=True)
        killed = 0
        while killed < kills and not attempt(folder / "torn", chance.uniform(0.05, 0.6) * lasted):
            killed += 1
        lasted /= 2
    attempt(folder / "torn", None)
    ran = (folder / "ran.jsonl").read_text().splitlines()
    results = {name: json.loads((folder / name / "results.json").read_text()) for name in ("whole", "torn")}
    print(json.dumps({"killed": killed, "ran": ran, **results}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
