"""Reading: the arguments of `fit` and `predict`, checked and turned into tensors and sources.

The functions take the Learner first, as scikit-learn's `validate_data` does: what the data itself
tells (`n_features_in_`, `feature_names_in_`, `classes_`, the shapes of a row) is kept there when
training starts (`reset`), and compared with afterwards.
"""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, column_or_1d, validate_data
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from weft.core.objective import Objective
from weft.core.source import Source
from weft.core.strategy import Strategy
from weft.sources import Arrays
from weft.sources.cast import Cast

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = ["DTYPES", "as_tensor", "environments", "inputs", "match", "plain", "read", "sources", "take", "unpack"]

_COLUMNS = "give every task the same columns (0 in those that it lacks), or fit anew"
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


def plain(values: Any) -> np.ndarray[Any, Any]:
    """A NumPy array of whatever holds numbers or names."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def as_tensor(learner: Learner, values: Any) -> Tensor:
    """A tensor of the learner's dtype; integers in a tensor stay integers (token numbers)."""
    if isinstance(values, Tensor):
        number = values.is_floating_point() or values.dtype == torch.bool
        return values.detach().to(DTYPES[learner.dtype]) if number else values
    array = np.ascontiguousarray(values)
    return torch.as_tensor(array if array.flags.writeable else array.copy()).to(DTYPES[learner.dtype])


def take(values: Any, rows: np.ndarray[Any, Any]) -> Any:
    """Some rows of an array, a table, a tensor or a list; None stays None."""
    if values is None:
        return None
    if hasattr(values, "iloc"):
        return values.iloc[rows]
    return values[torch.as_tensor(rows)] if isinstance(values, Tensor) else np.asarray(values)[rows]


def unpack(X: Any, y: Any) -> tuple[Any, Any]:
    """A map-style data set of rows, or of pairs (row, target), as two columns; anything else as it is."""
    if isinstance(X, DataLoader | IterableDataset):
        raise TypeError(
            f"expected arrays, a map-style data set or a source, got {type(X).__name__}, whose rows cannot be "
            "numbered; pass the loader's data set itself, or stack the rows"
        )
    if not isinstance(X, Dataset):
        return X, y
    if isinstance(X, TensorDataset):
        columns: list[Any] = list(X.tensors)
    else:
        items = [X[i] for i in range(len(X))]  # type: ignore[arg-type]
        if not items:
            raise ValueError("expected at least one row, got an empty data set")
        pairs = isinstance(items[0], tuple | list)
        columns = [_stack(column) for column in (zip(*items, strict=True) if pairs else [items])]
    if len(columns) > 2:
        raise ValueError(f"expected a data set of rows or of pairs (row, target), got {len(columns)} parts per item")
    if len(columns) == 2 and y is not None:
        raise ValueError("expected y from the data set or as an argument, got both; leave one out")
    return (columns[0], columns[1]) if len(columns) == 2 else (columns[0], y)


def _stack(items: Any) -> Any:
    if isinstance(items[0], str):
        return np.asarray(items)
    try:
        return torch.stack([torch.as_tensor(item) for item in items])
    except (TypeError, RuntimeError) as error:
        raise TypeError(
            f"expected a data set whose items are tensors, arrays or numbers of one shape, got "
            f"{type(items[0]).__name__}: {error}; give the data set a transform that makes them so"
        ) from error


# --- one field at a time ----------------------------------------------------------------------------


def inputs(learner: Learner, X: Any, *, reset: bool) -> Tensor:
    """Rows, finite and in the learner's dtype."""
    X, _ = unpack(X, None)
    if isinstance(X, Tensor):
        _check_tensor(learner, X, reset)
        rows = as_tensor(learner, X)
    else:
        try:
            array = validate_data(learner, X, reset=reset, allow_nd=True, dtype="numeric", ensure_all_finite=False)
        except (TypeError, ValueError) as error:
            if "features, but" in str(error):
                raise ValueError(f"{str(error).rstrip('.')}; {_COLUMNS}") from error
            if "string" not in str(error):
                raise
            hint = "expected numbers in X: encode text columns, for example with sklearn's OrdinalEncoder"
            raise type(error)(f"{error}; {hint}") from error
        rows = as_tensor(learner, array)
    _finite(learner, "X", rows)
    _expect(learner, "X", rows, reset)
    return rows


