"""Steps of play as values are learned from them: what was earned, and how much what comes after counts."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.core.source import Batch, Spec

__all__ = ["actions_of", "earned", "step_fields"]


def step_fields(spec: Spec | None = None) -> tuple[str, ...]:
    """The fields that a loss towards a bootstrapped value reads of steps such as these.

    Args:
        spec: of the steps; None before it is known.

    Example:
        >>> step_fields()
        ('observation', 'action', 'reward', 'next_observation', 'terminated')
    """
    known = spec or {}
    gained = ("rewards", "steps") if "rewards" in known else ("reward",)
    masks = ("next_legal",) if "next_legal" in known else ()
    return ("observation", "action", *gained, "next_observation", "terminated", *masks)


def earned(batch: Batch, discount: float) -> tuple[Tensor, Tensor]:
    """What steps have earned, and the factor of what is worth to be where they have led to.

        sum_{k < n} discount^k r_k,    discount^n (1 - terminated)

    of the n `steps` that are in each row of `rewards`, zeros after them; else n = 1. A step that was cut
    (`truncated`) has a value after it, one that has ended by itself has none.

    Args:
        batch: steps, as `Replay` gives them.
        discount: of later rewards.

    Example:
        >>> cut = {"rewards": torch.tensor([[1.0, 2.0, 0.0]]), "steps": torch.tensor([2])}
        >>> earned({**cut, "terminated": torch.tensor([False])}, 0.5)
        (tensor([2.]), tensor([0.2500]))
    """
    goes_on = ~batch["terminated"]
    if "rewards" not in batch:
        return batch["reward"], discount * goes_on
    rewards = batch["rewards"]
    weight = discount ** torch.arange(rewards.shape[-1], device=rewards.device, dtype=rewards.dtype)
    return (rewards * weight).sum(-1), discount ** batch["steps"].to(rewards.dtype) * goes_on


def actions_of(spec: Spec, name: str) -> int:
    """How many actions there are, for an objective that tells each of them apart; raises where there is no end of them.

    >>> from weft.core.source import Field
    >>> actions_of({"action": Field((), torch.int64, classes=3)}, "DQN")
    3
    """
    action = spec["action"]
    if action.classes is not None:
        return action.classes
    kind = "rows of choices" if action.choices else "numbers"
    fix = "PPO takes rows of choices" if action.choices else "PPO, SAC and TD3 take numbers"
    raise ValueError(f"expected finitely many actions for {name}, got {kind} of shape {action.shape}; {fix}")
