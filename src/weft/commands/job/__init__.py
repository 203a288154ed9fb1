"""Trainings on tables: what `weft fit`, `weft resume`, `weft predict`, `weft sample`, ... do, without the printing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.lazy import flat

if TYPE_CHECKING:
    from weft.commands.job.acting import Acting
    from weft.commands.job.asked import Options
    from weft.commands.job.folder import clear, new_folder
    from weft.commands.job.plan import Job
    from weft.commands.job.playing import PlayJob, play, train_in
    from weft.commands.job.predictions import as_csv, predict
    from weft.commands.job.rows import impute, sample, score
    from weft.commands.job.trained import csv_text
    from weft.commands.job.training import rehearse, train

__getattr__, __dir__, __all__ = flat(__name__, __file__)
