"""What an engine does not train: combinations that only a built objective or a first batch tells of."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature

from weft.core.objective import Objective
from weft.core.optimizer import Optimizer
from weft.core.source import Batch
from weft.core.strategy import VERBS, Penalty, Strategy, Summing
from weft.engine.distributed import world
from weft.engine.gradients.coupled import mixes
from weft.engine.gradients.loss import Place

__all__ = ["refuse_groups", "refuse_mixing", "refuse_strategy"]


_SEES = "say what it sees in one word, such as sees = 'groups' (weft.core.sight)"
_SUMS, _PENALTY = "derive it from weft.core.Summing", "derive it from weft.core.Penalty"
_UNASKED = {
    **dict.fromkeys(("needs", "per_group", "across", "episodic"), _SEES),
    **dict.fromkeys(("summarize", "conclude"), _SUMS),
    **dict.fromkeys(("penalty", "pull"), _PENALTY),
    "observe": "leave a tree in Output.left, which combine is handed",
    "recall": "ask steer's loss(params, rows) for other rows",
}


def refuse_strategy(strategy: Strategy, objective: Objective, optimizers: Mapping[str, Optimizer], pieces: int) -> None:
    """What only a built objective tells, who chooses its own step, and what cannot be cut into pieces."""
    for part in strategy.parts:
        for name, instead in _UNASKED.items():
            asked = any(isinstance(part, base) and hasattr(base, name) for base in (Penalty, Summing))
            if hasattr(part, name) and not asked:
                raise TypeError(
                    f"expected {type(part).__name__} to have what the engine asks for, got {name!r}, which nobody "
                    f"asks; {instead}"
                )
        for verb in VERBS:
            base = list(signature(getattr(Strategy, verb)).parameters)[1:]
            got = list(signature(getattr(type(part), verb)).parameters)[1:]
            if len(got) != len(base):
                raise TypeError(
                    f"expected {type(part).__name__} to define {verb}({', '.join(base)}), got {verb}({', '.join(got)})"
                )
    reason = strategy.refuses(objective)
    if reason:
        raise ValueError(f"{strategy!r} cannot train {type(objective).__name__}: {reason}")
    for optimizer in optimizers.values() if strategy.own_step else ():
        if not optimizer.plain:
            own = next(part for part in strategy.parts if part.own_step)
            raise ValueError(
                f"expected plain SGD with {own!r}, which makes a step of its own of the gradient and the learning "
                f"rate, got {optimizer!r}; give optimizer=Optimizer('sgd', lr=...)"
            )
    if pieces > 1 and not objective.decomposable:
        raise ValueError(
            f"expected accumulate=1 with {type(objective).__name__}, whose loss couples all rows of an update, got "
            f"{pieces}, with which each part would be coupled by itself; take a larger batch_size instead"
        )
    if strategy.sight.together and pieces > 1:
        raise ValueError(
            f"expected accumulate=1 with {strategy!r}, whose penalty couples all rows of an update, got "
            f"{pieces}; take a larger batch_size instead"
        )


def refuse_mixing(objective: Objective, at: Place, batch: Batch) -> None:
    """Rows that several processes share must not be mixed by the net; see `mixes`."""
    for player in objective.players or ("",):
        if mixes(objective, player, at, batch):
            raise ValueError(
                f"expected rows that stand by themselves where {world()[1]} processes share each batch, got a net of "
                f"{type(objective).__name__} in which a row's loss depends on the rows beside it (statistics over the "
                "batch, such as x - x.mean(0)), which would be those of one share; train in one process"
            )


def refuse_groups(strategy: Strategy, batch: Batch, stacked: int, step: int, before: int | None) -> int:
    """What is compared must be there: two environments or more, in every batch the same ones.

    Args:
        strategy: compares them.
        batch: numbered, with groups.
        stacked: leading axes of all tensors that stand for replicas: 0 or 1.
        step: for the message.
        before: how many environments the batches before had, or None at the first.

    Returns:
        How many there are.
    """
    groups, rows = batch["row"].shape[stacked:]
    if groups == before:
        return groups
    for name, field in batch.items():
        if field.shape[stacked : stacked + 2] != (groups, rows):
            raise ValueError(
                f"expected every field of a grouped batch to have {groups} environments of {rows} rows, as others "
                f"have, got {name!r} of shape {tuple(field.shape[stacked:])}; pad environments of unequal size by "
                "repeating rows at weight 0 (the field 'weight')"
            )
    if groups < 2:
        raise ValueError(
            f"{strategy!r} compares environments, got one only in the batch of step {step}; with a single "
            "environment use ERM()"
        )
    if before is not None:
        raise ValueError(
            f"expected {before} environments in every batch, as in the first, got {groups} at step {step}; "
            "one that is absent keeps its place, with rows of weight 0 (the field 'weight')"
        )
    return groups
