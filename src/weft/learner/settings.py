"""What a Learner's parameters mean: names looked up, defaults filled in, ranges checked. Nothing is learned yet."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.random import RandomState
from sklearn.utils import check_random_state
from torch import Tensor
from torch.utils.data import Dataset

from weft.core import legal
from weft.core.catalogue import find
from weft.core.configured import closest
from weft.core.legal import Choice, Flag, Legal, Number, Several, Such, Whole, told
from weft.core.objective import SOLVES, Objective, wrong_marks
from weft.core.optimizer import Optimizer, as_optimizer
from weft.core.source import Source
from weft.core.strategy import Strategy
from weft.engine import distributed
from weft.engine.fresh import Init
from weft.engine.schedule import as_schedule
from weft.learner.metrics import check_metrics, metrics_of, monitored
from weft.learner.pretrained import is_given
from weft.learner.watching import arguments
from weft.learner.worlds import is_world

if TYPE_CHECKING:
    from weft.learner.estimator import Learner

__all__ = [
    "DTYPES",
    "LEGAL",
    "Settings",
    "as_device",
    "as_objective",
    "as_seed",
    "as_strategy",
    "changed_optimizer",
    "check",
    "optimizers_of",
    "refuse_count",
    "refuse_start",
    "replica_settings",
    "rows_alone",
    "warn_of_idle",
]

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
PRECISIONS = {None: None, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Settings:
    """A Learner's parameters as the runs take them; each stands for the parameter of its name.

    Attributes:
        optimizer: as it was given, or the objective's own; by player once the players are known (`optimizers_of`).
        progress: the measure to monitor, or None for the objective's own.
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
    augment: Callable[..., Any] | None
    init: Init
    progress: tuple[str, str] | None
    device: torch.device
    dtype: torch.dtype
    lowered: torch.dtype | None
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
            "augment",
            "init",
            "memory",
        )
        return cls(
            objective=objective,
            strategy=as_strategy(learner.strategy),
            progress=monitored(learner),
            device=as_device(learner.device),
            dtype=DTYPES[learner.dtype],
            lowered=PRECISIONS[learner.precision],
            **{name: getattr(learner, name) for name in same},
        )


def as_objective(given: object) -> Objective:
    """The `objective` parameter."""
    if not isinstance(given, Objective):
        raise TypeError(
            f"expected an objective such as Classification(), got {told(given)}; a plain nn.Module goes "
            "into an objective, as in Classification(net), or into Classifier(net)"
        )
    return given


def as_strategy(given: object) -> Strategy:
    """The `strategy` parameter: a strategy, its name, or None for ERM."""
    if given is None or isinstance(given, str):
        given = find("strategies", given or "erm")
    if not isinstance(given, Strategy):
        raise TypeError(f"expected a strategy such as ANDMask(threshold=0.8), its name or None, got {told(given)}")
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


def changed_optimizer(given: Any, objective: Objective, path: str, value: Any) -> Any:
    """An optimizer with another setting, `optimizer__lr`; in a game `optimizer__player__lr` is that of a player."""
    name = path.removeprefix("optimizer__")
    plain = objective.optimizer if given is None else given
    player, _, inner = name.partition("__")
    if not inner and not isinstance(plain, dict):
        return as_optimizer(plain).having(**{name: value})
    each = optimizers_of(given, objective)
    if inner and player not in each:
        raise closest(player, each, f"a player of {type(objective).__name__}")
    changed = {p: each[p].having(**{inner or name: value}) for p in ([player] if inner else each)}
    return {**each, **changed}


def as_device(given: Any) -> torch.device:
    """The `device` parameter; CUDA where there is one and none was named."""
    if given is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=given)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise ValueError(
            f"expected a device that PyTorch finds here, such as 'cpu' or 'cuda:0', got {given!r}: {error}"
        ) from error
    return torch.device(given)


