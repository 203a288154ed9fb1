"""Tables as the arrays that a Learner takes, by a recipe that is learned once and kept.

A `Recipe` learns from the training rows how each column becomes numbers, and applies the same
encoding to any later table. It is plain JSON. What comes out of a column:

    numbers      (x - mean) / std; where values are missing, the median, and one more column that says so
    true/false   1 or 0; missing values as above
    text         one column per category (a missing value is a category of its own)

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
from typing import Any

import numpy as np

from weft.core.configured import shown
from weft.tables.files import Columns, some, unknown

__all__ = ["Column", "Recipe", "Table", "Target", "plain_cell", "split"]

FORMAT = 1
FEW = 20  # whole numbers with at most so many different values are taken for classes
CATEGORIES = 50  # more categories than this, in more than half of the rows, are no categories
MOST_CATEGORIES = 1000
LONGEST = 1000  # characters of a category's name
_DATE = (
    r"^(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/]\d{1,2}[-/]\d{2,4}( .*)?|\d{1,2}\.\d{1,2}\.\d{4}( .*)?"
    r"|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?)$"
)


def plain_cell(value: Any) -> Any:
    """A cell for a CSV file that spreadsheets take for text: what they would run gets a leading quote.

    >>> plain_cell("=1+1"), plain_cell("red"), plain_cell(-1.5)
    ("'=1+1", 'red', -1.5)
    """
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else value


# --- columns ----------------------------------------------------------------------------------------


def _texts(column: Any) -> Any:
    """A column as text, its missing values as nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def _is_text(column: Any) -> bool:
    import pyarrow as pa

    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_dictionary)
    return any(is_kind(column.type) for is_kind in kinds)


def _numbers(column: Any) -> np.ndarray[Any, Any] | None:
    """A column as float64 with NaN where values are missing, or None where some are not numbers."""
    import pyarrow as pa

    if _is_text(column):
        column = _texts(column)
    try:
        return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _booleans(column: Any) -> np.ndarray[Any, Any] | None:
    """A column of true and false (or 1 and 0) as float64 with NaN, or None."""
    import pyarrow.compute as pc

    if _is_text(column):
        text = pc.utf8_lower(_texts(column))
        column = pc.if_else(pc.equal(text, "true"), "1", pc.if_else(pc.equal(text, "false"), "0", text))
    numbers = _numbers(column)
    if numbers is None or not np.isin(numbers[~np.isnan(numbers)], (0.0, 1.0)).all():
        return None
    return numbers


