"""What a study concludes: from scores by seed and test row to intervals, paired differences and plain sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weft.bench.data import Column, Data
from weft.bench.methods import Method
from weft.bench.search import Trial
from weft.bench.statistics import Comparison, Resampling, Table, sentences
from weft.bench.statistics import compare as compared
from weft.bench.study import Study
from weft.bench.trainings import Final, Matrix
from weft.core.values import jsonable

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["Evidence"]

DRAWS = 4000


@dataclass(frozen=True)
class Evidence:
    """All that a study has measured.

    Attributes:
        study, data, methods: what was compared.
        seeds: of the final trainings.
        trials: every setting that was tried, by method.
        chosen: the best of them, or None where none was completed.
        finals: what came of the chosen settings, by method.
    """

    study: Study
    data: Data
    methods: Sequence[Method]
    seeds: Sequence[int]
    trials: dict[str, list[Trial]]
    chosen: dict[str, Trial | None]
    finals: dict[str, Final]

    def conclude(self) -> Json:
        """The part of `results.json` that the evidence tells, from `sentences` to `trials`."""
        data, study = self.data, self.study
        lost = [m.name for m in self.methods if m.name not in self.finals or not self.finals[m.name].seeds]
        good = {name: final for name, final in self.finals.items() if name not in lost}
        common = [seed for seed in self.seeds if all(seed in final.seeds for final in good.values())]
        tables = {name: final.table[[final.seeds.index(seed) for seed in common]] for name, final in good.items()}
        pairs: list[Comparison] = []
        told, resampling = [], None
        if tables and common:
            groups = data.test.labels if data.by == "group" else None
            resampling = Resampling(len(common), len(data.test), groups=groups, draws=DRAWS, random_state=study.seed)
            pairs = compared(tables, resampling, rising=data.rising, level=study.level)
            means = {name: float(table.mean()) for name, table in tables.items()}
            told = sentences(
                means, pairs, rising=data.rising, measure=data.measure, level=study.level, points=len(data.test)
            )
        if not told:
            told = ["No method could be trained; the trials below say why."]
        if lost:
            told.append(
                f"{', '.join(lost)} could not be trained here and {'is' if len(lost) == 1 else 'are'} left out."
            )
        return {
            "sentences": told,
            "measure": {"name": data.measure, "direction": "max" if data.rising else "min"},
            "data": data.about,
            "protocol": self._protocol(lost, good),
            "methods": [self._row(method, resampling) for method in self.methods],
            "comparisons": [dataclasses.asdict(pair) for pair in pairs],
            "trials": [trial for method in self.methods for trial in self.trials[method.name]],
        }

    def _protocol(self, lost: list[str], good: dict[str, Final]) -> Json:
        """How it was done, and what the reader should know."""
        data, study = self.data, self.study
        notes = [*data.notes, *(f"{name}: every trial or training failed or diverged; left out" for name in lost)]
        notes += [
            f"{name}: {final.diverged} of {study.seeds} trainings diverged and are left out of every comparison"
            for name, final in good.items()
            if final.diverged
        ]
        if data.by == "environment":
            notes.append(f"everybody gets {study.rows} rows of each environment per update")
        if study.seeds == 1:
            notes.append("one seed: how much a training varies by itself is not known, and intervals are too narrow")
        outside = [str(name) for name in np.unique(data.test.belonging)] if data.by == "environment" else None
        return {
            "split": {
                "by": data.by,
                "seed": study.seed,
                "rows": {"train": len(data.train), "validation": len(data.validation), "test": len(data.test)},
                "test_environments": outside,
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
        }

    def _row(self, method: Method, resampling: Resampling | None) -> Json:
        """What is said of one method."""
        final, best, trials = self.finals.get(method.name), self.chosen[method.name], self.trials[method.name]
        row: Json = {
            "name": method.name,
            "objective": final.objective if final else method.objective,
            "strategy": final.strategy if final else method.strategy,
            "setting": best["setting"] if best else {},
            "validation": best["value"] if best else None,
            "trials": {state: sum(t["state"] == state for t in trials) for state in ("complete", "failed", "diverged")},
            "scores": [],
            "mean": None,
            "interval": None,
            "seconds": round(sum(t["seconds"] for t in trials) + (final.seconds if final else 0.0), 3),
            "environments": None,
            "worst": None,
            "tasks": None,
            "matrix": final.matrix if final else None,
            "task_names": self.data.names if self.data.by == "task" else None,
            "continual": self._kept(final.matrix) if final and final.matrix else None,
            "curves": final.curves if final else None,
        }
        if final is None or not final.seeds:
            return row
        table, labels = final.table, self.data.test.labels
        row["scores"] = table.mean(1).tolist()
        row["mean"] = float(table.mean())
        if resampling is not None and len(table) == len(resampling.rows[0]):
            row["interval"] = list(resampling.interval(table, self.study.level))
        if self.data.by == "environment" and labels is not None:
            row["environments"] = {**(final.training or {}), **_by_label(table, labels, part="test")}
            places = {name: place["scores"] for name, place in row["environments"].items() if place["scores"]}
            means = {name: float(np.mean(scores)) for name, scores in places.items()}
            worst = (min if self.data.rising else max)(means, key=lambda name: means[name])
            row["worst"] = {"environment": worst, "score": means[worst]}
        if self.data.by == "task" and labels is not None:
            row["tasks"] = _by_label(table, labels)
        return row

    def _kept(self, matrix: Matrix) -> Json:
        """What is kept of earlier tasks, from the mean over seeds of the scores after each task on each."""
        from weft.measures import average_accuracy, backward_transfer, forgetting

        more = self.data.rising
        R = np.array([[np.nan if value is None else value for value in line] for line in matrix], dtype=float)
        kept: Json = jsonable(
            {
                "average": average_accuracy(R),
                "forgetting_max": forgetting(R, more=more),
                "forgetting_learned": forgetting(R, kind="learned", more=more),
                "backward_transfer": backward_transfer(R, more=more),
            }
        )
        return kept


def _by_label(table: Table, labels: Column, **more: str) -> Json:
    return {
        str(name): {
            "rows": int((labels == name).sum()),
            **more,
            "scores": table[:, labels == name].mean(1).tolist(),
        }
        for name in np.unique(labels)
    }
