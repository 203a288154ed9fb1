"""Risk by environment: how good a learner is at each site, and at its worst."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from weft.learner.estimator import Learner
from weft.learner.reading import names_of_rows

__all__ = ["Risk", "environment_risk"]


@dataclass(frozen=True)
class Risk:
    """A measure by environment.

    Attributes:
        measure: its name.
        names: the environments, sorted.
        rows: how many rows each has.
        values: the measure in each, shape (environments,), or (replicas, environments).
        worst: in the worst environment, for each replica.
        worst_environment: which one that is.
        mean: over the environments, each counting the same.
    """

    measure: str
    names: list[Any]
    rows: list[int]
    values: NDArray[np.float64]
    worst: float | NDArray[np.float64]
    worst_environment: Any
    mean: float | NDArray[np.float64]


def environment_risk(
    learner: Learner, X: Any, y: Any = None, *, environment: Any, measure: str = "loss", more: bool | None = None
) -> Risk:
    """The risk of a fitted learner in each environment, and in its worst one.

    With the rows i of environment e and their losses,

        R_e = mean_{i in e} loss_i,     worst = max_e R_e,

    or another of the objective's measures in place of the loss, such as `accuracy`, of which the worst is the least.

    Args:
        learner: fitted. Each replica is measured by itself (not the average of their answers).
        X, y: rows, as for `fit`; environments need not be those of training.
        environment: of each row.
        measure: one that the objective reports.
        more: whether more of it is better; None takes what the objective says of its progress measure, more for
            `accuracy` and less for anything else.

    Returns:
        `Risk`.

    References:
        Arjovsky, Bottou, Gulrajani and Lopez-Paz, "Invariant risk minimization", arXiv 1907.02893, section 2; Sagawa,
        Koh, Hashimoto and Liang, "Distributionally robust neural networks for group shifts", arXiv 1911.08731.

    Example:
        >>> from weft import Classifier
        >>> X = np.random.default_rng(0).normal(size=(300, 2))
        >>> y, site = X[:, 0] > 0, np.arange(300) % 3
        >>> y[site == 2] = ~y[site == 2]
        >>> net = Classifier(epochs=30, random_state=0).fit(X[site < 2], y[site < 2])
        >>> risk = environment_risk(net, X, y, environment=site, measure="accuracy")
        >>> risk.worst_environment, bool(risk.worst < 0.1), bool(risk.values[0] > 0.9)
        (2, True, True)
    """
    check_is_fitted(learner)
    if environment is None:
        raise ValueError("expected the environment of each row, got None")
    data = learner.read(X, y)
    labels = names_of_rows(environment, len(data["x"]), "environment")
    data.pop("classes", None)
    names, codes = np.unique(labels, return_inverse=True)
    of_each = [np.flatnonzero(codes.reshape(-1) == e) for e in range(len(names))]
    values = np.stack([learner.training_.measured(data, rows, measure) for rows in of_each], axis=1)
    name, direction = learner.objective_.progress
    if more is None:
        more = direction == "max" if measure == name else measure == "accuracy"
    at = values.argmin(1) if more else values.argmax(1)
    worst, where, mean = values[np.arange(len(values)), at], names[at], values.mean(1)
    rows = np.bincount(codes.reshape(-1)).tolist()
    if learner.replicas is None:
        values, worst, where, mean = values[0], worst[0].item(), where[0], mean[0].item()
    return Risk(measure, names.tolist(), rows, values, worst, where.tolist(), mean)
