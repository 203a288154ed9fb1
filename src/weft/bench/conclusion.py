"""What a study concludes: from scores by seed and test row to intervals, paired differences and plain sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weft.bench.data import Column, Data
from weft.bench.methods import Method
from weft.bench.search import STARTUP, Trial
from weft.bench.statistics import Comparison, Table, interval, lacking, sentences
from weft.bench.statistics import compare as compared
from weft.bench.study import Study
from weft.bench.trainings import Base, Final, Matrix, base_rate
from weft.core.configured import Range
from weft.core.values import jsonable

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["Evidence"]

EDGE = 0.02  # of a range, on its own scale


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
        tables = self._tables(good)
        base = base_rate(study, data)
        pairs: list[Comparison] = []
        told = []
        if tables:
            groups = self._groups()
            points = len(data.test) if groups is None else len(np.unique(groups))
            pairs = compared(tables, rising=data.rising, level=study.level, groups=groups)
            told = sentences(
                {name: float(table.mean()) for name, table in tables.items()},
                pairs,
                rising=data.rising,
                measure=data.measure,
                level=study.level,
                points=len(data.test),
                lacks=lacking(study.seeds, points),
                warnings=self._warnings(good, base),
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
            "base": base,
            "methods": [self._row(method, tables.get(method.name)) for method in self.methods],
            "comparisons": [dataclasses.asdict(pair) for pair in pairs],
            "trials": [trial for method in self.methods for trial in self.trials[method.name]],
        }

    def _groups(self) -> Column | None:
        """What each test row belongs to, where rows belong together."""
        return self.data.test.labels if self.data.by == "group" else None

    def _tables(self, good: dict[str, Final]) -> dict[str, Table]:
        """Scores of every seed; a training that diverged has the worst: 0, or each row's largest squared error."""
        if not good:
            return {}
        worst = np.zeros(len(self.data.test))
        if not self.data.rising:
            y = self.data.test.y.astype(np.float64)
            mean = self.data.train.plus(self.data.validation).y.astype(np.float64).mean()
            worst = np.max([(y - mean) ** 2, *(final.table.max(0) for final in good.values())], axis=0)
        return {
            name: np.stack([final.table[final.seeds.index(k)] if k in final.seeds else worst for k in self.seeds])
            for name, final in good.items()
        }

    def _warnings(self, good: dict[str, Final], base: Base) -> list[str]:
        """What makes the verdict doubtful: trainings that diverged, methods that have learned or searched little."""
        study, told = self.study, []
        for name, final in good.items():
            if final.diverged:
                told.append(
                    f"{final.diverged} of {study.seeds} trainings of {name} diverged and count with the worst score"
                )
        kinds = {name: final.kind or "exact" for name, final in good.items()}
        if len(set(kinds.values())) > 1:
            of = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
            told.append(f"the scores are not of one kind ({of}), and a difference may be that of the kinds")
        flat = [name for name in good if self._flat(name, base)]
        if flat:
            who = (
                "no method is"
                if len(flat) == len(good)
                else f"{' and '.join(flat)} {'is' if len(flat) == 1 else 'are'} not"
            )
            told.append(f"{who} better than the base rate on validation ({base['validation']:.3g})")
        for method in self.methods:
            best = self.chosen[method.name]
            edges = [name for name, r in method.space.items() if best and _at_edge(best["setting"][name], r)]
            if edges and method.name in good:
                names = " and ".join(name.partition("__")[2] for name in edges)
                told.append(f"the {names} chosen for {method.name} is at the edge of what was searched")
        if study.budget <= STARTUP and any(method.space for method in self.methods):
            some = "one setting" if study.budget == 1 else f"{study.budget} settings"
            told.append(
                f"{some} each are too few to tell whether a method was given its best (more than {STARTUP} would)"
            )
        return told

    def _flat(self, name: str, base: Base) -> bool:
        """Whether a method's validation is that of the base rate, as far as so many rows can tell."""
        best = self.chosen[name]
        if best is None or best["value"] is None:
            return False
        rate, seen = base["validation"], self.data.hold if self.data.hold is not None else self.data.validation
        if not self.data.rising:
            return best["value"] > 0.95 * rate
        return best["value"] < rate + 2 * float(np.sqrt(rate * (1 - rate) / max(len(seen), 1)))

    def _protocol(self, lost: list[str], good: dict[str, Final]) -> Json:
        """How it was done, and what the reader should know."""
        data, study = self.data, self.study
        notes = [*data.notes, *(f"{name}: every trial or training failed or diverged; left out" for name in lost)]
        notes += [
            f"{name}: {final.diverged} of {study.seeds} trainings diverged and count with the worst score "
            f"({'0' if data.rising else 'the largest squared error of any training on each row'})"
            for name, final in good.items()
            if final.diverged
        ]
        if data.by == "environment":
            notes.append(f"everybody gets {study.rows} rows of each environment per update")
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
            "correction": "Holm for p-values, Bonferroni for intervals",
            "notes": notes,
        }

    def _row(self, method: Method, table: Table | None) -> Json:
        """What is said of one method."""
        final, best, trials = self.finals.get(method.name), self.chosen[method.name], self.trials[method.name]
        row: Json = {
            "name": method.name,
            "objective": final.objective if final else method.objective,
            "strategy": final.strategy if final else method.strategy,
            "setting": best["setting"] if best else {},
            "validation": best["value"] if best else None,
            "trials": {state: sum(t["state"] == state for t in trials) for state in ("complete", "failed", "diverged")},
            "kind": final.kind if final else "",
            "scores": [],
            "diverged": final.diverged if final else 0,
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
        if final is None or table is None:
            return row
        labels = self.data.test.labels
        row["scores"] = table.mean(1).tolist()
        row["mean"] = float(table.mean())
        span = interval(table, self.study.level, self._groups(), share=self.data.rising)
        row["interval"] = list(span) if span else None
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


def _at_edge(value: float, searched: Range) -> bool:
    if (searched.low, searched.high) == (0.0, 1.0):  # a share: there is nothing beyond
        return False
    ends = np.array([searched.low, searched.high, value])
    low, high, at = (np.log(ends) if searched.log else ends).tolist()
    return min(at - low, high - at) <= EDGE * (high - low)


def _by_label(table: Table, labels: Column, **more: str) -> Json:
    return {
        str(name): {
            "rows": int((labels == name).sum()),
            **more,
            "scores": table[:, labels == name].mean(1).tolist(),
        }
        for name in np.unique(labels)
    }