def as_seed(random_state: Any) -> int:
    """The `random_state` parameter; what chance chooses is the same on all processes."""
    if isinstance(random_state, Integral):
        return int(random_state)
    return distributed.agree(int(check_random_state(random_state).randint(2**31)))


_SHARED = {
    *("augment", "batch_size", "callbacks", "class_weight", "device", "dtype", "epochs", "every", "folder", "keep"),
    *("env_steps", "memory", "metrics", "monitor", "objective__class_weight", "patience", "precision", "replicas"),
    *("steps", "validation", "verbose", "warm_start"),
}


def replica_settings(replicas: Any, seed: int) -> list[dict[str, Any]]:
    """What distinguishes each replica: parameter values by name."""
    if replicas is None:
        return [{"random_state": seed}]
    if not isinstance(replicas, dict):
        _COUNT.check(replicas, "replicas")
        if seed + int(replicas) > 2**63:
            raise ValueError(
                f"expected {replicas} seeds in [0, 2**63), got random_state={seed}, after which there are not as many"
            )
        return [{"random_state": seed + k} for k in range(int(replicas))]
    for name, values in replicas.items():
        if name in _SHARED:
            raise ValueError(
                f"expected replicas to differ in what each has of its own, got {name!r}: they share the rows, the plan "
                "and the machine, so that all would have the first one's; train a learner for each value"
            )
        listed = isinstance(values, Sequence | np.ndarray | Tensor) and not isinstance(values, str | bytes)
        if not listed or getattr(values, "ndim", 1) == 0:
            raise TypeError(f"expected a list of values for {name!r} in replicas, got {values!r}")
    lengths = {name: len(values) for name, values in replicas.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ValueError(
            f"expected lists of one length in replicas, one value for each replica, got {lengths}; for every "
            "combination of values write them out, as itertools.product does"
        )
    count = next(iter(lengths.values()))
    rows = [{"random_state": seed, **{n: _bare(v[k]) for n, v in replicas.items()}} for k in range(count)]
    seen: dict[object, int] = {}
    for k, row in enumerate(rows):
        first = seen.setdefault(tuple(map(_same, row.values())), k)
        if first != k:
            raise ValueError(
                f"expected replicas that differ, got {row} for both {first} and {k}, which would learn the same; give "
                "each a random_state of its own, or leave one out"
            )
    return rows


def refuse_count(replicas: Any, begun: int) -> None:
    """Raises where there are not as many replicas as training began with."""
    count = len(replica_settings(replicas, 0))
    if count != begun:
        raise ValueError(
            f"expected the {begun} replicas that training began with, got {count}; fit anew, without warm_start"
        )


def _same(value: object) -> object:
    """What is the same for values that are the same; nets with weights of their own are not."""
    if isinstance(value, list | tuple):
        return tuple(map(_same, value))
    return value if value is None or isinstance(value, str | int | float) else id(value)


def _bare(value: Any) -> Any:
    """Numbers of NumPy and PyTorch as Python's."""
    return value.item() if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.dim() == 0) else value


class _Read(Legal):
    """What a function reads, or refuses in its own words."""

    def __init__(self, words: str, read: Callable[[Any], object]) -> None:
        self.words, self.read = words, read

    def check(self, value: object, what: str, default: object = None) -> None:
        self.read(value)


def rows_alone(given: object, *, texts: bool = False) -> bool:
    """Whether `validation` is rows without anything beside them; where rows are texts, a list of those too."""
    if is_world(given, acts=not texts):
        return False
    return isinstance(given, np.ndarray | Tensor | list) or (hasattr(given, "iloc") and hasattr(given, "columns"))


def _held_out(given: object) -> bool:
    if isinstance(given, tuple) and len(given) == 3:
        return isinstance(given[2], Mapping)
    pair = isinstance(given, tuple) and len(given) == 2
    return isinstance(given, Source | Dataset) or pair or rows_alone(given) or is_world(given, acts=True)


