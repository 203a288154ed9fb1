"""Choosing among settings by three rules, of which one looks at the test environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.bench.claims.replicas import swept, told

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weft.bench.claims.telling import Report
    from weft.learner.estimator import Learner

__all__ = ["chosen_by"]

Rows = tuple[Any, Any, Any]


def chosen_by(
    make: Callable[[dict[str, list[Any]]], Learner],
    points: Sequence[dict[str, Any]],
    train: Rows,
    test: Rows,
    refits: Sequence[int],
    report: Report,
    *,
    what: str = "",
) -> dict[str, dict[str, Any]]:
    """By rule: the setting it chooses, its score by that rule, and which test rows are right after refits.

    Training-domain: accuracy on a fifth of the training rows. Leave one out: trained without one environment and
    judged on it; where one only is left it is cut into halves, so that there is something to compare. Oracle: accuracy
    on one half of the test rows. What was chosen is trained again on all training rows, and judged on the other half.

    Args:
        make: gives a learner of these lists of settings as `replicas`.
        points: the settings, values by name, with a `random_state`.
        train, test: inputs, labels and environments, in random order; the training environments take turns.
        refits: the seeds of what is trained again.
        report: counts the trainings.
        what: is being done, shown as it goes.

    Returns:
        By rule `setting`, in words, `score` in % and `right`: by refit and row 100 or 0.

    References:
        Gulrajani and Lopez-Paz, "In search of lost domain generalization", arXiv 2007.01434, section 3.
    """
    held, half = np.arange(len(train[1])) % 10 < 2, np.arange(len(test[1])) % 2 == 0

    def tried(settings: Sequence[dict[str, Any]], rows: Rows, measure: Any, lost: Any) -> NDArray[Any]:
        x, y, environment = rows
        return np.array(
            swept(
                make,
                lambda net: report.fit(net, x, y, environment=environment, what=what),
                settings,
                measure,
                lost=lost,
            )
        )

    def right(net: Any, on: Rows) -> NDArray[Any]:
        return 100.0 * (net.predict(on[0]) == on[1])

    inside = (_take(train, held), _take(test, half))
    other = _take(test, ~half)
    for _, labels, _ in (*inside, other):
        if set(np.unique(labels)) != set(np.unique(train[1])):
            raise ValueError(
                f"expected rows in random order, so that each part of them holds every label of {np.unique(train[1])}, "
                f"got a part with {np.unique(labels)}; shuffle them"
            )
    both = tried(points, _take(train, ~held), lambda net: [right(net, on).mean() for on in inside], [0.0, 0.0])
    left = []
    for e in np.unique(train[2]):
        (x, y, environment), out = _take(train, train[2] != e), _take(train, train[2] == e)
        if len(np.unique(environment)) == 1:
            environment = np.arange(len(y)) % 2
        left.append(tried(points, (x, y, environment), lambda net, on=out: right(net, on).mean(), 0.0))
    scores = {"training-domain": both[:, 0], "leave one out": np.mean(left, axis=0), "oracle": both[:, 1]}
    best = {rule: int(np.argmax(score)) for rule, score in scores.items()}
    again = [{**points[k], "random_state": seed} for k in best.values() for seed in refits]
    hits = tried(again, train, lambda net: right(net, other), np.zeros(len(other[1]))).astype(np.int8)
    found = {}
    for (rule, k), table in zip(best.items(), hits.reshape(len(best), len(refits), -1), strict=True):
        words = told({name: value for name, value in points[k].items() if name != "random_state"})
        found[rule] = {"setting": words, "score": float(scores[rule][k]), "right": table}
    return found


def _take(part: Rows, rows: NDArray[Any]) -> Rows:
    x, y, environment = part
    return x[rows], y[rows], environment[rows]
