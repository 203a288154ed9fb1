"""Planning: how long a learner trains on a source, told in passes, in updates or in steps of worlds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.objective import Objective
from weft.core.source import Source
from weft.engine.loop import Pause, Plan
from weft.engine.replicas import called
from weft.learner.metrics import Judge

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = ["plan_of"]


def _allowed(source: Source, env_steps: int, objective: Objective) -> int:
    """How many updates so many steps of worlds allow."""
    updates, name = source.updates(env_steps, objective), called(source)
    if updates is None:
        why = "whose episodes nobody knows the length of before" if source.acts else "which does not act"
        raise ValueError(f"expected steps=..., a number of updates, for {name}, {why}, got env_steps={env_steps}")
    if not updates:
        raise ValueError(
            f"expected env_steps for at least one update, got {env_steps}, fewer than {name} plays before the first"
        )
    return updates


def plan_of(
    learner: Learner, source: Source, validation: Source | None, objective: Objective, *, once: bool, pause: Pause
) -> Plan:
    """How long a learner trains on a source: in passes where it has an end, in steps elsewhere; or `once` through."""
    if learner.epochs is not None and source.epoch is None:
        raise ValueError(f"{called(source)} has no end to a pass: give steps instead of epochs={learner.epochs}")
    if once and source.epoch is not None:
        steps, every = source.epoch, source.epoch
    elif learner.env_steps is not None:
        steps = _allowed(source, int(learner.env_steps), objective)
        every = max(1, steps // 50)
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
        patience=learner.patience,
        validation=validation,
        memory=learner.memory,
        pause=pause,
        judge=judge,
    )
