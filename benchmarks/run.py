"""Runs the benchmarks beside the peers, prints a table and writes what was measured as JSON.

    python benchmarks/run.py [NAME ...] [--peers PYTHON] [--out FILE] [--rounds N]

The contestants of a benchmark are started once, each in a process of its own, and then take turns, round
by round; the first round warms up and does not count. Peers run under the Python of their own environment.
A turn waits until the machine is quiet and is taken again if others were busy during it, for a while; what
share of the machine others had in each turn is written down with it. Where others never rest, `--patience 0` takes each
turn as it comes and `--clock processor` compares seconds of the processor; both clocks are written down.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from harness import THREADS
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

HERE = Path(__file__).resolve().parent
NAMES = (
    *("mnist_epoch", "and_mask", "coupled", "fisher", "continual", "replicas", "maml", "cartpole", "startup"),
    *("mixtures", "hmm", "autoregressive", "sequences", "vae"),
)
PACKAGES = (
    *("torch", "numpy", "skorch", "avalanche-lib", "higher", "stable-baselines3", "gymnasium", "hmmlearn", "pythae"),
)
# As in the Makefile, and for every contestant alike: see there.
SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "OMP_WAIT_POLICY": "passive",
    "OMP_NUM_THREADS": str(THREADS),
}


def busy() -> float:
    """Seconds of work that all cores together have done so far (Linux; elsewhere it is not known)."""
    try:
        ticks = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return 0.0
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(patience: float) -> None:
    """Returns when less than a tenth of the machine is busy, or when patience ends."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        before = busy()
        time.sleep(0.3)
        if busy() - before < 0.1 * 0.3 * (os.cpu_count() or 1):
            return