def _kind(column: Any, typed: bool) -> str:
    """`number`, `boolean`, `category`, or what speaks against using it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_temporal(column.type):
        return "dates"
    if pa.types.is_boolean(column.type):
        return "boolean"
    if not _is_text(column):
        return "nothing that weft can encode" if _numbers(column) is None else "number"
    text = _texts(column)
    present = pc.drop_null(text)
    if not len(present):
        return "number"
    if not typed:
        if _numbers(column) is not None:
            return "number"
        if pc.all(pc.is_in(pc.utf8_lower(present), value_set=pa.array(["true", "false"]))).as_py():
            return "boolean"
    if pc.all(pc.match_substring_regex(present, _DATE)).as_py():
        return "dates"
    different = len(pc.unique(present))
    if (different > CATEGORIES and different > len(column) / 2) or different > MOST_CATEGORIES:
        numbers = pc.match_substring_regex(text, r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")
        if not typed and pc.sum(numbers).as_py() > len(present) / 2:
            first = pc.index(numbers, False).as_py()
            return f"numbers, but for {shown(text[first])} in row {first + 1}"
        return f"{different} different texts in {len(column)} rows, as identifiers or free text have"
    longest = pc.max(pc.utf8_length(present)).as_py()
    if longest > LONGEST:
        return f"text of up to {longest} characters, as free text has"
    return "category"


def _finite(name: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    odd = np.flatnonzero(np.isinf(values))
    if len(odd):
        raise ValueError(
            f"expected finite numbers in column {shown(name)}, got {values[odd[0]]} in row {odd[0] + 1}; clip such "
            "values or leave them empty"
        )
    return values


def _demanded(name: str, column: Any, kind: str) -> np.ndarray[Any, Any]:
    """A column that must be numbers (or true and false), or an error that names the first that is not."""
    values = (_booleans if kind == "boolean" else _numbers)(column)
    if values is None:
        wanted = "true or false" if kind == "boolean" else "numbers"
        where = ""
        if _is_text(column):
            for i, text in enumerate(_texts(column).to_pylist()):
                good = ("true", "false", "0", "1") if kind == "boolean" else ()
                if text is not None and text.lower() not in good and (kind == "boolean" or not _reads(text)):
                    where = f" {shown(text)} in row {i + 1}"
                    break
        raise ValueError(f"expected {wanted} in column {shown(name)}, got{where or f' {column.type}'}; mend the file")
    return _finite(name, values)


def _reads(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


@dataclass(frozen=True)
class Column:
    """How one column becomes numbers.

    Attributes:
        name: the column's name in the file.
        kind: `number`, `boolean` or `category`.
        median: what stands for a missing number.
        mean, std: of the numbers in the training rows; std 0 where they do not vary.
        missing: whether a column tells which numbers are missing.
        categories: the texts that have a column each, None among them where some are missing.
    """

    name: str
    kind: str
    median: float = 0.0
    mean: float = 0.0
    std: float = 1.0
    missing: bool = False
    categories: tuple[str | None, ...] = ()

    @classmethod
    def learn(cls, name: str, column: Any, kind: str, rows: np.ndarray[Any, Any]) -> Column:
        """The encoding of a column, from the rows where `rows` is true."""
        import pyarrow.compute as pc

        if kind == "category":
            found = pc.unique(_texts(column.filter(rows))).to_pylist()
            names = sorted(text for text in found if text is not None)
            return cls(name, kind, categories=(*names, None) if None in found else tuple(names))
        values = _demanded(name, column, kind)[rows]
        gaps = np.isnan(values)
        present = values[~gaps]
        if not len(present):
            return cls(name, kind, std=0.0)
        missing, median = bool(gaps.any()), float(np.median(present))
        with np.errstate(over="ignore"):
            mean, std = float(present.mean()), float(present.std())
        if not (math.isfinite(mean) and math.isfinite(std)):
            raise ValueError(f"expected numbers of a usual size in column {shown(name)}, got up to {present.max()}")
        # What rounding leaves of a constant is no variation.
        if std <= 1e-14 * max(abs(mean), 1e-300):
            std = 0.0
        if kind == "boolean":
            mean, std = 0.0, float(std > 0)
        return cls(name, kind, median, mean, std, missing)

    @property
    def features(self) -> list[str]:
        """The names of the columns that come out; none where the column does not vary."""
        if self.kind == "category":
            named = [f"{self.name}={'(missing)' if c is None else c}" for c in self.categories]
            return named if len(named) > 1 else []
        return [self.name] * (self.std > 0) + [f"{self.name} is missing"] * self.missing

    def encode(self, column: Any) -> tuple[np.ndarray[Any, Any], int]:
        """The numbers of each row, (n, features), and how many rows had a category never seen before."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.kind == "category":
            text = _texts(column)
            known = pc.index_in(text, value_set=pa.array(self.categories, pa.string()))
            codes = pc.fill_null(known, -1).to_numpy(zero_copy_only=False)
            out = np.zeros((len(column), len(self.categories)))
            seen = np.flatnonzero(codes >= 0)
            out[seen, codes[seen]] = 1.0
            return out, len(column) - len(seen)
        values = _demanded(self.name, column, self.kind)
        gaps = np.isnan(values)
        parts = []
        if self.std > 0:
            parts.append((np.where(gaps, self.median, values) - self.mean) / self.std)
        if self.missing:
            parts.append(gaps.astype(np.float64))
        return np.stack(parts, 1) if parts else np.zeros((len(column), 0)), 0


# --- the target -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """How the column to be predicted is read, and how predictions are written.

    Values are standardized for training, so that a target in the thousands trains as well as one
    around 1, and predictions are put back: mean + std * prediction.

    Attributes:
        name: the column's name.
        kind: `classes` or `values`.
        whole: whether the classes are whole numbers, else they are text.
        mean, std: of the values in the training rows.
    """

    name: str
    kind: str
    whole: bool = False
    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def learn(cls, name: str, columns: Columns, kind: str | None, rows: np.ndarray[Any, Any]) -> Target:
        """What kind of target it is (unless said), and its scale in the training rows."""
        column, typed = columns[name], columns.typed
        found = _kind(column, typed)
        text = _texts(column) if found != "dates" else None
        if text is not None and text.null_count:
            first = int(np.flatnonzero(text.is_null().to_numpy(zero_copy_only=False))[0]) + 1
            raise ValueError(
                f"expected a value of {shown(name)}, the target, in every row, got none in {text.null_count} rows, "
                f"first in row {first}; remove those rows or fill them in"
            )
        whole = found == "number" and _whole(column)
        if kind is None:
            kind = "values"
            if found in ("boolean", "category"):
                kind = "classes"
            elif whole:
                different = len(np.unique(_numbers(column)))  # type: ignore[arg-type]
                kind = "classes" if different <= min(FEW, columns.rows // 2) else "values"
            elif found != "number":
                raise ValueError(f"expected numbers or classes in {shown(name)}, the target, got {found}")
        if kind == "classes":
            if found not in ("number", "boolean", "category"):
                raise ValueError(f"expected classes in {shown(name)}, the target, got {found}")
            target = cls(name, kind, whole=whole)
            labels = np.unique(target.read(columns))
            if len(labels) < 2:
                raise ValueError(
                    f"expected at least two classes in {shown(name)}, the target, got one only: {shown(labels[0])}"
                )
            if len(labels) > max(2, columns.rows / 2):
                raise ValueError(
                    f"expected several rows of each class in {shown(name)}, the target, got {len(labels)} classes in "
                    f"{columns.rows} rows; to predict numbers use --objective regression"
                )
            return target
        values = _demanded(name, column, "number")[rows]
        with np.errstate(over="ignore"):
            mean, std = float(values.mean()), float(values.std())
        if not (math.isfinite(std) and std > 1e-14 * max(abs(mean), 1e-300)):
            raise ValueError(
                f"expected values that vary in {shown(name)}, the target, got {shown(values[0])} throughout"
            )
        return cls(name, kind, mean=mean, std=std)

    def read(self, columns: Columns) -> np.ndarray[Any, Any]:
        """The target of each row, as a Learner takes it: labels, or standardized values."""
        import pyarrow as pa

        column = columns[self.name]
        if self.kind == "values":
            return (_demanded(self.name, column, "number") - self.mean) / self.std
        text = _texts(column)
        if self.whole and _whole(column):
            whole = text if _is_text(column) else column
            return whole.cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False)
        return np.array(text.to_pylist(), dtype=str)

    def write(self, answers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Predictions in the column's own units."""
        return self.mean + self.std * np.asarray(answers, np.float64) if self.kind == "values" else answers


