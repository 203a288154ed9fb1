"""What `weft fit` was asked for, and the Learner that this makes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weft.core.spelling import parse

if TYPE_CHECKING:
    from weft.core.objective import Objective
    from weft.core.values import Json
    from weft.learner.estimator import Learner
    from weft.tables.recipe import Recipe, Table

__all__ = ["Options"]


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

    @classmethod
    def from_json(cls, plain: Json) -> Options:
        """Options from a file, each of the kind that it must be."""
        kinds = {"str | None": (str, type(None)), "int | None": (int, type(None)), "tuple[str, ...]": (tuple,)}
        kinds.update({"str": (str,), "int": (int,), "float": (float, int)})
        options = cls(**{**plain, "drop": tuple(map(str, plain["drop"]))})
        for spec in dataclasses.fields(cls):
            value = getattr(options, spec.name)
            if not isinstance(value, kinds[str(spec.type)]):
                raise ValueError(f"{spec.name} is {value!r}")
        return options

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
            validation=table.held_out,
            patience=self.patience,
            replicas=self.replicas,
            random_state=self.seed,
            device=self.device,
            dtype=self.dtype,
            verbose=verbose,
            folder=folder,
        )
