"""`weft compare`: methods on one data set, by one protocol, in a folder that can be interrupted and continued.

    split once -> every method tuned by the same budget on validation -> the chosen setting trained
    with fresh seeds -> the test looked at once -> paired differences with intervals -> a plain sentence

What its folder holds is said in `weft.bench.folder`, what is concluded in `weft.bench.conclusion`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from weft.bench.conclusion import Evidence
from weft.bench.data import Data
from weft.bench.fanout import Pool, pool
from weft.bench.folder import StudyFolder, now
from weft.bench.machine import machine, versions
from weft.bench.methods import Method, suitable
from weft.bench.search import Record, Setting, Trial, propose
from weft.bench.study import BUNDLED, Study
from weft.bench.trainings import fit_batch, refit
from weft.core.configured import shown

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["Comparing", "compare", "continued"]

FORMAT = 2
Heard = Callable[[int, int, str], None]


def compare(
    data: Study | str | Path | None = None,
    *,
    out: str | Path,
    table: Any = None,
    storage: str | None = None,
    on: str = "joblib",
    workers: int | None = None,
    heard: Heard | None = None,
    **study: Any,
) -> Json:
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
        >>> results = compare(table=flowers, target="target", out=folder, workers=1, **small)
        >>> results["methods"][0]["mean"] > 0.8
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
            method.check(self.data.by)
        asked = {**dataclasses.asdict(self.study), "methods": list(texts), "data": self.data.about["sha256"]}
        self.fingerprint = hashlib.sha256(json.dumps([FORMAT, asked], sort_keys=True).encode()).hexdigest()

    def __enter__(self) -> Comparing:
        self.plan()
        self.started = time.monotonic()
        self.kept = StudyFolder(self.folder, self.study, self._plan())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kept.close()

    def _plan(self) -> Json:
        """What the study means here, as `plan.json` keeps it."""
        from weft import __version__

        return {
            "format": FORMAT,
            "weft": __version__,
            "fingerprint": self.fingerprint,
            "study": dataclasses.asdict(self.study),
            "methods": [method.name for method in self.methods],
            "data": self.data.about,
        }

    # --- the work -------------------------------------------------------------------------------------

    def run(self) -> Json:
        """Does what is not yet done, and writes `results.json`."""
        self.record = Record(self.storage, self.folder, self.fingerprint, rising=self.data.rising)
        budgets = {m.name: self.study.budget if m.space else 1 for m in self.methods}
        trials = {m.name: self.record.trials(m.name) for m in self.methods}
        self.total = sum(budgets.values()) + len(self.methods)
        self.done = sum(len(tried) for tried in trials.values())
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
        finals = {m.name: self.kept.final(i) for i, m in enumerate(self.methods) if chosen[m.name] is not None}
        evidence = Evidence(self.study, self.data, self.methods, self.seeds, trials, chosen, finals)
        results = self._results(evidence)
        self.kept.write("results.json", results)
        self._tell("done")
        return results

    def _tune(self, run: Pool, first: int, budgets: dict[str, int], trials: dict[str, list[Trial]]) -> None:
        """One batch of proposals for every method; what is recorded already is not run again."""
        jobs: list[tuple[Method, list[int], list[Setting]]] = []
        for method in self.methods:
            known = {trial["number"] for trial in trials[method.name]}
            numbers = list(range(first, min(first + self.study.batch, budgets[method.name])))
            missing = [number for number in numbers if number not in known]
            if not missing:
                continue
            before = [trial for trial in trials[method.name] if trial["number"] < first]
            settings = propose(
                method.space,
                before,
                missing,
                rising=self.data.rising,
                seed=self.study.seed,
                name=method.name,
                default=method.default(self.study, self.data),
            )
            parts = [slice(None)] if self._stacks(method) else [slice(i, i + 1) for i in range(len(missing))]
            jobs += [(method, missing[part], settings[part]) for part in parts]
        calls = [(fit_batch, (self.study, self.data, method, settings)) for method, _, settings in jobs]
        for index, outcomes in run(calls):
            method, numbers, settings = jobs[index]
            for number, setting, outcome in zip(numbers, settings, outcomes, strict=True):
                trial: Trial = {"method": method.name, "number": number, "setting": setting, **outcome}
                self.record.add(method.name, trial, method.space)
                self.done += 1
            self._tell(f"tuning {method.name}")
        for method in self.methods:
            trials[method.name] = self.record.trials(method.name)

    def _stacks(self, method: Method) -> bool:
        """Whether its settings can be trained as replicas of one training."""
        learner = method.learner(self.study, self.data)
        free = {"optimizer__lr", *(f"strategy__{name}" for name in learner.settings().strategy.sweeps)}
        return set(method.space) <= free

    def _best(self, trials: list[Trial]) -> Trial | None:
        """The best on validation; of equals the first."""
        done = [(v, trial) for trial in trials if (v := trial["value"]) is not None and trial["state"] == "complete"]
        good = [(v, trial) for v, trial in done if math.isfinite(v)]
        sign = -1.0 if self.data.rising else 1.0
        return min(good, key=lambda pair: (sign * pair[0], pair[1]["number"]))[1] if good else None

    @property
    def seeds(self) -> list[int]:
        """The seeds of the final trainings, which tuning has not used."""
        from weft.core.random import fold, integer, key_of

        return [integer(fold(key_of(self.study.seed), "refit", k)) % 2**31 for k in range(self.study.seeds)]

    def _look(self, run: Pool, chosen: dict[str, Trial | None]) -> None:
        """Trains each chosen setting anew and looks at the test: once for each method, and the ledger says so."""
        if self.study.selection == "oracle" and self.data.hold is not None and not self.kept.ledger():
            what = "selection by oracle: held-out rows of the test environments, at every trial"
            for method in self.methods:
                self.kept.note(what, method.name, len(self.data.hold), 1)
        jobs = []
        for i, method in enumerate(self.methods):
            best = chosen[method.name]
            if self.kept.has_final(i):
                self.done += 1
            elif best is not None:
                again = any(
                    line["method"] == method.name and line["what"].startswith("test") for line in self.kept.ledger()
                )
                what = "test, again: an interruption came before its result was kept" if again else "test"
                self.kept.note(what, method.name, len(self.data.test), self.study.seeds)
                jobs.append((i, method, best))
        calls = [(refit, (self.study, self.data, method, best["setting"], self.seeds)) for _, method, best in jobs]
        for index, final in run(calls):
            i, method, _ = jobs[index]
            self.kept.keep_final(i, final)
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
        self.kept.write("progress.json", progress)
        if self.heard is not None:
            self.heard(self.done, self.total, what)

    def _results(self, evidence: Evidence) -> Json:
        """What `results.json` holds."""
        from weft import __version__

        return {
            "format": 1,
            "kind": "study",
            "name": self.folder.resolve().name,
            "weft": __version__,
            "date": now(),
            "command": self._command(),
            "seconds": round(time.monotonic() - self.started, 3),
            "state": "done",
            **evidence.conclude(),
            "ledger": self.kept.ledger(),
            "versions": versions(),
            "machine": machine(),
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

    def estimate(self) -> Json:
        """The plan and what it will cost, from a few updates of each method; nothing is written."""
        self.plan()
        rows: list[Json] = []
        for method in self.methods:
            budget = self.study.budget if method.space else 1
            width = min(self.study.batch, budget)
            numbers = list(range(width))
            settings = propose(
                method.space, [], numbers, rising=self.data.rising, seed=self.study.seed, name=method.name
            )
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
