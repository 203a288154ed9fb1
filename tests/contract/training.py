"""Trains a strategy with an objective on the contract's small data, and tells whether it learns."""

import json
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from weft import Learner, Optimizer

from .cases import ASKED, OBJECTIVES, SITE, STRATEGIES, X

SUPPORT = json.loads((Path(__file__).parent / "support.json").read_text())


def train(strategy, objective, replicas=None, net="plain", dtype="float32", weighting="example", steps=None):
    case = OBJECTIVES[objective]
    chosen = case.strategies.get(strategy, STRATEGIES[strategy])
    made, descent = case.make(net), {}
    if not made.solved:
        steps = steps or (100 if chosen.sight.episodic else case.steps)
        own = {"optimizer": Optimizer("sgd", lr=0.3)} if chosen.own_step else {}
        descent = {"steps": steps, "batch_size": 30, **case.settings, **own}
    learner = Learner(
        made,
        strategy=chosen,
        replicas=replicas,
        dtype=dtype,
        weighting=weighting,
        random_state=0,
        **{**descent, **ASKED.get(strategy, {})},
    )
    grouped = chosen.sight.grouped
    if chosen.sight.episodic and case.episodes is not None:
        learner.fit(case.episodes())
    elif case.source is not None:
        counted = strategy == "sgld" and case.counted is not None
        source = case.counted() if counted else case.source("groups" if grouped else "flat")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="expected the same rows at every step")
            learner.partial_fit(source, task="first").partial_fit(source, task="second")
    elif "index" in made.fields:  # rows have numbers in one training, not in several
        learner.fit(**case.arrays, environment=SITE if grouped else None)
    else:
        environment = SITE if grouped else None
        for task in ("first", "second"):
            learner.partial_fit(**case.arrays, environment=environment, task=task)
    return learner


def improves(learner, rows, begun):
    """The progress measure, in the median over replicas, is better at the end than at the start.

    Args:
        learner: a trained one.
        rows: that it has learned from.
        begun: gives one like it that has made a step, for objectives whose likelihood is known and is no record.
    """
    objective = learner.settings().objective
    if objective.solved and "predict" not in objective.capabilities():
        bounds = [
            np.median(record["bound"]) for record in learner.history_ if np.isfinite(record.get("bound", np.nan)).all()
        ]
        if bounds:
            return bounds[-1] > bounds[0]
        return learner.score(rows) > stats.norm(0, 2).logpdf(rows).sum(1).mean()  # better than one twice too wide
    if objective.solved:
        return learner.score(X, learner.predict(X)) > 0.99
    name, direction = objective.progress
    if name == "return" and name not in learner.history_[-1]:  # episodes that are given earn nothing
        name, direction = "loss", "min"
    if name != "loss" and "log_prob" in objective.capabilities():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of strategies that want more than a step
            return learner.score(rows) > begun().score(rows)
    column = learner.history_[name]
    values = column if column.ndim == 1 else np.median(column, axis=1)
    tenth = max(1, len(values) // 10)
    start, end = values[:tenth].mean(), values[-2 * tenth :].mean()
    return end < start if direction == "min" else end > start


def check_cell(strategy, objective, **settings):
    cell = SUPPORT[strategy][objective]
    if cell != "trains":
        reason = cell.removeprefix("refused: ")
        with pytest.raises(ValueError) as caught:
            train(strategy, objective, **settings)
        assert reason in str(caught.value)
        return
    learner = train(strategy, objective, **settings)
    own, learned = OBJECTIVES[objective].arrays, OBJECTIVES[objective].learned
    if learned is not None:
        assert learned(learner), learner.history_.to_frame()
        return
    begun = partial(train, strategy, objective, **settings, steps=1)
    assert improves(learner, X if own is None else own["X"], begun), learner.history_.to_frame()
