"""How long a user waits before anything happens: `weft --help`, and imports, each in a fresh process.

`import weft` alone imports nothing heavy, so what a user needs first, `from weft import Learner`, is
judged as well.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness import Comparison, Turn, serve, timed

LIMIT_OF_HELP, LIMIT_OF_IMPORT = 0.5, 0.3


def _run(*command: str) -> Turn:
    return timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))


def _python(code: str) -> Turn:
    return _run(sys.executable, "-c", code)


CONTESTANTS = {
    "weft --help": lambda: _run(str(Path(sys.executable).with_name("weft")), "--help"),
    "python": lambda: _python("pass"),
    "import torch": lambda: _python("import torch"),
    "import torch, weft": lambda: _python("import torch, weft"),
    "import torch, Learner": lambda: _python("import torch; from weft import Learner"),
}
PEERS: set[str] = set()
ROUNDS = 7
COMPARISONS = [
    Comparison("weft --help", "python", seconds=LIMIT_OF_HELP),
    Comparison("import torch, weft", "import torch", above=LIMIT_OF_IMPORT),
    Comparison("import torch, Learner", "import torch", above=LIMIT_OF_IMPORT),
]

if __name__ == "__main__":
    serve(CONTESTANTS)
