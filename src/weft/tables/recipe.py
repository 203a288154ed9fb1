"""Tables as the arrays that a Learner takes, by a recipe that is learned once and kept.

A `Recipe` learns from the training rows how each column becomes numbers, and applies the same
encoding to any later table. It is plain JSON. What comes out of a column:

    numbers      (x - mean) / std; where values are missing, the median, and one more column that says so
    true/false   1 or 0; missing values as above
    text         one column per category (a missing value is a category of its own)

What models the columns themselves has them as `values`, one entry each, see `weft.tables.column`.
Columns without any variation are left out. Dates, identifiers and free text are refused with the
column's name, since any silent encoding of them would be a guess.
"""

from __future__ import annotations

import difflib
import math
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.core.configured import shown
from weft.core.source import Part
from weft.tables.column import Column
from weft.tables.files import Columns, some, unknown
from weft.tables.kinds import KINDS, kind_of, names_in
from weft.tables.split import split
from weft.tables.target import Target

if TYPE_CHECKING:
    import pandas as pd

    from weft.core.values import Json

__all__ = ["Recipe", "Table"]

FORMAT = 1
_Part = TypeVar("_Part", Column, Target)


@dataclass
class Table:
    """A table as a Learner takes it.

    Attributes:
        X: features, (n, d).
        names: the features' names.
        y: labels or standardized values; None where the table has no target.
        environment, task: of each row, or None.
        held: which rows the recipe holds out for validation, where the table is the one it was learned from.
        unseen: by column, how many rows had a category that the recipe does not know (all zeros in X).
        recipe: by which X is put back, where it is of `values`.
    """

    X: NDArray[np.float64]
    names: list[str]
    y: NDArray[np.generic] | None = None
    environment: NDArray[np.str_] | None = None
    task: NDArray[np.str_] | None = None
    held: NDArray[np.bool_] | None = None
    unseen: dict[str, int] = field(default_factory=dict)
    recipe: Recipe | None = None

    def given(self, rows: NDArray[np.bool_] | slice = slice(None)) -> NDArray[np.float64] | pd.DataFrame:
        """Some rows as a Learner takes them: arrays of features, or of `values` a DataFrame, whose kinds it reads."""
        return self.X[rows] if self.recipe is None else self.recipe.decode(self.X[rows])

    @property
    def training(self) -> NDArray[np.bool_]:
        """Which rows are trained on: all that are not held out."""
        return np.ones(len(self.X), dtype=bool) if self.held is None else ~self.held

    @property
    def measured(self) -> tuple[str, NDArray[np.bool_]]:
        """What scores are taken on, and which rows that is: those held out, or where there are none the training's."""
        held = ~self.training
        return ("held-out", held) if held.any() else ("training", ~held)

    @property
    def held_out(self) -> tuple[NDArray[np.float64] | pd.DataFrame, NDArray[np.generic] | None] | None:
        """X and y of the rows held out, as a Learner's `validation` takes them; None where there are none."""
        part, rows = self.measured
        return None if part == "training" else (self.given(rows), None if self.y is None else self.y[rows])


