"""Dynamics: what happens next, learned from steps that were taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from weft.core.composed import Composed
from weft.core.legal import Flag, Such
from weft.core.objective import Capability, Objective, Output, Solution, capability
from weft.core.random import normal
from weft.core.source import Batch, Field, Source, Spec
from weft.core.state import State
from weft.nets.running import Running
from weft.objectives.densities.rows import all_rows
from weft.objectives.supervised.labelled import Regression

__all__ = ["Dynamics", "action_inputs", "action_width"]


def action_width(action: Field) -> int:
    """How many numbers tell a model what is done: one for each of finitely many actions, else those of the action.

    >>> action_width(Field((), torch.int64, classes=3)), action_width(Field((2,), torch.float32))
    (3, 2)
    """
    if action.choices or (action.classes is None and not action.dtype.is_floating_point):
        raise ValueError(f"expected actions that are one of finitely many (classes), or numbers, got {action}")
    return action.classes or prod(action.shape)


def action_inputs(action: Field, observation: Tensor, taken: Tensor) -> Tensor:
    """[observation, action], a row for each step."""
    n = len(observation)
    done = taken.reshape(n, -1)
    if action.classes is not None:
        done = done == torch.arange(action.classes, device=done.device)
    return torch.cat([observation.reshape(n, -1), done.to(observation)], 1)


class Dynamics(Composed):
    """A model of a world: given what is observed and done, what is observed next, the reward, and whether it ends.

    Any regression learns, from steps in a true world,

        x = [s, a]  ->  y = [s' - s, r, e],    loss = loss of the model at (x, y),

    where e is 1 if the episode has ended by itself. Both sides are scaled by the means and deviations of the steps
    (`Running`). `imagine` tells what the model expects; with `draws` what it draws, where it has learned a normal
    law. What it says far from the steps it has seen is a guess; `weft.data.Learned` makes a world of it.

    Args:
        model: a regression such as `Regression()` or `Regression(loss="gaussian")`; None for `Regression()`.
        draws: draw what happens from the law that is predicted; else it is the mean.

    References:
        Sutton, "Integrated architectures for learning, planning, and reacting based on approximating dynamic
        programming", ICML 1990; Chua, Calandra, McAllister and Levine, "Deep reinforcement learning in a handful of
        trials using probabilistic dynamics models", arXiv 1805.12114 (changes, scaled).

    Example:
        >>> from weft import Learner
        >>> from weft.data import Pendulum
        >>> from weft.sources import Demonstrations
        >>> steps = Demonstrations(Pendulum(), lambda seen: seen[:, 1:2], episodes=2)
        >>> learner = Learner(Dynamics(), steps=20, random_state=0).fit(steps)
        >>> {name: value.shape for name, value in learner.imagine([[1.0, 0.0, 0.0]], action=[[0.5]]).items()}
        {'observation': (1, 3), 'reward': (1,), 'terminated': (1,)}
    """

    composes: ClassVar[tuple[str, ...]] = ("model",)
    fields = ("observation", "action", "reward", "next_observation", "terminated")
    legal = {
        "model": Such("a regression such as Regression()", lambda v: v is None or isinstance(v, Objective)),
        "draws": Flag(),
    }

    def __init__(self, model: Objective | None = None, *, draws: bool = False) -> None:
        super().__init__()
        self.model = model
        self.draws = draws

    def given(self, name: str) -> object:
        held = super().given(name)
        return Regression() if held is None and name == "model" else held

    def validate(self) -> None:
        super().validate()
        part = self.parts()["model"]
        own = type(part).__name__
        if part.fields != ("x", "y") or part.holds("y") != "values" or "predict" not in part.capabilities():
            raise TypeError(f"expected a model that predicts values y from x, such as Regression(), got {own}")
        if self.draws and ("distribution" not in part.provides or part.laws != {"normal"}):
            raise ValueError(
                f"expected a model with a normal law to draw from, such as Regression(loss='gaussian'), got {part!r}; "
                "or draws=False"
            )

    @property
    def carried(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("seen.*", "made.*", *super().carried)

    def build(self, spec: Spec) -> None:
        missing = [name for name in self.fields if name not in spec]
        if missing:
            raise ValueError(
                f"expected steps for {type(self).__name__}, got rows without {', '.join(missing)}; call "
                "fit(Demonstrations(world, policy)) or another source that acts"
            )
        self._observed, self._action = spec["observation"], spec["action"]
        if not self._observed.dtype.is_floating_point:
            raise ValueError(f"expected observations that are real numbers for {type(self).__name__}, got {spec}")
        real, size = self._observed.dtype, prod(self._observed.shape)
        x, y = Field((size + action_width(self._action),), real), Field((size + 2,), real)
        self.assemble({**dict.fromkeys(self.composes, spec), "model": {"x": x, "y": y}})
        self.seen, self.made = Running(x.shape), Running(y.shape, clip=None)

    def _told(self, batch: Batch) -> dict[str, Tensor]:
        """x and y of steps, with any axes before those of a row."""
        seen, after, reward = batch["observation"], batch["next_observation"], batch["reward"]
        lead, ends = reward.dim(), batch["terminated"].to(reward.dtype)
        x = action_inputs(self._action, seen.flatten(0, lead - 1), batch["action"].flatten(0, lead - 1))
        y = torch.cat([(after - seen).flatten(lead), reward.unsqueeze(-1), ends.unsqueeze(-1)], -1)
        return {"x": x.unflatten(0, reward.shape), "y": y}

    def scales(self, batch: Batch) -> dict[str, Tensor]:
        """The means and deviations of both sides once these steps are counted in as well, by name."""
        told = {**batch, **self._told(batch)}
        return {**self.seen.after(told, "x", name="seen"), **self.made.after(told, "y", name="made")}

    def survey(self, source: Source, state: State) -> Solution:
        """The scales of the steps that it is given."""
        rows = all_rows(source, state)
        return {**self.scales({**rows, "mask": rows.get("weight", torch.ones_like(rows["reward"]))})}

    def capabilities(self) -> dict[str, Capability]:
        offered = super().capabilities()
        if self.draws:
            offered["imagine"] = replace(offered["imagine"], kind="direct", merge="refuse")
        return offered

    def forward(self, batch: Batch, player: str = "") -> Output:
        told = self._told(batch)
        return Output(self.ask("model", {**batch, "x": self.seen(told["x"]), "y": self.made(told["y"])}).losses)

    @capability(merge="mean", rows=("action",))
    def imagine(self, observation: Tensor, *, action: Tensor) -> dict[str, Tensor]:
        """What happens next: the observation, the reward, and how surely the episode ends (0 to 1)."""
        return self._happens(observation, action, self._drawn) if self.draws else self.expected(observation, action)

    def expected(self, observation: Tensor, action: Tensor) -> dict[str, Tensor]:
        """The same, by the model's mean."""
        return self._happens(observation, action, self.parts()["model"].predict)  # type: ignore[arg-type]

    def _happens(self, observation: Tensor, action: Tensor, model: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        y = model(self.seen(action_inputs(self._action, observation, action)))
        y = y * (self.made.variance + self.made.eps).sqrt() + self.made.mean
        change = y[:, :-2].reshape(observation.shape).to(observation.dtype)
        return {"observation": observation + change, "reward": y[:, -2], "terminated": y[:, -1].clamp(0.0, 1.0)}

    def _drawn(self, x: Tensor) -> Tensor:
        """A draw of the model's law."""
        part = self.parts()["model"]
        law = part.distribution(part({"x": x, "y": x.new_zeros(len(x), *self.made.shape)}))
        return law.mean + law.stddev * normal(law.mean.shape, place="what happens", dtype=x.dtype)
