"""What a training on a table came to: scores, risk by environment, each replica alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.commands.job.rows import likelihood
from weft.core.objective import inexact
from weft.learner.given import beside
from weft.scores.predictions import MEASURES, wilson
from weft.scores.predictions import score as score_of
from weft.tables.recipe import Recipe, Table

if TYPE_CHECKING:
    from weft.core.values import Json
    from weft.learner.estimator import Learner

__all__ = ["result_of"]


def result_of(recipe: Recipe, learner: Learner, table: Table) -> Json:
    """What a training came to, as plain values."""
    target = recipe.target
    history = learner.history_
    clock = [float(record["seconds"]) for record in history]  # it begins anew with each task
    rows, held = table.training, ~table.training
    part, seen = table.measured
    result: Json = {
        "objective": repr(learner.objective),
        "strategy": repr(learner.settings().strategy),
        "target": None if target is None else target.name,
        "environment": recipe.environment,
        "task": recipe.task,
        "rows": {"training": int(rows.sum()), "held_out": int(held.sum())},
        "features": len(table.names),
        "left_out": recipe.left_out,
        "steps": learner.n_steps_,
        "seconds": round(sum(b for b, after in zip(clock, [*clock[1:], 0.0], strict=False) if after <= b), 3),
        "stopped": learner.stop_reason_,
        "tasks": learner.tasks_,
    }
    X, y = table.given(seen), None if table.y is None else table.y[seen]
    if table.environment is not None:
        of_rows = _risk(learner, X, y, table.environment[seen])
        result["risk"] = {"environment": recipe.environment, "part": part, **of_rows}
    if target is None or table.y is None or y is None or "predict" not in learner.objective_.capabilities():
        if history:
            name, value = learner.progress()
            result["progress"] = {name: float(np.nanmean(value))}
        if kinds := inexact(learner.objective_):
            result["kinds"] = kinds
        mark = learner.objective_.capabilities().get("log_prob")
        if mark is not None and mark.gives == "density" and recipe.encoding == "values":
            densities = np.asarray(learner.log_prob(X, **beside(learner, "log_prob", y)), dtype=np.float64)
            result["likelihood"] = {"part": part, **likelihood(learner, densities)}
        result["offers"] = sorted(learner.objective_.capabilities())
        return result
    answers = learner.predict(table.given())
    result["measure"] = MEASURES[target.kind]
    if kind := inexact(learner.objective_).get("predict"):
        result["kinds"] = {"predict": kind}
    result["training"] = score_of(target.kind, table.y[rows], answers[rows])
    result["held_out"] = score_of(target.kind, table.y[held], answers[held])
    if target.kind == "classes" and held.any():
        result["interval"] = list(wilson(result["held_out"], int(held.sum())))
    for name, labels in (("environments", table.environment), ("by_task", table.task)):
        if labels is not None:
            result[name] = {}
            for label in np.unique(labels).tolist():
                members = seen & (labels == label)
                score = score_of(target.kind, table.y[members], answers[members])
                result[name][label] = {"rows": int(members.sum()), "score": score}
    if "risk" in result:
        result["risk"]["score"] = result["measure"]
        for label, place in result["risk"]["environments"].items():
            place["score"] = result["environments"][label]["score"]
            result["environments"][label]["risk"] = place["risk"]
    if learner.replicas is not None:
        result["replicas"] = [_alone(learner, k, target.kind, X, y) for k in range(len(learner.seeds_))]
    return result


def _risk(
    learner: Learner, X: NDArray[np.float64], y: NDArray[np.generic] | None, environment: NDArray[np.str_]
) -> Json:
    """The objective's progress measure in each environment: the mean over replicas, and each one's."""
    from weft.measures import environment_risk

    measure, direction = learner.objective_.progress
    risk = environment_risk(learner, X, y, environment=environment, measure=measure)
    reasons = [learner.stop_reason_] if isinstance(learner.stop_reason_, str) else learner.stop_reason_
    kept = [k for k, reason in enumerate(reasons) if not reason.startswith("diverged")]
    values = np.atleast_2d(risk.values)[kept]
    means = values.mean(0)

    def finite(value: float) -> float | None:
        return float(value) if math.isfinite(value) else None

    each = {
        str(name): {"rows": rows, "score": None, "risk": finite(mean), "replicas": [finite(value) for value in column]}
        for name, rows, mean, column in zip(risk.names, risk.rows, means, values.T, strict=True)
    }
    return {
        "measure": measure,
        "direction": direction,
        "score": None,
        "worst": list(each)[int(means.argmax() if direction == "min" else means.argmin())],
        "mean": finite(means.mean()),
        "environments": each,
    }


def _alone(learner: Learner, k: int, kind: str, X: NDArray[np.float64], y: NDArray[np.generic]) -> float | None:
    """One replica's score; None where it has diverged."""
    from sklearn.exceptions import NotFittedError

    try:
        return score_of(kind, y, learner.replica(k).predict(X))
    except NotFittedError:
        return None
