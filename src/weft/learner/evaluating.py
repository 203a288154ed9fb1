"""Evaluating: fresh episodes of a trained policy, each played to its end, what they say of it, and a film of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from weft.core.legal import Flag, Number, Such, Whole
from weft.core.random import fold, key_of
from weft.core.source import Field
from weft.core.state import State
from weft.core.trees import tree_map
from weft.engine.acting import way_to_act
from weft.engine.answering import answers
from weft.learner.evaluation import Evaluation
from weft.learner.film import Film, Filmed, place, written
from weft.learner.questions import refuse_level
from weft.learner.settings import as_seed
from weft.learner.worlds import as_world
from weft.sources.collector import Collector
from weft.sources.playing import WORLDS, called_world
from weft.sources.stage import Stage, stage_of
from weft.sources.strange import refuse_objective

if TYPE_CHECKING:
    from weft.core.objective import Objective
    from weft.learner.training import Training

__all__ = ["Playing", "refuse_labels"]

_AT_ONCE = 16  # episodes side by side in a world outside, each of which is an environment of its own
_BESIDE = 128  # bytes of a step beside what is observed: keys, rewards, ends

_SETTINGS = {
    "episodes": Whole(1),
    "deterministic": Flag(),
    "horizon": Whole(1) | None,
    "bound": Number() | None,
    "envs": Whole(1) | None,
    "arguments": Such("arguments by name", lambda given: isinstance(given, Mapping)) | None,
}


def _acts(self: Playing) -> bool:
    objective = self._objective()
    if not any(hasattr(objective, way) for way in ("sample_action", way_to_act(objective, "act"))):
        raise AttributeError(
            f"{type(self).__name__} has no episodes to play: expected an objective that acts, with act(observation) or "
            f"sample_action(observation), got {type(objective).__name__}; choose one of weft.objectives.control"
        )
    return True


class Playing(BaseEstimator):
    """What a Learner whose objective acts can be asked: how well it plays, and a film of it."""

    memory: int
    replicas: Any
    training_: Training

    def _objective(self) -> Objective:
        raise NotImplementedError

    @property
    def best_replica_(self) -> int:
        """The replica with the best progress measure."""
        raise NotImplementedError

    @available_if(_acts)
    def evaluate(
        self,
        world: Any,
        episodes: int = 100,
        *,
        deterministic: bool = True,
        horizon: int | None = None,
        bound: float | None = None,
        level: float = 0.95,
        random_state: Any = 0,
        arguments: Mapping[str, Any] | None = None,
        envs: int | None = None,
    ) -> Evaluation:
        """What the trained policy earns in fresh episodes of a world, each played to its end.

        Each replica plays its own; those that diverged do not, and of a sweep the best one does. An episode depends on
        `random_state`, the seed of the training and its number, not on how many are played side by side.

        Args:
            world: as for `fit`, one of them; observations and actions are those of training.
            episodes: how many (of each replica).
            deterministic: ask for the best action (`act`), else for a drawn one (`sample_action`).
            horizon: steps after which an episode is cut; default: the world's own.
            bound: a return; the share of episodes that reach it is told.
            level: of the interval.
            random_state: what fixes the episodes.
            arguments: further ones for gymnasium, by name.
            envs: episodes side by side; default: as many as `memory` holds (of worlds outside at most 16).

        Example:
            >>> from weft import Learner
            >>> from weft.data import CartPole
            >>> from weft.objectives import REINFORCE
            >>> from weft.sources import Rollouts
            >>> learner = Learner(REINFORCE(), steps=2, random_state=0).fit(Rollouts(CartPole(), envs=8))
            >>> learner.evaluate(CartPole(), 20, bound=475).returns.shape
            (20,)
        """
        _check("evaluate", locals())
        world = as_world(world)
        refuse_level(level)
        (states, numbers), ask = _policies(self), "act" if deterministic else "sample_action"
        stage, name, seed = _stage(world, arguments), called_world(world), as_seed(random_state)
        found = [_played(self, state, stage, name, episodes, ask, horizon, seed, envs) for state in states]
        parts = [np.concatenate([np.atleast_2d(part) for part in each]) for each in zip(*found, strict=True)]
        rows = numbers if isinstance(self.replicas, int) else ()
        parts = parts if rows else [part[0] for part in parts]
        bound = None if bound is None else float(bound)
        return Evaluation.of(parts[0], parts[1], parts[2], bound=bound, level=level, replicas=rows)

    @available_if(_acts)
    def record(
        self,
        world: Any,
        path: Any = "film.gif",
        *,
        episodes: int = 1,
        deterministic: bool = True,
        horizon: int | None = None,
        fps: float = 25.0,
        random_state: Any = 0,
        arguments: Mapping[str, Any] | None = None,
    ) -> Film:
        """A film (GIF) of the first episodes that `evaluate` plays, one after another.

        Args:
            world: one that draws; see `evaluate`. A gymnasium id is made with `render_mode="rgb_array"`.
            path: where to put it; what is there is replaced.
            episodes: how many.
            deterministic, horizon, random_state, arguments: as for `evaluate`.
            fps: pictures in a second, at most 50, to the nearest that GIF has: it counts in hundredths of a second.

        Returns:
            Film: the path, the return of each episode and how many pictures there are.
        """
        _check("record", locals())
        Number(0.0, 50.0, "(]").check(fps, "record's fps", 25.0)
        path, world = place(path), as_world(world)
        (states, numbers), ask = _policies(self), "act" if deterministic else "sample_action"
        if len(numbers) > 1:
            raise ValueError(f"expected one replica to film, got {len(numbers)}; film one: .replica(0).record(...)")
        if isinstance(world, str):
            arguments = {"render_mode": "rgb_array", **(arguments or {})}
        stage = Filmed(_stage(world, arguments), called_world(world))
        seed = as_seed(random_state)
        returns, lengths, _ = _played(
            self, states[0], stage, called_world(world), episodes, ask, horizon, seed, episodes
        )
        return written(path, stage.pictures, lengths, returns, fps)


def _check(method: str, values: Mapping[str, Any]) -> None:
    for name, legal in _SETTINGS.items():
        if name in values:
            legal.check(values[name], f"{method}'s {name}")


def _stage(world: object, arguments: Mapping[str, Any] | None) -> Stage:
    if isinstance(world, list | tuple):
        raise TypeError(f"expected one world to play in, got {len(world)} of them; ask about one after another")
    WORLDS.check(world, "the world")
    return stage_of(world, arguments)


def _policies(learner: Playing) -> tuple[list[State], tuple[int, ...]]:
    """The states that play, stacked where they are, and the numbers of their replicas: of all that did not diverge;
    after a sweep, of the best."""
    check_is_fitted(learner)
    training = learner.training_
    sound = [not diverged for diverged in training.diverged]
    if isinstance(learner.replicas, dict):
        sound = [k == learner.best_replica_ for k in range(len(sound))]
    if not any(sound):
        raise NotFittedError("expected a trained replica, got none: every one has diverged; see stop_reason_")
    states, first = [], 0
    for engine, state in training.runs:
        count = state.replicas or 1
        keep = [k for k in range(count) if sound[first + k]]
        first += count
        if not keep:
            continue
        several = answers(engine, state)
        if len(several) > 1:
            raise ValueError(
                f"expected one set of parameters that plays, got {len(several)}, which {engine.strategy!r} keeps; "
                "their actions cannot be averaged"
            )
        states.append(_some(several[0], keep))
    return states, tuple(k for k, plays in enumerate(sound) if plays)


def _some(state: State, keep: list[int]) -> State:
    """Some replicas of a state; of one the single run."""
    if len(keep) == 1:
        return state.replica(keep[0])
    if len(keep) == state.replicas:
        return state
    which = torch.tensor(keep, device=state.device)
    params, buffers = (tree_map(itemgetter(which), tree) for tree in (state.params, state.buffers))
    return State(state.objective, params, buffers, state.seeds[which], len(keep))


def _played(
    learner: Playing,
    state: State,
    stage: Stage,
    name: str,
    episodes: int,
    ask: str,
    horizon: int | None,
    seed: int,
    envs: int | None,
) -> list[NDArray[Any]]:
    """Return, length and whether it was cut, of each episode (of each replica)."""
    _refuse_mute(state, ask)
    key = fold(key_of(state.seeds), "evaluate", seed)
    collect = partial(Collector, stage, horizon=horizon, name=name, window=1)
    one = collect(1)
    if way_to_act(state.objective, ask) == "predict" and "action" not in learner.training_.spec:
        refuse_labels(learner, stage.action, "evaluated in")
    _refuse_other(learner, one)
    refuse_objective(one, state, ask)
    if envs is None:
        step = 4 * math.prod(stage.observation.shape) * stage.observation.dtype.itemsize + _BESIDE
        fits = max(1, learner.memory // ((state.replicas or 1) * one.horizon * step))
        envs = min(episodes, fits, episodes if stage.resumes == "exact" else _AT_ONCE)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for first in range(0, episodes, envs):
        collector = collect(envs, first=first)
        begun = collector.begin(state, key)
        _, batch = collector.play(state, begun, collector.horizon, key, ask=ask, again=False)
        parts.append((batch["reward"].double().sum(-1), batch["mask"].sum(-1).long(), batch["truncated"].any(-1)))
    return [torch.cat(part, -1)[..., :episodes].cpu().numpy() for part in zip(*parts, strict=True)]


def _refuse_mute(state: State, ask: str) -> None:
    """Raises where a policy has only the other way of acting."""
    own, other = type(state.objective).__name__, {"act": "sample_action", "sample_action": "act"}[ask]
    if not hasattr(state.objective, way_to_act(state.objective, ask)):
        raise TypeError(
            f"expected a policy with {ask}(observation), got {own}, which has {other} alone; ask with "
            f"deterministic={ask != 'act'}"
        )


def refuse_labels(learner: object, action: Field, what: str) -> None:
    """Raises where labels that a learner has learned from arrays are not the numbers of a world's actions."""
    labels, count = getattr(learner, "classes_", None), action.classes
    if count is not None and (labels is None or labels.tolist() != list(range(count))):
        got = "numbers" if labels is None else f"the labels {labels.tolist()[:10]}"
        raise ValueError(
            f"expected y to be the actions 0..{count - 1} of the world that it is {what}, got {got}; "
            "call fit(Demonstrations(world, (X, y)))"
        )


def _refuse_other(learner: Playing, collector: Collector) -> None:
    """Raises where what is seen or done in a world is not what it was in training."""
    spec, first = learner.training_.spec, learner._objective().fields[0]
    pairs = {
        "observations": (spec.get("observation", spec[first]), collector.stage.observation),
        "actions": (spec.get("action"), collector.stage.action),
    }
    for what, (trained, here) in pairs.items():
        if trained is not None and _alike(trained, what) != _alike(here, what):
            raise ValueError(
                f"expected a world with the {what} that the policy was trained on, {_said(trained)}, got "
                f"{_said(here)} in {collector.name}; play in a world of the same kind, or train in this one"
            )


def _alike(field: Field, what: str) -> tuple[Any, ...]:
    """What must be the same: of what is observed not the bounds."""
    bounds = (field.low, field.high) if what == "actions" else ()
    return (field.shape, field.dtype.is_floating_point, field.classes, field.choices, *bounds)


def _said(field: Field) -> str:
    if field.classes is not None:
        return f"one of {field.classes} classes"
    if field.choices:
        return f"numbers below {field.choices}"
    between = f" between {field.low} and {field.high}" if field.low else ""
    return f"shape {field.shape} in {str(field.dtype).removeprefix('torch.')}{between}"