class Contestant:
    """A process that waits for its turns."""

    def __init__(self, python: str, benchmark: str, name: str) -> None:
        self.name = name
        self.said: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        command = [python, "-W", "ignore", str(HERE / f"{benchmark}.py"), name]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.said}
        self.process = subprocess.Popen(command, text=True, env={**os.environ, **SETTINGS}, **pipes)

    def work(self) -> float:
        """Seconds of work that the process and its children have done so far."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")

    def calm_turn(self, patience: float) -> dict[str, float]:
        """The least disturbed of at most three turns, with the share of the machine that others had in it."""
        taken: list[dict[str, float]] = []
        for _ in range(3):
            wait_for_quiet(patience / 3)
            started, before = time.monotonic(), busy() - self.work()
            answer = self.turn()
            lasted = time.monotonic() - started
            others = (busy() - self.work() - before) / (lasted * (os.cpu_count() or 1))
            taken.append({**answer, "others": round(max(0.0, others), 3)})
            if others < 0.1 or patience == 0:
                break
        return min(taken, key=lambda turn: turn["others"])

    def turn(self) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        answer = self.process.stdout.readline()
        if not answer:
            self.said.seek(0)
            lines = self.said.read().strip().splitlines() or ["no answer"]
            raise RuntimeError(lines[-1])
        return json.loads(answer)

    def close(self) -> str:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # of one that did not run, with a turn unread
            self.process.stdin.close()
        self.process.wait()
        self.said.seek(0)
        notes = {line for line in self.said.read().splitlines() if line.startswith("note:")}
        self.said.close()
        return "\n".join(sorted(notes))


def measure(
    name: str, peers: str, rounds: int | None, patience: float, clock: str, progress: Progress
) -> dict[str, Any]:
    """One benchmark: the turns of each contestant, and why any of them did not run."""
    benchmark: Any = importlib.import_module(name)
    rounds = rounds or benchmark.ROUNDS
    bar = progress.add_task(name, total=(rounds + 1) * len(benchmark.CONTESTANTS), who="")
    load = [os.getloadavg()[0]]
    playing = [
        Contestant(peers if who in benchmark.PEERS else sys.executable, name, who) for who in benchmark.CONTESTANTS
    ]
    turns: dict[str, list[dict[str, float]]] = {c.name: [] for c in playing}
    failed: dict[str, str] = {}
    notes = set()
    for k in range(rounds + 1):
        for contestant in playing:
            progress.update(bar, who=contestant.name)
            if contestant.name not in failed:
                try:
                    if k == 0:
                        contestant.turn()
                    else:
                        turns[contestant.name].append(contestant.calm_turn(patience))
                except RuntimeError as error:
                    failed[contestant.name] = str(error)
            progress.advance(bar)
    for contestant in playing:
        notes.add(contestant.close())
    load.append(os.getloadavg()[0])
    progress.remove_task(bar)
    seconds = {who: [turn[clock] for turn in own] for who, own in turns.items() if who not in failed}
    judged = [
        comparison.judge(seconds[comparison.ours], seconds[comparison.other])
        for comparison in benchmark.COMPARISONS
        if comparison.ours in seconds and comparison.other in seconds
    ]
    about = {"counted": getattr(benchmark, "COUNTED", ""), "notes": sorted(notes - {""}), "load": load, "clock": clock}
    return {"comparisons": judged, "turns": turns, "failed": failed, **about}


def duration(seconds: float, counted: str) -> str:
    """A time or, where steps are counted, how many of them fit into a second."""
    if counted:
        return f"{1 / seconds:,.0f} {counted}/s"
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.2g} s"


def shown(results: dict[str, Any], clock: str) -> Table:
    """The table: ours, the other, the ratio, the target, and whether it is met."""
    of = "" if clock == "seconds" else " of processor seconds"
    table = Table(title=f"weft beside its peers, {THREADS} threads, medians{of}")
    for column in ("benchmark", "ours", "", "beside", "", "ratio", "target", "met"):
        table.add_column(column, justify="right" if column in ("", "ratio") else "left")
    for name, result in results.items():
        for row in result["comparisons"]:
            met = {True: "[green]yes", False: "[red]no", None: ""}[row["met"]]
            times = [duration(row[which], result["counted"]) for which in ("ours_s", "other_s")]
            cells = (name, row["ours"], times[0], row["other"], times[1])
            table.add_row(*cells, row["told"], row["target"], met)
        for who, why in result["failed"].items():
            table.add_row(name, who, "", "", "", "did not run", why, "")
        table.add_section()
    return table


def versions(peers: str) -> dict[str, Any]:
    code = "import importlib.metadata as m, json, sys; found = {}\nfor n in sys.argv[1:]:\n"
    code += "    try: found[n] = m.version(n)\n    except m.PackageNotFoundError: pass\nprint(json.dumps(found))"
    answer = subprocess.run([peers, "-c", code, *PACKAGES], capture_output=True, text=True, check=False)
    ours = {name: importlib.metadata.version(name) for name in ("weft", "torch", "numpy", "gymnasium", "scikit-learn")}
    return {"ours": ours, "peers": json.loads(answer.stdout) if answer.returncode == 0 else {}}


def processor() -> str:
    with open("/proc/cpuinfo") as info:
        return next((line.split(":")[1].strip() for line in info if line.startswith("model name")), platform.machine())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"benchmarks; default: all of {', '.join(NAMES)}")
    parser.add_argument("--peers", default=sys.executable, help="the Python of the peers' environment")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "cpu.json")
    parser.add_argument("--rounds", type=int, help="turns that count; default: the benchmark's own")
    parser.add_argument("--patience", type=float, default=30.0, help="seconds a turn may wait for a quiet machine")
    parser.add_argument(
        "--clock",
        choices=("seconds", "processor"),
        default="seconds",
        help="what is compared: seconds of the clock, or of the processor, where others keep the machine busy",
    )
    given = parser.parse_args()
    unknown = sorted(set(given.names) - set(NAMES))
    if unknown:
        parser.error(f"expected benchmarks among {', '.join(NAMES)}, got {', '.join(unknown)}")
    console = Console() if sys.stdout.isatty() else Console(width=150)
    columns = (
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[who]}"),
    )
    results = {}
    with Progress(*columns, console=console, transient=True) as progress:
        for name in given.names or NAMES:
            results[name] = measure(name, given.peers, given.rounds, given.patience, given.clock, progress)
    console.print(shown(results, given.clock))
    for note in sorted({note for result in results.values() for note in result["notes"]}):
        console.print(note)
    kept = json.loads(given.out.read_text())["benchmarks"] if given.names and given.out.exists() else {}
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": THREADS,
        "python": platform.python_version(),
        "versions": versions(given.peers),
        "settings": SETTINGS,
        "benchmarks": {**kept, **results},
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=1) + "\n")
    console.print(f"written to {given.out}")
    return int(any(who.startswith("weft") for result in results.values() for who in result["failed"]))


if __name__ == "__main__":
    sys.exit(main())
