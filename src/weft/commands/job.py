"""Trainings on tables: what `weft fit`, `weft resume` and `weft predict` do, without the printing.

A job is kept as `recipe.json` beside the run's own files: which data, which options, and how columns
become numbers. It is written before training starts, so that whatever happens afterwards, the run
can go on and answer. Like weft's other files it holds values only, nothing that could be run.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.configured import shown
from weft.core.spelling import parse
from weft.report import tasks as sequence
from weft.report.folder import is_run, keep_risk, run_folder
from weft.tables.files import Columns, read_columns
from weft.tables.recipe import Recipe, Table, plain_cell

if TYPE_CHECKING:
    from weft.core.objective import Objective
    from weft.learner.estimator import Learner

__all__ = ["Job", "Options", "as_csv", "clear", "new_folder", "predict", "rehearse", "train"]

FORMAT = 1
_OWN = re.compile(
    r"(config\.json|metrics\.jsonl|state\.json|state-\d+\.safetensors|recipe\.json|report\.html|(risk|tasks)\.(json|png))"
    r"|\.(config|metrics|state(-\d+)?|recipe|risk|tasks)\.(json|jsonl|safetensors|png)\.\d+\.tmp"
)


# --- the job ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """What `weft fit` was asked for; methods are kept as they were written."""

    target: str | None = None
    environment: str | None = None
    task: str | None = None
    drop: tuple[str, ...] = ()
    encoding: str = "utf-8"
    objective: str | None = None
    net: str | None = None
    strategy: str | None = None
    optimizer: str | None = None
    schedule: str | None = None
    replicas: int | None = None
    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 64
    validation: float = 0.2
    patience: int | None = None
    seed: int = 0
    device: str | None = None
    dtype: str = "float32"

    def make_objective(self) -> Objective | None:
        """The objective that was named, or None to see by the target."""
        if self.objective is None:
            return None
        objective = parse(self.objective, "objectives")
        if objective.fields[0] != "x":
            raise ValueError(
                f"expected an objective that learns from rows, got {self.objective}, which reads "
                f"{objective.fields[0]!r}; it is for Python: weft.Learner"
            )
        return objective

    def make_learner(self, recipe: Recipe, table: Table, folder: Path | None, *, verbose: bool) -> Learner:
        """The Learner that was asked for."""
        from weft.learner.estimator import Learner
        from weft.objectives import Classification, Regression

        objective = self.make_objective()
        if objective is None:
            objective = Classification() if recipe.target and recipe.target.kind == "classes" else Regression()
        if self.net is not None:
            if "net" not in objective._get_param_names():
                raise ValueError(
                    f"expected an objective with one net to give it {self.net}, got {self.objective}; name its nets by "
                    "its own settings"
                )
            objective.set_params(net=self.net)
        return Learner(
            objective,
            strategy=None if self.strategy is None else parse(self.strategy, "strategies"),
            optimizer=None if self.optimizer is None else parse(self.optimizer, "optimizers"),
            schedule=self.schedule,
            epochs=self.epochs,
            steps=self.steps,
            batch_size=self.batch_size or None,
            validation=_held_out(table),
            patience=self.patience,
            replicas=self.replicas,
            random_state=self.seed,
            device=self.device,
            dtype=self.dtype,
            verbose=verbose,
            folder=folder,
        )


@dataclass(frozen=True)
class Job:
    """A training on a table: the data, the options, and how columns become numbers.

    Attributes:
        data: the file's absolute path.
        size, sha256: its bytes' number and checksum.
        options: what was asked for.
        recipe: the encoding.
    """

    data: str
    size: int
    sha256: str
    options: Options
    recipe: Recipe

    @classmethod
    def plan(cls, columns: Columns, options: Options) -> Job:
        """Learns the recipe for what was asked for."""
        objective = options.make_objective()
        supervised = objective is None or "y" in objective.fields
        if supervised and options.target is None:
            raise ValueError("expected the column to be predicted, got none; name it with --target COLUMN")
        if not supervised and options.target is not None:
            raise ValueError(
                f"expected no target, as {options.objective} learns from all columns alike, got "
                f"{shown(options.target)}; leave --target out, or the column with --drop"
            )
        kind = None if objective is None or not supervised else objective.targets
        recipe = Recipe.learn(
            columns,
            target=options.target,
            environment=options.environment,
            task=options.task,
            drop=options.drop,
            kind=kind,
            validation=options.validation,
            seed=options.seed,
        )
        return cls(str(columns.path.resolve()), columns.size, columns.sha256, options, recipe)

    def keep(self, folder: Path) -> None:
        """Writes `recipe.json` to the run's folder, which is made if need be."""
        from weft import __version__
        from weft.core.files import write_text

        plain = {
            "weft": __version__,
            "format": FORMAT,
            "data": {"path": self.data, "bytes": self.size, "sha256": self.sha256},
            "options": dataclasses.asdict(self.options),
            "recipe": self.recipe.to_json(),
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / "recipe.json", json.dumps(plain, indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise OSError(f"expected a folder that can be written, got {folder}: {error.strerror}") from error

    @classmethod
    def open(cls, folder: Path) -> Job:
        """The job of a run that `weft fit` made."""
        path = run_folder(folder) / "recipe.json"
        if not path.exists():
            raise ValueError(
                f"expected a run that `weft fit` made in {folder}, got one without recipe.json, made in Python; go on "
                "there: weft.load(folder)"
            )
        try:
            plain = json.loads(path.read_text())
            if plain["format"] != FORMAT:
                raise ValueError(f"format {plain['format']!r}, of another version of weft")
            options = _options(plain["options"])
            data = plain["data"]
            return cls(
                str(data["path"]), int(data["bytes"]), str(data["sha256"]), options, Recipe.from_json(plain["recipe"])
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            told = str(error) if isinstance(error, ValueError) else repr(error)
            raise ValueError(f"expected weft's recipe in {path}, got a damaged or foreign file: {told}") from error

    def read(self, path: Path | None = None) -> Columns:
        """The data that the run was begun with; raises where the file has changed."""
        path = path or Path(self.data)
        if not path.exists():
            raise FileNotFoundError(
                f"expected the run's data in {path}, which is not there; if it was moved: --data PATH"
            )
        columns = read_columns(path, encoding=self.options.encoding)
        if columns.sha256 != self.sha256:
            raise ValueError(
                f"expected the data that the run was begun with, {self.size} bytes with SHA-256 {self.sha256[:12]}..., "
                f"got {path} with {columns.size} bytes, {columns.sha256[:12]}...; put the file back, or fit anew"
            )
        return columns


def _options(plain: Any) -> Options:
    """Options from a file, each of the kind that it must be."""
    kinds = {"str | None": (str, type(None)), "int | None": (int, type(None)), "tuple[str, ...]": (tuple,)}
    kinds.update({"str": (str,), "int": (int,), "float": (float, int)})
    options = Options(**{**plain, "drop": tuple(map(str, plain["drop"]))})
    for spec in dataclasses.fields(Options):
        value = getattr(options, spec.name)
        if not isinstance(value, kinds[str(spec.type)]):
            raise ValueError(f"{spec.name} is {value!r}")
    return options


# --- the folder ---------------------------------------------------------------------------------------


def new_folder(data: Path) -> Path:
    """A free name for a run on this data: `runs/iris`, `runs/iris-2`, ..."""
    base = Path("runs") / (re.sub(r"[^\w.-]+", "_", data.stem).lstrip(".-") or "table")
    number = 1
    while (folder := base if number == 1 else base.with_name(f"{base.name}-{number}")).exists():
        number += 1
    return folder


def clear(folder: Path, *, force: bool) -> None:
    """Makes way for a new run: removes an old run's own files, if asked to, and never anything else."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"expected a folder for the run, got the file {shown(folder)}; choose another with --out")
    names = sorted(p.name for p in folder.iterdir()) if folder.exists() else []
    if not names:
        return
    foreign = [name for name in names if not _OWN.fullmatch(name)]
    if foreign or not is_run(folder):
        what = shown((foreign or names)[0])
        raise ValueError(
            f"expected a new or empty folder for the run, got {shown(folder)} with what is not a run's ({what}); "
            "choose another with --out"
        )
    if not force:
        raise ValueError(
            f"expected a new or empty folder for the run, got {shown(folder)} with a run in it; choose another with "
            f"--out, replace it with --force, or go on with it: weft resume {folder}"
        )
    _remove(folder, names)


def _remove(folder: Path, names: list[str]) -> None:
    """Removes weft's own files; what says that this is a run goes last, so that it can be done again."""
    for name in sorted(names, key=lambda name: name in ("recipe.json", "config.json")):
        (folder / name).unlink(missing_ok=True)


# --- training and answering ---------------------------------------------------------------------------


def _held_out(table: Table) -> tuple[Any, Any] | None:
    if table.held is None or not table.held.any():
        return None
    return table.X[table.held], None if table.y is None else table.y[table.held]


def rehearse(job: Job, columns: Columns) -> None:
    """Raises what `train` would raise before its first step; an old run is not given up for one that cannot begin."""
    table = job.recipe.apply(columns, quiet=True)
    learner = job.options.make_learner(job.recipe, table, None, verbose=False)
    learner._check(learner._objective(), learner._strategy())
    learner.set_params(epochs=None, steps=0)
    learner.fit(table.X, table.y, environment=table.environment)


def train(job: Job, columns: Columns, folder: Path, *, verbose: bool = False, resume: bool = False) -> dict[str, Any]:
    """Trains in a folder, or goes on with what was interrupted there; gives the result."""
    import weft

    table = job.recipe.apply(columns, quiet=True)
    rows = ~table.held if table.held is not None else np.ones(len(table.X), dtype=bool)
    part = {"environment": None if table.environment is None else table.environment[rows]}
    y = None if table.y is None else table.y[rows]
    before = 0
    if resume and (folder / "state.json").exists():
        learner = weft.load(folder, validation=_held_out(table))
        learner.set_params(validation=_held_out(table), verbose=verbose)
        before = learner.n_steps_
        if table.task is None:
            learner.resume(table.X[rows], y, **part)
        else:
            _in_sequence(job, learner, table, rows, folder)
    else:
        learner = job.options.make_learner(job.recipe, table, folder, verbose=verbose)
        if resume:  # it had not come to its first checkpoint
            _remove(folder, [p.name for p in folder.iterdir() if _OWN.fullmatch(p.name) and p.name != "recipe.json"])
        else:
            job.keep(folder)
        try:
            if table.task is None:
                learner.fit(table.X[rows], y, **part)
            else:
                _in_sequence(job, learner, table, rows, folder)
            if not (folder / "state.json").exists():
                learner.save(folder)  # solved in closed form, not trained
        except Exception:
            if not resume and not (folder / "state.json").exists():
                _remove(folder, [p.name for p in folder.iterdir() if _OWN.fullmatch(p.name)])
                with contextlib.suppress(OSError):  # what else is in it stays
                    folder.rmdir()
            raise
    result = {**_result(job, learner, table, rows), "run": str(folder), "resumed_at": before if resume else None}
    if "risk" in result:
        keep_risk(result["risk"], folder)
    if table.task is not None:
        result["matrix"] = sequence.tasks(folder)
    return result


def _in_sequence(job: Job, learner: Learner, table: Table, rows: np.ndarray[Any, Any], folder: Path) -> None:
    """Learns task after task, in the order of their first rows, and keeps the score on each after each.

    A learner that has begun goes on with the task it was at; what was measured before is in the folder.
    """
    from weft.measures.continual import scored, task_scores, untrained

    task = np.asarray(table.task)
    order, first = np.unique(task[rows], return_index=True)
    names = [str(name) for name in order[np.argsort(first)]]
    seen = ~rows if (~rows).any() else rows
    measure, more = scored(learner)
    about = {
        "task": job.recipe.task,
        "part": "held-out" if (~rows).any() else "training",
        "measure": measure,
        "direction": "max" if more else "min",
        "names": names,
        "rows": [int((seen & (task == name)).sum()) for name in names],
    }
    y = None if table.y is None else table.y[seen]

    def lines(learner: Learner) -> Any:
        return np.atleast_2d(task_scores(learner, table.X[seen], y, task=task[seen], names=names))

    def part(name: str) -> dict[str, Any]:
        members = rows & (task == name)
        given = {"X": table.X, "y": table.y, "environment": table.environment}
        return {key: None if values is None else values[members] for key, values in given.items()}

    classes = {}
    if table.y is not None and learner._objective().targets == "classes":
        classes = {"classes": np.unique(table.y[rows])}
    begun = hasattr(learner, "_runs")
    at = names.index(learner._phase["task"]) if begun else 0
    after = sequence.lines(sequence.tasks(folder), at) if begun else []
    before = None
    for i, name in enumerate(names[at:]):
        if begun and not i:
            learner.resume(**part(name))
        else:
            learner.partial_fit(**part(name), **classes, task=name)
        if not i:
            start = untrained(learner, **part(names[0]), **classes)
            before = None if start is None else lines(start)
        after.append(lines(learner))
        sequence.keep(sequence.assemble(about, before, after), folder)


def _score(kind: str, y: np.ndarray[Any, Any], answers: np.ndarray[Any, Any]) -> float | None:
    """Accuracy, or R squared (None where the values do not vary)."""
    if not len(y):
        return None
    if kind == "classes":
        return float((answers == y).mean())
    spread = float(((y - y.mean()) ** 2).sum())
    return 1.0 - float(((y - answers) ** 2).sum()) / spread if spread > 0 else None


def _wilson(share: float, n: int) -> list[float]:
    """Wilson's 95% interval for a share seen in n cases."""
    z = 1.959964
    centre, spread = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return [(centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)]


def _result(job: Job, learner: Learner, table: Table, rows: np.ndarray[Any, Any]) -> dict[str, Any]:
    """What a training came to, as plain values."""
    target = job.recipe.target
    history = learner.history_
    clock = [float(record["seconds"]) for record in history]  # it begins anew with each task
    result: dict[str, Any] = {
        "objective": repr(learner.objective),
        "strategy": repr(learner._strategy()),
        "target": None if target is None else target.name,
        "environment": job.recipe.environment,
        "task": job.recipe.task,
        "rows": {"training": int(rows.sum()), "held_out": int((~rows).sum())},
        "features": len(table.names),
        "left_out": job.recipe.left_out,
        "steps": learner.n_steps_,
        "seconds": round(sum(b for b, after in zip(clock, [*clock[1:], 0.0], strict=False) if after <= b), 3),
        "stopped": learner.stop_reason_,
        "tasks": learner.tasks_,
    }
    held = ~rows
    seen = held if held.any() else rows
    if table.environment is not None:
        result["risk"] = _risk(learner, table, seen, job.recipe.environment, "held-out" if held.any() else "training")
    if target is None or table.y is None or "predict" not in learner._objective().capabilities():
        if history:
            name, value = learner.progress()
            result["progress"] = {name: float(np.nanmean(value))}
        return result
    answers = learner.predict(table.X)
    result["measure"] = "accuracy" if target.kind == "classes" else "R2"
    for name, part in (("training", rows), ("held_out", held)):
        result[name] = _score(target.kind, table.y[part], answers[part])
    if target.kind == "classes" and held.any():
        result["interval"] = _wilson(result["held_out"], int(held.sum()))
    for name, labels in (("environments", table.environment), ("by_task", table.task)):
        if labels is not None:
            result[name] = {
                label: {
                    "rows": int((seen & (labels == label)).sum()),
                    "score": _score(target.kind, table.y[seen & (labels == label)], answers[seen & (labels == label)]),
                }
                for label in np.unique(labels).tolist()
            }
    if "risk" in result:
        result["risk"]["score"] = result["measure"]
        for label, part in result["risk"]["environments"].items():
            part["score"] = result["environments"][label]["score"]
            result["environments"][label]["risk"] = part["risk"]
    if learner.replicas is not None:
        result["replicas"] = [_alone(learner, k, target.kind, table, seen) for k in range(len(learner.seeds_))]
    return result


def _risk(
    learner: Learner, table: Table, seen: np.ndarray[Any, Any], environment: str | None, part: str
) -> dict[str, Any]:
    """The objective's progress measure in each environment: the mean over replicas, and each one's."""
    from weft.measures import environment_risk

    measure, direction = learner._objective().progress
    y = None if table.y is None else table.y[seen]
    found = environment_risk(learner, table.X[seen], y, environment=table.environment[seen], measure=measure)  # type: ignore[index]
    reasons = [learner.stop_reason_] if isinstance(learner.stop_reason_, str) else learner.stop_reason_
    kept = [k for k, reason in enumerate(reasons) if not reason.startswith("diverged")]
    values = np.atleast_2d(found.values)[kept]
    means = values.mean(0)

    def plain(value: float) -> float | None:
        return float(value) if math.isfinite(value) else None

    each = {
        str(name): {"rows": rows, "score": None, "risk": plain(mean), "replicas": [plain(value) for value in column]}
        for name, rows, mean, column in zip(found.names, found.rows, means, values.T, strict=True)
    }
    return {
        "environment": environment,
        "part": part,
        "measure": measure,
        "direction": direction,
        "score": None,
        "worst": list(each)[int(means.argmax() if direction == "min" else means.argmin())],
        "mean": plain(means.mean()),
        "environments": each,
    }


def _alone(learner: Learner, k: int, kind: str, table: Table, seen: np.ndarray[Any, Any]) -> float | None:
    """One replica's score; None where it has diverged."""
    from sklearn.exceptions import NotFittedError

    try:
        return _score(kind, table.y[seen], learner.replica(k).predict(table.X[seen]))  # type: ignore[index]
    except NotFittedError:
        return None


def predict(folder: Path, data: Path, *, proba: bool = False, encoding: str | None = None) -> dict[str, Any]:
    """Predictions of a run for another table: by row the prediction and, if asked for, the probabilities."""
    import weft

    job = Job.open(folder)
    target = job.recipe.target
    columns = read_columns(data, encoding=encoding or job.options.encoding)
    table = job.recipe.apply(columns, labelled=False)
    if not (folder / "state.json").exists():
        raise ValueError(
            f"expected a trained run in {folder}, got one that had not come to a checkpoint; weft resume {folder}"
        )
    learner = weft.load(folder, validation=None)
    offered = sorted(learner._objective().capabilities())
    if target is None or "predict" not in offered:
        raise ValueError(
            f"expected a run that predicts, got {learner.objective!r}, which offers {', '.join(offered)}; ask it in "
            f"Python: weft.load({str(folder)!r})"
        )
    if proba and "predict_proba" not in offered:
        raise ValueError(
            f"expected a run with probabilities, got {learner.objective!r}, which predicts values; drop --proba"
        )
    reasons = learner.stop_reason_ if isinstance(learner.stop_reason_, list) else [learner.stop_reason_]
    result: dict[str, Any] = {
        "run": str(folder),
        "target": target.name,
        "rows": columns.rows,
        "unseen": table.unseen,
        "finished": all(reasons),
        "predictions": target.write(learner.predict(table.X)).tolist(),
    }
    if proba:
        result["labels"] = [str(label) for label in learner.classes_.tolist()]
        result["probabilities"] = learner.predict_proba(table.X).astype(float).tolist()
    if target.name in columns.data:
        try:
            y = target.write(target.read(columns))
            score = _score(target.kind, y, np.asarray(result["predictions"]))
        except ValueError:  # a target with gaps is no reason not to predict
            score = None
        result["measure"], result["score"] = "accuracy" if target.kind == "classes" else "R2", score
    return result


def as_csv(result: dict[str, Any]) -> str:
    """Predictions as CSV; text that a spreadsheet would run gets a leading quote."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "prediction", *(f"p({label})" for label in result.get("labels", []))])
    chances = result.get("probabilities") or [[]] * len(result["predictions"])
    for i, (answer, share) in enumerate(zip(result["predictions"], chances, strict=True), start=1):
        writer.writerow([i, plain_cell(answer), *share])
    return text.getvalue()
