"""Weighing: what each row counts, by the weights of examples and of classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from weft.core.objective import Objective
from weft.sources.arrays import as_array, refuse_masked

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = ["weights"]


def weights(
    learner: Learner, objective: Objective, data: dict[str, Any], sample_weight: Any, dtype: torch.dtype
) -> Tensor | None:
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
    if objective.class_weight is not None and objective.targets == "classes":
        known = learner.classes_.tolist()
        own = _class_weights(objective.class_weight, known, data["y"].numpy(), total)
        total = own if total is None else total * own
    return None if total is None else torch.as_tensor(total).to(dtype)


def _class_weights(
    given: Any, known: list[Any], numbers: NDArray[np.int64], weight: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Each example's class weight; `balanced` is inverse to the classes' total weights in this data."""
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
