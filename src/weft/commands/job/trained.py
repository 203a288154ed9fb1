"""A run that can be asked: loaded, with what it answers; and tables of answers as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.tables.files import plain_cell

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = ["asked_of", "csv_text", "ended", "trained"]


def trained(folder: Path) -> Learner:
    """The learner of a run that has come to a checkpoint."""
    from weft.engine.checkpoint import kept
    from weft.learner.loading import load
    from weft.report.folder import run_folder

    if not kept(run_folder(folder)):
        raise ValueError(
            f"expected a trained run in {folder}, got one that had not come to a checkpoint; weft resume {folder}"
        )
    return load(folder, validation=None)


def ended(learner: Learner) -> bool:
    """Whether training has come to its end."""
    reasons = learner.stop_reason_ if isinstance(learner.stop_reason_, list) else [learner.stop_reason_]
    return all(reasons)


def asked_of(learner: Learner, name: str, does: str) -> None:
    """Raises where a run's objective does not offer what is asked of it."""
    offered = sorted(learner.objective_.capabilities())
    if name not in offered:
        raise ValueError(
            f"expected a run that {does}, got {learner.objective!r}, which offers {', '.join(offered)}; fit with "
            "another objective, such as independent or mixture"
        )


def csv_text(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as CSV; text that a spreadsheet would run gets a leading quote."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([plain_cell(head) for head in heads])
    for row in rows:
        writer.writerow(["" if cell is None else plain_cell(cell) for cell in row])
    return text.getvalue()
