"""What `weft train` was asked for, and the Learner that this makes.

`weft --help` imports this file for the options' texts: what is heavy is imported where it is needed.
"""

from __future__ import annotations

import ast
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from pathlib import Path

    from weft.core.objective import Objective
    from weft.core.source import Source
    from weft.core.values import Json
    from weft.learner.estimator import Learner

__all__ = ["Acting", "Place"]


@dataclass(frozen=True)
class Place:
    """A world by its text: `cart-pole`, `catch(rows=5)` or `CartPole-v1(max_episode_steps=200)`.

    Attributes:
        text: as it was written.
        world: what sources that act take.
        arguments: further ones for gymnasium, by name.
    """

    text: str
    world: Any
    arguments: Json | None = None

    @classmethod
    def of(cls, text: str) -> Place:
        """The world that is meant: one of `weft list worlds`, or gymnasium's."""
        from weft.core.spelling import called
        from weft.learner.worlds import as_world

        found = as_world(text)
        if not isinstance(found, str) or "(" not in text:
            return cls(text, found)
        name, settings = called(text)
        return cls(text, name, {key: ast.literal_eval(value) for key, value in settings.items()})


@dataclass(frozen=True)
class Acting:
    """What `weft train` was asked for: its options on the command line. Methods are kept as they were written."""

    objective: str | None = field(
        default=None, metadata={"help": "What is learned, such as reinforce; one that acts.", "metavar": "SPEC"}
    )
    plays: str | None = field(
        default=None,
        metadata={"help": "Settings of its source, such as 'envs=16'; default: its paper's.", "metavar": "SETTINGS"},
    )
    strategy: str | None = field(default=None, metadata={"help": "How: erm, 'ema(decay=0.99)', ...", "metavar": "SPEC"})
    optimizer: str | None = field(default=None, metadata={"help": "Such as 'adam(lr=0.001)'.", "metavar": "SPEC"})
    schedule: str | None = field(
        default=None, metadata={"help": "Of the learning rate: constant, linear, cosine or step.", "metavar": "NAME"}
    )
    replicas: int | None = field(default=None, metadata={"help": "Independent copies, trained at once."})
    env_steps: int | None = field(
        default=None, metadata={"help": "Steps of the world, of each copy (default: 100000, without --steps)."}
    )
    steps: int | None = field(default=None, metadata={"help": "Updates, instead of steps of the world."})
    validation: str | None = field(
        default=None,
        metadata={
            "help": "The world of the evaluations (default: that of training); none for none.",
            "metavar": "WORLD",
        },
    )
    episodes: int = field(default=50, metadata={"help": "Of the last evaluation, for each copy."})
    every: int | None = field(
        default=None, metadata={"help": "Updates between two records (default: a fiftieth of the training)."}
    )
    patience: int | None = field(
        default=None, metadata={"help": "Evaluations without progress after which to stop, with the best policy."}
    )
    keep: int | None = field(
        default=None, metadata={"help": "How many of the best checkpoints to keep beside the last."}
    )
    seed: int = field(default=0, metadata={"help": "Everything random follows from it."})
    device: str | None = field(default=None, metadata={"help": "cpu, cuda:0, ...; CUDA where there is one."})
    dtype: str = field(default="float32", metadata={"help": "float32, float64 or bfloat16."})

    @classmethod
    def from_json(cls, plain: Json) -> Acting:
        """Options from a file, each of the kind that it must be."""
        options = cls(**plain)
        for name, kind in get_type_hints(cls).items():
            if not isinstance(getattr(options, name), kind):
                raise ValueError(f"{name} is {getattr(options, name)!r}")
        return options

    def make_objective(self) -> Objective:
        """The objective that was named."""
        from weft.core.catalogue import entries
        from weft.core.objective import Objective
        from weft.core.spelling import parse

        made: Objective | None = None if self.objective is None else parse(self.objective, "objectives")
        if made is None or not made.acts:
            known = [e.name for e in entries("objectives") if getattr(e.cls, "plays", None) is not Objective.plays]
            raise ValueError(
                f"expected an objective that acts, one of {', '.join(known)}, got "
                f"{'none' if made is None else self.objective}; name it with --objective"
            )
        return made

    def source(self, objective: Objective, places: list[Place]) -> Source:
        """The source by which the objective plays in the worlds: of several each is a group."""
        settings = self._settings()
        if len(places) == 1:
            arguments = {} if places[0].arguments is None else {"arguments": places[0].arguments}
            return objective.plays(places[0].world, **arguments, **settings)
        if given := [place.text for place in places if place.arguments]:
            raise ValueError(f"expected several worlds without arguments of gymnasium's, got {given[0]}; train in one")
        return objective.plays([place.world for place in places], **settings)

    def _settings(self) -> Json:
        from weft.core.spelling import called

        if self.plays is None:
            return {}
        try:
            return {name: ast.literal_eval(value) for name, value in called(f"plays({self.plays})")[1].items()}
        except ValueError as error:
            raise ValueError(f"expected settings such as 'envs=16, length=64', got {self.plays!r}") from error

    def evaluated(self, objective: Objective, places: list[Place]) -> Source | None:
        """The evaluations in training, or None."""
        from weft.learner.worlds import evaluating_in

        if self.validation == "none":
            return None
        place = places[0] if self.validation is None else Place.of(self.validation)
        return evaluating_in(place.world, objective, place.arguments)

    def make_learner(self, objective: Objective, places: list[Place], folder: Path | None, *, verbose: bool) -> Learner:
        """The Learner that was asked for."""
        from weft.core.spelling import parse
        from weft.learner.estimator import Learner

        length = {} if self.steps is not None or self.env_steps is not None else {"env_steps": 100_000}
        settings: Json = {
            **{name: value for name, value in asdict(self).items() if name in Learner._get_param_names()},
            "objective": objective,
            "strategy": None if self.strategy is None else parse(self.strategy, "strategies"),
            "optimizer": None if self.optimizer is None else parse(self.optimizer, "optimizers"),
            "validation": self.evaluated(objective, places),
            "random_state": self.seed,
            **length,
        }
        return Learner(**settings, verbose=verbose, folder=folder)
