"""Columns: what `fit` is given, before it is read: rows, targets and further fields, as whatever they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from weft.core.objective import Objective
from weft.learner.ragged import characters, is_ragged
from weft.sources.arrays import as_array, refuse_masked
from weft.sources.drawn import TRIED, Drawn, first_seeds, read_items, stacked

if TYPE_CHECKING:
    from weft.learner.answers import Answers

__all__ = [
    "Columns",
    "as_tensor",
    "mend",
    "names_of_rows",
    "numbered_environments",
    "refuse_targets",
    "take",
    "unpack",
    "wanted",
]


def as_tensor(values: Any, dtype: torch.dtype) -> Tensor:
    """A tensor of this dtype; integers in a tensor stay integers (token numbers, counts)."""
    if isinstance(values, Tensor):
        if values.dtype == dtype and not values.requires_grad:
            return values
        number = values.is_floating_point() or values.dtype == torch.bool
        return values.detach().to(dtype) if number else values
    array = np.ascontiguousarray(values)
    tensor = torch.as_tensor(array if array.flags.writeable else array.copy())
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def take(values: Any, rows: NDArray[np.int64]) -> Any:
    """Some rows of an array, a table, a tensor or a list; None stays None."""
    if values is None:
        return None
    if isinstance(values, Drawn):
        return values.of(rows)
    if hasattr(values, "iloc"):
        return values.iloc[rows]
    if isinstance(values, list | tuple) and (is_ragged(values) or any(isinstance(row, str) for row in values)):
        return [values[i] for i in rows]
    return values[torch.as_tensor(rows)] if isinstance(values, Tensor) else np.asarray(values)[rows]


def unpack(X: Any, y: Any) -> tuple[Any, Any]:
    """A map-style data set of rows, or of pairs (row, target), as two columns; anything else as it is.

    It is read once, unless its rows are others at a second reading (random transforms): those are `Drawn`, and are read
    anew in every pass. What should not be is to be given as tensors.
    """
    refuse_masked(X)
    refuse_masked(y)
    if isinstance(X, DataLoader | IterableDataset):
        raise TypeError(
            f"expected arrays, a map-style data set or a source, got {type(X).__name__}, whose rows cannot be "
            "numbered; pass the loader's data set itself, or fit(weft.sources.Stream(loader))"
        )
    if not isinstance(X, Dataset) or isinstance(X, Drawn):
        return X, y
    if isinstance(X, TensorDataset):
        columns: list[Any] = list(X.tensors)
    else:
        rows = range(len(X))  # type: ignore[arg-type]
        items = read_items(X, rows, first_seeds(rows))
        if not items:
            raise ValueError("expected at least one row, got an empty data set")
        pairs = isinstance(items[0], tuple | list)
        columns = [stacked(column) for column in (zip(*items, strict=True) if pairs else [items])]
        some = rows[:: -(-len(rows) // TRIED)]
        again = read_items(X, some, first_seeds(some, turn=1))
        if any(_unlike(items[i], item) for i, item in zip(some, again, strict=True)):
            if pairs and any(_unlike(items[i][1:], item[1:]) for i, item in zip(some, again, strict=True)):
                raise ValueError(
                    "expected a data set whose targets are the same at each reading, got others at the second; leave "
                    "what is random to its rows"
                )
            columns[0] = Drawn(X, columns[0], np.arange(len(rows)))
    if len(columns) > 2:
        raise ValueError(f"expected a data set of rows or of pairs (row, target), got {len(columns)} parts per item")
    if len(columns) == 2 and y is not None:
        raise ValueError("expected y from the data set or as an argument, got both; leave one out")
    return (columns[0], columns[1]) if len(columns) == 2 else (columns[0], y)


def _unlike(one: Any, other: Any) -> bool:
    """Whether two readings of an item differ."""
    pairs = isinstance(one, tuple | list)
    parts = zip(one, other, strict=True) if pairs else [(one, other)]
    return any(not np.array_equal(as_array(a), as_array(b)) for a, b in parts)


@dataclass(frozen=True)
class Columns:
    """What `fit` is given, as it is given; further fields by name, and of a table which rows are held out."""

    X: Any
    y: Any = None
    environment: Any = None
    sample_weight: Any = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    held: NDArray[np.bool_] | None = None

    @property
    def beside(self) -> dict[str, Any]:
        """Whatever is given beside X."""
        plain = {"y": self.y, "environment": self.environment, "sample_weight": self.sample_weight}
        return {name: value for name, value in {**plain, **self.fields}.items() if value is not None}

    def take(self, rows: NDArray[np.int64]) -> Columns:
        """Some rows of all of them."""
        X, y, environment, weight = (
            take(values, rows) for values in (self.X, self.y, self.environment, self.sample_weight)
        )
        fields = {name: take(values, rows) for name, values in self.fields.items()}
        return Columns(X, y, environment, weight, fields, take(self.held, rows))

    def classes(self, objective: Objective) -> dict[str, Any]:
        """The labels of every field that holds classes, and of one that holds tokens the vocabulary or their number."""
        held = {name: value for name, value in {"x": self.X, "y": self.y, **self.fields}.items() if value is not None}
        labels = {n: np.unique(as_array(v)) for n, v in held.items() if objective.holds(n) == "classes"}
        return labels | {
            n: characters(v, objective.vocabulary) for n, v in held.items() if objective.holds(n) == "tokens"
        }


def names_of_rows(given: object, rows: int, what: str) -> NDArray[Any]:
    """The name of each row's environment or task."""
    names = as_array(given)
    if names.shape != (rows,):
        raise ValueError(f"expected {what} to name one {what} for each of the {rows} rows, got shape {names.shape}")
    missing = [i for i, name in enumerate(names.tolist()) if name is None or name != name]
    if missing:
        article = "an" if what[0] in "aeiou" else "a"
        raise ValueError(
            f"expected {article} {what} for every row, got none in row {missing[0]}; name it or drop the row"
        )
    return names


