"""What claims do with replicas: their scores, diverged ones included, and a search among settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weft.learner.estimator import Learner

__all__ = [
    "combinations",
    "each_of",
    "hits_of",
    "least_losses",
    "middle_of",
    "scores_of",
    "searched",
    "stacked",
    "swept",
    "told",
    "tuned",
]


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


def middle_of(scores: Sequence[float] | NDArray[Any]) -> int:
    """The replica whose score is in the middle; of two such the lower one.

    >>> middle_of([3.0, 9.0, 1.0, 2.0])
    3
    """
    return int(np.argsort(scores)[(len(scores) - 1) // 2])


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of a grid's values.

    >>> combinations({"a": (1, 2), "b": (3,)})
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def told(setting: Mapping[str, Any]) -> str:
    """A setting in words, for a table.

    >>> told({"optimizer__lr": 0.001, "strategy__andmask__threshold": 0.20000001, "batch": None})
    'lr 0.001, threshold 0.2, batch None'
    """
    return ", ".join(f"{k.rpartition('__')[2]} {f'{v:.3g}' if isinstance(v, float) else v}" for k, v in setting.items())


def swept(
    make: Callable[[dict[str, list[Any]]], Learner],
    train: Callable[[Learner], object],
    points: Sequence[Mapping[str, Any]],
    measure: Callable[[Learner], Any],
    *,
    lost: object,
) -> list[Any]:
    """What a measure says of a net trained at each point.

    Points that differ only in what replicas may differ in are trained at once, and the same point only once.

    Args:
        make: gives a learner of these lists of settings as `replicas`.
        train: fits it.
        points: values by the names of settings; all of the same names.
        measure, lost: see `each_of`.
    """
    found: dict[int, Any] = {}
    first = [list(points).index(point) for point in points]
    for learner, at in _together(make, [points[k] for k in sorted(set(first))]):
        train(learner)
        found |= {sorted(set(first))[i]: said for i, said in zip(at, each_of(learner, measure, lost=lost), strict=True)}
    return [found[k] for k in first]


def _together(
    make: Callable[[dict[str, list[Any]]], Learner], points: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Learner, list[int]]]:
    """Learners that have the points as replicas, each with the places of its own: other settings are one thing for
    all replicas."""
    strategy = make({"random_state": [0]}).settings().strategy
    free = {"random_state", "optimizer__lr", *(f"strategy__{name}" for name in strategy.sweeps)}
    others = [{name: value for name, value in point.items() if name not in free} for point in points]
    for fixed in [one for i, one in enumerate(others) if one not in others[:i]]:
        at = [i for i, one in enumerate(others) if one == fixed]
        lists = {name: [points[i][name] for i in at] for name in points[0] if name in free}
        yield make(lists).set_params(**fixed), at


def searched(
    make: Callable[[dict[str, list[Any]]], Learner],
    train: Callable[[Learner], object],
    points: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
) -> tuple[float, dict[str, Any]]:
    """The point of least loss on the rows held out, a mean over the search's own seeds; and that loss.

    Args:
        make: gives a learner, with validation rows, of these lists of settings as `replicas`.
        train: fits it.
        points: values by the names of settings, as `combinations` gives them.
        seeds: of the search; not those with which the chosen setting is then judged.
    """
    tried: dict[int, float] = {}
    for learner, at in _together(make, [{**point, "random_state": seed} for point in points for seed in seeds]):
        train(learner)
        tried |= dict(zip(at, least_losses(learner).tolist(), strict=True))
    losses = np.array([tried[i] for i in range(len(tried))]).reshape(len(points), len(seeds)).mean(1)
    best = int(np.argmin(losses))
    return float(losses[best]), dict(points[best])


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
        make, train: see `searched`.
        grid: values by the names of settings; where it has one point only, nothing is searched.
        seeds: with which the setting is judged.
        search: the search's own seeds.
    """
    if set(search) & set(seeds):
        raise ValueError(f"expected other seeds for the search than {list(seeds)}, got {list(search)}; choose others")
    points = combinations(grid)
    best = points[0] if len(points) == 1 else searched(make, train, points, search)[1]
    learner = make({"random_state": [*seeds]}).set_params(**best)
    train(learner)
    return learner, best
