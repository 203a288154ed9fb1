"""Reading: the arguments of `fit` and `predict`, checked and turned into tensors.

A `Reader` is given the Learner, as scikit-learn's `validate_data` is: what the data itself tells (`n_features_in_`,
`feature_names_in_`, `classes_`, `environments_`) is kept there when training starts, and compared with afterwards.
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
from sklearn.utils.validation import _check_sample_weight, column_or_1d, validate_data
from torch import Tensor

from weft.core.configured import closest
from weft.core.objective import Objective
from weft.core.random import key_of, keyed
from weft.core.source import Field, Spec
from weft.engine.build import build
from weft.learner.columns import Columns, as_tensor, names_of_rows, refuse_targets, take, unpack
from weft.sources.arrays import Arrays, as_array, refuse_masked
from weft.sources.drawn import Drawn

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = ["COLUMNS", "Reader", "as_array", "as_tensor", "names_of_rows", "take", "unpack"]

_TAKEN = {*signature(Arrays).parameters, "X", "drawn", "group", "row", "sample_weight", "task"} - {"x", "y"}
COLUMNS = "give every task the same columns (0 in those that it lacks), or fit anew"


def _wanted(name: str) -> str:
    return " to predict in y" if name == "y" else f" in {name}"


def _mend(name: str) -> str:
    return "; for labels use a Classifier" if name == "y" else f"; for labels let kinds say {{{name!r}: 'classes'}}"


class Reader:
    """Reads rows for a learner.

    Args:
        learner: where what the data tells is kept.
        objective: says which fields there are.
        dtype: of numbers.
        spec: what a row was when training began; None where it begins now.
    """

    def __init__(self, learner: Learner, objective: Objective, dtype: torch.dtype, spec: Spec | None) -> None:
        self.learner, self.objective, self.dtype, self.spec = learner, objective, dtype, spec

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
            self.learner.__dict__.pop("labels_", None)
        supervised = "y" in self.objective.fields
        if y is None and supervised:
            raise ValueError(
                f"This {type(self.learner).__name__} estimator requires y to be passed, but the target y is None; call "
                "fit(X, y)"
            )
        data: dict[str, Any] = {"x": self.inputs(X)}
        if isinstance(X, Drawn):
            data["drawn"] = X
        rows = len(data["x"])
        if supervised:
            self._same_rows("y", y, rows)
            if self.objective.targets == "classes":
                data["y"] = self.labels(y, listed.get("y"))
                data["classes"] = len(self.learner.classes_)
            else:
                data["y"] = self.targets(y)
        for name, values in columns.fields.items():
            self._same_rows(name, values, rows)
            if self.objective.holds(name) == "classes":
                data[name] = self.labels(values, listed.get(name), name)
                known = {"y": data["classes"]} if isinstance(data.get("classes"), int) else data.get("classes", {})
                data["classes"] = {**known, name: len(self._further_labels(name))}
            else:
                data[name] = self.targets(values, name)
        if self.first and not isinstance(X, Tensor | Drawn) and not data["x"].is_floating_point():
            asked = data if environment is None else {**data, "environment": as_array(environment)}
            data["x"] = data["x"] if self._takes_integers(asked) else data["x"].to(self.dtype)
        weight = self._weights(data, sample_weight)
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
        return [name for name in self.objective.fields[1:] if name not in ("y", "environment")]

    def _refuse_fields(self, given: Mapping[str, Any]) -> None:
        whose = type(self.objective).__name__
        for name in given:
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
        column = as_array(values)
        if column.ndim == 0 or len(column) != rows:
            raise ValueError(
                f"Found input variables with inconsistent numbers of samples: expected {name} to have {rows} rows as X "
                f"has, got {'a single value' if column.ndim == 0 else len(column)}"
            )

    # --- one field at a time ----------------------------------------------------------------------------

    def inputs(self, X: Any) -> Tensor:
        """Rows, finite and in the learner's dtype."""
        X, _ = unpack(X, None)
        X = X.x if isinstance(X, Drawn) else X
        if isinstance(X, Tensor):
            self._check_tensor(X)
            rows = as_tensor(X, self.dtype)
        else:
            try:
                array = validate_data(
                    self.learner, X, reset=self.first, allow_nd=True, dtype="numeric", ensure_all_finite=False
                )
            except (TypeError, ValueError) as error:
                if "features, but" in str(error):
                    raise ValueError(f"{str(error).rstrip('.')}; {COLUMNS}") from error
                if "string" not in str(error):
                    raise
                hint = "expected numbers in X: encode text columns, for example with sklearn's OrdinalEncoder"
                raise type(error)(f"{error}; {hint}") from error
            rows = self._numbers(array)
        self._finite("X", rows)
        self._expect("X", rows)
        return rows

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
        rows: dict[str, Any] = {name: data[name][:2] for name in ("x", "y", *self.further) if name in data}
        classes = data.get("classes")
        number = dict(classes) if isinstance(classes, Mapping) else {"y": classes}
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
                raise ValueError(f"expected numbers{_wanted(name)}, got others ({error}){_mend(name)}") from error
        if array.dtype.kind not in "fiub":
            raise ValueError(f"expected numbers{_wanted(name)}, got {array.dtype}{_mend(name)}")
        values = as_tensor(array, torch.int64 if array.dtype.kind in "iu" else self.dtype)
        self._finite(name, values)
        self._expect(name, values)
        refuse_targets(self.objective.holds(name), values, name)
        return values

    def _weights(self, data: dict[str, Any], sample_weight: Any) -> Tensor | None:
        """The product of the examples' weights and of their classes' weights."""
        total: NDArray[np.float64] | None = None
        if sample_weight is not None:
            refuse_masked(sample_weight)
            given = as_array(sample_weight) if isinstance(sample_weight, Tensor) else sample_weight
            total = _check_sample_weight(given, np.empty(len(data["x"])), dtype=np.float64, ensure_non_negative=True)
            if not total.sum() > 0:
                raise ValueError(
                    "expected some sample_weight to be positive, got none; drop the argument for equal weights"
                )
        class_weight = self.objective.class_weight
        if class_weight is not None and self.objective.targets == "classes":
            own = self._class_weights(class_weight, data["y"].numpy(), total)
            total = own if total is None else total * own
        return None if total is None else torch.as_tensor(total).to(self.dtype)

    def _class_weights(
        self, given: Any, numbers: NDArray[np.int64], weight: NDArray[np.float64] | None
    ) -> NDArray[np.float64]:
        """Each example's class weight; `balanced` is inverse to the classes' total weights in this data."""
        known = self.learner.classes_.tolist()
        if isinstance(given, str):
            if given != "balanced":
                raise ValueError(f"expected class_weight to be weights by label, 'balanced' or None, got {given!r}")
            mass = np.bincount(numbers, weights=weight, minlength=len(known)).astype(np.float64)
            table = mass.sum() / (np.count_nonzero(mass) * np.where(mass > 0, mass, 1.0))
        elif isinstance(given, dict):
            unknown = [label for label in given if label not in known]
            if unknown:
                raise ValueError(f"expected class_weight to weigh labels among {known}, got also {unknown}")
            table = np.array([given.get(label, 1.0) for label in known], dtype=np.float64)
        else:
            table = np.asarray(given, dtype=np.float64)
            if table.shape != (len(known),):
                raise ValueError(f"expected {len(known)} class weights, one per class, got shape {table.shape}")
        if not (np.isfinite(table).all() and (table >= 0).all()):
            raise ValueError(f"expected finite class weights >= 0, got {table.tolist()}")
        return table[numbers]

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
