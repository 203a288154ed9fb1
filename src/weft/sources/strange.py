"""What is strange in what was played, with the words for it: actions outside of the space, numbers that are none."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.core.source import Batch, Field, SourceState
from weft.core.state import State
from weft.engine.acting import way_to_act

if TYPE_CHECKING:
    from weft.sources.collector import Collector

__all__ = ["outside", "refuse_actions", "refuse_endless", "refuse_illegal", "refuse_objective", "refuse_strange"]


def refuse_objective(collector: Collector, state: State, ask: str) -> None:
    """Raises where the objective cannot act there."""
    objective, own = state.objective, type(state.objective).__name__
    draws, ask = ask == "sample_action", way_to_act(objective, ask)
    method = getattr(objective, ask, None)
    if method is None and draws and getattr(objective, way_to_act(objective, "act"), None) is not None:
        raise TypeError(
            f"expected {own} to draw its actions, with the method sample_action(observation), got one that tells the "
            "best alone; ask it for that, by Rollouts(world, greedy=True)"
        )
    if method is None:
        raise TypeError(
            f"expected an objective that acts, with the method {ask}(observation), got {own}; choose one of "
            "weft.objectives.control, or give its rows to another source"
        )
    arguments = inspect.signature(method).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in arguments.values())
    if getattr(collector.stage, "masked", False) and "legal" not in arguments and not anything:
        raise TypeError(
            f"expected {own}.{ask}(observation, *, legal) in {collector.name}, where not every action is legal, got "
            "one without; let it take legal, (n, actions), and draw among those (or play gymnasium's without being "
            "told: arguments={'masks': False})"
        )
    if objective.remembers and "memory" not in arguments and not anything:
        raise TypeError(
            f"expected {own}.{ask}(observation, *, memory) beside start, got one without; let it take the memory and "
            "answer (action, memory)"
        )


def refuse_endless(collector: Collector, state: State) -> None:
    """Raises where values that count on beyond a cut, without a discount, do not exist."""
    if state.objective.bootstraps != 1 or not collector.stage.endless:
        return
    raise ValueError(
        f"expected discount < 1 for {type(state.objective).__name__} in {collector.name}, where episodes go on for "
        f"ever and rewards with them, got 1: the horizon of {collector.horizon} steps cuts an episode and ends none, "
        "so that the value of what follows counts on, and it is infinite, or known up to a constant at best; discount "
        "(.99), or let the world end an episode (terminated) where the limit is part of the task"
    )


def _entry(at: Tensor, names: Sequence[str] = ()) -> str:
    """Which entry of what has a shape, by its name where it has one."""
    place = at[2:].tolist()
    return f" in {names[place[0]]}" if names and len(place) == 1 else f" in entry {place}" if place else ""


def _where(collector: Collector, tree: SourceState, at: Tensor, first: int = 0) -> str:
    """Which replica, which row, which step of the episode."""
    row, turn = int(at[0]), int(at[1]) + first
    age = int(tree["age"].flatten()[row]) + turn
    replica = f", replica {row // collector.envs}" if tree["age"].dim() > 1 else ""
    return f"in {collector.name}, episode {row % collector.envs}{replica}, about step {age}"


def outside(space: Field, action: Tensor) -> tuple[Tensor, str]:
    """Where actions `(..., entries)` lie outside of a space, and what they should be, in words."""
    if space.classes is not None:
        return (action < 0) | (action >= space.classes), f"a class number in 0..{space.classes - 1}"
    if space.choices:
        most = torch.tensor(space.choices, device=action.device).reshape(space.shape)
        return (action < 0) | (action >= most), f"numbers below {space.choices}"
    if space.low:
        low, high = (torch.tensor(v, device=action.device).reshape(space.shape) for v in (space.low, space.high))
        return ~((action >= low - 1e-4) & (action <= high + 1e-4)), f"between {space.low} and {space.high}"
    return ~action.isfinite(), "finite"


def refuse_actions(collector: Collector, action: Tensor, tree: SourceState, first: int) -> None:
    """Raises where an action lies outside of the space; actions are `(rows, turns, ...)`, of turns from `first` on."""
    space = collector.stage.action
    alike = action.is_floating_point() == space.dtype.is_floating_point
    if tuple(action.shape[2:]) != space.shape or not alike:
        raise ValueError(
            f"expected actions of shape {space.shape} in {space.dtype} for {collector.name}, got "
            f"{tuple(action.shape[2:])} in {action.dtype}; the policy must give one action for each row"
        )
    wrong, said = outside(space, action)
    if bool(wrong.any()):
        at = wrong.nonzero()[0]
        raise ValueError(
            f"expected actions to be {said}, got {action[tuple(at)].item():g}{_entry(at)} "
            f"{_where(collector, tree, at, first)}; let the policy squash or clamp what it draws"
        )


def refuse_illegal(collector: Collector, played: Batch, tree: SourceState) -> None:
    """Raises where an action was taken that the world forbids there."""
    if "legal" not in played:
        return
    wrong = ~played["legal"].gather(-1, played["action"].unsqueeze(-1)).squeeze(-1)
    if bool(wrong.any()):
        at = wrong.nonzero()[0]
        legal = played["legal"][tuple(at)].nonzero().squeeze(-1).tolist()
        fix = (
            "let the policy draw among those, as legal tells it"
            if legal
            else "let the world offer an action in every position that does not end an episode"
        )
        raise ValueError(
            f"expected a legal action, one of {legal}, got {int(played['action'][tuple(at)])} "
            f"{_where(collector, tree, at)}; {fix}"
        )


def refuse_strange(collector: Collector, played: Batch, tree: SourceState) -> None:
    """Raises where what was observed or earned is not finite."""
    for name in ("observation", "next_observation", "reward"):
        values = played[name]
        if not values.is_floating_point() or bool(values.isfinite().all()):
            continue
        at = (~values.isfinite()).nonzero()[0]
        names = getattr(collector.stage, "names", ()) if name != "reward" else ()
        raise ValueError(
            f"expected a finite {name.replace('_', ' ')}, got {values[tuple(at)].item()}{_entry(at, names)} "
            f"{_where(collector, tree, at)}; look at the world there, or cut its episodes sooner (horizon=...)"
        )
