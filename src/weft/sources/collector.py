"""Collector: who plays. It asks the policy, moves the worlds, begins episodes anew, and writes down what happened."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from weft.core.random import fold, unit
from weft.core.source import Batch, Field, SourceState, Spec
from weft.core.state import State
from weft.core.trees import tree_map
from weft.engine.acting import Acting, way_to_act
from weft.sources.stage import Beginnings, Stage, where_rows
from weft.sources.strange import refuse_actions, refuse_illegal, refuse_strange

__all__ = ["Collector", "bounded", "even_action"]

WINDOW = 100
"""So many episodes, the last that have ended, make the mean return that is told."""
STEP = ("observation", "action", "reward", "terminated", "truncated", "next_observation", "over")
Other = Callable[..., Tensor]
"""Another policy: from observations `(n, ...)` to an action for each; where the world says which actions are legal,
`(n, actions)`, that is its second argument."""
Chooser = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""An action for each row: of an answer `(n, ...)`, keys `(n,)` to draw by, and which actions are legal, or None."""


class Collector:
    """Plays episodes side by side in one world, for all replicas in one call.

    What it keeps between two calls is a tree: where the episodes stand, what is observed there, how old each is and
    what it has earned, what the policy remembers, and the returns of the last episodes that have ended. With replicas
    every tensor has them on its leading axis; a world does not know of them and sees as many more rows.

    Everything depends on keys: of the turn, the row and the replica's seed. What a call draws is drawn ahead.

    Args:
        stage: where it is played.
        envs: episodes side by side (for each replica).
        horizon: steps after which an episode is cut; default: the world's own.
        name: what the messages call the world.
        window: so many episodes, the last that have ended, are kept in mind.
        first: the number of the first of its rows, whose numbers key what happens in them.
    """

    def __init__(
        self,
        stage: Stage,
        envs: int,
        horizon: int | None = None,
        name: str = "the world",
        window: int = WINDOW,
        first: int = 0,
    ) -> None:
        self.stage, self.envs, self.name, self.window, self.first = stage, envs, name, window, first
        limits = [limit for limit in (horizon, stage.horizon) if limit is not None]
        if not limits:
            raise ValueError(
                f"expected a world whose episodes end, got {name} without a limit of steps; give horizon=..., after "
                "which an episode is cut"
            )
        self.horizon = min(limits)
        self.spec: Spec = {
            "observation": stage.observation,
            "action": stage.action,
            "reward": Field((), torch.float32),
            "terminated": Field((), torch.bool),
            "truncated": Field((), torch.bool),
            "next_observation": stage.observation,
        }
        if stage.masked:
            if stage.action.classes is None:
                raise ValueError(
                    f"expected finitely many actions in {name}, which says by legal(position) which of them are legal, "
                    f"got {stage.action}"
                )
            self.spec |= dict.fromkeys(("legal", "next_legal"), Field((stage.action.classes,), torch.bool))

    def begin(self, state: State, key: Tensor) -> SourceState:
        """New episodes: one for each row of each replica."""
        lead = () if state.replicas is None else (state.replicas,)
        rows = torch.arange(self.first, self.first + self.envs, device=state.device)
        keys = fold(fold(fold(key, "episode").unsqueeze(-1), rows).flatten(), "reset")
        kept, observation = self.stage.begin(keys)
        shape = (*lead, self.envs)
        ring = torch.full((*lead, self.window), math.nan, dtype=torch.float64, device=state.device)
        tree: SourceState = {
            "world": tree_map(lambda t: t.unflatten(0, shape), kept),
            "observation": _as(state.dtype, observation).unflatten(0, shape),
            "age": torch.zeros(shape, dtype=torch.int64, device=state.device),
            "earned": torch.zeros(shape, dtype=torch.float64, device=state.device),
            "returns": ring,
            "lengths": ring.clone(),
            "steps": torch.zeros(lead, dtype=torch.int64, device=state.device),
            "paid": torch.zeros(lead, dtype=torch.bool, device=state.device),
            "ended": torch.zeros(lead, dtype=torch.bool, device=state.device),
        }
        if state.objective.remembers:
            with Acting(state, "start", key.unsqueeze(-1), rows) as policy:
                tree["memory"] = policy.start(self.envs)
        return tree

    def play(
        self,
        state: State,
        tree: SourceState,
        turns: int,
        key: Tensor,
        *,
        ask: str = "sample_action",
        again: bool = True,
        stray: float = 0.0,
        other: Other | None = None,
        choose: Chooser | None = None,
        look: bool = True,
    ) -> tuple[SourceState, Batch]:
        """So many turns in each row: (what is kept then, the rows `(replicas, envs, turns, ...)`).

        Args:
            state: whose policy plays.
            tree: what was kept.
            turns: how many.
            key: of this call, for each replica.
            ask: what the objective is asked: for a draw (`sample_action`) or for the best (`act`).
            again: whether an episode that has ended begins anew; else its row waits, which `mask` tells, and the play
                ends once all have ended.
            stray: the share of actions, drawn evenly, that are another policy's. At 1 this one is not asked.
            other: the other policy; by default actions drawn evenly.
            choose: makes actions of what the objective answers; by default that is one.
            look: whether what is strange in it is refused; else whoever asked does so, by `refuse`.
        """
        lead, dtype = tree["age"].shape, state.dtype
        apart, together = _between(lead)
        rows = torch.arange(self.first, self.first + self.envs, device=state.device)
        times = torch.arange(turns, device=state.device)
        keys = fold(fold(fold(key, "episode").unsqueeze(-1), rows).flatten(), times.unsqueeze(-1))
        strays = unit(fold(keys, "stray"), (), torch.float64) < stray if 0.0 < stray < 1.0 else None
        evens = None
        if stray > 0.0 and other is None and not self.stage.masked:
            evens = even_action(self.stage.action, fold(keys, "even"))
        anew, turn = Beginnings(self.stage, fold(keys, "reset")), keys.unbind()
        kept, observation, age = tree_map(together, tree["world"]), together(tree["observation"]), together(tree["age"])
        memory = fresh = tree.get("memory")
        going = torch.ones_like(age, dtype=torch.bool)
        taken: list[dict[str, Tensor]] = []
        asks, way = stray < 1.0, way_to_act(state.objective, ask)
        with Acting(state, way, fold(fold(key, "action").unsqueeze(-1), times), rows) if asks else nullcontext() as own:
            if asks and memory is not None:
                fresh = own.start(self.envs)  # type: ignore[union-attr]
            for t in range(turns):
                legal = self.stage.legal(kept)
                given: dict[str, Any] = {}
                also: dict[str, Tensor] = {}
                if legal is not None:
                    if not again:
                        legal = legal | ~going.unsqueeze(-1)  # where nothing follows nothing is forbidden
                    given["legal"], also["legal"] = apart(legal), legal
                if memory is not None:
                    given["memory"] = memory
                    also |= {f"memory_{name}": together(value) for name, value in memory.items()}
                if own is not None:
                    answer = own(t, apart(observation), given)
                    answer, memory = answer if memory is not None else (answer, None)
                    action = together(answer)
                    if choose is not None:
                        action = choose(action, fold(turn[t], "choice"), legal)
                    if way == "predict":  # what was learned from labels knows no bounds
                        action = bounded(self.stage.action, action)
                if own is None or strays is not None:
                    if other is not None:
                        its = other(observation) if legal is None else other(observation, legal)
                    elif evens is not None:
                        its = evens[t]
                    else:
                        its = even_action(self.stage.action, fold(turn[t], "even"), legal)
                    action = its if strays is None else where_rows(strays[t], its, action)
                if not again:
                    action = where_rows(going, action, torch.zeros_like(action))
                try:
                    moved = self.stage.step(kept, action, turn[t])
                except (IndexError, RuntimeError):  # as tables do that are asked for what they have not
                    refuse_actions(self, action.unsqueeze(1), tree, t)
                    raise
                after, reward = _as(dtype, moved.observation), moved.reward.to(dtype)
                age, terminated = age + 1, moved.terminated
                truncated = (moved.truncated | (age >= self.horizon)) & ~terminated
                if not again:  # what has ended may drift to infinity
                    reward = torch.where(going, reward, 0.0)
                    after = where_rows(going, after, observation)
                    terminated, truncated = terminated & going, truncated & going
                    also["mask"] = going.to(dtype)
                if legal is not None:
                    ended_there = (terminated if again else terminated | ~going).unsqueeze(-1)
                    also["next_legal"] = self.stage.legal(moved.kept) | ended_there  # type: ignore[operator]
                over, kept = terminated | truncated, moved.kept
                step = (observation, _as(dtype, action), reward, terminated, truncated, after, over)
                taken.append(dict(zip(STEP, step, strict=True)) | also)
                if not again:
                    going = going & ~over
                    observation = where_rows(going, after, observation)
                    if not over.is_cuda and not bool(going.any()):
                        break
                    continue
                observation = after
                if over.is_cuda or bool(over.any()):
                    kept, new = anew.put(t, kept, over)
                    observation, age = where_rows(over, _as(dtype, new), after), age.masked_fill(over, 0)
                    if memory is not None:
                        memory = _forgotten(memory, fresh, apart(over))  # type: ignore[arg-type]
        played = {name: torch.stack([step[name] for step in taken], 1) for name in taken[0]}
        over = played.pop("over")
        if look:
            self._refuse(played, tree)
        each = played["mask"].sum(1).long() if "mask" in played else torch.full_like(age, over.shape[1])
        after_all: SourceState = {
            "world": tree_map(apart, kept),
            "observation": apart(observation),
            "age": apart(age),
            "steps": tree["steps"] + apart(each).sum(-1),
            "paid": tree["paid"] | apart(played["reward"] != 0).flatten(-2).any(-1),
            "ended": tree["ended"] | apart(played["terminated"]).flatten(-2).any(-1),
            **_tallied(tree, played["reward"], over),
        }
        if memory is not None:
            after_all["memory"] = memory
        return after_all, {name: values.unflatten(0, lead) for name, values in played.items()}

    def refuse(self, played: Batch, tree: SourceState) -> None:
        """Raises what is strange in what was played, when the episodes were as old as `tree` says."""
        lead = tree["age"].dim()
        self._refuse({name: values.flatten(0, lead - 1) for name, values in played.items()}, tree)

    def _refuse(self, played: Batch, tree: SourceState) -> None:
        refuse_actions(self, played["action"], tree, 0)
        refuse_illegal(self, played, tree)
        refuse_strange(self, played, tree)


