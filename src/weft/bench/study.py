"""A study: what is compared, on which data, with which budget. It is a small TOML file that can be committed."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.core.configured import closest, shown

__all__ = ["BUNDLED", "RULES", "Study"]

BUNDLED = "digits-sites"
"""The name, in place of a file's, of the data that comes with weft."""
RULES = ("validation", "training-domain", "leave-one-out", "oracle")


@dataclass(frozen=True)
class Study:
    """What `weft compare` is asked for; each field is an option of it.

    Attributes:
        data: a table's file, or `digits-sites` for the bundled one.
        target: the column to be predicted.
        environment, task, group: at most one column that says what belongs together: environments to
            generalize over, tasks learned in sequence, or groups of rows that must not be torn apart.
        test: the environments that are held out for the test; by default the last in alphabetical order.
        methods: what to compare, as `erm`, `and-mask`, `and-mask(threshold=0.8)`, `ewc+and-mask`,
            `least-squares`, `classification(hidden=(64,))/and-mask`; by default all that make sense.
        budget: settings tried for each method, all on validation.
        batch: how many of them are proposed at a time; the next proposals see the results of these.
        seeds: fresh trainings of each method's chosen setting.
        steps: updates of each training (of each task, where there are tasks).
        rows: rows per update (per environment, where a method works on environments).
        selection: how a setting is chosen: `validation` for data without environments; with them
            `training-domain` (held-out rows of the training environments), `leave-one-out` (each training
            environment in turn) or `oracle` (held-out rows of the test environments: a look at the test).
        holdout: the share of validation rows, and of test rows where the test is no environment.
        drop: columns to leave out.
        kind: `classes` or `values`, or "" to see by the target.
        encoding: of a CSV file.
        seed: of the split, the proposals and the trainings.
        level: confidence of all comparisons together.
    """

    data: str = field(
        default=BUNDLED,
        metadata={"help": "A table: CSV, Parquet or NPZ; without one, the bundled digits.", "argument": True},
    )
    target: str = field(default="", metadata={"help": "The column to be predicted.", "metavar": "COLUMN"})
    environment: str = field(
        default="",
        metadata={"help": "The column that names environments; one of them is the test.", "metavar": "COLUMN"},
    )
    task: str = field(
        default="", metadata={"help": "The column that names tasks, learned one after another.", "metavar": "COLUMN"}
    )
    group: str = field(
        default="", metadata={"help": "The column that names rows that must stay together.", "metavar": "COLUMN"}
    )
    test: tuple[str, ...] = field(
        default=(), metadata={"help": "A test environment; repeatable. Default: the last.", "metavar": "NAME"}
    )
    methods: tuple[str, ...] = field(
        default=(), metadata={"help": "A method, such as 'and-mask(threshold=0.8)'; repeatable.", "metavar": "SPEC"}
    )
    budget: int = field(default=16, metadata={"help": "Settings tried for each method."})
    batch: int = field(default=8, metadata={"help": "Settings proposed at a time."})
    seeds: int = field(default=8, metadata={"help": "Fresh trainings of the chosen setting."})
    steps: int = field(default=200, metadata={"help": "Updates of each training."})
    rows: int = field(default=64, metadata={"help": "Rows per update, of each environment."})
    selection: str = field(
        default="", metadata={"help": "validation, training-domain, leave-one-out or oracle.", "metavar": "RULE"}
    )
    holdout: float = field(default=0.2, metadata={"help": "The share of validation and test rows."})
    drop: tuple[str, ...] = field(
        default=(), metadata={"help": "A column to leave out; repeatable.", "metavar": "COLUMN"}
    )
    kind: str = field(default="", metadata={"help": "classes or values; by default seen by the target."})
    encoding: str = field(default="utf-8", metadata={"help": "Of a CSV file."})
    seed: int = field(default=0, metadata={"help": "Everything random follows from it."})
    level: float = field(default=0.95, metadata={"help": "Confidence, of all comparisons together."})

    @classmethod
    def make(cls, **given: Any) -> Study:
        """A study from plain values, each checked; None means the default."""
        known = {spec.name: spec for spec in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                raise closest(name, known, "a setting of a study")
            if value is None:
                continue
            default = known[name].default
            if isinstance(default, tuple):
                value = (value,) if isinstance(value, str) else tuple(map(str, value))
            elif isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
            if type(value) is not type(default):
                raise TypeError(
                    f"expected the study's {name} to be of type {type(default).__name__}, got {shown(value)} "
                    f"({type(value).__name__})"
                )
            values[name] = value
        study = cls(**values)
        study._check()
        if study.data == BUNDLED:  # its marks are right at every site that training sees: validation there cannot tell
            from weft.data.sites import SITES

            rule, test = study.selection or "leave-one-out", study.test or (SITES[-1],)
            methods = study.methods or ("erm", "and-mask")  # two, so that a first look takes minutes
            study = dataclasses.replace(
                study, target="label", environment="site", test=test, selection=rule, methods=methods
            )
        if not study.selection:
            study = dataclasses.replace(study, selection="training-domain" if study.environment else "validation")
        return study

    def _check(self) -> None:
        for name, least in (("budget", 1), ("batch", 1), ("seeds", 1), ("steps", 1), ("rows", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"expected the study's {name} >= {least}, got {getattr(self, name)}")
        if not 0.0 < self.holdout < 0.5:
            raise ValueError(f"expected the study's holdout in (0, 0.5), got {self.holdout}")
        if not 0.5 <= self.level < 1.0:
            raise ValueError(f"expected the study's level in [0.5, 1), got {self.level}")
        if self.kind not in ("", "classes", "values"):
            raise ValueError(f"expected the study's kind to be 'classes' or 'values', got {self.kind!r}")
        if self.data == BUNDLED:
            if self.target not in ("", "label") or self.environment not in ("", "site") or self.task or self.group:
                raise ValueError(
                    "expected no columns for the bundled data, whose target is 'label' and whose environments are "
                    "'site', got some; name your own file: weft compare DATA --target COLUMN"
                )
            return
        if not self.target:
            raise ValueError("expected the column to be predicted, got none; name it with --target COLUMN")
        named = [name for name in ("environment", "task", "group") if getattr(self, name)]
        if len(named) > 1:
            raise ValueError(
                f"expected one of environment, task and group, got {' and '.join(named)}; a study asks one question"
            )
        if self.selection and self.selection not in RULES:
            raise closest(self.selection, RULES, "a selection rule")
        if self.selection not in ("", "validation") and not self.environment:
            raise ValueError(f"expected environments for the selection rule {self.selection!r}, got none")
        if self.test and not self.environment:
            raise ValueError("expected test environments only with --environment COLUMN, got no environments")

    @classmethod
    def read(cls, path: Path, **changes: Any) -> Study:
        """A study file; its data's path is relative to it. Arguments that are not None take precedence."""
        try:
            plain = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"expected a study file in TOML, got {path}: {error}") from error
        if "data" in plain and plain["data"] != BUNDLED:
            plain["data"] = str(path.parent / str(plain["data"]))
        return cls.make(**{**plain, **{name: value for name, value in changes.items() if value is not None}})

    def to_toml(self) -> str:
        """The study as a file; what is left out has its default."""
        lines = []
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            plain = list(value) if isinstance(value, tuple) else value
            if value != spec.default:
                lines.append(f"{spec.name} = {json.dumps(plain, ensure_ascii=False)}")
        return "\n".join(lines) + "\n"
