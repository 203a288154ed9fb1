"""Few shots: validation by episodes, and what a learner measures on many of them, with intervals."""

from __future__ import annotations

import warnings
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from weft.core.legal import Whole
from weft.core.objective import Objective
from weft.core.source import Batch, Source
from weft.core.state import aside
from weft.core.trees import tree_map
from weft.engine.adapting import of_each
from weft.engine.replicas import batches, called, fresh
from weft.learner.questions import Expectation, mean_of
from weft.learner.settings import DTYPES, as_seed
from weft.learner.training import Run
from weft.sources import Episodes
from weft.sources.cast import Cast
from weft.sources.rowed import Rowed

if TYPE_CHECKING:
    from weft.learner.answers import Answers
    from weft.learner.estimator import Learner

__all__ = ["judging", "measured_by_episode"]


def judging(learner: Learner, objective: Objective, held: Source, source: Source) -> Source:
    """A validation source as it is measured, beside the training's; of episodes, as the objective reads them."""
    if objective.episodic and not held.episodic:
        raise ValueError(
            f"expected validation to give episodes, which {type(objective).__name__} reads, got {called(held)}; give "
            "Episodes(...) of other classes than those of training"
        )
    if not held.episodic:
        return held
    if len(learner.metrics):
        raise ValueError(
            f"expected no metrics beside a validation by episodes, got {learner.metrics!r}: they ask for predictions "
            f"of rows, before any adaptation; {type(objective).__name__} measures each episode itself, as valid_..."
        )
    own, theirs = _plain(source), _plain(held)
    if isinstance(own, Episodes) and (what := own.shared(theirs)):
        warnings.warn(
            f"expected validation by episodes of other tasks or classes than those of training, got {what}: what is "
            "measured then is how well known ones are told apart, not new ones; hold whole classes out, and name "
            "different ones differently",
            stacklevel=6,
        )
    return Rowed(held) if objective.episodic else held


def _plain(source: Source) -> Source:
    """The source that makes the batches which others pass on."""
    inner = getattr(source, "source", None)
    return _plain(inner) if isinstance(inner, Source) else source


def measured_by_episode(
    learner: Answers, source: Source, episodes: int, level: float, random_state: object
) -> dict[str, Expectation]:
    """What a learner measures of each of so many episodes: the means, with their intervals; see `Answers.measure`."""
    check_is_fitted(learner)
    Whole(2).check(episodes, "episodes to measure")
    objective, runs = learner.objective_, learner._answering()
    if not isinstance(source, Source) or not source.episodic:
        got = called(source) if isinstance(source, Source) else type(source).__name__
        raise TypeError(
            f"expected a source of episodes, such as Episodes(...), to measure, got {got}; for rows, score(X, y)"
        )
    if not objective.episodic and not runs[0].engine.strategy.sight.episodic:
        raise ValueError(
            f"expected a learner that learns from episodes, by MAML() or by an objective that reads them, got "
            f"{type(objective).__name__} by {runs[0].engine.strategy!r}"
        )
    for name in objective.fields:
        known, given = learner.training_.spec.get(name), source.spec.get(name)
        if known is not None and (given is None or given.shape != known.shape):
            got = "none" if given is None else str(given.shape)
            raise ValueError(f"expected episodes with {name!r} of shape {known.shape} as in training, got {got}")
        most, have = (None if one is None else one.classes for one in (known, given))
        if most is not None and have is not None and have > most:
            raise ValueError(
                f"expected episodes of at most {most} classes, as training had, got {have}; there is no output for the "
                "others"
            )
    cast = Cast(source, DTYPES[learner.dtype])
    k = learner.best_replica_ if isinstance(learner.replicas, dict) else 0  # whose own settings adapt, after a sweep
    found = [_of_run(run, cast, episodes, as_seed(random_state), k) for run in runs]
    return {
        name: mean_of(np.mean([one[name] for one in found], 0), "", "independent episodes of these tasks", level)
        for name in found[0]
    }


def _of_run(run: Run, source: Source, episodes: int, seed: int, k: int) -> dict[str, NDArray[np.float64]]:
    """One run's measures of each episode; the same episodes whatever the run."""
    engine, state = run
    parts: list[dict[str, Tensor]] = []
    have = turn = 0
    while have < episodes:
        looking = aside(fresh(source, state), "measure", seed, turn)
        batch: Batch = next(batches(source, looking))
        batch = tree_map(itemgetter(slice(episodes - have)), batch)
        parts.append(of_each(engine, state, batch, k))
        have, turn = have + len(next(iter(parts[-1].values()))), turn + 1
    return {name: torch.cat([part[name] for part in parts]).double().cpu().numpy() for name in parts[0]}
