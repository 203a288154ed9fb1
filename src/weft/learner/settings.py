"""What a Learner's parameters mean: names looked up, defaults filled in, ranges checked. Nothing is learned yet."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import torch
from sklearn.utils import check_random_state

from weft.core.catalogue import find
from weft.core.configured import closest
from weft.core.objective import Objective
from weft.core.optimizer import Optimizer, as_optimizer
from weft.core.strategy import Strategy
from weft.engine import distributed
from weft.engine.schedule import as_schedule

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = ["DTYPES", "Settings", "as_device", "as_objective", "as_seed", "as_strategy", "check", "optimizers_of"]

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
_COUNTS = {"epochs": 0, "steps": 0, "batch_size": 1, "accumulate": 1, "patience": 1, "memory": 1}
_CHOICES = {"weighting": ("example", "group"), "init": ("reset", "keep"), "dtype": tuple(DTYPES)}


@dataclass(frozen=True)
class Settings:
    """A Learner's parameters as the runs take them; each stands for the parameter of its name.

    Attributes:
        optimizer: as it was given, or the objective's own; by player once the players are known (`optimizers_of`).
    """

    objective: Objective
    strategy: Strategy
    optimizer: Any
    schedule: Any
    batch_size: int | None
    accumulate: int
    clip: float | None
    weighting: str
    validation: Any
    init: str
    device: torch.device
    dtype: torch.dtype
    memory: int

    @classmethod
    def of(cls, learner: Learner, objective: Objective) -> Settings:
        """Those of a learner, whose objective a preset makes."""
        same = (
            "optimizer",
            "schedule",
            "batch_size",
            "accumulate",
            "clip",
            "weighting",
            "validation",
            "init",
            "memory",
        )
        return cls(
            objective=objective,
            strategy=as_strategy(learner.strategy),
            device=as_device(learner.device),
            dtype=DTYPES[learner.dtype],
            **{name: getattr(learner, name) for name in same},
        )


def _shown(given: object) -> str:
    """What came, for a message; a class where an instance should be is the commonest slip."""
    return f"the class {given.__name__}; make one: {given.__name__}()" if inspect.isclass(given) else repr(given)


def as_objective(given: object) -> Objective:
    """The `objective` parameter."""
    if not isinstance(given, Objective):
        raise TypeError(
            f"expected an objective such as Classification(), got {_shown(given)}; a plain nn.Module goes "
            "into an objective, as in Classification(module), or into Classifier(module)"
        )
    return given


def as_strategy(given: object) -> Strategy:
    """The `strategy` parameter: a strategy, its name, or None for ERM."""
    if given is None or isinstance(given, str):
        given = find("strategies", given or "erm")
    if not isinstance(given, Strategy):
        raise TypeError(f"expected a strategy such as ANDMask(threshold=0.8), its name or None, got {_shown(given)}")
    return given


def optimizers_of(given: object, objective: Objective) -> dict[str, Optimizer]:
    """The `optimizer` parameter by player: one for all of them, one for each, or the objective's own."""
    players, own = objective.players or ("",), objective.optimizer
    given = own if given is None else given
    if not isinstance(given, Mapping):
        return {player: as_optimizer(given) for player in players}
    for name in given:
        if not objective.players:
            raise ValueError(
                f"expected one optimizer, as {type(objective).__name__} has one player, got optimizers by player "
                f"({', '.join(map(repr, given))}); pass the optimizer itself"
            )
        if name not in players:
            raise closest(str(name), players, f"a player of {type(objective).__name__}")
    defaults = own if isinstance(own, Mapping) else dict.fromkeys(players, own)
    return {player: as_optimizer(given.get(player, defaults.get(player, "adam"))) for player in players}


def as_device(given: Any) -> torch.device:
    """The `device` parameter; CUDA where there is one and none was named."""
    if given is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=given)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            f"expected a device that PyTorch finds here, such as 'cpu' or 'cuda:0', got {given!r}: {error}"
        ) from error
    return torch.device(given)


def as_seed(random_state: Any) -> int:
    """The `random_state` parameter; what chance chooses is the same on all processes."""
    if isinstance(random_state, Integral):
        return int(random_state)
    return distributed.agree(int(check_random_state(random_state).randint(2**31)))


def check(learner: Learner, objective: Objective, strategy: Strategy) -> None:
    """Raises for parameters out of range, and where the strategy cannot train the objective."""
    strategy.validate()
    reason = strategy.refuses(objective)
    if reason:
        raise ValueError(f"{strategy!r} cannot train {type(objective).__name__}: {reason}")
    if learner.epochs is not None and learner.steps is not None:
        raise ValueError(f"expected epochs or steps, got both ({learner.epochs} and {learner.steps}); leave one out")
    for name, least in _COUNTS.items():
        value = getattr(learner, name)
        if value is None and name not in ("accumulate", "memory"):
            continue
        if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
            raise ValueError(f"expected {name} to be an integer >= {least}, got {value!r}")
    if learner.clip is not None and not (isinstance(learner.clip, Real) and learner.clip > 0):
        raise ValueError(f"expected clip to be a norm > 0 or None, got {learner.clip!r}")
    for name, known in _CHOICES.items():
        if getattr(learner, name) not in known:
            raise closest(str(getattr(learner, name)), known, name)
    if not isinstance(learner.callbacks, Sequence) or not all(callable(callback) for callback in learner.callbacks):
        raise TypeError(f"expected callbacks to be a list of functions of a record, got {learner.callbacks!r}")
    as_schedule(learner.schedule)