def _calls(given: object) -> bool:
    return callable(given) and arguments(given) > 0


def _by_pattern(given: object) -> bool:
    return isinstance(given, Mapping) and all(isinstance(pattern, str) for pattern in given)


def _each_said(given: object) -> bool:
    return bool(given) and all(map(is_given, dict(given).values()))  # type: ignore[call-overload]


_INIT = "one of them, a learner, a module or a .safetensors file by pattern of parameter names"
_COUNT = Whole(1, 2**20) | Such(
    'lists by parameter name such as {"optimizer__lr": [1e-3, 1e-2]}', lambda given: isinstance(given, dict)
)
LEGAL: dict[str, Legal] = {
    "objective": _Read("an objective", as_objective),
    "strategy": _Read("a strategy, its name or None", as_strategy),
    "optimizer": _Read("an optimizer's name, class or factory", lambda given: None),  # by player: see `check`
    "schedule": _Read("a schedule's name, a function of progress, or a class of torch.optim", as_schedule),
    "epochs": Whole(0) | None,
    "steps": Whole(0) | None,
    "env_steps": Whole(1) | None,
    "batch_size": Whole(1) | None,
    "accumulate": Whole(1),
    "clip": Number(0, ends="()") | None,
    "weighting": Choice("example", "group"),
    "validation": Number(0, 1, "()") | Such("a pair (X, y), X alone, a data set, a source, a world", _held_out) | None,
    "every": Whole(1) | None,
    "metrics": _Read("a list of metrics, or metrics by name", metrics_of),
    "monitor": Such("the name of one of the metrics", lambda given: isinstance(given, str)) | None,
    "patience": Whole(1) | None,
    "replicas": _Read("a number, or lists by parameter name", lambda given: replica_settings(given, 0)),
    "augment": Such("a function of a row, or one of a batch that is marked @batchwise", callable) | None,
    "init": Choice("reset", "keep") | Such(_INIT, _by_pattern, _each_said),
    "warm_start": Flag(),
    "random_state": Whole(0, 2**63 - 1) | Such("a RandomState", lambda given: isinstance(given, RandomState)) | None,
    "device": Such("a device such as 'cpu' or 'cuda:0'", lambda given: isinstance(given, str | torch.device)) | None,
    "dtype": Choice(*DTYPES),
    "precision": Choice("bf16") | None,
    "memory": Whole(1, 2**50),
    "callbacks": Several("a list of functions of a record, or of a record and the learner", Such("a function", _calls)),
    "verbose": Flag(),
    "keep": Whole(1, 1000) | None,
    "folder": Such("a path", lambda given: isinstance(given, str | PathLike)) | None,
}
"""What the Learner's parameters may be."""


def check(learner: Learner, objective: Objective, strategy: Strategy) -> None:
    """Raises for parameters out of range, and where the strategy cannot train the objective."""
    legal.check(type(learner), learner.get_params(deep=False))
    strategy.validate()
    objective.validate()
    _refuse_marks(learner, objective)
    for optimizer in optimizers_of(learner.optimizer, objective).values():
        optimizer.validate()
    reason = strategy.refuses(objective)
    if reason:
        raise ValueError(f"{strategy!r} cannot train {type(objective).__name__}: {reason}")
    if objective.solves not in SOLVES:
        raise closest(objective.solves, SOLVES, f"how {type(objective).__name__} solves replicas")
    if learner.precision is not None and learner.dtype != "float32":
        raise ValueError(
            f"expected dtype='float32' beside precision={learner.precision!r}, whose parameters are float32 while the "
            f"layers compute in bfloat16, got {learner.dtype!r}; leave one out"
        )
    if learner.augment is not None and objective.solved:
        raise ValueError(
            f"expected no augment for {type(objective).__name__}, which is solved on the rows as they are, got "
            f"{told(learner.augment)}; leave it out"
        )
    further = [name for name in objective.fields[1:] if name not in ("environment", "index")]
    if rows_alone(learner.validation, texts=objective.holds("x") == "tokens") and further:
        given = ["X", "y" if "y" in further else "None"]
        others = ", ".join(f"{name!r}: ..." for name in further if name != "y")
        raise ValueError(
            f"expected validation=({', '.join([*given, *([f'{{{others}}}'] if others else [])])}) for "
            f"{type(objective).__name__}, which learns from {', '.join(further)} beside the rows, got rows alone "
            f"({type(learner.validation).__name__}); give them together, or a share: validation=0.2"
        )
    check_metrics(learner, objective)
    lengths = {name: getattr(learner, name) for name in ("epochs", "steps", "env_steps")}
    told_twice = [f"{name}={value}" for name, value in lengths.items() if value is not None]
    if len(told_twice) > 1:
        raise ValueError(f"expected one of epochs, steps and env_steps, got {' and '.join(told_twice)}; leave one out")


