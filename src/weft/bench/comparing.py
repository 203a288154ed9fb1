"""`weft compare`: methods on one data set, by one protocol, in a folder that can be interrupted and continued.

    split once -> every method tuned by the same budget on validation -> the chosen setting trained
    with fresh seeds -> the test looked at once -> paired differences with intervals -> a plain sentence

The folder holds `study.toml` (what was asked), `plan.json` (what that means here), `study.db` (every
trial), `finals/` (each method's scores by test row), `ledger.jsonl` (every look at the test) and `results.json`.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import io
import json
import os
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from weft.bench.fanout import Pool, pool
from weft.bench.machine import machine, versions
from weft.bench.protocol import Data, Method, fit_batch, refit, suitable
from weft.bench.search import Record, Trial, propose
from weft.bench.statistics import Resampling, sentences
from weft.bench.statistics import compare as compared
from weft.bench.study import BUNDLED, Study
from weft.core.configured import shown

__all__ = ["Comparing", "compare", "continued"]

FORMAT = 1
DRAWS = 4000
_OWN = {"study.toml", "plan.json", "study.db", "ledger.jsonl", "results.json", "progress.json", "finals", "report.html"}
Heard = Callable[[int, int, str], None]


def compare(
    data: Any = None,
    *,
    out: str | Path,
    table: Any = None,
    storage: str | None = None,
    on: str = "joblib",
    workers: int | None = None,
    heard: Heard | None = None,
    **study: Any,
) -> dict[str, Any]:
    """Compares methods on a table, and gives what `results.json` holds.

    Args:
        data: a table's file, a `Study`, or None for the bundled digits.
        out: the study's folder; one with the same study in it is continued.
        table: a DataFrame or a dictionary of columns in place of a file.
        storage: the URL of a database for the trials, in place of SQLite in the folder.
        on: `joblib` (this machine), `ray`, or a Ray cluster's address.
        workers: jobs at a time; default: one for each core.
        heard: called with (done, total, what) as the study goes on.
        study: fields of `Study`: `target`, `environment`, `methods`, `budget`, `seeds`, ...

    Example:
        >>> import tempfile
        >>> from sklearn.datasets import load_iris
        >>> flowers = load_iris(as_frame=True).frame
        >>> folder = tempfile.mkdtemp()
        >>> small = {"methods": ["erm"], "budget": 2, "batch": 2, "seeds": 2, "steps": 50}
        >>> found = compare(table=flowers, target="target", out=folder, workers=1, **small)
        >>> found["methods"][0]["mean"] > 0.8
        True
    """
    if not isinstance(data, Study):
        study = {**study, "data": "a table in memory" if table is not None else (str(data) if data else BUNDLED)}
        data = Study.make(**study)
    elif study:
        raise TypeError(f"expected a Study or its fields, got both: {sorted(study)}")
    with Comparing(data, Path(out), table=table, storage=storage, on=on, workers=workers, heard=heard) as work:
        return work.run()


def continued(folder: Path) -> Study:
    """The study that a folder holds, to go on with it."""
    path = folder / "study.toml"
    if not path.exists():
        raise ValueError(f"expected a study in {shown(folder, 200)}, got none; name the data to begin one there")
    return Study.read(path)


@dataclass
class Comparing:
    """A study at work in its folder, which it holds alone meanwhile."""

    study: Study
    folder: Path
    table: Any = None
    storage: str | None = None
    on: str = "joblib"
    workers: int | None = None
    heard: Heard | None = None

    # --- beginning ------------------------------------------------------------------------------------

    def plan(self) -> None:
        """Reads the data and the methods; nothing is written."""
        self.data = Data.read(self.study, self.table)
        classes = self.data.classes is not None
        texts = self.study.methods or tuple(suitable(self.study, classes))
        if len(set(texts)) < len(texts):
            raise ValueError(f"expected every method once, got {', '.join(texts)}")
        self.methods = [Method.parse(text, classes) for text in texts]
        for method in self.methods:
            self._fits(method)
        asked = {**dataclasses.asdict(self.study), "methods": list(texts), "data": self.data.about["sha256"]}
        self.fingerprint = hashlib.sha256(json.dumps([FORMAT, asked], sort_keys=True).encode()).hexdigest()
        self.rising = classes
        self.measure = "accuracy" if classes else "mse"

    def _fits(self, method: Method) -> None:
        from weft.core.spelling import parse

        way = parse(method.strategy, "strategies") if method.strategy else None
        reads = method.objective and "environment" in parse(method.objective, "objectives").fields
        if way is not None and (way.needs == "group" or way.per_group):
            reads = True
        if reads and self.data.by != "environment":
            raise ValueError(
                f"expected environments for {method.name!r}, which compares them, got none; name their column with "
                "--environment"
            )
        if way is not None and way.does("consolidate") and self.data.by != "task":
            raise ValueError(
                f"expected tasks for {method.name!r}, which remembers them, got none; name their column with --task"
            )

    def __enter__(self) -> Comparing:
        self.plan()
        self.started = time.monotonic()
        self._claim()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.lock.close()

    def _claim(self) -> None:
        """Makes the folder, or checks that it holds this very study; nobody else may work in it meanwhile."""
        from weft.core.files import write_text

        folder = self.folder
        if folder.exists() and not folder.is_dir():
            raise ValueError(
                f"expected a folder for the study, got the file {shown(folder)}; choose another with --out"
            )
        names = {p.name for p in folder.iterdir() if not p.name.startswith(".")} if folder.exists() else set()
        if names and "plan.json" not in names and names - _OWN:
            raise ValueError(
                f"expected a new folder or a study's, got {shown(folder)} with {shown(min(names - _OWN))} in it; "
                "choose another with --out"
            )
        try:
            (folder / "finals").mkdir(parents=True, exist_ok=True)
            self.lock = open(folder / ".lock", "a+")  # noqa: SIM115 (held while the study is at work)
        except OSError as error:
            raise OSError(f"expected a folder that can be written, got {folder}: {error.strerror}") from error
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.lock.close()
            raise ValueError(
                f"expected to work in {folder} alone, got another process at work on that study"
            ) from error
        try:
            self._agree()
            path = Path(self.study.data)
            here = os.path.relpath(path.resolve(), folder.resolve()) if path.is_file() else self.study.data
            write_text(folder / "study.toml", dataclasses.replace(self.study, data=here).to_toml())
        except BaseException:
            self.lock.close()
            raise

    def _agree(self) -> None:
        from weft import __version__
        from weft.core.files import write_text

        path = self.folder / "plan.json"
        plan = {
            "format": FORMAT,
            "weft": __version__,
            "fingerprint": self.fingerprint,
            "study": dataclasses.asdict(self.study),
            "methods": [method.name for method in self.methods],
            "data": self.data.about,
        }
        plan = json.loads(json.dumps(plan))
        if not path.exists():
            write_text(path, json.dumps(plan, indent=1) + "\n")
            return
        try:
            kept = json.loads(path.read_text())
            print_, about, asked = kept["fingerprint"], kept["data"], kept["study"]
            names = kept["methods"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"expected weft's plan in {path}, got a damaged or foreign file: {error!r}") from error
        if print_ == self.fingerprint:
            return
        other = sorted(name for name in plan["study"] if asked.get(name) != plan["study"][name] and name != "data")
        if about.get("sha256") != plan["data"]["sha256"]:
            other.insert(0, "data")
        if names != plan["methods"] and "methods" not in other:
            other.append("methods")
        raise ValueError(
            f"expected the study that {self.folder} holds, got one that differs in {', '.join(other) or 'its format'}; "
            f"go on with that one: weft compare --out {shlex.quote(str(self.folder))}, or choose another --out"
        )

    # --- the work -------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Does what is not yet done, and writes `results.json`."""
        self.record = Record(self.storage, self.folder, self.fingerprint, rising=self.rising)
        budgets = {m.name: self.study.budget if m.space else 1 for m in self.methods}
        trials = {m.name: self.record.trials(m.name) for m in self.methods}
        self.total = sum(budgets.values()) + len(self.methods)
        self.done = sum(len(found) for found in trials.values())
        self._tell("tuning")
        try:
            with pool(self.on, self.workers or os.cpu_count() or 1) as run:
                for first in range(0, max(budgets.values()), self.study.batch):
                    self._tune(run, first, budgets, trials)
                chosen = {m.name: self._best(trials[m.name]) for m in self.methods}
                self._look(run, chosen)
        except RuntimeError as error:
            kept = f"what had been recorded is kept in {self.folder}: run the same command again to go on"
            raise RuntimeError(f"{error}; {kept}") from error
        results = self._conclude(trials, chosen)
        self._write("results.json", results)
        self._tell("done")
        return results

    def _tune(self, run: Pool, first: int, budgets: dict[str, int], trials: dict[str, list[Trial]]) -> None:
        """One batch of proposals for every method; what is recorded already is not run again."""
        jobs: list[tuple[Method, list[int], list[dict[str, Any]]]] = []
        for method in self.methods:
            known = {trial["number"] for trial in trials[method.name]}
            numbers = list(range(first, min(first + self.study.batch, budgets[method.name])))
            missing = [number for number in numbers if number not in known]
            if not missing:
                continue
            before = [trial for trial in trials[method.name] if trial["number"] < first]
            settings = propose(
                method.space, before, missing, rising=self.rising, seed=self.study.seed, name=method.name
            )
            parts = [slice(None)] if self._stacks(method) else [slice(i, i + 1) for i in range(len(missing))]
            jobs += [(method, missing[part], settings[part]) for part in parts]
        calls = [(fit_batch, (self.study, self.data, method, settings)) for method, _, settings in jobs]
        for index, found in run(calls):
            method, numbers, settings = jobs[index]
            for number, setting, result in zip(numbers, settings, found, strict=True):
                trial = {"method": method.name, "number": number, "setting": setting, **result}
                self.record.add(method.name, trial, method.space)
                self.done += 1
            self._tell(f"tuning {method.name}")
        for method in self.methods:
            trials[method.name] = self.record.trials(method.name)

    def _stacks(self, method: Method) -> bool:
        """Whether its settings can be trained as replicas of one training."""
        learner = method.learner(self.study, self.data)
        free = {"optimizer__lr", *(f"strategy__{name}" for name in learner._strategy().sweeps)}
        return set(method.space) <= free

    def _best(self, trials: list[Trial]) -> Trial | None:
        """The best on validation; of equals the first."""
        good = [trial for trial in trials if trial["state"] == "complete"]
        return min(good, key=lambda t: (-t["value"] if self.rising else t["value"], t["number"])) if good else None

    @property
    def seeds(self) -> list[int]:
        """The seeds of the final trainings, which tuning has not used."""
        from weft.core.random import fold, integer, key_of

        return [integer(fold(key_of(self.study.seed), "refit", k)) % 2**31 for k in range(self.study.seeds)]

    def _look(self, run: Pool, chosen: dict[str, Trial | None]) -> None:
        """Trains each chosen setting anew and looks at the test: once for each method, and the ledger says so."""
        if self.study.selection == "oracle" and self.data.hold is not None and not self._ledger():
            what = "selection by oracle: held-out rows of the test environments, at every trial"
            for method in self.methods:
                self._note(what, method.name, len(self.data.hold), 1)
        jobs = []
        for i, method in enumerate(self.methods):
            best = chosen[method.name]
            if (self.folder / "finals" / f"{i}.npz").exists():
                self.done += 1
            elif best is not None:
                again = any(
                    line["method"] == method.name and line["what"].startswith("test") for line in self._ledger()
                )
                what = "test, again: an interruption came before its result was kept" if again else "test"
                self._note(what, method.name, len(self.data.test), self.study.seeds)
                jobs.append((i, method, best))
        calls = [(refit, (self.study, self.data, method, best["setting"], self.seeds)) for _, method, best in jobs]
        for index, found in run(calls):
            i, method, _ = jobs[index]
            table = found.pop("table")
            packed = io.BytesIO()
            np.savez_compressed(packed, table=table, about=np.array(json.dumps(found)))
            from weft.core.files import write_bytes

            write_bytes(self.folder / "finals" / f"{i}.npz", packed.getvalue())
            self.done += 1
            self._tell(f"training {method.name} anew")

    # --- telling --------------------------------------------------------------------------------------

    def _tell(self, what: str) -> None:
        seconds = time.monotonic() - self.started
        if not hasattr(self, "_begun"):
            self._begun = (self.done, seconds)
        made = self.done - self._begun[0]
        remaining = (seconds - self._begun[1]) / made * (self.total - self.done) if made else None
        progress = {"done": self.done, "total": self.total, "seconds": seconds, "remaining": remaining, "what": what}
        self._write("progress.json", progress)
        if self.heard is not None:
            self.heard(self.done, self.total, what)

    def _write(self, name: str, plain: Any) -> None:
        from weft.core.files import write_text

        try:
            write_text(self.folder / name, json.dumps(plain, indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise OSError(
                f"expected to write {self.folder / name}, got {error.strerror}; what had been recorded is kept, run "
                "the same command again to go on"
            ) from error

    def _ledger(self) -> list[dict[str, Any]]:
        path = self.folder / "ledger.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]

    def _note(self, what: str, method: str, rows: int, seeds: int) -> None:
        """Adds a look at the test to the ledger, before it happens."""
        line = {"time": _now(), "what": what, "method": method, "rows": rows, "seeds": seeds, "part": "test"}
        with open(self.folder / "ledger.jsonl", "a") as ledger:
            ledger.write(json.dumps(line) + "\n")
            ledger.flush()
            os.fsync(ledger.fileno())

    # --- the end --------------------------------------------------------------------------------------

    def _conclude(self, trials: dict[str, list[Trial]], chosen: dict[str, Trial | None]) -> dict[str, Any]:
        from weft import __version__

        data, study = self.data, self.study
        finals = {m.name: self._final(i) for i, m in enumerate(self.methods) if chosen[m.name] is not None}
        lost = [m.name for m in self.methods if m.name not in finals or not finals[m.name]["seeds"]]
        good = {name: final for name, final in finals.items() if name not in lost}
        common = [seed for seed in self.seeds if all(seed in final["seeds"] for final in good.values())]
        tables = {name: final["table"][[final["seeds"].index(seed) for seed in common]] for name, final in good.items()}
        notes = [*data.notes, *(f"{name}: every trial or training failed or diverged; left out" for name in lost)]
        notes += [
            f"{name}: {final['diverged']} of {study.seeds} trainings diverged and are left out of every comparison"
            for name, final in good.items()
            if final["diverged"]
        ]
        if data.by == "environment":
            notes.append(f"everybody gets {study.rows} rows of each environment per update")
        told, pairs, resampling = [], [], None
        if tables and common:
            groups = data.test.labels if data.by == "group" else None
            resampling = Resampling(len(common), len(data.test), groups=groups, draws=DRAWS, random_state=study.seed)
            pairs = compared(tables, resampling, rising=self.rising, level=study.level)
            means = {name: float(table.mean()) for name, table in tables.items()}
            told = sentences(
                means, pairs, rising=self.rising, measure=self.measure, level=study.level, points=len(data.test)
            )
        if not told:
            told = ["No method could be trained; the trials below say why."]
        if lost:
            told.append(
                f"{', '.join(lost)} could not be trained here and {'is' if len(lost) == 1 else 'are'} left out."
            )
        if study.seeds == 1:
            notes.append("one seed: how much a training varies by itself is not known, and intervals are too narrow")
        return {
            "format": FORMAT,
            "kind": "study",
            "name": self.folder.resolve().name,
            "weft": __version__,
            "date": _now(),
            "command": self._command(),
            "seconds": round(time.monotonic() - self.started, 3),
            "state": "done",
            "sentences": told,
            "measure": {"name": self.measure, "direction": "max" if self.rising else "min"},
            "data": data.about,
            "protocol": {
                "split": {
                    "by": data.by,
                    "seed": study.seed,
                    "rows": {"train": len(data.train), "validation": len(data.validation), "test": len(data.test)},
                    "test_environments": _labels(data.test.labels) if data.by == "environment" else None,
                },
                "selection": study.selection,
                "budget": study.budget,
                "batch": study.batch,
                "seeds": self.seeds,
                "steps": study.steps,
                "level": study.level,
                "resamples": DRAWS,
                "correction": "Holm for p-values, Bonferroni for intervals",
                "notes": notes,
            },
            "methods": [
                self._row(m, finals.get(m.name), chosen[m.name], trials[m.name], resampling) for m in self.methods
            ],
            "comparisons": [dataclasses.asdict(pair) for pair in pairs],
            "trials": [trial for m in self.methods for trial in trials[m.name]],
            "ledger": self._ledger(),
            "versions": versions(),
            "machine": machine(),
        }

    def _final(self, i: int) -> dict[str, Any]:
        path = self.folder / "finals" / f"{i}.npz"
        try:
            with np.load(path, allow_pickle=False) as kept:
                return {"table": kept["table"], **json.loads(str(kept["about"]))}
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(
                f"expected a method's scores in {path}, got a damaged or foreign file ({error}); remove it, and the "
                "same command makes it anew"
            ) from error

    def _row(
        self,
        method: Method,
        final: dict[str, Any] | None,
        best: Trial | None,
        trials: list[Trial],
        resampling: Resampling | None,
    ) -> dict[str, Any]:
        counts = {state: sum(t["state"] == state for t in trials) for state in ("complete", "failed", "diverged")}
        row: dict[str, Any] = {
            "name": method.name,
            "objective": final["objective"] if final else method.objective,
            "strategy": final["strategy"] if final else method.strategy,
            "setting": best["setting"] if best else {},
            "validation": best["value"] if best else None,
            "trials": counts,
            "scores": [],
            "mean": None,
            "interval": None,
            "seconds": round(sum(t["seconds"] for t in trials) + (final["seconds"] if final else 0.0), 3),
            "environments": None,
            "worst": None,
            "tasks": None,
            "matrix": final["matrix"] if final else None,
            "task_names": self.data.names if self.data.by == "task" else None,
            "continual": self._kept(final["matrix"]) if final and final["matrix"] else None,
            "curves": final["curves"] if final else None,
        }
        if final is None or not final["seeds"]:
            return row
        table, labels = final["table"], self.data.test.labels
        row["scores"] = table.mean(1).tolist()
        row["mean"] = float(table.mean())
        if resampling is not None and len(table) == len(resampling.rows[0]):
            row["interval"] = list(resampling.interval(table, self.study.level))
        if self.data.by == "environment" and labels is not None:
            row["environments"] = {**(final["training"] or {}), **self._by_label(table, labels, part="test")}
            places = {name: place["scores"] for name, place in row["environments"].items() if place["scores"]}
            means = {name: float(np.mean(scores)) for name, scores in places.items()}
            worst = (min if self.rising else max)(means, key=lambda name: means[name])
            row["worst"] = {"environment": worst, "score": means[worst]}
        if self.data.by == "task" and labels is not None:
            row["tasks"] = self._by_label(table, labels)
        return row

    def _kept(self, matrix: list[list[float | None]]) -> dict[str, float | None]:
        """What is kept of earlier tasks, from the mean over seeds of the scores after each task on each."""
        from weft.measures import average_accuracy, backward_transfer, forgetting

        R = np.array([[np.nan if value is None else value for value in line] for line in matrix], dtype=float)
        found = {
            "average": average_accuracy(R),
            "forgetting_max": forgetting(R, more=self.rising),
            "forgetting_learned": forgetting(R, kind="learned", more=self.rising),
            "backward_transfer": backward_transfer(R, more=self.rising),
        }
        return {name: float(value) if np.isfinite(value) else None for name, value in found.items()}

    def _by_label(self, table: Any, labels: Any, **more: Any) -> dict[str, Any]:
        return {
            str(name): {
                "rows": int((labels == name).sum()),
                **more,
                "scores": table[:, labels == name].mean(1).tolist(),
            }
            for name in np.unique(labels)
        }

    def _command(self) -> str:
        """The command line that makes this study again."""
        words = ["weft", "compare"]
        study = self.study
        if study.data != BUNDLED:
            words.append(study.data)
        bundled = Study.make()
        for field in dataclasses.fields(study):
            value = getattr(study, field.name)
            default = getattr(bundled, field.name) if study.data == BUNDLED else field.default
            usual = field.name == "selection" and study.data != BUNDLED and value == _usual(study)
            if value == default or field.name == "data" or usual:
                continue
            for one in value if isinstance(value, tuple) else (value,):
                words += [f"--{field.name}", str(one)]
        return shlex.join([*words, "--out", str(self.folder)])

    # --- before the work ------------------------------------------------------------------------------

    def estimate(self) -> dict[str, Any]:
        """The plan and what it will cost, from a few updates of each method; nothing is written."""
        self.plan()
        rows: list[dict[str, Any]] = []
        for method in self.methods:
            budget = self.study.budget if method.space else 1
            width = min(self.study.batch, budget)
            numbers = list(range(width))
            settings = propose(method.space, [], numbers, rising=self.rising, seed=self.study.seed, name=method.name)
            times = []
            for steps in (4, 4, 24):  # the first warms up
                short = dataclasses.replace(self.study, steps=steps)
                begun = time.perf_counter()
                fit_batch(short, self.data, method, settings)
                times.append(time.perf_counter() - begun)
            batch = times[1] + max(times[2] - times[1], 0.0) / 20 * (self.study.steps - 4)
            trainings = -(-budget // self.study.batch)
            final = batch * self.study.seeds / width
            tuned = {name: [r.low, r.high] for name, r in method.space.items()}
            rows.append({"name": method.name, "tuned": tuned, "trials": budget, "seconds": trainings * batch + final})
        workers = min(self.workers or os.cpu_count() or 1, len(rows))
        parts = {"train": len(self.data.train), "validation": len(self.data.validation), "test": len(self.data.test)}
        return {
            "data": self.data.about,
            "split": {"by": self.data.by, "rows": parts},
            "selection": self.study.selection,
            "methods": rows,
            "seeds": self.study.seeds,
            "steps": self.study.steps,
            "seconds": max(sum(row["seconds"] for row in rows) / workers, max(row["seconds"] for row in rows)),
        }


def _usual(study: Study) -> str:
    return "training-domain" if study.environment else "validation"


def _labels(labels: Any) -> list[str]:
    return [str(name) for name in np.unique(labels).tolist()]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