def _check_tensor(learner: Learner, X: Tensor, reset: bool) -> None:
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
    if reset:
        learner.n_features_in_ = X.shape[1]
    elif X.shape[1] != learner.n_features_in_:
        raise ValueError(
            f"X has {X.shape[1]} features, but {type(learner).__name__} is expecting {learner.n_features_in_} "
            f"features as input; {_COLUMNS}"
        )


def _finite(learner: Learner, name: str, values: Tensor) -> None:
    if bool(torch.isfinite(values.sum(dtype=torch.promote_types(values.dtype, torch.float32)))):
        return  # one quick pass: a sum is finite only if all its terms are
    fine = torch.isfinite(values)
    if not bool(fine.all()):
        raise ValueError(
            f"Input {name} contains NaN, infinity or a value too large for dtype {learner.dtype!r}, first in row "
            f"{int(torch.nonzero(~fine)[0, 0])}: expected finite numbers; impute or drop such rows, or scale the column"
        )


def _expect(learner: Learner, name: str, values: Tensor, reset: bool) -> None:
    """Keeps a row's shape when training starts; afterwards raises where it differs."""
    shape = tuple(values.shape[1:])
    if reset:
        learner._shapes = {**getattr(learner, "_shapes", {}), name: shape}
    elif learner._shapes.get(name, shape) != shape:
        raise ValueError(
            f"expected rows of {name} of shape {learner._shapes[name]} as when training began, got {shape}; give "
            f"{name} that shape, or fit anew"
        )


def labels(learner: Learner, y: Any, *, reset: bool, classes: Any = None) -> Tensor:
    """Class numbers; the labels themselves are kept in `classes_`."""
    names = column_or_1d(plain(y), warn=True)
    try:
        assert_all_finite(names, input_name="y")
        found, inverse = np.unique(names, return_inverse=True)
    except TypeError as error:
        raise ValueError(
            f"expected labels of one kind, got a mixture or missing ones ({error}); drop those rows, or name them"
        ) from error
    check_classification_targets(names)
    if isinstance(classes, Integral | str):
        raise TypeError(f"expected classes to list every label, such as range(10), got {classes!r}")
    known = found if classes is None else np.unique(plain(list(classes) if isinstance(classes, set) else classes))
    if reset:
        if len(known) < 2:
            raise ValueError(
                f"expected at least two classes, got one class only ({known.tolist()}); name all of them with "
                "partial_fit(..., classes=...) if the others come later"
            )
        learner.classes_ = known
    elif classes is not None and not np.array_equal(known, learner.classes_):
        raise ValueError(
            f"expected the classes that training began with, {learner.classes_.tolist()}, got {known.tolist()}; "
            "name all of them at the first partial_fit"
        )
    numbers = {label: k for k, label in enumerate(learner.classes_.tolist())}
    unknown = [label for label in found.tolist() if label not in numbers]
    if unknown:
        raise ValueError(
            f"expected labels among {learner.classes_.tolist()}, got also {unknown}; name every class at the first "
            "partial_fit(..., classes=...), or fit anew"
        )
    return torch.as_tensor(np.array([numbers[label] for label in found.tolist()])[inverse.reshape(-1)])


def targets(learner: Learner, y: Any, *, reset: bool) -> Tensor:
    """Numbers to be predicted, (n,) or (n, outputs)."""
    array = plain(y)
    if array.dtype.kind == "O":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"expected numbers to predict in y, got others ({error}); for labels use a Classifier"
            ) from error
    if array.dtype.kind not in "fiub":
        raise ValueError(f"expected numbers to predict in y, got {array.dtype}; for labels use a Classifier")
    values = as_tensor(learner, array)
    _finite(learner, "y", values)
    _expect(learner, "y", values, reset)
    return values


def _weights(learner: Learner, objective: Objective, data: dict[str, Any], sample_weight: Any) -> Tensor | None:
    """The product of the examples' weights and of their classes' weights."""
    rows = len(data["x"])
    total: np.ndarray[Any, Any] | None = None
    if sample_weight is not None:
        given = plain(sample_weight) if isinstance(sample_weight, Tensor) else sample_weight
        total = _check_sample_weight(given, np.empty(rows), dtype=np.float64, ensure_non_negative=True)
        if not total.sum() > 0:
            raise ValueError(
                "expected some sample_weight to be positive, got none; drop the argument for equal weights"
            )
    class_weight = getattr(objective, "class_weight", None)
    if class_weight is not None and "classes" in data:
        own = _class_weights(learner, class_weight, data["y"].numpy(), total)
        total = own if total is None else total * own
    return None if total is None else torch.as_tensor(total).to(DTYPES[learner.dtype])