def refuse_start(learner: Learner, objective: Objective, *, again: bool, task: Any) -> None:
    """Raises for what keeps a learner from training, though it may answer: `again` is a pass after others."""
    if task is not None and "index" in objective.fields:
        raise ValueError(f"expected no tasks for {type(objective).__name__}, which numbers the rows, got some")
    if learner.keep is not None and learner.folder is None:
        raise ValueError(f"expected a folder beside keep={learner.keep}, got none; give folder=..., or leave keep out")
    if len(learner.metrics) and learner.validation is None:
        raise ValueError(
            f"expected rows held out beside metrics={learner.metrics!r}, got none; give validation=0.2, or "
            "validation=(X, y)"
        )
    if again and objective.solved:
        raise ValueError(
            f"expected all rows at once for {type(objective).__name__}, which is solved, not descended: a second "
            "partial_fit would forget the first; call fit with all rows, or give each part its task"
        )


_DESCENT = ("epochs", "steps", "env_steps", "batch_size", "optimizer", "schedule", "accumulate", "clip")


def warn_of_idle(learner: Learner, each: Sequence[Settings]) -> None:
    """Says which settings come to nothing, since they are a descent's and what every replica learns is solved."""
    if not all(own.objective.solved for own in each):
        return
    known, swept = inspect.signature(type(learner)).parameters, learner.replicas
    given = {name: getattr(learner, name) for name in _DESCENT}
    idle = [
        f"{name}={told(value)}"
        for name, value in given.items()
        if value != known[name].default and (name, value) != ("batch_size", None)  # all rows at once: as it is
    ]
    idle += [name for name in (swept if isinstance(swept, dict) else ()) if name.partition("__")[0] in _DESCENT]
    if not idle:
        return
    objective = each[0].objective
    ends = "; its own iterations say how long it goes on" if "iterations" in objective.get_params(deep=False) else ""
    warnings.warn(
        f"expected no settings of a descent for {type(objective).__name__}, which is solved on all rows, got "
        f"{', '.join(idle)}, which come to nothing: leave them out{ends}",
        stacklevel=7,
    )


OFFERED = ("predict", "act", "forecast", "expectation")
"""Capabilities that a Learner has methods for, since it adds something to them."""


def _refuse_marks(learner: Learner, objective: Objective) -> None:
    """Raises for capabilities that could not be reached, or whose marks nobody understands."""
    for wrong in wrong_marks(objective):
        raise ValueError(f"{type(objective).__name__}: {wrong}")
    for name in objective.capabilities():
        own = name not in OFFERED and hasattr(type(learner), name)
        if own or name in learner.get_params(deep=False) or name.startswith("_") or name.endswith("_"):
            raise ValueError(
                f"expected a name of its own for the capability {name!r} of {type(objective).__name__}, got one that a "
                "Learner has itself or keeps to itself, so that it could not be reached; call it otherwise"
            )
