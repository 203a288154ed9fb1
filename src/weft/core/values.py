"""Values and JSON: three ways there, of which two come back. Nothing in them is code.

- `jsonable`: for machines that read what weft tells (records, results). What JSON has no number for is null.
- `pack` and `unpack`: a state, bit for bit; tensors and arrays are put aside for a file of tensors.
- `describe` and `rebuild`: parameters as a user gave them, methods by their names in the catalogue. No class is
  imported because a file names it: what is not in the catalogue is noted as *given*, and must be given again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from weft.core.catalogue import REBUILT, class_of, find, named, spelled
from weft.core.optimizer import Optimizer
from weft.core.weave import Weave, weave

__all__ = ["Given", "Json", "Missing", "describe", "jsonable", "pack", "rebuild", "unpack"]

Json = dict[str, Any]
"""A JSON object; what is in it is asked where it is read."""


def jsonable(value: object) -> Any:
    """Numbers, text, lists and dictionaries of whatever holds them; NaN and infinity become None.

    >>> jsonable({"loss": np.array([0.5, np.nan]), "at": (1, 2)})
    {'loss': [0.5, None], 'at': [1, 2]}
    """
    if isinstance(value, np.ndarray | np.generic):
        return jsonable(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(name): jsonable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(part) for part in value]
    return value


# --- a state --------------------------------------------------------------------------------------------


def pack(value: object, tensors: dict[str, Tensor]) -> Any:
    """A tree as JSON, its tensors put aside under numbers; arrays come back as arrays, names as names."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"$tensor": name}
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "fiub":
            return {"$array": pack(torch.from_numpy(np.ascontiguousarray(value)), tensors)}
        if value.dtype.kind in "mM":  # moments and spans of time: numbers of their unit
            return {"$times": [str(value.dtype), pack(value.view(np.int64), tensors)]}
        if value.dtype.kind == "U":
            return {"$labels": value.tolist()}
        return {"$objects": [pack(label, tensors) for label in value.tolist()]}
    if isinstance(value, np.generic):
        return pack(value.item(), tensors)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, tuple):
        return {"$tuple": [pack(part, tensors) for part in value]}
    if isinstance(value, list):
        return [pack(part, tensors) for part in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: pack(part, tensors) for key, part in value.items()}
        return {"$pairs": [[pack(key, tensors), pack(part, tensors)] for key, part in value.items()]}
    raise TypeError(f"expected tensors, numbers, text, lists and dictionaries in a state, got {type(value).__name__}")


def unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What was packed."""
    if isinstance(value, list):
        return [unpack(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((kind, inner),) = value.items()
        if kind == "$tensor":
            return tensors[inner]
        if kind == "$float":
            return float(inner)
        if kind == "$tuple":
            return tuple(unpack(part, tensors) for part in inner)
        if kind == "$pairs":
            return {unpack(key, tensors): unpack(part, tensors) for key, part in inner}
        if kind == "$array":
            return unpack(inner, tensors).numpy()
        if kind == "$times":
            unit, numbers = inner
            if not unit.startswith(("datetime64[", "timedelta64[")):
                raise ValueError(f"expected a unit of time, got {unit!r}")
            return unpack(numbers, tensors).view(unit)
        if kind == "$labels":
            return np.array(inner, dtype=str)
        if kind == "$objects":
            return np.array([*(unpack(label, tensors) for label in inner), None], dtype=object)[:-1]
    return {key: unpack(part, tensors) for key, part in value.items()}


# --- parameters -----------------------------------------------------------------------------------------


@runtime_checkable
class Parametrized(Protocol):
    """What has parameters as scikit-learn keeps them."""

    def get_params(self, deep: bool = True) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Given:
    """Marks a parameter as one that is not described: data is not configuration."""

    value: object


@dataclass(frozen=True)
class Missing:
    """A parameter that was given and was not given again."""

    name: str
    kind: str

    def __repr__(self) -> str:
        return f"{self.name} ({self.kind})"


def describe(value: object) -> Any:
    """A parameter as JSON.

    >>> from weft.strategies import ANDMask
    >>> describe(ANDMask(threshold=0.5))["$method"], describe(print)
    ('strategies/and-mask', {'$given': 'builtin_function_or_method'})
    """
    if isinstance(value, np.generic):
        return describe(value.item())
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, tuple):
        return {"$tuple": [describe(part) for part in value]}
    if isinstance(value, list):
        return [describe(part) for part in value]
    if isinstance(value, dict) and all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: describe(part) for key, part in value.items()}
    if isinstance(value, Weave):
        return {"$weave": [describe(part) for part in value.parts]}
    if isinstance(value, Optimizer):
        return {"$optimizer": {key: describe(part) for key, part in value.get_params().items()}}
    if isinstance(value, Parametrized) and not isinstance(value, type):
        cls, name = type(value), spelled(type(value).__name__)
        for room in REBUILT:
            if name in named(room) and class_of(room, name) is cls:
                params = {key: describe(part) for key, part in value.get_params(deep=False).items()}
                return {"$method": f"{room}/{name}", "params": params}
    value = value.value if isinstance(value, Given) else value
    return {"$given": type(value).__name__ if not isinstance(value, type) else value.__name__}


def rebuild(value: Any, given: Mapping[str, Any], name: str, missing: list[Missing]) -> Any:
    """What was described; what must be given is taken from `given`, or noted in `missing`.

    Where several have one name, `given` may tell them apart by what they belong to: `mass__net`.
    """
    if isinstance(value, list):
        return [rebuild(part, given, name, missing) for part in value]
    if not isinstance(value, dict):
        return value
    if "$given" in value:
        last = name.rpartition("__")[2]
        for told in (*_endings(name), *(() if last in _NO_NETS else ("module",))):
            if told in given:
                return given[told]
        missing.append(Missing(last, str(value["$given"])))
        return None
    if "$float" in value:
        return float(value["$float"])
    if "$tuple" in value:
        return tuple(rebuild(part, given, name, missing) for part in value["$tuple"])
    if "$weave" in value:
        return weave(*(rebuild(part, given, name, missing) for part in value["$weave"]))
    if "$optimizer" in value:
        settings = {key: rebuild(part, given, f"{name}__{key}", missing) for key, part in value["$optimizer"].items()}
        return Optimizer(**settings)
    if "$method" in value:
        room, _, method = str(value["$method"]).partition("/")
        if room not in REBUILT or method not in named(room):
            raise ValueError(
                f"expected a method of weft's catalogue in config.json, got {value['$method']!r}; nothing else is "
                "loaded because a file names it"
            )
        asked = value.get("params", {})
        params = {key: rebuild(part, given, f"{name}__{key}", missing) for key, part in asked.items()}
        return find(room, method, **params)
    return {key: rebuild(part, given, f"{name}__{key}", missing) for key, part in value.items()}


_NO_NETS = ("augment", "callbacks", "device", "init", "loss", "random_state", "schedule", "validation")
"""Parameters that are given again under their own names: `module` would not be meant for them."""


def _endings(path: str) -> list[str]:
    """The endings of `a__b__c`, the longest first."""
    names = path.split("__")
    return ["__".join(names[i:]) for i in range(len(names))]