def _whole(column: Any) -> bool:
    """Whether a column holds whole numbers written as such (`3`, not `3.0`)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not _is_text(column):
        return pa.types.is_integer(column.type)
    return bool(pc.all(pc.match_substring_regex(pc.drop_null(_texts(column)), r"^[-+]?\d{1,18}$")).as_py())


def _names(name: str, columns: Columns, what: str) -> np.ndarray[Any, Any]:
    """A column of environments or tasks as text."""
    import pyarrow as pa

    column = columns[name]
    if pa.types.is_nested(column.type):
        raise ValueError(f"expected names or numbers in {shown(name)}, the {what}, got {column.type}")
    text = _texts(column)
    if text.null_count:
        first = int(np.flatnonzero(text.is_null().to_numpy(zero_copy_only=False))[0]) + 1
        raise ValueError(
            f"expected {'an environment' if what == 'environment' else 'a task'} in every row of {shown(name)}, got "
            f"none in {text.null_count} rows, first in row {first}; name it or remove those rows"
        )
    labels = np.array(text.to_pylist(), dtype=str)
    different = len(np.unique(labels))
    if different > max(2, columns.rows / 2):
        raise ValueError(
            f"expected several rows of each {what} in {shown(name)}, got {different} of them in {columns.rows} rows"
        )
    return labels


# --- the whole table --------------------------------------------------------------------------------


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
    """

    X: np.ndarray[Any, Any]
    names: list[str]
    y: np.ndarray[Any, Any] | None = None
    environment: np.ndarray[Any, Any] | None = None
    task: np.ndarray[Any, Any] | None = None
    held: np.ndarray[Any, Any] | None = None
    unseen: dict[str, int] = field(default_factory=dict)

    @property
    def training(self) -> np.ndarray[Any, Any]:
        """Which rows are trained on: all that are not held out."""
        return np.ones(len(self.X), dtype=bool) if self.held is None else ~self.held

    @property
    def measured(self) -> tuple[str, np.ndarray[Any, Any]]:
        """What scores are taken on, and which rows that is: those held out, or where there are none the training's."""
        held = ~self.training
        return ("held-out", held) if held.any() else ("training", ~held)

    @property
    def held_out(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None] | None:
        """X and y of the rows held out, as a Learner's `validation` takes them; None where there are none."""
        part, rows = self.measured
        return None if part == "training" else (self.X[rows], None if self.y is None else self.y[rows])


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
        training: np.ndarray[Any, Any] | None = None,
    ) -> Recipe:
        """Looks at the columns and learns how to encode them.

        Args:
            columns: the table.
            target: the column to be predicted, or None for objectives without one.
            environment, task: columns that name each row's environment and task.
            drop: columns to leave out.
            kind: `classes` or `values`, or None to see by the target: text, true/false and whole
                numbers of few different values are classes, other numbers are values.
            validation: a share of the rows to hold out; nothing is learned from them.
            seed: which rows are held out.
            training: the rows to learn the encoding from, True or False for each, in place of a share.
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
            goal = Target.learn(target or "", columns, "values", rows)
        used, refused = [], {}
        left_out = dict.fromkeys(drop, "asked for")
        for name, column in columns.data.items():
            if name in taken or name in left_out:
                continue
            found = _kind(column, columns.typed)
            if found not in ("number", "boolean", "category"):
                refused[name] = found
                continue
            encoding = Column.learn(name, column, found, rows)
            if encoding.features:
                used.append(encoding)
            else:
                left_out[name] = "does not vary"
        if refused:
            told = "; ".join(f"{shown(name)} has {why}" for name, why in list(refused.items())[:5])
            options = " ".join(f"--drop {shlex.quote(name)}" for name in list(refused)[:5])
            more = f" and {len(refused) - 5} more" if len(refused) > 5 else ""
            raise ValueError(
                f"expected columns of numbers, categories or true/false, got others: {told}{more}; leave them out with "
                f"{options}, or mend the file"
            )
        if not used:
            raise ValueError(
                f"expected columns to learn from in {columns.path}, got none beside the target that varies; columns: "
                f"{some(list(columns.data))}"
            )
        return cls(tuple(used), goal, environment, task, left_out, validation, seed)

    def _roles(self, columns: Columns) -> tuple[Any, Any, Any, np.ndarray[Any, Any]]:
        """Target, environment and task of each row, and which rows are held out."""
        y = None if self.target is None else self.target.read(columns)
        environment = None if self.environment is None else _names(self.environment, columns, "environment")
        task = None if self.task is None else _names(self.task, columns, "task")
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
        table = Table(np.concatenate(parts, axis=1), names, unseen=unseen)
        if labelled:
            table.y, table.environment, table.task, table.held = self._roles(columns)
        return table

    def to_json(self) -> dict[str, Any]:
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
        }

    @classmethod
    def from_json(cls, plain: Any) -> Recipe:
        """The recipe from `to_json`'s values, each checked: the file may come from anywhere."""
        if not isinstance(plain, dict) or "format" not in plain:
            raise ValueError("expected weft's recipe of a table, got something else; fit anew")
        if plain["format"] != FORMAT:
            raise ValueError(
                f"expected a recipe of format {FORMAT}, got {shown(plain['format'])}; use that version of weft"
            )
        try:
            columns = tuple(_checked(Column, entry, ("number", "boolean", "category")) for entry in plain["columns"])
            target = None if plain["target"] is None else _checked(Target, plain["target"], ("classes", "values"))
            environment, task, left_out = plain["environment"], plain["task"], dict(plain["left_out"])
            validation, seed = float(plain["validation"]), int(plain["seed"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"expected weft's recipe of a table, got a damaged one: {error}; fit anew") from error
        if not columns or any(not isinstance(name, str | None) for name in (environment, task)):
            raise ValueError("expected weft's recipe of a table, got a damaged one: it names no columns; fit anew")
        return cls(columns, target, environment, task, left_out, validation, seed)


def _without_defaults(entry: Any) -> dict[str, Any]:
    default = {spec.name: spec.default for spec in fields(entry)}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(entry).items()
        if value != default[name]
    }


