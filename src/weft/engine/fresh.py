"""Which tensors begin as a fresh draw and which as they came; and whether those that came look like a fresh draw."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from weft.core.configured import closest
from weft.core.trees import Params
from weft.engine.taking import rule_of, takes

__all__ = ["Init", "estranged", "frozen_layers", "in_training", "reset_all", "reset_of", "staying"]

Init = str | Mapping[str, object]
"""`reset`, `keep`, or by pattern one of them or what is taken: the first that fits counts, others are reset."""
DRAWS = 3
SURE = 1e-6  # how seldom a fresh module may be taken for another
MOST = 5000  # values of a parameter that are compared


# --- drawn anew -----------------------------------------------------------------------------------------


def reset_of(layer: nn.Module) -> Callable[[], object] | None:
    """What draws a layer's parameters anew, if anything does."""
    reset = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
    return reset if callable(reset) else None


def reset_all(module: nn.Module) -> None:
    """Draws every layer anew, inner ones first as constructors do: what is around them has the last word.

    One that holds nothing has nothing to draw: an objective that another keeps a built copy of.
    """
    for layer in _inside_out(module, set()):
        reset = reset_of(layer)
        if reset is not None and (any(True for _ in layer.parameters()) or any(True for _ in layer.buffers())):
            reset()


def _inside_out(module: nn.Module, seen: set[int]) -> Iterator[nn.Module]:
    if id(module) in seen:
        return
    seen.add(id(module))
    for child in module.children():
        yield from _inside_out(child, seen)
    yield module


# --- what stays -----------------------------------------------------------------------------------------


def staying(module: nn.Module, init: Init) -> set[str]:
    """Names of the parameters and buffers that begin as they came.

    Those are the frozen parameters (`requires_grad_(False)`), those that `init` keeps or takes from elsewhere, and the
    buffers of layers that are in a part of the module whose parameters all stay.
    """
    named = dict(module.named_parameters())
    if init == "keep":
        return {*named, *(name for name, _ in module.named_buffers())}
    rules = {} if isinstance(init, str) else dict(init)
    for pattern, said in rules.items():
        names = {**named, **dict(module.named_buffers())} if takes(said) else named
        if not any(fnmatchcase(name, pattern) for name in names):
            raise closest(pattern, named, "a pattern that fits parameter names in init")
    kept = {name for name, p in named.items() if not p.requires_grad or _said(rules, name) != "reset"}
    parts = _whole(module, kept) if kept else []
    held = {f"{prefix}.{own}" for prefix in parts for own in module.get_submodule(prefix)._buffers}
    return kept | held


def _said(rules: Mapping[str, object], name: str) -> object:
    pattern = rule_of(rules, name)
    return "reset" if pattern is None else rules[pattern]


def _whole(module: nn.Module, names: set[str]) -> list[str]:
    """Parts, down to single layers, of the parts that have parameters, all of them among these."""
    found: list[str] = []
    for prefix, part in module.named_modules():
        own = [f"{prefix}.{name}" for name, _ in part.named_parameters()]
        inside = any(prefix.startswith(f"{outer}.") for outer in found)
        if prefix and (inside or (own and names.issuperset(own))):
            found.append(prefix)
    return found


_frozen: WeakKeyDictionary[nn.Module, list[nn.Module]] = WeakKeyDictionary()


def frozen_layers(module: nn.Module) -> list[nn.Module]:
    """Layers with buffers (running statistics) in parts of which every parameter is frozen; they do not move."""
    if module not in _frozen:
        names = {name for name, p in module.named_parameters() if not p.requires_grad}
        parts = [module.get_submodule(prefix) for prefix in _whole(module, names)] if names else []
        _frozen[module] = [part for part in parts if part._buffers]
    return _frozen[module]


def in_training(module: nn.Module) -> None:
    """Puts a module into training mode, but for its frozen layers, whose statistics are used and stay."""
    if not module.training:
        module.train()
    for layer in frozen_layers(module):
        layer.eval()


# --- whether it looks like a fresh draw -------------------------------------------------------------------


class _Ranges(TorchDispatchMode):
    """Notes between which ends a tensor's values were drawn uniformly, unless something was done to them after it."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[int, tuple[float, float]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        answer = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name.endswith("_") and args and isinstance(args[0], Tensor):
            place = args[0].untyped_storage().data_ptr()
            self.ends.pop(place, None)
            if name == "aten::uniform_" and args[0].nbytes == args[0].untyped_storage().nbytes():
                low, high = args[1] if len(args) > 1 else 0.0, args[2] if len(args) > 2 else 1.0  # left out if default
                self.ends[place] = (float(low), float(high))
        return answer


def estranged(built: nn.Module, init: Init, seeded: Callable[..., AbstractContextManager[None]]) -> str:
    """The first parameter that `init` would draw anew though its values are not such as a fresh draw has, or "".

    A value outside the range of a uniform draw is not, nor a constant that has moved, nor are values of another
    distribution (Kolmogorov and Smirnov's test against a few fresh draws, at a level of 1e-6 for the whole module).
    """
    twin, stays = copy.deepcopy(built), staying(built, init)
    draws: list[Params] = []
    with seeded(0, "estranged"), _Ranges() as noted:
        for _ in range(DRAWS):
            reset_all(twin)
            draws.append({name: p.detach().clone().double().flatten() for name, p in twin.named_parameters()})
    places = {name: p.untyped_storage().data_ptr() for name, p in twin.named_parameters()}
    count = len(places)
    for name, p in built.named_parameters():
        own, drawn = p.detach().double().flatten(), [draw[name] for draw in draws]
        if name in stays or all(torch.equal(own, other) for other in drawn):
            continue  # nothing draws it
        if all(torch.equal(drawn[0], other) for other in drawn):
            fresh = torch.allclose(own, drawn[0], rtol=1e-5, atol=1e-8)
        else:
            fresh = _inside(own, noted.ends.get(places[name])) and _alike(own, torch.cat(drawn), SURE / count)
        if not fresh:
            return name
    return ""


def _inside(values: Tensor, ends: tuple[float, float] | None) -> bool:
    if ends is None:
        return bool(torch.isfinite(values).all())
    slack = 0.01 * (ends[1] - ends[0])  # for what another precision rounds
    return bool(((values >= ends[0] - slack) & (values <= ends[1] + slack)).all())


def _alike(values: Tensor, drawn: Tensor, level: float) -> bool:
    """Whether two samples may have one distribution: P(D > d) <= 2 exp(-2 d^2 n m / (n + m)) if they do."""
    one, two = (v[:: max(1, len(v) // MOST)].sort().values for v in (values, drawn))
    every = torch.cat([one, two])
    shares = [torch.searchsorted(v, every, right=True).double() / len(v) for v in (one, two)]
    distance, size = float((shares[0] - shares[1]).abs().max()), len(one) * len(two) / (len(one) + len(two))
    return 2.0 * math.exp(-2.0 * size * distance**2) >= level
