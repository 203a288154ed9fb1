"""Watching a training from outside: callbacks, which may see the model as it is, and metrics of what is held out."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from weft.core.source import Source
from weft.core.state import State
from weft.core.trees import tree_map
from weft.engine.answering import renew
from weft.engine.engine import Engine
from weft.engine.loop import History, Record
from weft.learner.training import Phase, Run

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = ["Watching", "arguments", "present"]


def arguments(callback: Callable[..., object]) -> int:
    """How many arguments a callback is called with: 1 (the record), 2 (record and learner), or 0 where neither fits.

    >>> arguments(print), arguments(lambda record, learner: None), arguments(lambda: None)
    (1, 2, 0)
    """
    try:
        signature = inspect.signature(callback)
    except (TypeError, ValueError):  # of some functions in C nobody knows
        return 1
    for count in (1, 2):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count
    return 0


def present(learner: Learner, engine: Engine, state: State, *, kept: bool = True) -> Learner:
    """A fitted Learner with what a run has learned by now: one run, or all replicas where they are stacked in it.

    Args:
        learner: the one that trains.
        engine, state: the run at hand.
        kept: whether its tensors are copies, which training leaves alone.
    """
    training = learner.training_
    i = next(i for i, run in enumerate(training.runs) if run.engine is engine)
    names = ("params", "buffers", "strategy", "statistics")
    trees = {name: tree_map(Tensor.clone, getattr(state, name)) for name in names} if kept else {}
    best = {name: value.clone() for name, value in state.best.items() if name in ("value", "waited")}
    own = copy.copy(engine)
    own.objective = copy.deepcopy(engine.objective)
    now = replace(state, **trees, objective=own.objective, optimizers={}, best=best, tally={}, source={}, _roots={})
    told = training.settings
    seen = copy.copy(learner)
    if len(training.runs) > 1:  # replicas that are trained one after another
        told = [training.settings[i]]
        seen = copy.copy(learner._with(told[0]))
        seen.replicas, seen.seeds_ = None, [learner.seeds_[i]]
    seen.callbacks, seen.folder, seen.keep, seen.verbose = (), None, None, False
    seen.training_ = replace(training, settings=told, runs=[Run(own, now)], phase=Phase(), folder=None)
    past = [] if len(training.runs) > 1 else list(learner.history_)
    begun = training.phase.runs
    seen.history_ = History([*past, *(dict(record) for record in (begun[i].records if i < len(begun) else ()))])
    seen._conclude()
    return seen


class Watching:
    """The callbacks of a Learner, called with each record.

    Those that take two arguments are given the learner as it is by then as well: a copy, made where one asks for it.
    """

    def __init__(self, learner: Learner, source: Source) -> None:
        self.learner, self.source = learner, source
        self.callbacks: Sequence[Callable[..., object]] = learner.callbacks

    def __call__(self, engine: Engine, state: State, record: Record) -> list[object]:
        """What each callback says."""
        seen: Any = None
        said = []
        for callback in self.callbacks:
            if arguments(callback) != 2:
                said.append(callback(record))
                continue
            if seen is None:
                seen = present(self.learner, engine, state)
                renew(seen.training_.runs[0].engine, seen.training_.runs[0].state, self.source)
            said.append(callback(record, seen))
        return said