def _class_weights(learner: Learner, given: Any, numbers: Any, weight: Any) -> np.ndarray[Any, Any]:
    """Each example's class weight; `balanced` is inverse to the classes' total weights in this data."""
    known = learner.classes_.tolist()
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


def environments(environment: Any, rows: int) -> np.ndarray[Any, Any]:
    """The name of each row's environment."""
    names = plain(environment)
    if names.shape != (rows,):
        raise ValueError(
            f"expected environment to name one environment for each of the {rows} rows, got shape {names.shape}"
        )
    missing = [i for i, name in enumerate(names.tolist()) if name is None or name != name]
    if missing:
        raise ValueError(
            f"expected an environment for every row, got none in row {missing[0]}; name it or drop the row"
        )
    return names


def _same_environments(learner: Learner, names: np.ndarray[Any, Any], reset: bool) -> None:
    """Keeps the environments when training starts, where the objective numbers them; raises where others come."""
    found = np.unique(names)
    known = found if reset else getattr(learner, "environments_", found)
    if not np.array_equal(known, found):
        raise ValueError(
            f"expected the environments that training began with, {known.tolist()}, got {found.tolist()}; "
            f"{type(learner._objective()).__name__} numbers them: fit anew"
        )
    learner.environments_ = known


# --- all of them ------------------------------------------------------------------------------------


def read(
    learner: Learner, X: Any, y: Any, environment: Any, sample_weight: Any, *, reset: bool, classes: Any = None
) -> dict[str, Any]:
    """The arguments of `fit` as the arguments of `Arrays`."""
    objective = learner._objective()
    X, y = unpack(X, y)
    supervised = "y" in objective.fields
    if y is None and supervised:
        raise ValueError(
            f"This {type(learner).__name__} estimator requires y to be passed, but the target y is None; call fit(X, y)"
        )
    data: dict[str, Any] = {"x": inputs(learner, X, reset=reset)}
    rows = len(data["x"])
    if supervised:
        column = plain(y)
        if column.ndim == 0 or len(column) != rows:
            raise ValueError(
                f"Found input variables with inconsistent numbers of samples: expected y to have {rows} rows as X has, "
                f"got {'a single value' if column.ndim == 0 else len(column)}"
            )
        if objective.targets == "classes":
            data["y"] = labels(learner, y, reset=reset, classes=classes)
            data["classes"] = len(learner.classes_)
        else:
            data["y"] = targets(learner, y, reset=reset)
    weight = _weights(learner, objective, data, sample_weight)
    if weight is not None:
        data["weight"] = weight
    if environment is not None:
        data["environment"] = environments(environment, rows)
        if "environment" in objective.fields:
            _same_environments(learner, data["environment"], reset)
    return data


def sources(learner: Learner, data: dict[str, Any]) -> tuple[Source, Source | None]:
    """The training source and, where wanted, the validation source."""
    strategy, device = learner._strategy(), learner._device()
    grouped = strategy.needs == "group" or strategy.per_group
    environment = data.pop("environment", None)
    if strategy.episodic:
        raise ValueError(
            f"{strategy!r} learns from episodes with a support and a query part, got arrays; call fit(Episodes(...)), "
            "see weft.sources.Episodes"
        )
    if grouped and environment is None:
        raise ValueError(
            f"{strategy!r} compares environments, got none; call fit(X, y, environment=...) with the environment "
            "(site, subject, level) of each row"
        )
    if grouped and len(np.unique(environment)) < 2:
        raise ValueError(
            f"{strategy!r} compares environments, got one only ({np.unique(environment).tolist()[0]!r}); with a single "
            "environment use ERM()"
        )
    reads = "environment" in learner._objective().fields
    if reads and environment is None:
        raise ValueError(
            f"{type(learner._objective()).__name__} reads the environment of each row, got none; call "
            "fit(X, y, environment=...)"
        )
    held = _validation(learner)
    share = held if isinstance(held, float) else 0.0
    strata = data["y"].numpy() if "classes" in data and not grouped and share else None
    size = None if learner.batch_size is None else learner.batch_size * learner.accumulate
    data = _moved(data, device)
    common = {"holdout": share, "strata": strata, "environment": environment, "grouped": grouped}
    common["with_environment"] = reads
    source = Arrays(**data, **common, batch_size=size)
    if grouped:
        _warn_of_absent(source)
    if isinstance(held, float):
        return source, Arrays(**data, **{**common, "grouped": False}, part="validation")
    if isinstance(held, tuple):
        X, y = held
        return source, Arrays(**_moved(read(learner, X, y, None, None, reset=False), device))
    return source, held


