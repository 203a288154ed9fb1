"""Optimizers by name, class or factory, with frozen parameters and parameter groups."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import torch
from torch import Tensor

from weft.core.configured import Configured, closest
from weft.core.legal import Choice, Flag, Legal, Number, Several, Such, Whole

__all__ = ["Optimizer", "as_optimizer"]

_NAMES: dict[str, type[torch.optim.Optimizer]] = {
    cls.__name__.lower(): cls
    for cls in vars(torch.optim).values()
    if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
}
# These act on every component by itself, so one of them serves stacked replicas at once.
_ELEMENTWISE = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
_OURS = ("algorithm", "freeze", "groups", "lr")
_TWO = Several("Adafactor's two, such as (None, 1e-3)", Number(0) | None, least=2, most=2)


def _patterns(given: object) -> bool:
    if not isinstance(given, Sequence | Set) or isinstance(given, bytes):
        return False
    return all(isinstance(pattern, str) for pattern in given)


def _by_pattern(given: object) -> bool:
    return isinstance(given, Mapping) and all(isinstance(own, Mapping) for own in given.values())


class Optimizer(Configured):
    """A `torch.optim` optimizer to be made once the parameters exist.

    Args:
        algorithm: a name (`"adam"`), a `torch.optim.Optimizer` class, or a factory from parameters.
        freeze: patterns of parameter names (`"body.*"`) that are not trained.
        groups: settings by pattern, `{"head.*": {"lr": 1e-2}}`; the first pattern that fits counts.
        settings: what the algorithm takes: `lr`, `weight_decay`, ...

    >>> Optimizer("sgd", lr=0.1, momentum=0.9)
    Optimizer('sgd', lr=0.1, momentum=0.9)
    """

    legal: ClassVar[dict[str, Legal]] = {
        "algorithm": Such("a name, a class of torch.optim or a factory", lambda a: isinstance(a, str) or callable(a)),
        "freeze": Such("patterns of parameter names such as ('body.*',)", _patterns),
        "groups": Such("settings by pattern such as {'head.*': {'lr': 0.01}}", _by_pattern) | None,
        "lr": Number(0),
        "weight_decay": Number(0),
        "momentum": Number(0, 1, "[)"),
        "dampening": Number(0, 1),
        "betas": Several("two numbers in [0, 1) such as (0.9, 0.999)", Number(0, 1, "[)"), least=2, most=2),
        "alpha": Number(0, 1),
        "rho": Number(0, 1),
        "eps": Number(0),
        "lr_decay": Number(0),
        "momentum_decay": Number(0),
        "initial_accumulator_value": Number(0),
        "lambd": Number(0),
        "t0": Number(0),
        "etas": Several("two numbers > 0 such as (0.5, 1.2)", Number(0, ends="()"), least=2, most=2),
        "step_sizes": Several("two numbers > 0 such as (1e-6, 50.0)", Number(0, ends="()"), least=2, most=2),
        "beta2_decay": Number(high=0),
        "d": Number(0, ends="()"),
        "ns_coefficients": Several("three numbers", Number(), least=3, most=3),
        "ns_steps": Whole(1, 99),
        "adjust_lr_fn": Choice("original", "match_rms_adamw") | None,
        **dict.fromkeys(("nesterov", "amsgrad", "centered", "maximize", "decoupled_weight_decay"), Flag()),
        **dict.fromkeys(("capturable", "differentiable"), Flag()),
        **dict.fromkeys(("foreach", "fused"), Flag() | None),
    }

    def __init__(
        self,
        algorithm: Any = "adam",
        *,
        freeze: Iterable[str] = (),
        groups: Mapping[str, Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        self.algorithm = algorithm
        self.freeze = freeze
        self.groups = groups
        self.settings = settings

    def validate(self) -> None:
        factory, declared = self._factory(), dict(self.legal)
        if not inspect.isclass(factory) or not factory.__module__.startswith("torch.optim"):
            declared = {name: declared[name] for name in _OURS}  # a user's own knows what its settings mean
        elif factory is torch.optim.Adafactor:
            declared["eps"] = _TWO
        groups = [("Optimizer's", self.get_params())]
        if declared["groups"].allows(self.groups):
            groups += [(f"the group {pattern!r}'s", dict(own)) for pattern, own in (self.groups or {}).items()]
        for whose, settings in groups:
            for name, value in settings.items():
                if name in declared:
                    declared[name].check(value, f"{whose} {name}")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {"algorithm": self.algorithm, "freeze": self.freeze, "groups": self.groups, **self.settings}

    def set_params(self, **params: Any) -> Optimizer:
        for name, value in params.items():
            if name in ("algorithm", "freeze", "groups"):
                setattr(self, name, value)
            else:
                self.settings = {**self.settings, name: value}
        return self

    def having(self, **params: Any) -> Optimizer:
        return copy.copy(self).set_params(**params)

    def __repr__(self) -> str:
        extra = {k: v for k, v in (("freeze", self.freeze), ("groups", self.groups)) if v}
        named = [f"{k}={v!r}" for k, v in {**extra, **self.settings}.items()]
        return f"Optimizer({', '.join([repr(self.algorithm), *named])})"

    def _factory(self) -> Callable[..., torch.optim.Optimizer]:
        if isinstance(self.algorithm, str):
            if self.algorithm.lower() not in _NAMES:
                raise closest(self.algorithm.lower(), _NAMES, "an optimizer")
            return _NAMES[self.algorithm.lower()]
        if isinstance(self.algorithm, torch.optim.Optimizer):
            raise TypeError(
                f"expected an optimizer's name, class or factory, got an instance ({type(self.algorithm).__name__}), "
                "whose parameters are not the ones to be trained; pass Optimizer('adam', lr=...) or a lambda"
            )
        if not callable(self.algorithm):
            raise TypeError(
                f"expected an optimizer's name, class or factory, got {self.algorithm!r}; for example "
                "Optimizer('adam', lr=1e-3)"
            )
        return self.algorithm

    @property
    def elementwise(self) -> bool:
        """Whether one optimizer may serve stacked replicas."""
        return self._named() in _ELEMENTWISE

    def _named(self) -> str:
        """The name of its class, or "" where a function makes it."""
        factory: Any = self._factory()
        while isinstance(factory, functools.partial):
            factory = factory.func
        return factory.__name__ if inspect.isclass(factory) else ""

    @property
    def proportional(self) -> bool:
        """Whether its step goes with the learning rate, so that replicas may have rates of their own."""
        return self._named() not in ("ASGD", "Rprop")

    @property
    def plain(self) -> bool:
        """Whether its step is minus the learning rate times the gradient: SGD, with nothing beside it."""
        beside = {name: value for name, value in self.settings.items() if name not in ("lr", "fused", "foreach")}
        return self._factory() is torch.optim.SGD and not self.groups and not any(beside.values())

    def trains(self, name: str) -> bool:
        """Whether a parameter of this name is trained."""
        patterns = (self.freeze,) if isinstance(self.freeze, str) else self.freeze
        return not any(fnmatchcase(name, pattern) for pattern in patterns)

    def group_of(self, name: str) -> str | None:
        """The pattern of the parameter group a name belongs to, or None for the common one."""
        return next((pattern for pattern in self.groups or {} if fnmatchcase(name, pattern)), None)

    def make(self, params: dict[str, Tensor]) -> torch.optim.Optimizer:
        """The optimizer over these tensors."""
        factory = self._factory()
        if factory is torch.optim.LBFGS:
            raise ValueError("expected an optimizer that steps on a gradient, got LBFGS, which calls the loss again")
        members: dict[str | None, list[Tensor]] = {}
        for name, p in params.items():
            members.setdefault(self.group_of(name), []).append(p)
        common = {"params": members.pop(None, [])}
        groups = [common] if common["params"] else []
        groups += [{"params": tensors, **(self.groups or {})[pattern or ""]} for pattern, tensors in members.items()]
        settings = dict(self.settings)
        if factory in _FUSED and not {"foreach", "differentiable"} & settings.keys():
            settings.setdefault("fused", True)  # one kernel for all parameters
        if any(p.is_cuda for p in params.values()) and "capturable" in inspect.signature(factory).parameters:
            settings.setdefault("capturable", True)  # so that the step can be recorded as a CUDA graph
        try:
            return factory(groups, **settings)
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"expected settings that {self.algorithm!r} takes, got {self.settings}: {error}"
            ) from error


def as_optimizer(optimizer: Any) -> Optimizer:
    """A name, class, factory or `Optimizer` as an `Optimizer`."""
    return optimizer if isinstance(optimizer, Optimizer) else Optimizer(optimizer)
