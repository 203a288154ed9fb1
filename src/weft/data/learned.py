"""A world that was learned: what a trained model says will happen next."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, distributions

from weft.core.legal import Flag, Whole, told
from weft.core.random import fold, key_of, unit
from weft.core.source import Field
from weft.core.state import State
from weft.engine.asking import call
from weft.objectives.control.dynamics import action_inputs, action_width

__all__ = ["Learned"]

Told = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function of observations, actions and what was observed next, one answer for each row."""


class Learned:
    """A trained model of the dynamics as a world: a policy can learn in it, or a plan be tried.

    The model has learned, from steps that were taken in the true world,

        x = [observation, action]  ->  y = [next observation - observation, reward],

    with an entry of x for each action where there are finitely many; `Learned.rows` makes both. Or it is a model of
    dynamics (`weft.objectives.Dynamics`), which knows the actions and whether an episode ends. An episode begins with
    one of the rows in `start`, drawn evenly, and goes on with what the model predicts, or with draws from what it
    predicts. It is the learner as it was when the world was made: what it learns later changes nothing here. Far from
    the steps that it has learned from a model says anything; look at what a policy earns in the true world.

    Args:
        learner: trained on `rows`, one run of it: a regression such as `Regression()` or `LeastSquares()`; or trained
            on steps, what can `imagine`.
        action: what an action is: one of finitely many, or numbers; None where the model says it.
        start: observations to begin with, `(m, ...)`.
        horizon: steps of an episode at most.
        reward: a function of (observation, action, next observation); None where the model has learned it.
        terminated: likewise, whether the episode has ended by itself; None where none does.
        draws: draw what happens from the distribution that the model predicts; else it is the mean.

    References:
        Sutton, "Integrated architectures for learning, planning, and reacting based on approximating dynamic
        programming", ICML 1990; with a distribution: Deisenroth and Rasmussen, "PILCO: a model-based and data-efficient
        approach to policy search", ICML 2011.

    Example:
        >>> from weft import Learner
        >>> from weft.core.random import fold, key_of
        >>> from weft.objectives import LeastSquares
        >>> pushes = Field((1,), torch.float32, low=(-1.0,), high=(1.0,))
        >>> place, push = torch.rand(50, 1), torch.rand(50, 1)
        >>> steps = Learned.rows(pushes, place, push, place + 0.5 * push, reward=-place[:, 0])
        >>> world = Learned(Learner(LeastSquares()).fit(*steps), action=pushes, start=torch.zeros(1, 1), horizon=20)
        >>> keys = fold(key_of(0), torch.arange(2))
        >>> position, observation = world.reset(keys)
        >>> world.step(position, torch.ones(2, 1), keys)[1].round(decimals=3)
        tensor([[0.5000],
                [0.5000]])
    """

    def __init__(
        self,
        learner: Any,
        *,
        action: Field | None = None,
        start: Any,
        horizon: int,
        reward: Told | None = None,
        terminated: Told | None = None,
        draws: bool = False,
    ) -> None:
        Whole(1).check(horizon, "Learned's horizon")
        Flag().check(draws, "Learned's draws")
        self.start = torch.as_tensor(start).detach().to(torch.float32).clone()
        if self.start.dim() < 2 or not len(self.start) or not bool(self.start.isfinite().all()):
            raise ValueError(
                f"expected start with a row for each of at least one finite observation, (m, ...), got "
                f"{told(tuple(self.start.shape))}{'' if self.start.numel() else ', which is empty'}"
            )
        self.observation = Field(tuple(self.start.shape[1:]), torch.float32)
        self.horizon, self.reward, self.terminated, self.draws = horizon, reward, terminated, draws
        self.action = self._action_of(learner, action)
        self._model = self._imagining(learner) if self._imagines else self._modelled(learner)
        self.endless = self.terminated is None and not self._imagines
        self._on: dict[torch.device, State] = {}

    @staticmethod
    def rows(
        action: Field, observation: Tensor, taken: Tensor, following: Tensor, reward: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What a model learns from: (x, y) of steps.

        Args:
            action: what an action is.
            observation: before each step, `(n, ...)`.
            taken: the actions.
            following: the observation after each step (of an episode's last one, not what the next begins with).
            reward: of each step, where it is to be learned.
        """
        action_width(action)
        n = len(observation)
        others = {"taken": taken, "following": following, **({} if reward is None else {"reward": reward})}
        for name, values in others.items():
            if len(values) != n:
                raise ValueError(f"expected {name} of each of the {n} steps, got {len(values)}")
        if following.shape != observation.shape or not observation.is_floating_point():
            raise ValueError(
                f"expected what follows in the shape of what was observed, {tuple(observation.shape)}, both of real "
                f"numbers, got {tuple(following.shape)} in {following.dtype} after {observation.dtype}"
            )
        y = (following - observation).reshape(n, -1)
        return action_inputs(action, observation, taken), y if reward is None else torch.cat(
            [y, reward.reshape(n, 1)], 1
        )

    def reset(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """One of the starts for each key."""
        share = unit(fold(keys, "start"), (), torch.float64)
        observation = self.start.to(keys.device)[(share * len(self.start)).long()]
        return observation, observation

    def step(self, position: Tensor, action: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What the model says of an action in each episode."""
        n, state = len(position), self._at(keys.device)
        if self._imagines:
            return self._imagined(state, position, action, keys)
        x = action_inputs(self.action, position, action).to(state.dtype)
        y = self._drawn(state, x, keys) if self.draws else self._asked(state, "predict", x, keys)
        size = prod(self.observation.shape)
        after = position + y[:, :size].reshape(position.shape).to(position.dtype)
        reward = y[:, size] if self.reward is None else self.reward(position, action, after)
        ended = torch.zeros(n, dtype=torch.bool, device=keys.device)
        if self.terminated is not None:
            ended = self.terminated(position, action, after)
        return after, after, reward.to(torch.float32), ended

    def _imagined(
        self, state: State, position: Tensor, action: Tensor, keys: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same, of a model that tells all of it."""
        key = fold(key_of(0, keys.device), "imagine")
        told = call(state, "imagine", position, key=key, rows=keys, fields={"action": action})
        after = told["observation"]
        reward = told["reward"] if self.reward is None else self.reward(position, action, after)
        ended = told["terminated"] > 0.5 if self.terminated is None else self.terminated(position, action, after)
        return after, after, reward.to(torch.float32), ended

    # --- the model ------------------------------------------------------------------------------------

    def _action_of(self, learner: Any, action: Field | None) -> Field:
        """What an action is, as is said, or as a model says that was trained on steps."""
        spec = getattr(getattr(learner, "training_", None), "spec", {})
        self._imagines = "action" in spec and callable(getattr(learner, "imagine", None))
        known: Field | None = spec["action"] if self._imagines else None
        if action is None and known is None:
            raise TypeError(
                "expected what an action is, action=Field(...), of a model that was trained on rows, got none"
            )
        if None not in (action, known) and action != known:
            raise ValueError(f"expected the actions that the model was trained on, {known}, got {action}; leave it out")
        found: Any = known if action is None else action
        action_width(found)
        return found

    def _imagining(self, learner: Any) -> Any:
        """The trained objective of a learner that imagines; raises where it is none of this world's steps."""
        observed = learner.training_.spec["observation"].shape
        if observed != self.observation.shape:
            raise ValueError(
                f"expected start with observations of shape {observed}, as the model was trained on, got "
                f"{self.observation.shape}"
            )
        if self.draws:
            raise ValueError("expected draws=False beside a model that imagines, got True; let it draw itself")
        return learner.module()

    def _modelled(self, learner: Any) -> Any:
        """The trained objective; raises where it is none of this world's steps."""
        if not hasattr(learner, "module") or not hasattr(learner, "fit"):
            raise TypeError(f"expected a trained learner, got {told(learner)}")
        model = learner.module()
        own = type(model).__name__
        if hasattr(learner, "recipe_"):
            raise TypeError("expected a learner trained on tensors, as Learned.rows gives them, got one of a table")
        if "predict" not in model.capabilities() or model.holds("y") != "values":
            raise TypeError(f"expected a model that predicts values, such as Regression(), got {own}")
        if self.draws and "distribution" not in model.provides:
            raise TypeError(
                f"expected a model that provides a 'distribution' to draw from, got {own}, whose loss is the "
                "likelihood of none; take Regression(loss='gaussian'), or draws=False"
            )
        size, spec = prod(self.observation.shape), learner.training_.spec
        wanted = {"x": size + action_width(self.action), "y": size + (self.reward is None)}
        for name, width in wanted.items():
            if spec[name].shape != (width,):
                made = "observation and action" if name == "x" else "the observation's change and the reward"
                made = "the observation's change alone" if name == "y" and self.reward is not None else made
                raise ValueError(
                    f"expected a model trained on {name} of width {width}, which is {made}, got rows of shape "
                    f"{spec[name].shape}; Learned.rows makes them"
                )
        return model

    def _at(self, device: torch.device) -> State:
        """The model on a device."""
        if device not in self._on:
            params, buffers = (
                {name: t.detach().to(device) for name, t in named}
                for named in (self._model.named_parameters(), self._model.named_buffers())
            )
            self._on[device] = State(self._model, params, buffers, torch.zeros((), dtype=torch.int64, device=device))
        return self._on[device]

    def _asked(self, state: State, name: str, given: Any, keys: Tensor) -> Any:
        """A method of the model; whatever it draws is drawn from the keys."""
        return call(state, name, given, key=fold(key_of(0, keys.device), name), rows=keys)

    def _drawn(self, state: State, x: Tensor, keys: Tensor) -> Tensor:
        """A draw for each row, by inverting the distribution function."""
        y = x.new_zeros(len(x), prod(self.observation.shape) + (self.reward is None))
        law = self._model.distribution(self._asked(state, "forward", {"x": x, "y": y}, keys))
        while isinstance(law, distributions.Independent):
            law = law.base_dist
        share = unit(fold(keys, "what happens"), y.shape[1:], torch.float64).clamp_min(2.0**-54)
        try:
            drawn: Tensor = law.icdf(share.to(y.dtype).clamp(torch.finfo(y.dtype).tiny, 1.0 - torch.finfo(y.dtype).eps))
        except NotImplementedError:
            raise TypeError(
                f"expected a law with an inverse distribution function to draw from, such as the normal, got "
                f"{type(law).__name__}; take Regression(loss='gaussian'), or draws=False"
            ) from None
        return drawn