def _between(lead: torch.Size) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """The ways from all rows to those of each replica, and back; of a single run both are one."""
    if len(lead) == 1:
        return (lambda values: values), (lambda values: values)
    return (lambda values: values.unflatten(0, lead)), (lambda values: values.flatten(0, 1))


def _as(dtype: torch.dtype, observation: Tensor) -> Tensor:
    return observation.to(dtype) if observation.is_floating_point() else observation


def _forgotten(memory: dict[str, Tensor], fresh: dict[str, Tensor], over: Tensor) -> dict[str, Tensor]:
    """What the policy remembers, once it has forgotten the episodes that are over."""
    return {
        name: torch.where(over.reshape(*over.shape, *(1,) * (now.dim() - over.dim())), fresh[name], now)
        for name, now in memory.items()
    }


def _tallied(tree: SourceState, reward: Tensor, over: Tensor) -> SourceState:
    """What the episodes at hand have earned, and the returns and lengths of the last that have ended."""
    lead, turns = tree["age"].shape, torch.arange(1, over.shape[1] + 1, device=over.device)
    ends = (over * turns).cummax(1).values  # the turn of the last end so far, from 1 on; 0 where there was none
    told: SourceState = {}
    for name, each, carried in (("returns", reward.double(), "earned"), ("lengths", torch.ones_like(reward), "age")):
        sums = pad(each.double().cumsum(1) + tree[carried].reshape(-1, 1), (1, 0))
        since = sums[:, 1:] - sums.gather(1, pad(ends[:, :-1], (1, 0)))
        value, ended = (t.T.unflatten(1, lead).movedim(0, -2).flatten(-2) for t in (since, over))
        told[name] = _pushed(tree[name], value, ended)
        if carried == "earned":
            told[carried] = (sums[:, -1] - sums.gather(1, ends[:, -1:]).squeeze(1)).unflatten(0, lead)
    return told


