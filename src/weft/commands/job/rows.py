"""What a run that models rows does with them: draws new ones, fills in gaps, and says how likely others are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from weft.commands.job.plan import Job
from weft.commands.job.trained import asked_of, ended, trained
from weft.core.configured import shown
from weft.learner.given import beside, given_class
from weft.scores.predictions import MEASURES, mean_interval, r_squared_interval, wilson
from weft.scores.predictions import score as score_of
from weft.tables.files import Columns, read_columns
from weft.tables.kinds import names_in

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from weft.core.values import Json
    from weft.learner.estimator import Learner

__all__ = ["impute", "likelihood", "sample", "score"]


def sample(folder: Path, n: int, *, seed: int = 0) -> Json:
    """Rows that a run draws: as the table that it was trained on, or as the features that this became."""
    learner = trained(folder)
    asked_of(learner, "sample", "draws rows")
    mark = learner.sample.mark
    if mark.asks != "number":
        raise ValueError(f"expected a run that draws rows by their number, got {learner.objective!r}; ask it in Python")
    if given_class(learner):
        raise ValueError(
            f"expected a run that draws rows without being told their class, got {learner.objective!r}; ask it in "
            "Python, for the classes that you want: learner.sample(n, y=[...])"
        )
    drawn = learner.sample(n, random_state=seed)
    result: Json = {"run": str(folder), "rows": n, "seed": seed, "kind": mark.kind, "finished": ended(learner)}
    if hasattr(drawn, "iloc"):
        return {**result, **_table(drawn), "features": False}
    flat = np.asarray(drawn).reshape(len(drawn), -1)
    names = [f"x{j + 1}" for j in range(flat.shape[1])]
    if (folder / "recipe.json").exists():
        features = [name for column in Job.open(folder).data.recipe.columns for name in column.features]
        names = features if len(features) == len(names) else names
    return {**result, "columns": names, "table": flat.tolist(), "features": True}


def impute(folder: Path, data: Path, *, seed: int = 0, encoding: str | None = None) -> Json:
    """A table with what is missing in the columns of training drawn given the rest of each row; the rest as it is."""
    learner, job, columns = _asked(folder, data, encoding)
    asked_of(learner, "impute", "fills in what is missing")
    table = job.data.recipe.apply(columns, labelled=False)
    named = beside(learner, "impute", _classes(learner, job, columns, data))
    filled = learner.impute(table.given(), random_state=seed, **named)
    whole: dict[str, list[Any]] = {name: column.to_pylist() for name, column in columns.data.items()}
    counts: dict[str, int] = {}
    for name in filled.columns:
        drawn, missing = filled[name].tolist(), [i for i, value in enumerate(whole[name]) if _missing(value)]
        for i in missing:
            whole[name][i] = drawn[i]
        counts[name] = len(missing)
    left = {name: sum(map(_missing, values)) for name, values in whole.items() if name not in counts}
    return {
        "run": str(folder),
        "rows": columns.rows,
        "seed": seed,
        "kind": learner.impute.kind,
        "finished": ended(learner),
        "filled": {name: count for name, count in counts.items() if count},
        "left": {name: count for name, count in left.items() if count},
        "columns": list(whole),
        "table": [list(row) for row in zip(*whole.values(), strict=True)],
    }


def _missing(value: object) -> bool:
    return value is None or value != value


def score(folder: Path, data: Path, *, encoding: str | None = None) -> Json:
    """How good a run is on another table: accuracy or R squared where it predicts, log-likelihood where it tells one.

    Each has its 95 % interval over rows, and is told by environment as well where the table has that column.
    """
    learner, job, columns = _asked(folder, data, encoding)
    recipe = job.data.recipe
    table = recipe.apply(columns, labelled=False)
    X = table.given()
    result: Json = {"run": str(folder), "rows": columns.rows, "finished": ended(learner), "unseen": table.unseen}
    labels = None
    if recipe.environment is not None and recipe.environment in columns.data:
        labels = names_in(recipe.environment, columns, "environment")
        result["environment"] = recipe.environment
        result["environments"] = {str(name): {"rows": int((labels == name).sum())} for name in np.unique(labels)}
    places = {name: labels == name for name in result.get("environments", {})}
    offered, target = learner.objective_.capabilities(), recipe.target
    told = False
    if target is not None and "predict" in offered and target.name in columns.data:
        y = target.write(target.read(columns))
        answers = target.write(learner.predict(X))
        result["measure"] = MEASURES[target.kind]
        result |= _judged(target.kind, y, answers)
        for name, rows in places.items():
            result["environments"][name] |= _judged(target.kind, y[rows], answers[rows])
        told = True
    if "log_prob" in offered and offered["log_prob"].gives == "density" and recipe.encoding == "values":
        named = beside(learner, "log_prob", _classes(learner, job, columns, data))
        densities = np.asarray(learner.log_prob(X, **named), dtype=np.float64)
        result["likelihood"] = likelihood(learner, densities)
        for name, rows in places.items():
            result["environments"][name]["likelihood"] = likelihood(learner, densities[rows])
        told = True
    if not told:
        where = f", and no column {shown(target.name)} in {data}" if target is not None else ""
        raise ValueError(
            f"expected a run that predicts, and a table with its target, or one that tells the density of a table, got "
            f"{learner.objective!r}, which offers {', '.join(sorted(offered))}{where}"
        )
    return result


def _classes(learner: Learner, job: Job, columns: Columns, data: Path) -> NDArray[Any] | None:
    """The class of each row, where the model is asked given it."""
    target = job.data.recipe.target
    if not given_class(learner) or target is None:
        return None
    if target.name not in columns.data:
        raise ValueError(
            f"expected a column {shown(target.name)} in {data}, the class that {learner.objective!r} is asked given, "
            f"got {', '.join(map(shown, columns.data))}"
        )
    return target.write(target.read(columns))


def likelihood(learner: Learner, densities: NDArray[np.float64]) -> Json:
    """The mean of log-densities with its interval, and what they are."""
    fine = bool(np.isfinite(densities).all())
    return {
        "mean": float(densities.mean()),
        "interval": list(mean_interval(densities)) if fine and len(densities) > 1 else None,
        "unit": "nats per row",
        "kind": learner.log_prob.kind,
        "rows": len(densities),
    }


def _judged(kind: str, y: NDArray[Any], answers: NDArray[Any]) -> Json:
    value = score_of(kind, y, answers)
    if value is None:
        return {"score": None, "interval": None}
    span = wilson(value, len(y)) if kind == "classes" else r_squared_interval(y, answers)
    return {"score": value, "interval": None if span is None else list(span)}


def _asked(folder: Path, data: Path, encoding: str | None) -> tuple[Learner, Job, Columns]:
    """A run, its recipe, and another table."""
    job = Job.open(folder)
    columns = read_columns(data, encoding=encoding or job.options.encoding)
    return trained(folder), job, columns


def _table(frame: Any) -> Json:
    """A DataFrame as plain values."""
    rows = zip(*(frame[name].tolist() for name in frame.columns), strict=True)
    return {"columns": [str(name) for name in frame.columns], "table": [list(row) for row in rows]}
