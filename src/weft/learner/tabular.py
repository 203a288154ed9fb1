"""Tables: a DataFrame that is not plain numbers, by a recipe that is learned once and applied to every later table.

It is the recipe of the command line (`weft.tables`), learned from the training rows: a share that is held out for
validation is chosen here, once for all replicas, before anything is learned.
"""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.core.objective import Objective
from weft.engine import distributed
from weft.learner.columns import Columns
from weft.learner.settings import as_device, as_seed
from weft.sources.arrays import as_array
from weft.tables.files import Columns as FileColumns
from weft.tables.recipe import Recipe
from weft.tables.split import split

if TYPE_CHECKING:
    import pandas as pd

    from weft.learner.estimator import Learner

__all__ = ["begun", "encoded", "is_table", "needs_recipe"]

_NAME = "the table"


def is_table(X: object) -> TypeGuard[pd.DataFrame]:
    """Whether it is a DataFrame."""
    return hasattr(X, "iloc") and hasattr(X, "columns")


def needs_recipe(objective: Objective, X: object) -> bool:
    """Whether a table is more than numbers, or its columns themselves are to be modelled."""
    if not is_table(X) or objective.fields[0] != "x" or objective.holds("x") != "values":
        return False
    return objective.columns == "values" or not all(_plain(X.iloc[:, i]) for i in range(X.shape[1]))


def _plain(column: pd.Series) -> bool:
    """Whether a column is numbers without gaps."""
    from pandas.api import types

    numbers = ("integer", "floating", "mixed-integer-float")
    kind = column.dtype
    if types.is_object_dtype(kind):
        return types.infer_dtype(column, skipna=False) in numbers and not column.isna().any()
    return types.is_numeric_dtype(kind) and not types.is_bool_dtype(kind) and not column.isna().any()


def _columns(X: pd.DataFrame) -> FileColumns:
    twice = X.columns[X.columns.duplicated()].tolist()
    if twice:
        raise ValueError(f"expected columns of different names in X, got {twice[0]!r} more than once; rename them")
    return FileColumns.of(X, _NAME)


def begun(learner: Learner, given: Columns, *, fresh: bool, task: Any = None) -> Columns:
    """What is given, with the rows of a table that are held out; when training starts, its recipe is learned.

    Args:
        learner: says how a table is read and what share is held out, and keeps the recipe, as `recipe_`.
        given: what `fit` is given.
        fresh: whether training starts.
        task: of each row, where there are several.
    """
    if fresh:
        learner.__dict__.pop("recipe_", None)
    known: Recipe | None = getattr(learner, "recipe_", None)
    if not is_table(given.X) or (known is None and not fresh):
        return given
    settings = learner.settings()
    objective = settings.objective
    if fresh and not needs_recipe(objective, given.X):
        return given
    distributed.start(as_device(learner.device))
    share = float(settings.validation) if isinstance(settings.validation, Real) else 0.0
    seed = known.seed if known is not None else as_seed(learner.random_state) if share else 0
    columns = _columns(given.X)
    names = [task, given.environment, given.y if objective.holds("y") == "classes" else None]
    strata = [as_array(each) for each in names if each is not None]
    for each in strata:
        if len(each) != columns.rows:
            return replace(given, held=np.zeros(columns.rows, dtype=bool))  # the reader will tell
    held = split([each for each in strata if each.ndim == 1], columns.rows, share, seed)
    if known is None:
        recipe = Recipe.learn(columns, training=~held, encoding=objective.columns, gaps=objective.gaps)
        learner.recipe_ = replace(recipe, validation=share, seed=seed)
        learner.n_features_in_ = given.X.shape[1]
        learner.feature_names_in_ = np.array(list(map(str, given.X.columns)), dtype=object)
    return replace(given, held=held)


def encoded(recipe: Recipe, X: object, dtype: torch.dtype, *, quiet: bool) -> tuple[Tensor, Tensor]:
    """A table's rows as training reads them, 0 at the gaps; and which entries are no gaps."""
    if not is_table(X):
        raise ValueError(
            f"expected a DataFrame with the columns that fit was given ({', '.join(c.name for c in recipe.columns[:8])}"
            f"{', ...' if len(recipe.columns) > 8 else ''}), got {type(X).__name__}, whose columns nobody names"
        )
    found: NDArray[np.float64] = recipe.apply(_columns(X), labelled=False, quiet=quiet).X
    observed = ~np.isnan(found)
    whole = torch.as_tensor(np.where(observed, found, 0.0))
    rows = whole.to(dtype)
    kinds = [part.kind for part in recipe.parts] if recipe.encoding == "values" else []
    for i in [i for i, kind in enumerate(kinds) if kind in ("count", "category")]:
        inexact = torch.nonzero(rows[:, i].double() != whole[:, i])
        if len(inexact):
            row = int(inexact[0, 0])
            raise ValueError(
                f"expected a {kinds[i]} that {dtype} holds exactly in column {recipe.columns[i].name!r}, got "
                f"{found[row, i]:.0f} in row {row}; take dtype='float64', or make it a column of floats"
            )
    return rows, torch.as_tensor(observed)
