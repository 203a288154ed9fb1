"""What a run predicts for another table."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from weft.commands.job.plan import Job
from weft.scores.predictions import MEASURES, score
from weft.tables.files import plain_cell, read_columns

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["as_csv", "predict"]


def predict(folder: Path, data: Path, *, proba: bool = False, encoding: str | None = None) -> Json:
    """Predictions of a run for another table: by row the prediction and, if asked for, the probabilities."""
    from weft.engine.checkpoint import kept
    from weft.learner.loading import load

    job = Job.open(folder)
    recipe = job.data.recipe
    target = recipe.target
    columns = read_columns(data, encoding=encoding or job.options.encoding)
    table = recipe.apply(columns, labelled=False)
    if not kept(folder):
        raise ValueError(
            f"expected a trained run in {folder}, got one that had not come to a checkpoint; weft resume {folder}"
        )
    learner = load(folder, validation=None)
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
    reasons = learner.stop_reason_ if isinstance(learner.stop_reason_, list) else [learner.stop_reason_]
    result: Json = {
        "run": str(folder),
        "target": target.name,
        "rows": columns.rows,
        "unseen": table.unseen,
        "finished": all(reasons),
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
    """Predictions as CSV; text that a spreadsheet would run gets a leading quote."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "prediction", *(f"p({label})" for label in result.get("labels", []))])
    chances = result.get("probabilities") or [[]] * len(result["predictions"])
    for i, (answer, share) in enumerate(zip(result["predictions"], chances, strict=True), start=1):
        writer.writerow([i, plain_cell(answer), *share])
    return text.getvalue()