def numbered_environments(learner: Answers, given: object, rows: int) -> Tensor:
    """The number of each row's environment, as training numbered them."""
    numbers = {label: k for k, label in enumerate(learner.environments_.tolist())}
    asked = names_of_rows(given, rows, "environment").tolist()
    if unknown := [label for label in asked if label not in numbers]:
        raise ValueError(f"expected environments among {list(numbers)}, got also {unknown[0]!r}")
    return torch.tensor([numbers[label] for label in asked])


def refuse_targets(kind: str, values: Tensor, name: str = "y") -> None:
    """Raises where a field holds what its kind does not allow: counts are whole, >= 0; amounts > 0; labels 0 or 1."""
    allowed: dict[str, Callable[[], Tensor]] = {
        "counts": lambda: (values >= 0) & (values == values.floor()),
        "amounts": lambda: values > 0,
        "multilabel": lambda: (values == 0) | (values == 1),
    }
    words = {
        "counts": ("counts 0, 1, 2, ...", "choose a loss of values, such as 'squared'"),
        "amounts": ("numbers > 0", "choose a loss of values, such as 'squared', or 'poisson' for counts"),
        "multilabel": ("a column of 0 and 1 for each label", "sklearn's MultiLabelBinarizer makes them"),
    }
    if kind not in allowed:
        return
    wrong = ~allowed[kind]()
    if bool(wrong.any()):
        place = int(torch.nonzero(wrong)[0, 0])
        raise ValueError(
            f"expected {words[kind][0]} in {name}, got {values[wrong][0].item():g}, first in row {place}; "
            f"{words[kind][1]}"
        )


def wanted(name: str) -> str:
    """Where numbers are expected, for messages."""
    return " to predict in y" if name == "y" else f" in {name}"


def mend(name: str) -> str:
    """How labels are to be given instead, for messages."""
    return "; for labels use a Classifier" if name == "y" else f"; for labels let kinds say {{{name!r}: 'classes'}}"