def _checked(cls: type, entry: Any, kinds: tuple[str, ...]) -> Any:
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


def split(strata: Sequence[np.ndarray[Any, Any] | None], rows: int, share: float, seed: int) -> np.ndarray[Any, Any]:
    """Which rows to hold out: a share of them, the same in every stratum as nearly as can be.

    Rows are put in order of their strata (environment, task, class), at random within each, and every
    so-many-th is held out. What has a single row in a stratum's own column stays in training.

    Args:
        strata: labels of each row, the most important first; None is passed over.
        rows: how many rows there are.
        share: of the rows, in [0, 1).
        seed: the choice is a function of it and of the row's number.

    Returns:
        True for the rows held out.

    Example:
        >>> y = np.array(["a"] * 8 + ["b"] * 4)
        >>> held = split([y], 12, 0.25, seed=0)
        >>> np.unique(y[held], return_counts=True)[1].tolist()
        [2, 1]
    """
    from weft.core.random import bits, fold, key_of

    if not 0.0 <= share < 1.0:
        raise ValueError(f"expected the share of held-out rows in [0, 1), got {share!r}")
    held = np.zeros(rows, dtype=bool)
    if share == 0.0:
        return held
    given = [np.unique(labels, return_inverse=True)[1].reshape(-1) for labels in strata if labels is not None]
    chance = bits(fold(key_of(seed), "table split"), (rows,)).numpy()
    order = np.lexsort([chance, *given[::-1]])
    marks = np.floor(np.arange(rows + 1) * share + 0.5)
    held[order[marks[1:] > marks[:-1]]] = True
    for codes in given:  # every class, environment and task is trained on
        held &= np.bincount(codes[~held], minlength=codes.max() + 1)[codes] > 0
    if not held.any():
        raise ValueError(
            f"expected rows to hold out, got none with a share of {share} of {rows} rows; take a larger share"
        )
    return held
