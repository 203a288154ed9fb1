"""Models of rows given their class: which they are, and what is told beside the rows when they are asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = ["beside", "given_class"]


def given_class(learner: Learner) -> bool:
    """Whether a fitted model is p(x | y) and says nothing without y; where labels may lack, it does."""
    objective = learner.objective_
    return bool(getattr(objective, "conditional", False)) and not objective.unlabelled


def beside(learner: Learner, name: str, y: Any) -> dict[str, Any]:
    """The classes, where they are at hand and the capability of this name asks for them; by the argument's name."""
    return {"y": y} if y is not None and given_class(learner) and getattr(learner, name).takes("y") else {}
