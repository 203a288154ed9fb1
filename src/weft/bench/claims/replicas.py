"""What claims do with replicas: their scores, diverged ones included, and a search among settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weft.learner.estimator import Learner

__all__ = ["combinations", "each_of", "hits_of", "least_losses", "scores_of", "searched", "stacked", "tuned"]


def each_of(learner: Learner, measure: Callable[[Learner], Any], *, lost: object) -> NDArray[Any]:
    """What a measure says of every replica.

    Args:
        learner: fitted.
        measure: called with one replica.
        lost: said of a replica that has diverged: a number, or an array where the measure gives one.
    """
    from sklearn.exceptions import NotFittedError

    found = []
    for k in range(len(learner.seeds_)):
        try:
            found.append(measure(learner.replica(k)))
        except NotFittedError:
            found.append(lost)
    return np.array(found)


def scores_of(learner: Learner, *rows: Any, lost: float) -> NDArray[Any]:
    """Every replica's score on rows in %, and `lost`, in %, for one that has diverged."""
    return 100 * each_of(learner, lambda one: float(one.score(*rows)), lost=lost / 100)


def hits_of(learner: Learner, x: Any, y: Any) -> NDArray[Any]:
    """For every replica and row 100 where its prediction is right, else 0; one that has diverged is right nowhere."""
    return each_of(learner, lambda one: 100.0 * (one.predict(x) == y), lost=np.zeros(len(y)))


def stacked(found: Iterable[Mapping[str, Any]]) -> dict[str, NDArray[Any]]:
    """What every seed gave by name, as one array for each name, seeds first.

    >>> stacked([{"a": 1, "b": (2, 3)}, {"a": 4, "b": (5, 6)}])["b"].tolist()
    [[2, 3], [5, 6]]
    """
    each = list(found)
    return {name: np.array([one[name] for one in each]) for name in each[0]}


def least_losses(learner: Learner) -> NDArray[Any]:
    """Every replica's least loss on the rows held out; infinite where there is none."""
    losses: NDArray[Any] = np.asarray(learner.history_[f"valid_{learner.objective_.progress[0]}"])
    losses = losses.reshape(len(losses), -1)
    return np.where(np.isfinite(losses), losses, np.inf).min(0)


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of a grid's values.

    >>> combinations({"a": (1, 2), "b": (3,)})
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def searched(
    make: Callable[[dict[str, list[Any]]], Learner],
    train: Callable[[Learner], object],
    grid: Mapping[str, Sequence[Any]],
    seeds: Sequence[int],
) -> tuple[float, dict[str, Any]]:
    """The setting of least loss on the rows held out, a mean over the search's own seeds; and that loss.

    All are trained at once, but for those of the objective: what it computes is one thing for all replicas.

    Args:
        make: gives a learner, with validation rows, of these lists of settings as `replicas`.
        train: fits it.
        grid: values by the names of settings.
        seeds: of the search; not those with which the chosen setting is then judged.
    """
    inner = {name: values for name, values in grid.items() if not name.startswith("objective__")}
    outer = {name: values for name, values in grid.items() if name.startswith("objective__")}
    points, tried = combinations(inner), []
    lists: dict[str, list[Any]] = {name: [point[name] for point in points for _ in seeds] for name in inner}
    lists["random_state"] = [*seeds] * len(points)
    for fixed in combinations(outer):
        learner = make(lists).set_params(**fixed)
        train(learner)
        losses = least_losses(learner).reshape(-1, len(seeds)).mean(1)
        tried += [(float(loss), {**point, **fixed}) for loss, point in zip(losses, points, strict=True)]
    return min(tried, key=lambda one: one[0])


def tuned(
    make: Callable[[dict[str, list[Any]]], Learner],
    train: Callable[[Learner], object],
    grid: Mapping[str, Sequence[Any]],
    seeds: Sequence[int],
    *,
    search: Sequence[int],
) -> tuple[Learner, dict[str, Any]]:
    """A learner trained with every seed at the setting that a search finds; and that setting.

    Args:
        make, train, grid: see `searched`; where the grid has one point only, nothing is searched.
        seeds: with which the setting is judged.
        search: the search's own seeds.
    """
    if set(search) & set(seeds):
        raise ValueError(f"expected other seeds for the search than {list(seeds)}, got {list(search)}; choose others")
    points = combinations(grid)
    best = points[0] if len(points) == 1 else searched(make, train, grid, search)[1]
    learner = make({"random_state": [*seeds]}).set_params(**best)
    train(learner)
    return learner, best
