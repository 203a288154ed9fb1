"""Planning: how long a learner trains on a source, told in passes, in updates or in steps of worlds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.objective import Objective
from weft.core.source import Source
from weft.engine.loop import Pause, Plan
from weft.engine.replicas import called
from weft.engine.schedule import is_torch_scheduler
from weft.learner.metrics import Judge

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = ["plan_of"]


def _allowed(source: Source, env_steps: int, objective: Objective) -> int | None:
    """How many updates so many steps of worlds allow; None where nobody knows it before they are played."""
    updates, name = source.updates(env_steps, objective), called(source)
    if updates is None and source.counts:
        return None
    if updates is None:
        why = "whose episodes nobody knows the length of before" if source.acts else "which does not act"
        raise ValueError(f"expected steps=..., a number of updates, for {name}, {why}, got env_steps={env_steps}")
    if not updates:
        raise ValueError(
            f"expected env_steps for at least one update, got {env_steps}, fewer than {name} plays before the first"
        )
    return updates


def _refuse_schedule(learner: Learner, source: Source) -> None:
    """Raises where a rate is to go with a share of the updates that nobody knows."""
    given = learner.schedule
    if given not in (None, "constant") and not is_torch_scheduler(given):
        raise ValueError(
            f"expected steps=..., a number of updates, beside schedule={given!r}, since nobody knows how many updates "
            f"env_steps={learner.env_steps} are for {called(source)}, whose episodes differ in length; leave one out"
        )


def plan_of(
    learner: Learner, source: Source, validation: Source | None, objective: Objective, *, once: bool, pause: Pause
) -> Plan:
    """How long a learner trains on a source: in passes where it has an end, in steps elsewhere; or `once` through."""
    if learner.epochs is not None and source.epoch is None:
        raise ValueError(f"{called(source)} has no end to a pass: give steps instead of epochs={learner.epochs}")
    every: int | None
    limit = None
    if once and source.epoch is not None:
        steps, every = source.epoch, source.epoch
    elif learner.env_steps is not None:
        allowed = _allowed(source, int(learner.env_steps), objective)
        every = None if allowed is None else max(1, allowed // 50)
        if allowed is None:
            _refuse_schedule(learner, source)
            limit = int(learner.env_steps)
        steps = int(learner.env_steps) if allowed is None else allowed  # an update plays a step at least
    elif learner.steps is not None or source.epoch is None:
        steps = 1000 if learner.steps is None else int(learner.steps)
        every = max(1, steps // 50)
    else:
        steps = (50 if learner.epochs is None else int(learner.epochs)) * source.epoch
        every = source.epoch
    if learner.every is not None or objective.solved:
        every = learner.every or 1
    judge = Judge(learner, validation) if validation is not None and len(learner.metrics) else None
    return Plan(
        steps=steps,
        every=every,
        env_steps=limit,
        patience=learner.patience,
        best=learner.patience is not None or (validation is not None and validation.acts and objective.acts),
        validation=validation,
        memory=learner.memory,
        pause=pause,
        judge=judge,
    )
