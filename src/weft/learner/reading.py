"""Reading: the arguments of `fit` and `predict`, checked and turned into tensors.

A `Reader` is given the Learner, as scikit-learn's `validate_data` is: what the data itself tells (`n_features_in_`,
`feature_names_in_`, `classes_`, `environments_`, `vocabulary_`) is kept there when training starts, and compared with
afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data
from torch import Tensor

from weft.core.configured import closest
from weft.core.objective import RAGGED, TARGETS, Objective
from weft.core.random import key_of, keyed
from weft.core.source import Field, Spec
from weft.engine.build import build
from weft.learner.columns import Columns, as_tensor, mend, names_of_rows, refuse_targets, take, unpack, wanted
from weft.learner.ragged import is_ragged, named_tokens, read_typed, refuse_other_shape, rows_in, unequal
from weft.learner.tabular import encoded, is_table
from weft.learner.unlabelled import without_label
from weft.learner.weighing import weights
from weft.sources.arrays import Arrays, as_array
from weft.sources.drawn import Drawn

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = ["COLUMNS", "Reader", "as_array", "as_tensor", "names_of_rows", "take", "unpack"]

_TAKEN = {*signature(Arrays).parameters, "X", "drawn", "group", "index", "observed", "row", "sample_weight", "task"}
_TAKEN -= {"x", "y"}
COLUMNS = "give every task the same columns (0 in those that it lacks), or fit anew"


class Reader:
    """Reads rows for a learner.

    Args:
        learner: where what the data tells is kept.
        objective: says which fields there are.
        dtype: of numbers.
        spec: what a row was when training began; None where it begins now.
        asked: whether the rows are asked about, or held out, and not learned from.
    """

    def __init__(
        self, learner: Learner, objective: Objective, dtype: torch.dtype, spec: Spec | None, *, asked: bool = False
    ) -> None:
        self.learner, self.objective, self.dtype, self.spec, self.asked = learner, objective, dtype, spec, asked
        self.tokens: dict[str, int] = {}

    @property
    def first(self) -> bool:
        """Whether training begins with what is read."""
        return self.spec is None

    def read(self, columns: Columns, classes: Any = None) -> dict[str, Any]:
        """The arguments of `fit` as the arguments of `Arrays`; `classes` lists the labels of y, or by field."""
        X, y = unpack(columns.X, columns.y)
        environment, sample_weight = columns.environment, columns.sample_weight
        listed = dict(classes) if isinstance(classes, Mapping) else {"y": classes}
        self._refuse_fields(columns.fields)
        if self.first:
            for kept in ("labels_", "vocabulary_"):
                self.learner.__dict__.pop(kept, None)
        supervised = "y" in self.objective.fields
        if y is None and supervised:
            raise ValueError(
                f"This {type(self.learner).__name__} estimator requires y to be passed, but the target y is None; call "
                "fit(X, y)"
            )
        data: dict[str, Any] = self.inputs(X, listed.get("x"))
        if isinstance(X, Drawn):
            data["drawn"] = X
        rows, numbered = len(data["x"]), {}
        for name, values in (({"y": y} if supervised else {}) | dict(columns.fields)).items():
            self._same_rows(name, values, rows)
            data |= self.field(name, values, listed.get(name))
        if "index" in self.objective.fields:
            data["index"] = self._index(rows, columns.fields.get("index"))
            numbered["index"] = rows if self.spec is None else self.spec["index"].classes
        for name in self.objective.fields:
            if name in data and name != "index" and self.objective.holds(name) in ("classes", "tokens"):
                numbered[name] = self._count(name)
        data["classes"] = {name: count for name, count in numbered.items() if count is not None} or None
        recipe = getattr(self.learner, "recipe_", None)
        if recipe is not None:
            data["columns"] = recipe.parts
        whole = self.objective.columns == "values" or self.objective.holds("x") not in TARGETS
        if self.first and not (whole or isinstance(X, Tensor | Drawn) or data["x"].is_floating_point()):
            asked = data if environment is None else {**data, "environment": as_array(environment)}
            data["x"] = data["x"] if self._takes_integers(asked) else data["x"].to(self.dtype)
        weight = weights(self.learner, self.objective, data, sample_weight, self.dtype)
        if weight is not None:
            data["weight"] = weight
        if environment is not None:
            data["environment"] = names_of_rows(environment, rows, "environment")
            if "environment" in self.objective.fields:
                self._same_environments(data["environment"])
        return data

    @property
    def further(self) -> list[str]:
        """The fields that are given by name."""
        return [name for name in self.objective.fields[1:] if name not in ("y", "environment", "index")]

    def _index(self, rows: int, given: Any) -> Tensor:
        """Each row's number in the training data."""
        known = None if self.spec is None else self.spec["index"].classes
        if self.asked:
            if given is None:
                raise ValueError(
                    f"expected rows with their number in the training data, which {type(self.objective).__name__} "
                    "reads, got others; those that were not learned from have none, of those that were give index=..."
                )
            return self.numbers_of_rows(given)
        if known is not None and known != rows:
            raise ValueError(
                f"expected the {known} rows that training began with, which {type(self.objective).__name__} numbers, "
                f"got {rows}; fit anew"
            )
        return torch.arange(rows)

    def numbers_of_rows(self, given: Any) -> Tensor:
        """The field `index` of rows that are asked about."""
        known = 0 if self.spec is None else self.spec["index"].classes or 0
        array = as_array(given)
        if array.dtype.kind not in "iu" or array.ndim != 1 or array.min(initial=0) < 0 or array.max(initial=0) >= known:
            raise ValueError(f"expected index to number rows of the training data, 0..{known - 1}, got {given!r}")
        return torch.as_tensor(array.astype(np.int64))

    def _count(self, name: str) -> int | None:
        """How many classes, or tokens, a field numbers."""
        if self.objective.holds(name) == "tokens":
            return self.tokens[name]
        labels = self.learner.classes_ if name == "y" else self._further_labels(name)
        return len(labels)

    def _refuse_fields(self, given: Mapping[str, Any]) -> None:
        whose = type(self.objective).__name__
        for name in given:
            if name == "index" and "index" in self.objective.fields and self.asked:
                continue
            if name not in self.further:
                known = [*self.further, "environment", "task", "sample_weight"]
                raise TypeError(f"{closest(name, known, 'a field by name')}; {whose} reads {self.objective.fields}")
            if name in _TAKEN:
                raise ValueError(
                    f"expected {whose} to call its field otherwise than {name!r}, which has a meaning of its own in "
                    "fit and in sources; rename it"
                )
        missing = [name for name in self.further if given.get(name) is None]
        if missing and self.objective.fields[0] == "x":
            raise ValueError(
                f"expected rows with {missing[0]!r}, which {whose} reads, got {['x', *sorted(given)]}; call "
                f"fit(X, {', '.join(f'{name}=...' for name in self.further)}) or give a source with it"
            )

    def _same_rows(self, name: str, values: Any, rows: int) -> None:
        if is_ragged(values) and self.objective.holds(name) not in RAGGED:
            raise unequal(name, type(self.objective).__name__)
        count = rows_in(values)
        if count != rows:
            raise ValueError(
                f"Found input variables with inconsistent numbers of samples: expected {name} to have {rows} rows as X "
                f"has, got {'a single value' if count is None else count}"
            )

    # --- one field at a time ----------------------------------------------------------------------------

    def field(self, name: str, values: Any, classes: Any = None) -> dict[str, Tensor]:
        """A field by what it holds, with what comes along."""
        kind = self.objective.holds(name)
        if kind in TARGETS:
            return {name: self.labels(values, classes, name) if kind == "classes" else self.targets(values, name)}
        known, learner = None if self.spec is None else self.spec.get(name), self.learner
        count, characters_ = named_tokens(name, classes, self.objective.vocabulary)
        if known is not None:
            before = known.classes, getattr(learner, "vocabulary_", {}).get(name)
            if classes is not None and (count, characters_) != before:
                raise ValueError(
                    f"expected the tokens of {name} that training began with, {before[1] or before[0]}, got "
                    f"{characters_ or count}; name all of them at the first partial_fit"
                )
            count, characters_ = before
        gaps = self.objective.gaps and name == "x"
        typed = read_typed(
            kind,
            name,
            values,
            self.dtype,
            width=1 if known is None or kind not in RAGGED else known.shape[0],
            classes=count,
            vocabulary=characters_,
            spelling=self.objective.vocabulary,
            gaps=gaps,
        )
        if known is not None:
            refuse_other_shape(kind, name, typed.values, known.shape)
        if typed.vocabulary is not None and known is None:
            learner.vocabulary_ = {**getattr(learner, "vocabulary_", {}), name: typed.vocabulary}
        if typed.classes is not None:
            self.tokens[name] = typed.classes
        found = typed.fields(name)
        if gaps:
            inside = torch.ones_like(typed.values, dtype=torch.bool)
            if typed.length is not None:
                inside &= (torch.arange(inside.shape[1]) < typed.length[:, None]).reshape(
                    *inside.shape[:2], *[1] * (inside.dim() - 2)
                )
            found["observed"] = inside & ~torch.isnan(typed.values)
            found[name] = torch.nan_to_num(typed.values, nan=0.0)
        return found

    def inputs(self, X: Any, classes: Any = None) -> dict[str, Tensor]:
        """Rows in the learner's dtype, and what comes along with them: `observed`, `x_length`."""
        X, _ = unpack(X, None)
        recipe = getattr(self.learner, "recipe_", None)
        if recipe is not None:
            rows, observed = encoded(recipe, X, self.dtype, quiet=self.first)
            return {"x": rows, **({"observed": observed} if self.objective.gaps else {})}
        if self.objective.columns == "values" and is_table(X):
            raise ValueError(
                "expected an array, as training began with, got a DataFrame, whose columns would be standardized; give "
                "X.to_numpy(), or fit anew with a DataFrame"
            )
        if self.objective.holds("x") not in TARGETS:
            first = X.x if isinstance(X, Drawn) else X
            found = self.field("x", first, classes)
            if isinstance(X, Drawn) and not torch.equal(found["x"].to(X.x), X.x):
                raise ValueError(
                    "expected a data set that draws to give floats, channels first, got others, which would be read "
                    "anew as they are; let its transform make them so"
                )
            return found
        if is_ragged(X):
            raise unequal("X", type(self.objective).__name__)
        rows = self._plain(X)
        if not self.objective.gaps:
            self._finite("X", rows)
            self._expect("X", rows)
            return {"x": rows}
        rows = rows.to(self.dtype)  # whole numbers too, for later ones may have gaps
        observed = ~torch.isnan(rows)
        rows = torch.nan_to_num(rows, nan=0.0, posinf=torch.inf, neginf=-torch.inf)
        self._finite("X", rows)
        self._expect("X", rows)
        empty = torch.nonzero(~observed.flatten(1).any(0))
        if self.first and len(empty):
            raise ValueError(
                f"expected some value in every column of X, got none in column {int(empty[0, 0])}; leave it out"
            )
        return {"x": rows, "observed": observed}

    def _plain(self, X: Any) -> Tensor:
        """Numbers as they are given."""
        X = X.x if isinstance(X, Drawn) else X
        if isinstance(X, Tensor):
            self._check_tensor(X)
            return as_tensor(X, self.dtype)
        try:
            array = validate_data(
                self.learner, X, reset=self.first, allow_nd=True, dtype="numeric", ensure_all_finite=False
            )
        except (TypeError, ValueError) as error:
            if "features, but" in str(error):
                raise ValueError(f"{str(error).rstrip('.')}; {COLUMNS}") from error
            texts = isinstance(X, list | tuple) and bool(X) and all(isinstance(row, str) for row in X)
            if "string" not in str(error) and not texts:
                raise
            hint = "expected numbers in X: encode text columns, for example with sklearn's OrdinalEncoder"
            if is_table(X):
                hint = "expected numbers in X, as fit was given, got a table with others; fit anew with such a table"
            if texts:
                hint = "expected numbers in X: an objective that reads text says so, kinds = {'x': 'tokens'}"
            raise type(error)(f"{error}; {hint}") from error
        return self._numbers(array)

    def _numbers(self, array: NDArray[Any]) -> Tensor:
        """Integers as such, unless training has begun with others; anything else in the learner's dtype."""
        known = None if self.spec is None else self.spec.get(self.objective.fields[0])
        if known is None:
            return as_tensor(array, torch.int64 if array.dtype.kind in "iu" else self.dtype)
        if known.dtype.is_floating_point:
            return as_tensor(array, self.dtype)
        if array.dtype.kind not in "iu" and not np.array_equal(array, np.floor(array)):
            raise ValueError("expected whole numbers in X, as training began with, got others")
        return as_tensor(array, known.dtype)

    def _takes_integers(self, data: dict[str, Any]) -> bool:
        """Whether the objective reads integers as they are (token numbers): two rows are run through it."""
        rows: dict[str, Any] = {name: values[:2] for name, values in data.items() if isinstance(values, Tensor)}
        classes = data.get("classes")
        number = dict(classes or {})
        if "environment" in data:
            names, codes = np.unique(data["environment"], return_inverse=True)
            rows["environment"], number["environment"] = torch.as_tensor(codes[:2]), len(names)
        spec = {name: Field(tuple(v.shape[1:]), v.dtype, number.get(name)) for name, v in rows.items()}
        try:
            built = build(self.objective, spec, 0, self.dtype).eval()
            with torch.no_grad(), keyed(key_of(0), torch.arange(len(rows["x"]))):
                built(rows, *built.players[:1])
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError):
            return False
        return True

    def _check_tensor(self, X: Tensor) -> None:
        """What `validate_data` checks of an array, for a tensor."""
        if X.layout != torch.strided or X.is_complex():
            kind = "Complex data" if X.is_complex() else "Sparse data"
            raise TypeError(f"{kind} not supported: expected a dense tensor of real numbers, got {X.dtype}, {X.layout}")
        if X.dim() < 2:
            raise ValueError(
                f"Expected 2D array, got {X.dim()}D tensor instead: expected rows of features; Reshape your data using "
                "X[:, None] if it has one feature, X[None] if it is one row"
            )
        if 0 in X.shape[:2]:
            axis = "sample" if not len(X) else "feature"
            raise ValueError(f"Found array with 0 {axis}(s) (shape={tuple(X.shape)}) while a minimum of 1 is required.")
        if self.first:
            self.learner.n_features_in_ = X.shape[1]
        elif X.shape[1] != self.learner.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self.learner).__name__} is expecting "
                f"{self.learner.n_features_in_} features as input; {COLUMNS}"
            )

    def _finite(self, name: str, values: Tensor) -> None:
        if bool(torch.isfinite(values.sum(dtype=torch.promote_types(values.dtype, torch.float32)))):
            return  # one quick pass: a sum is finite only if all its terms are
        fine = torch.isfinite(values)
        if not bool(fine.all()):
            raise ValueError(
                f"Input {name} contains NaN, infinity or a value too large for dtype {self.learner.dtype!r}, first in "
                f"row {int(torch.nonzero(~fine)[0, 0])}: expected finite numbers; impute or drop such rows, or scale "
                "the column"
            )

    def _expect(self, name: str, values: Tensor) -> None:
        """Raises where a row's shape is another than when training began."""
        known = None if self.spec is None else self.spec.get(name.lower())
        shape = tuple(values.shape[1:])
        if known is not None and known.shape != shape:
            raise ValueError(
                f"expected rows of {name} of shape {known.shape} as when training began, got {shape}; give "
                f"{name} that shape, or fit anew"
            )

    def labels(self, y: Any, classes: Any = None, name: str = "y") -> Tensor:
        """Class numbers; the labels themselves are kept in `classes_`, those of further fields in `labels_`."""
        whole = name != "y" or name in self.objective.kinds  # one label for a row, unless it is said otherwise
        names = as_array(y) if whole else column_or_1d(as_array(y), warn=True)
        if self.objective.orders(name) and names.dtype.kind not in "iufb":
            raise ValueError(
                f"expected labels in an order, which {type(self.objective).__name__} reads, got text such as "
                f"{str(names[:1].tolist())[1:-1]}, whose order is not known; number them: 0 for the first, 1, 2, ..."
            )
        if self.objective.unlabelled and name == "y":
            absent = torch.as_tensor(without_label(names, type(self.objective).__name__, classes, asked=self.asked))
            if bool(absent.any()):
                own = self.labels(names[~absent.numpy()], classes)
                return torch.full(names.shape, -1, dtype=own.dtype).masked_scatter(~absent, own)
        try:
            assert_all_finite(names, input_name=name)
            present, inverse = np.unique(names, return_inverse=True)
        except TypeError as error:
            raise ValueError(
                f"expected labels of one kind, got a mixture or missing ones ({error}); drop those rows, or name them"
            ) from error
        check_classification_targets(names.reshape(-1))
        if isinstance(classes, Integral | str):
            raise TypeError(f"expected classes to list every label, such as range(10), got {classes!r}")
        declared = list(classes) if isinstance(classes, set) else classes
        known = self._known_labels(name, present if classes is None else np.unique(as_array(declared)), classes)
        numbers = {label: k for k, label in enumerate(known.tolist())}
        unknown = [label for label in present.tolist() if label not in numbers]
        if unknown:
            raise ValueError(
                f"expected labels among {known.tolist()}{'' if name == 'y' else f' in {name}'}, got also {unknown}; "
                "name every class at the first partial_fit(..., classes=...), or fit anew"
            )
        found = np.array([numbers[label] for label in present.tolist()])[inverse.reshape(-1)]
        return torch.as_tensor(found.reshape(names.shape))

    def _further_labels(self, name: str) -> NDArray[Any]:
        """The labels of a further field; where a source has numbered them itself, the numbers."""
        kept: dict[str, NDArray[Any]] = getattr(self.learner, "labels_", {})
        if name in kept or self.spec is None:
            return kept[name]
        return np.arange(self.spec[name].classes or 0)

    def _known_labels(self, name: str, told: NDArray[Any], classes: Any) -> NDArray[Any]:
        """Keeps the labels of a field when training starts; raises where others are declared later."""
        learner = self.learner
        if self.first:
            if len(told) < 2:
                raise ValueError(
                    f"expected at least two classes{'' if name == 'y' else f' in {name}'}, got one class only "
                    f"({told.tolist()}); name all of them with partial_fit(..., classes=...) if the others come later"
                )
            if name == "y":
                learner.classes_ = told
            else:
                learner.labels_ = {**getattr(learner, "labels_", {}), name: told}
        known: NDArray[Any] = learner.classes_ if name == "y" else self._further_labels(name)
        if classes is not None and not np.array_equal(told, known):
            raise ValueError(
                f"expected the classes that training began with, {known.tolist()}, got {told.tolist()}; name all of "
                "them at the first partial_fit"
            )
        return known

    def targets(self, y: Any, name: str = "y") -> Tensor:
        """Numbers, such as those to be predicted: (n,) or (n, outputs)."""
        array = as_array(y)
        if array.dtype.kind == "O":
            try:
                array = array.astype(np.float64)
            except (TypeError, ValueError) as error:
                raise ValueError(f"expected numbers{wanted(name)}, got others ({error}){mend(name)}") from error
        if array.dtype.kind not in "fiub":
            raise ValueError(f"expected numbers{wanted(name)}, got {array.dtype}{mend(name)}")
        values = as_tensor(array, torch.int64 if array.dtype.kind in "iu" else self.dtype)
        self._finite(name, values)
        self._expect(name, values)
        refuse_targets(self.objective.holds(name), values, name)
        return values

    def _same_environments(self, names: NDArray[Any]) -> None:
        """Keeps the environments when training starts, where the objective numbers them; raises where others come."""
        present = np.unique(names)
        known = present if self.first else getattr(self.learner, "environments_", present)
        if not np.array_equal(known, present):
            raise ValueError(
                f"expected the environments that training began with, {known.tolist()}, got {present.tolist()}; "
                f"{type(self.objective).__name__} numbers them: fit anew"
            )
        self.learner.environments_ = known