@dataclass(frozen=True)
class Recipe:
    """How a table becomes arrays: learned once, applied to every later table, kept as JSON.

    Attributes:
        columns: the encoding of each column that is used.
        target: the column to be predicted, or None.
        environment, task: the columns that name them, or None.
        left_out: columns that are not used, and why.
        validation: the share of the rows held out; the encoding is learned from the others.
        seed: which rows are held out.
        encoding: `features`, or `values` for one entry for each column, which `decode` puts back.
        gaps: whether what is missing stays missing, as NaN.

    Example:
        >>> import tempfile, pathlib
        >>> from weft.tables.files import read_columns
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "trees.csv"
        >>> _ = path.write_text("height,leaf,kind\\n1.5,long,fir\\n,round,oak\\n2.5,round,oak\\n3,long,fir\\n")
        >>> recipe = Recipe.learn(read_columns(path), target="kind")
        >>> table = recipe.apply(read_columns(path))
        >>> table.names, table.X[1].tolist(), table.y.tolist()
        (['height', 'height is missing', 'leaf=long', 'leaf=round'], [..., 1.0, 0.0, 1.0], ['fir', 'oak', 'oak', 'fir'])
    """

    columns: tuple[Column, ...]
    target: Target | None = None
    environment: str | None = None
    task: str | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    validation: float = 0.0
    seed: int = 0
    encoding: str = "features"
    gaps: bool = False

    @classmethod
    def learn(
        cls,
        columns: Columns,
        *,
        target: str | None = None,
        environment: str | None = None,
        task: str | None = None,
        drop: Sequence[str] = (),
        kind: str | None = None,
        validation: float = 0.0,
        seed: int = 0,
        training: NDArray[np.bool_] | None = None,
        encoding: str = "features",
        gaps: bool = False,
    ) -> Recipe:
        """Looks at the columns and learns how to encode them.

        Args:
            columns: the table.
            target: the column to be predicted, or None for objectives without one.
            environment, task: columns that name each row's environment and task.
            drop: columns to leave out.
            kind: `classes`, `values`, `counts` or `amounts`, or None to see by the target: text, true/false and whole
                numbers of few different values are classes, other numbers are values.
            validation: a share of the rows to hold out; nothing is learned from them.
            seed: which rows are held out.
            training: the rows to learn the encoding from, True or False for each, in place of a share.
            encoding, gaps: see the attributes.
        """
        roles = {"target": target, "environment": environment, "task": task}
        for role, name in roles.items():
            if name is not None and name not in columns.data:
                raise unknown(name, list(columns.data), f"the {role} to be a column")
        for name in drop:
            if name not in columns.data:
                raise unknown(name, list(columns.data), "a column to drop")
        taken = [name for name in roles.values() if name is not None]
        for name in taken:
            if taken.count(name) > 1 or name in drop:
                raise ValueError(
                    f"expected one use of column {shown(name)}, got it as target, environment, task or drop twice"
                )
        goal = None if target is None else Target.learn(target, columns, kind, np.ones(columns.rows, dtype=bool))
        draft = cls((), goal, environment, task, validation=validation, seed=seed)
        rows = ~draft._roles(columns)[-1] if training is None else training
        if goal is not None and goal.kind == "values":
            goal = Target.learn(target or "", columns, kind or "values", rows)
        used, refused = [], {}
        left_out = dict.fromkeys(drop, "asked for")
        for name, column in columns.data.items():
            if name in taken or name in left_out:
                continue
            kind_seen = kind_of(column, columns.typed)
            if kind_seen not in KINDS:
                refused[name] = kind_seen
                continue
            was, single = columns.dtypes.get(name, ""), encoding == "values"
            learned = Column.learn(name, column, kind_seen, rows, single=single, gaps=gaps, dtype=was)
            if learned.features:
                used.append(learned)
            else:
                left_out[name] = "does not vary"
        if refused:
            told = "; ".join(f"{shown(name)} has {why}" for name, why in list(refused.items())[:5])
            options = " ".join(f"--drop {shlex.quote(name)}" for name in list(refused)[:5])
            if columns.dtypes:
                options = f"X.drop(columns={list(refused)[:5]!r})"
            more = f" and {len(refused) - 5} more" if len(refused) > 5 else ""
            raise ValueError(
                f"expected columns of numbers, categories or true/false, got others: {told}{more}; leave them out with "
                f"{options}, or mend the {'table' if columns.dtypes else 'file'}"
            )
        if not used:
            raise ValueError(
                f"expected columns to learn from in {columns.path}, got none beside the target that varies; columns: "
                f"{some(list(columns.data))}"
            )
        return cls(tuple(used), goal, environment, task, left_out, validation, seed, encoding, gaps)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Which entries of a row belong to which column."""
        return tuple(part for column in self.columns for part in column.parts)

    def decode(self, X: NDArray[np.generic], index: pd.Index | None = None) -> pd.DataFrame:
        """Rows of `values` as a DataFrame, with the columns that were learned from, in their units and categories."""
        import pandas as pd

        if self.encoding != "values" or X.shape[1:] != (len(self.columns),):
            raise ValueError(
                f"expected rows of {len(self.columns)} values, one for each column, got shape {X.shape} and a recipe "
                f"of {self.encoding}"
            )
        frame = pd.DataFrame({column.name: column.decode(X[:, i]) for i, column in enumerate(self.columns)})
        return frame if index is None else frame.set_axis(index)

    def log_scale(self, observed: NDArray[np.bool_] | None, rows: int) -> NDArray[np.float64]:
        """What a log-density of `values` lacks to be one in the table's units: the sum of -log std over the numbers
        that each row has."""
        each = np.array([-math.log(c.std) if c.kind == "number" else 0.0 for c in self.columns])
        return np.full(rows, each.sum()) if observed is None else np.asarray(observed, dtype=np.float64) @ each

    def _roles(
        self, columns: Columns
    ) -> tuple[NDArray[np.generic] | None, NDArray[np.str_] | None, NDArray[np.str_] | None, NDArray[np.bool_]]:
        """Target, environment and task of each row, and which rows are held out."""
        y = None if self.target is None else self.target.read(columns)
        environment = None if self.environment is None else names_in(self.environment, columns, "environment")
        task = None if self.task is None else names_in(self.task, columns, "task")
        labels = y if self.target is not None and self.target.kind == "classes" else None
        return y, environment, task, split([task, environment, labels], columns.rows, self.validation, self.seed)

    def apply(self, columns: Columns, *, labelled: bool = True, quiet: bool = False) -> Table:
        """The table's arrays.

        Args:
            columns: a table with the columns that the recipe was learned from; others are ignored.
            labelled: whether target, environment and task are there and wanted.
            quiet: do not warn of categories never seen before.
        """
        absent = [c.name for c in self.columns if c.name not in columns.data]
        if absent:
            near = difflib.get_close_matches(absent[0], list(columns.data), n=1)
            hint = f"; is it the one that is called {shown(near[0])} there?" if near else ""
            raise ValueError(
                f"expected the columns of training in {columns.path}, got none called {some(absent)}{hint}"
            )
        parts, names, unseen = [], [], {}
        for column in self.columns:
            part, strange = column.encode(columns[column.name])
            parts.append(part)
            names += column.features
            if strange:
                unseen[column.name] = strange
        if unseen and not quiet:
            told = ", ".join(f"{shown(name)} in {count} rows" for name, count in list(unseen.items())[:8])
            warnings.warn(f"categories that training has not seen, encoded as none of them: {told}", stacklevel=2)
        whole = self if self.encoding == "values" else None
        table = Table(np.concatenate(parts, axis=1), names, unseen=unseen, recipe=whole)
        if labelled:
            table.y, table.environment, table.task, table.held = self._roles(columns)
        return table

    def to_json(self) -> Json:
        """The recipe as plain values."""
        return {
            "format": FORMAT,
            "columns": [_without_defaults(c) for c in self.columns],
            "target": None if self.target is None else _without_defaults(self.target),
            "environment": self.environment,
            "task": self.task,
            "left_out": self.left_out,
            "validation": self.validation,
            "seed": self.seed,
            **({} if self.encoding == "features" else {"encoding": self.encoding}),
            **({"gaps": True} if self.gaps else {}),
        }

    @classmethod
    def from_json(cls, plain: Json) -> Recipe:
        """The recipe from `to_json`'s values, each checked: the file may come from anywhere."""
        if not isinstance(plain, dict) or "format" not in plain:
            raise ValueError("expected weft's recipe of a table, got something else; fit anew")
        if plain["format"] != FORMAT:
            raise ValueError(
                f"expected a recipe of format {FORMAT}, got {shown(plain['format'])}; use that version of weft"
            )
        try:
            columns = tuple(_checked(Column, entry, (*KINDS, "count")) for entry in plain["columns"])
            target = None if plain["target"] is None else _checked(Target, plain["target"], ("classes", "values"))
            environment, task, left_out = plain["environment"], plain["task"], dict(plain["left_out"])
            validation, seed = float(plain["validation"]), int(plain["seed"])
            encoding, gaps = str(plain.get("encoding", "features")), bool(plain.get("gaps", False))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"expected weft's recipe of a table, got a damaged one: {error}; fit anew") from error
        if not columns or any(not isinstance(name, str | None) for name in (environment, task)):
            raise ValueError("expected weft's recipe of a table, got a damaged one: it names no columns; fit anew")
        return cls(columns, target, environment, task, left_out, validation, seed, encoding, gaps)


def _without_defaults(entry: Column | Target) -> Json:
    """The fields that are not as by default."""
    default = {spec.name: spec.default for spec in fields(entry)}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(entry).items()
        if value != default[name]
    }


def _checked(cls: type[_Part], entry: object, kinds: tuple[str, ...]) -> _Part:
    """A dataclass from a dictionary whose values are of the kinds they must be."""
    if not isinstance(entry, dict):
        raise TypeError(f"expected a dictionary, got {type(entry).__name__}")
    values = dict(entry)
    if isinstance(values.get("categories"), list):
        values["categories"] = tuple(values["categories"])
    built = cls(**values)
    for spec in fields(cls):
        value = getattr(built, spec.name)
        kind = str if spec.default is MISSING else type(spec.default)
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not (number if kind is float else isinstance(value, kind)):
            raise ValueError(f"expected {spec.name} to be {kind.__name__}, got {shown(value)}")
    if built.kind not in kinds:
        raise ValueError(f"expected kind to be one of {', '.join(kinds)}, got {shown(built.kind)}")
    if any(not isinstance(c, str | None) for c in getattr(built, "categories", ())):
        raise ValueError("expected categories to be text")
    return built
