"""A training on a table: which data, which options, and how columns become numbers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weft.commands.job.asked import Options
from weft.core.configured import shown
from weft.report.folder import run_folder, world_of
from weft.tables import kept
from weft.tables.files import Columns
from weft.tables.kept import KeptTable
from weft.tables.recipe import Recipe

if TYPE_CHECKING:
    from weft.core.values import Json

__all__ = ["Job"]


@dataclass(frozen=True)
class Job:
    """A training on a table: the data, and what was asked for; kept as `recipe.json` beside the run's own files.

    Attributes:
        data: the table, and how its columns become numbers.
        options: what was asked for.
    """

    data: KeptTable
    options: Options

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
            encoding="features" if objective is None else objective.columns,
            gaps=objective is not None and objective.gaps,
        )
        return cls(KeptTable.of(columns, recipe, encoding=options.encoding), options)

    def keep(self, folder: Path) -> None:
        """Writes `recipe.json` to the run's folder, which is made if need be."""
        data = self.data.to_json()
        options = dataclasses.asdict(self.options)
        kept.keep(folder, {"data": data["data"], "options": options, "recipe": data["recipe"]})

    @classmethod
    def open(cls, folder: Path) -> Job:
        """The job of a run that `weft fit` made."""

        def read(plain: Json) -> Job:
            return cls(KeptTable.from_json(plain), Options.from_json(plain["options"]))

        if worlds := world_of(run_folder(folder)):
            raise ValueError(
                f"expected a run on a table, which `weft fit` makes, got one that acts in {', '.join(worlds)}; ask it "
                f"by: weft play {folder}"
            )
        return kept.opened(folder, read)
