"""Digests of data: what a kept run has learned from, so that `resume` with anything else is refused.

They are taken once, when a fit begins, and only where the run is kept in a folder.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core.source import Source
from weft.learner.ragged import is_ragged
from weft.learner.reading import as_array
from weft.learner.training import Phase, Training
from weft.sources.cast import Cast

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = ["digest", "of_columns", "of_sources", "phase", "tasks_left"]

_ALL = " of all tasks"
_BYTES = 2**26  # at a time, so that data on a device or on a disk is not copied whole


def digest(values: Any) -> str:
    """The digest of an array, a tensor, a list or a text: of its shape and its values.

    >>> digest(np.array([1.0, 2.0])) == digest([1, 2]), digest(["a", "b"]) == digest(["b", "a"])
    (True, False)
    """
    found = hashlib.sha256()
    for part in _parts(values):
        found.update(part)
    return found.hexdigest()


def _parts(values: Any) -> Iterator[bytes]:
    if isinstance(values, str):
        yield values.encode()
        return
    if isinstance(values, list | tuple) and (is_ragged(values) or any(isinstance(row, str) for row in values)):
        for row in values:
            yield digest(row).encode()
        return
    rows = values if isinstance(values, Tensor) else np.asarray(values)
    yield str(tuple(rows.shape)).encode()
    step = max(1, _BYTES // (8 * max(1, math.prod(rows.shape[1:]))))
    for start in range(0, len(rows), step):
        yield _bytes(rows[start : start + step])


def _bytes(part: Tensor | NDArray[Any]) -> bytes:
    """A tensor's bytes; an array's as float64, so that its kind makes no difference; else text."""
    if isinstance(part, Tensor):  # of the learner's dtype, already
        return str(part.dtype).encode() + part.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    if part.dtype.kind not in "fiub":
        return repr([str(value) for value in part.reshape(-1).tolist()]).encode()
    numbers = part.astype(np.float64)
    exact = part.dtype.kind == "f" or bool((numbers.astype(part.dtype) == part).all())
    return numbers.tobytes() if exact else part.tobytes()


def of_columns(**given: Any) -> dict[str, str]:
    """Digests of the whole columns of a fit over tasks, of which each task learns a part."""
    arrays = {
        n: v if is_ragged(v) else as_array(v.double() if isinstance(v, Tensor) else v)
        for n, v in given.items()
        if v is not None
    }
    return {f"{name}{_ALL}": digest(values) for name, values in arrays.items()}


def of_sources(source: Source, validation: Source | None) -> dict[str, str]:
    """Digests of what a training and a validation source hold; of those that draw, of what kind they are."""
    found = {"source": digest(_kind(source))}
    found |= {name: digest(values) for name, values in source.contents().items()}
    if validation is not None:
        found["validation"] = digest(_kind(validation))
        found |= {f"{name} of validation": digest(values) for name, values in validation.contents().items()}
    return found


def _kind(source: Source) -> str:
    spec = {name: (field.shape, field.classes) for name, field in sorted(source.spec.items())}
    about = f"{source.size} {source.grouped} {source.episodic} {spec}"
    # A user's own source has its own batches; of those that the Learner makes, its parameters tell.
    return f"{type(source.source).__name__} {source.epoch} {about}" if isinstance(source, Cast) else about


def phase(
    learner: Learner,
    source: Source,
    validation: Source | None,
    task: object,
    once: bool,
    columns: Mapping[str, str] | None,
    *,
    resumed: bool,
) -> Phase:
    """The phase that a learner begins with this data, or goes on with; raises where it was begun with other data."""
    data = {} if learner.folder is None and not resumed else of_sources(source, validation)
    if not resumed:
        return Phase(None if task is None else str(task), once, data={**data, **(columns or {})})
    begun = learner.training_.phase
    _same({name: mark for name, mark in begun.data.items() if not name.endswith(_ALL)}, data)
    return begun


def tasks_left(training: Training, names: list[Any], columns: Mapping[str, str]) -> tuple[list[Any], bool]:
    """The tasks that an interrupted fit over tasks has still to learn, and whether the first of them had begun."""
    if columns:
        _same({name: mark for name, mark in training.phase.data.items() if name.endswith(_ALL)}, columns)
    last, begun = str(training.phase.task), bool(training.phase.runs)
    told = list(map(str, names))
    if last not in told:
        raise ValueError(f"expected the task {last!r}, which was the last, among {names}")
    return names[told.index(last) + (not begun) :], begun


def _same(known: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raises where digests differ, and names what does."""
    if not known:
        return  # kept by an earlier version, which `load` has said, or by `save`
    other = [name for name in {**known, **now} if known.get(name) != now.get(name)]
    if other:
        raise ValueError(
            f"expected the data that the run was begun with, got other {', '.join(other)} (values, number or order of "
            "rows); give the same rows, labels and weights in the same order, or fit anew on these in another folder"
        )
