"""gymnasium's environments by their ids, and what is said of those that there are not."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium

from weft.sources.gym.single import Env, Environments
from weft.sources.gym.vector import Together
from weft.sources.stage import Stage

__all__ = ["gymnasium_stage"]

_UNKNOWN = (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv)


def gymnasium_stage(world: object, arguments: Mapping[str, Any]) -> Stage:
    """The stage of what gymnasium makes.

    Args:
        world: an id, an environment, a vector environment, or a function that makes an environment.
        arguments: of `gymnasium.make`, beside an id; and `pixels` and `masks`, see `weft.sources.stage.stage_of`.
    """
    arguments = dict(arguments)
    ours = {name: arguments.pop(name, None) for name in ("pixels", "masks")}
    for name, value in ours.items():
        if value is not None and not isinstance(value, bool):
            raise TypeError(f"expected {name} as True, False or None, got {value!r}")
    if isinstance(world, str):
        return Environments(partial(_made, world, arguments), world, **ours)
    if arguments:
        raise ValueError(
            f"expected further arguments beside an id of gymnasium's, got {sorted(arguments)} beside {world!r}; give "
            "them where it is made"
        )
    if isinstance(world, gymnasium.vector.VectorEnv):
        return Together(world, **ours)
    name = getattr(world, "__name__", None) or str(world)
    return Environments(world, name, **ours)  # type: ignore[arg-type]


def _made(name: str, arguments: Mapping[str, Any]) -> Env:
    """An environment by its id."""
    try:
        return gymnasium.make(name, **arguments)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(f"expected what {name} needs, got {error}") from error
    except ModuleNotFoundError as error:
        raise ImportError(
            f"expected the package that {name} is of, got {error}; install it with pip, in the form 'package:Name-v0' "
            "the id imports it"
        ) from error
    except gymnasium.error.Error as error:
        if not isinstance(error, _UNKNOWN) and type(error) is not gymnasium.error.Error:  # which a malformed id is
            raise
        raise ValueError(
            f"expected the id of an installed gymnasium environment, got {name!r}; {_near(name)}"
        ) from error
    except TypeError as error:
        raise TypeError(f"expected arguments that {name} takes, got {dict(arguments)}: {error}") from error


def _near(name: str) -> str:
    """What was probably meant, and where others come from."""
    known = {spec.lower(): spec for spec in gymnasium.registry}
    close = difflib.get_close_matches(name.lower(), known, n=1)
    meant = f"did you mean {known[close[0]]!r}? " if close else ""
    return (
        f"{meant}gymnasium's own extras are installed by pip install 'gymnasium[all]'; environments of other packages "
        "are known once these are installed and imported, as by the id 'minigrid:MiniGrid-Empty-5x5-v0'"
    )