def _pushed(ring: Tensor, values: Tensor, real: Tensor) -> Tensor:
    """The last values of a ring `(..., window)` with those that are real `(..., n)` put behind, in their order.

    >>> _pushed(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0]), torch.tensor([True, False, True]))
    tensor([3., 4., 6.])
    """
    window, values = ring.shape[-1], torch.cat([ring, values], -1)
    real = torch.cat([torch.ones_like(ring, dtype=torch.bool), real], -1)
    behind = real.flip(-1).cumsum(-1).flip(-1)  # the first of the real ones from the end, from 1 on
    place = torch.where(real & (behind <= window), window - behind, window)
    return values.new_empty(*ring.shape[:-1], window + 1).scatter_(-1, place, values)[..., :window]


def bounded(space: Field, action: Tensor) -> Tensor:
    """Actions that are numbers, put between their bounds."""
    if not space.low or not action.is_floating_point() or tuple(action.shape[1:]) != space.shape:
        return action  # what is of another kind is refused later
    low, high = (torch.tensor(ends, device=action.device).reshape(space.shape) for ends in (space.low, space.high))
    return torch.clamp(action, low.to(action.dtype), high.to(action.dtype))


def even_action(action: Field, keys: Tensor, legal: Tensor | None = None) -> Tensor:
    """An action for each key, drawn evenly: among the (legal) ones, or between the bounds."""
    if action.classes is not None:
        weight = unit(keys, (action.classes,))
        return (weight if legal is None else weight.masked_fill(~legal, -1.0)).argmax(-1)
    shares = unit(keys, action.shape)
    if action.choices:
        return (shares * torch.tensor(action.choices, device=keys.device).reshape(action.shape)).long()
    if not action.low or not all(map(math.isfinite, (*action.low, *action.high))):
        raise ValueError(
            f"expected actions with finite bounds to be drawn evenly between them, got {action}; explore by the "
            "policy's own draws (explore=0)"
        )
    low, high = (torch.tensor(ends, device=keys.device).reshape(action.shape) for ends in (action.low, action.high))
    return (low + shares * (high - low)).to(action.dtype)
