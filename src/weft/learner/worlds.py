"""Worlds in place of rows: what `fit` and `validation` are given to act in, and the sources that this becomes."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.core.catalogue import named
from weft.core.configured import closest
from weft.core.legal import told
from weft.core.objective import Objective
from weft.core.source import Source
from weft.core.spelling import parse
from weft.core.world import World
from weft.sources.playing import called_world

if TYPE_CHECKING:
    from weft.learner.columns import Columns
    from weft.sources.rollouts import Rollouts

__all__ = ["EPISODES", "as_world", "evaluating_in", "is_world", "played"]

EPISODES = 10
"""Fresh episodes that a world given as validation plays at each record."""
_FILES = (".csv", ".tsv", ".parquet", ".npz", ".npy", ".json", ".txt", ".gz", ".h5", ".pkl", ".zip")


def is_world(given: object, *, acts: bool = False) -> bool:
    """Whether this is a world, or a list of worlds, to act in.

    Args:
        given: anything that `fit` may be given.
        acts: whether whoever is given it acts: then a text is the name of a world, and a function makes one.

    Example:
        >>> from weft.data import CartPole
        >>> is_world(CartPole()), is_world([CartPole(), CartPole()]), is_world([[0.0], [1.0]])
        (True, True, False)
        >>> is_world("CartPole-v1"), is_world("CartPole-v1", acts=True)
        (False, True)
    """
    if isinstance(given, list | tuple):
        return bool(given) and all(not isinstance(one, list | tuple) and is_world(one, acts=acts) for one in given)
    if isinstance(given, Source):
        return False
    if isinstance(given, str):
        return acts and given[:1].isalpha()
    if callable(given) and not _outside(given):
        return acts
    return _outside(given) or isinstance(given, World)


def _outside(given: object) -> bool:
    """Whether this is an environment of gymnasium's; one that was made has imported it."""
    gymnasium = sys.modules.get("gymnasium")
    return gymnasium is not None and isinstance(given, gymnasium.Env | gymnasium.vector.VectorEnv)


def as_world(given: Any) -> Any:
    """What sources that act take: a name of `weft list worlds` becomes that world, all else stays as it is.

    >>> as_world("catch(rows=5)").observation.shape, as_world("CartPole-v1")
    ((1, 5, 5), 'CartPole-v1')
    """
    if isinstance(given, list | tuple):
        return [as_world(one) for one in given]
    if isinstance(given, type) and isinstance(given, World):
        raise TypeError(f"expected a world, got {told(given)}")
    if not isinstance(given, str):
        return given
    name, known = given.partition("(")[0].strip(), named("worlds")
    if name in known:
        return parse(given, "worlds")
    if not re.search(r"-v\d+$|[:/]", name) and difflib.get_close_matches(name.lower(), known, n=1):
        raise closest(name, known, "the id of a gymnasium environment, or one of weft's own worlds")
    return given


def evaluating_in(world: object, objective: Objective, arguments: Mapping[str, Any] | None = None) -> Rollouts:
    """Fresh episodes in a world, by the best action where the objective tells one."""
    from weft.engine.acting import way_to_act
    from weft.sources.rollouts import Rollouts

    greedy = hasattr(objective, way_to_act(objective, "act"))
    return Rollouts(as_world(world), envs=EPISODES, greedy=greedy, arguments=arguments)


def played(objective: Objective, given: Columns) -> Columns:
    """What `fit` was given, where it is a world as the source by which the objective learns from acting there."""
    X, name, acts = given.X, type(objective).__name__, objective.acts
    if isinstance(X, Source):
        if given.beside:
            raise ValueError(f"{type(X).__name__} brings its own fields, got {', '.join(given.beside)} beside it")
        return given
    if isinstance(X, str):
        _refuse_path(X, name, acts=acts)
    called_so = isinstance(X, str) and (re.search(r"-v\d+$", X) is not None or as_world(X) is not X)
    if not called_so and not is_world(X, acts=acts):
        if acts and objective.fields[0] != "x":
            raise TypeError(
                f"expected a world that {name} learns in by acting, a gymnasium id such as 'CartPole-v1', a world such "
                f"as weft.data.CartPole() or a source, got {told(X)}"
            )
        return given
    if acts:
        _refuse_beside(given, name)
    return replace(given, X=objective.plays(as_world(X), **_episodes(X)))


def _episodes(world: object) -> dict[str, int]:
    """How many episodes side by side there can be, where an environment that was made says it."""
    if not _outside(world):
        return {}
    return {"envs": int(getattr(world, "num_envs", 1))}


def _refuse_path(text: str, name: str, *, acts: bool) -> None:
    """Raises where a text is a file's path, not the name of a world."""
    if not text.lower().endswith(_FILES) and not (len(text) < 4096 and Path(text).exists()):
        return
    if acts:
        raise ValueError(
            f"expected a world that {name} learns in by acting, such as 'CartPole-v1', got the path {text!r}; rows of "
            "a file are learned by another objective, or cloned: Classification() and Demonstrations(world, (X, y))"
        )
    raise TypeError(
        f"expected rows, got the path {text!r}; read the file first, as in fit(pandas.read_csv({text!r}), y), or train "
        f"on the command line: weft fit {text} --target COLUMN"
    )


def _refuse_beside(given: Columns, name: str) -> None:
    """Raises where something is said beside a world."""
    if not given.beside:
        return
    X, beside = given.X, ", ".join(given.beside)
    world = called_world(X) if not isinstance(X, list | tuple) else "worlds"
    if "environment" in given.beside:
        raise TypeError(
            f"expected nothing beside {world}, got {beside}; for several environments give a list of worlds, "
            "fit([world_a, world_b]), each a group of its own"
        )
    settings = ", ".join(f"{key}={told(value)}" for key, value in given.fields.items()) or "envs=8"
    raise TypeError(
        f"expected nothing beside {world}, got {beside}; how it is played says its source: "
        f"fit({name}(...).plays({world}, {settings}))"
    )
