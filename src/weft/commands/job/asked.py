"""What `weft fit` was asked for, and the Learner that this makes.

`weft --help` imports this file for the options' texts: what is heavy is imported where it is needed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints

if TYPE_CHECKING:
    from weft.core.objective import Objective
    from weft.core.values import Json
    from weft.learner.estimator import Learner
    from weft.tables.recipe import Recipe, Table

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """What `weft fit` was asked for: its options on the command line. Methods are kept as they were written."""

    target: str | None = field(default=None, metadata={"help": "The column to be predicted.", "metavar": "COLUMN"})
    environment: str | None = field(
        default=None,
        metadata={"help": "The column that names each row's environment (site, subject).", "metavar": "COLUMN"},
    )
    task: str | None = field(
        default=None, metadata={"help": "The column that names tasks, learned one after another.", "metavar": "COLUMN"}
    )
    drop: tuple[str, ...] = field(
        default=(), metadata={"help": "A column to leave out; repeatable.", "metavar": "COLUMN"}
    )
    encoding: str = field(default="utf-8", metadata={"help": "Of a CSV file."})
    objective: str | None = field(
        default=None, metadata={"help": "What is learned; by default seen by the target.", "metavar": "SPEC"}
    )
    net: str | None = field(
        default=None, metadata={"help": "Such as 'mlp(hidden=(64, 64), dropout=0.5)' or linear.", "metavar": "SPEC"}
    )
    strategy: str | None = field(
        default=None,
        metadata={"help": "How: and-mask, 'and-mask(threshold=0.8)', 'ewc(strength=100)+and-mask'.", "metavar": "SPEC"},
    )
    optimizer: str | None = field(default=None, metadata={"help": "Such as 'sgd(lr=0.1)'.", "metavar": "SPEC"})
    schedule: str | None = field(
        default=None, metadata={"help": "Of the learning rate: constant, linear, cosine or step.", "metavar": "NAME"}
    )
    replicas: int | None = field(default=None, metadata={"help": "Independent copies, trained at once."})
    epochs: int | None = field(default=None, metadata={"help": "Passes over the data (default: 50)."})
    steps: int | None = field(default=None, metadata={"help": "Updates, instead of passes."})
    batch_size: int = field(default=64, metadata={"help": "Rows per update (and environment); 0 for all."})
    validation: float = field(default=0.2, metadata={"help": "The share of the rows held out; 0 for none."})
    every: int | None = field(
        default=None, metadata={"help": "Updates between two records (default: a pass, or a fiftieth of the steps)."}
    )
    patience: int | None = field(
        default=None, metadata={"help": "Evaluations without progress after which to stop, with the best parameters."}
    )
    keep: int | None = field(
        default=None, metadata={"help": "How many of the best checkpoints to keep beside the last."}
    )
    seed: int = field(default=0, metadata={"help": "Everything random follows from it."})
    device: str | None = field(default=None, metadata={"help": "cpu, cuda:0, ...; CUDA where there is one."})
    dtype: str = field(default="float32", metadata={"help": "float32, float64 or bfloat16."})
    precision: str | None = field(
        default=None, metadata={"help": "bf16 computes in bfloat16 over float32 parameters.", "metavar": "NAME"}
    )

    @classmethod
    def from_json(cls, plain: Json) -> Options:
        """Options from a file, each of the kind that it must be."""
        options = cls(**{**plain, "drop": tuple(map(str, plain["drop"]))})
        wider = {float: float | int, tuple[str, ...]: tuple}
        for name, kind in get_type_hints(cls).items():
            value = getattr(options, name)
            if not isinstance(value, wider.get(kind, kind)):
                raise ValueError(f"{name} is {value!r}")
        return options

    def make_objective(self) -> Objective | None:
        """The objective that was named, or None to see by the target."""
        from weft.core.spelling import parse

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
        from weft.core.spelling import parse
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
        settings: Json = {
            **{name: value for name, value in asdict(self).items() if name in Learner._get_param_names()},
            "objective": objective,
            "strategy": None if self.strategy is None else parse(self.strategy, "strategies"),
            "optimizer": None if self.optimizer is None else parse(self.optimizer, "optimizers"),
            "batch_size": self.batch_size or None,
            "validation": table.held_out,
            "random_state": self.seed,
            "keep": None if folder is None else self.keep,
        }
        return Learner(**settings, verbose=verbose, folder=folder)
