"""Schedules: the learning rate's factor by progress."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import TypeGuard

import torch

from weft.core.configured import closest

__all__ = ["Schedule", "as_schedule", "is_plateau", "is_torch_scheduler"]

MakesScheduler = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]
Schedule = Callable[[float], float] | MakesScheduler
"""The learning rate's factor by progress in [0, 1), or what makes a scheduler of torch's from an optimizer."""


def _constant(t: float) -> float:
    return 1.0


def _linear(t: float) -> float:
    return 1.0 - t


def _cosine(t: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * t))


def _step(t: float) -> float:
    return 1.0 if t < 0.75 else 0.1


# Named functions, so that a learner can be pickled.
_SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "step": _step,
}


def as_schedule(schedule: str | Schedule | None) -> Schedule:
    """A schedule: a name or a function from progress in [0, 1) to the learning rate's factor.

    A class from `torch.optim.lr_scheduler`, or a `functools.partial` of one, is kept as it is; it is
    stepped once per update, `ReduceLROnPlateau` once per record.
    """
    if schedule is None:
        return _SCHEDULES["constant"]
    if isinstance(schedule, str):
        if schedule not in _SCHEDULES:
            raise closest(schedule, _SCHEDULES, "a schedule")
        return _SCHEDULES[schedule]
    if not callable(schedule):
        raise TypeError(
            f"expected a schedule's name, a function of progress in [0, 1), or a class of "
            f"torch.optim.lr_scheduler, got {schedule!r}"
        )
    if is_torch_scheduler(schedule):
        try:
            inspect.signature(schedule).bind(None)
        except TypeError as error:
            raise TypeError(
                f"expected a scheduler that is made from an optimizer alone, got {schedule!r}: {error}; give the rest "
                "by functools.partial(StepLR, step_size=10)"
            ) from error
    return schedule


def _makes(schedule: object, kind: type) -> bool:
    """Whether it is a class of such a kind, or a partial of one."""
    while isinstance(schedule, functools.partial):
        schedule = schedule.func
    return inspect.isclass(schedule) and issubclass(schedule, kind)


def is_torch_scheduler(schedule: object) -> TypeGuard[MakesScheduler]:
    """Whether it makes a scheduler of `torch.optim.lr_scheduler`."""
    return _makes(schedule, torch.optim.lr_scheduler.LRScheduler)


def is_plateau(schedule: object) -> bool:
    """Whether it makes a `ReduceLROnPlateau`, which waits for a measure."""
    return _makes(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau)
