"""Classes of traits: what strategies may read of an objective, so that one objective of a class speaks for all."""

from __future__ import annotations

from typing import NamedTuple

from weft.core.objective import Objective

__all__ = ["TRAITS", "Declared", "TraitClass", "declared", "trait_class"]

TRAITS = (
    "players",
    "decomposable",
    "movable",
    "likelihood",
    "on_policy",
    "credits",
    "episodic",
    "solved",
    "adapts",
    "provides",
    "laws",
    "projects",
    "fields",
    "companions",
    "distribution",
    "capabilities",
)
"""All that a strategy reads of an objective; its class is named in messages only."""


class TraitClass(NamedTuple):
    """Objectives of one class are the same to every strategy.

    Attributes:
        game: whether it has players.
        decomposable, movable, likelihood, on_policy, episodic, solved, adapts, provides: as declared.
        credits: whether its rows are credited as they were played together.
        projects: whether parameters are put back on a set after a step.
        usual: whether what it predicts is of classes or normal, which strategies ask that draw or temper it.
        inputs: whether it reads x.
        bare: whether nothing comes along with x (what is observed, how long rows are).
        numbered: whether it reads the number of a row in the training data.
        environment: whether it reads which environment a row is of.
        answers: whether its capabilities predict every other field that it reads.
        samples: whether it draws rows.
    """

    game: bool
    decomposable: bool
    movable: bool
    likelihood: bool
    on_policy: bool
    credits: bool
    episodic: bool
    solved: bool
    adapts: bool
    provides: frozenset[str]
    projects: bool
    usual: bool
    inputs: bool
    bare: bool
    numbered: bool
    environment: bool
    answers: bool
    samples: bool


def trait_class(objective: Objective) -> TraitClass:
    """The class of traits that an objective is of.

    >>> from weft.objectives import Classification, LeastSquares, Regression
    >>> trait_class(Classification()) == trait_class(Regression()), trait_class(LeastSquares()).solved
    (True, True)
    """
    offered = objective.capabilities()
    targets = [name for name in objective.fields if name != "x"]
    return TraitClass(
        game=bool(objective.players),
        decomposable=objective.decomposable,
        movable=objective.movable,
        likelihood=objective.likelihood,
        on_policy=objective.on_policy,
        credits=objective.credits,
        episodic=objective.episodic,
        solved=objective.solved,
        adapts=objective.adapts,
        provides=frozenset(objective.provides),
        projects=objective.projects,
        usual=bool(objective.laws) and objective.laws <= {"categorical", "normal"},
        inputs="x" in objective.fields,
        bare=not objective.companions,
        numbered="index" in objective.fields,
        environment="environment" in objective.fields,
        answers=all(f"{name.removesuffix('y')}predict" in offered for name in targets),
        samples="sample" in offered,
    )


class Declared:
    """Stands in for an objective: has its traits, and writes down what else is asked of it.

    Attributes:
        untold: what was asked that is no trait; `__class__` where somebody asked `isinstance`.
    """

    def __init__(self, objective: Objective) -> None:
        own = vars(self)
        own.update({name: getattr(objective, name) for name in TRAITS}, untold=set())

    def __getattr__(self, name: str) -> object:
        untold: set[str] = vars(self)["untold"]
        untold.add(name)
        raise AttributeError(f"expected one of the traits {', '.join(TRAITS)}, got {name!r}")

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        untold: set[str] = vars(self)["untold"]
        untold.add("__class__")
        return type(self)


def declared(objective: Objective) -> Declared:
    """A stand-in with nothing but an objective's traits, called as its class is.

    >>> from weft.objectives import GAN, Classification
    >>> from weft.strategies import IRM
    >>> IRM().refuses(declared(Classification())) is None, IRM().refuses(declared(GAN())) == IRM().refuses(GAN())
    (True, True)
    """
    stand_in: type[Declared] = type(type(objective).__name__, (Declared,), {})
    return stand_in(objective)
