"""The small study on Ray, in a process of its own: where its raylet is killed, Ray may end the process that began it.

    python -m tests.bench.ray_worker FOLDER [strike]

With `strike` the raylet is killed as soon as two things are done.
"""

import os
import signal
import sys
from pathlib import Path

from tests.bench.study_worker import SMALL

from weft.bench import compare

struck = False


def strike(done, total, what):
    global struck
    if done < 2 or struck:
        return
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == str(os.getpid()) and b"raylet/raylet" in line:
            struck = True
            print("struck", flush=True)
            os.kill(int(entry.name), signal.SIGKILL)


if __name__ == "__main__":
    compare(out=sys.argv[1], on="ray", heard=strike if "strike" in sys.argv else None, **{**SMALL, "workers": 2})
