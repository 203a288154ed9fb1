"""What a run predicts for another table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from weft.commands.job.plan import Job
from weft.commands.job.trained import csv_text, ended, trained
from weft.scores.predictions import MEASURES, score
from weft.tables.files import read_columns

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["as_csv", "predict"]


def predict(folder: Path, data: Path, *, proba: bool = False, encoding: str | None = None) -> Json:
    """Predictions of a run for another table: by row the prediction and, if asked for, the probabilities."""
    job = Job.open(folder)
    recipe = job.data.recipe
    target = recipe.target
    columns = read_columns(data, encoding=encoding or job.options.encoding)
    table = recipe.apply(columns, labelled=False)
    learner = trained(folder)
    offered = sorted(learner.objective_.capabilities())
    if target is None or "predict" not in offered:
        raise ValueError(
            f"expected a run that predicts, got {learner.objective!r}, which offers {', '.join(offered)}; ask it in "
            f"Python: weft.load({str(folder)!r})"
        )
    if proba and "predict_proba" not in offered:
        raise ValueError(
            f"expected a run with probabilities, got {learner.objective!r}, which predicts values; drop --proba"
        )
    result: Json = {
        "run": str(folder),
        "target": target.name,
        "rows": columns.rows,
        "unseen": table.unseen,
        "finished": ended(learner),
        "predictions": target.write(learner.predict(table.given())).tolist(),
    }
    if proba:
        result["labels"] = [str(label) for label in learner.classes_.tolist()]
        result["probabilities"] = learner.predict_proba(table.given()).astype(float).tolist()
    if target.name in columns.data:
        result["measure"] = MEASURES[target.kind]
        try:
            y = target.write(target.read(columns))
            result["score"] = score(target.kind, y, np.asarray(result["predictions"]))
        except ValueError:  # a target with gaps is no reason not to predict
            result["score"] = None
    return result


def as_csv(result: Json) -> str:
    """Predictions as CSV."""
    heads = ["row", "prediction", *(f"p({label})" for label in result.get("labels", []))]
    chances = result.get("probabilities") or [[]] * len(result["predictions"])
    pairs = enumerate(zip(result["predictions"], chances, strict=True), start=1)
    return csv_text(heads, ([i, answer, *share] for i, (answer, share) in pairs))
