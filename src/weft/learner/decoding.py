"""Decoding: answers as the user knows them: labels, columns in their units and categories, text."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from weft.core.objective import Capability
from weft.core.trees import Params
from weft.learner.ragged import decoded_tokens

if TYPE_CHECKING:
    import pandas as pd

    from weft.learner.answers import Answers
    from weft.tables.recipe import Recipe

__all__ = ["decoded"]


def decoded(learner: Answers, name: str, mark: Capability, asked: Any, beside: Params, answer: Any) -> Any:
    """An answer in the words of what the learner was given.

    Args:
        learner: who was asked.
        name, mark: what.
        asked: what about, as it was given.
        beside: what came along with the rows, such as `observed`.
        answer: one for each row.
    """
    found = vars(learner)  # which does not ask the objective for what is not there
    recipe = found.get("recipe_")
    if recipe is not None and mark.gives in ("density", "surprise"):
        if recipe.encoding != "values":
            warnings.warn(
                f"{name} is of the features that the table became (numbers standardized, an entry for each category), "
                f"not of the table; an objective that models the table says columns = 'values'",
                stacklevel=4,
            )
            return answer
        observed = beside.get("observed")
        scale = recipe.log_scale(None if observed is None else observed.numpy(), len(answer))
        each: NDArray[np.float64] = _array(name, answer).astype(np.float64)
        sign = 1 if mark.gives == "density" else -1
        return each + sign * scale.reshape(-1, *[1] * (each.ndim - 1))
    if recipe is not None and mark.gives == "x" and recipe.encoding == "values":
        frame = recipe.decode(_array(name, answer), getattr(asked, "index", None) if mark.reads else None)
        return _with_given(frame, recipe, asked, beside) if name.rpartition("_")[2] == "impute" else frame
    if mark.gives == "x" and learner.objective_.holds("x") in ("tokens", "sequences"):
        return decoded_tokens(answer, "x", found.get("vocabulary_", {}).get("x"))
    # A part's prediction, `kind_predict`, with the labels that `fit` was given as `kind_y`.
    labelled = f"{name.removesuffix('predict')}y" if name.endswith("predict") else ""
    known = found.get("labels_", {}).get(labelled)
    return answer if known is None else known[answer]


def _with_given(frame: pd.DataFrame, recipe: Recipe, asked: pd.DataFrame, beside: Params) -> pd.DataFrame:
    """What was imputed, with the numbers that were there as they were: standardizing and rounding has moved them."""
    observed = beside.get("observed")
    for i, column in enumerate(recipe.columns):
        if column.kind == "number":
            given = asked.iloc[:, list(map(str, asked.columns)).index(column.name)]
            there = np.ones(len(frame), bool) if observed is None else observed[:, i].numpy()
            frame.loc[there, column.name] = given.to_numpy(np.float64, na_value=np.nan)[there]
    return frame


def _array(name: str, answer: Any) -> NDArray[Any]:
    if not isinstance(answer, np.ndarray):
        raise ValueError(
            f"expected one tensor as the answer of {name!r}, which is put back into the table's columns and units, got "
            f"{type(answer).__name__}; say capability(gives='') where it is something else"
        )
    return answer