def _warn_of_absent(source: Arrays) -> None:
    """An environment with fewer rows than a pass has steps is not in every batch."""
    sizes, steps = source._group_sizes.tolist(), source.epoch or 1
    few = [f"{name!r} ({size})" for name, size in zip(source.environments.tolist(), sizes, strict=True) if size < steps]
    if few:
        warnings.warn(
            f"expected rows of every environment in every batch, got fewer rows than the {steps} batches of a pass in "
            f"{', '.join(few[:5])}{', ...' if len(few) > 5 else ''}: where absent they count for nothing; take a "
            "larger batch_size, or None for all rows",
            stacklevel=5,
        )


def _moved(data: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: v.to(device) if isinstance(v, Tensor) else v for name, v in data.items()}


def _validation(learner: Learner) -> float | tuple[Any, Any] | Source | None:
    """The `validation` parameter as a share, a pair of X and y, a source, or None."""
    given = learner.validation
    if given is None:
        return None
    if isinstance(given, Source):
        return Cast(given, DTYPES[learner.dtype])
    if isinstance(given, Dataset):
        return unpack(given, None)
    if isinstance(given, tuple) and len(given) == 2:
        return given
    if isinstance(given, Real) and not isinstance(given, Integral):
        if not 0.0 < float(given) < 1.0:
            raise ValueError(f"expected validation to be a share of the rows in (0, 1), got {given!r}")
        return float(given)
    shown = type(given).__name__ if hasattr(given, "shape") else repr(given)
    raise TypeError(f"expected validation to be a share such as 0.1, a pair (X, y) or a source, got {shown}")


def match(learner: Learner, source: Source, strategy: Strategy, *, reset: bool) -> Source | None:
    """Checks that a user's source fits the objective and the strategy; gives the validation source."""
    name, objective = type(source).__name__, learner._objective()
    if strategy.episodic and not source.episodic:
        raise ValueError(f"{strategy!r} learns from episodes, got {name}; wrap it in Episodes")
    if source.episodic and not strategy.episodic:
        raise ValueError(
            f"{name} gives episodes with a support and a query part, which {strategy!r} does not know; use MAML(), "
            "with inner_steps=0 to train on the query parts"
        )
    if (strategy.needs == "group" or strategy.per_group) and not source.grouped:
        raise ValueError(f"{strategy!r} compares environments, got {name} without any; make it with grouped=True")
    first = objective.fields[0]
    if first not in source.spec:
        raise ValueError(
            f"{type(objective).__name__} reads {first!r} of a batch, got {name} with {sorted(source.spec)}; "
            "choose an objective for what this source gives"
        )
    rows = source.spec[first]
    if not reset and learner._shapes.get("X", rows.shape) != rows.shape:
        raise ValueError(
            f"expected rows of shape {learner._shapes['X']} as when training began, got {name} with {rows.shape}; "
            f"{_COLUMNS}"
        )
    if reset:
        if rows.shape:
            learner.n_features_in_ = rows.shape[0]
        learner._shapes = {"X": rows.shape, "y": source.spec["y"].shape} if "y" in source.spec else {"X": rows.shape}
        if objective.targets == "classes" and "y" in source.spec and source.spec["y"].classes is not None:
            learner.classes_ = np.arange(source.spec["y"].classes)
    known, declared = getattr(learner, "classes_", None), source.spec["y"].classes if "y" in source.spec else None
    if not reset and known is not None and declared is not None and declared > len(known):
        raise ValueError(
            f"expected the {len(known)} classes declared when training began, or fewer, got {name} with {declared}: "
            "the head has no output for the others; declare all classes that will ever come in the first source"
        )
    held = _validation(learner)
    if held is not None and not isinstance(held, Source):
        raise ValueError(f"expected validation to be a source, as {name} is one, got {held!r}; pass a source or None")
    return held
