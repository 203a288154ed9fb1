"""Pretrained parts: tensors that a run begins with and that were learned elsewhere, found by their names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from weft.core.configured import closest
from weft.core.trees import Params

__all__ = ["Pretrained", "rule_of", "taken", "takes", "thawed"]


@dataclass(frozen=True)
class Pretrained:
    """What was learned elsewhere.

    Attributes:
        tensors: parameters and statistics by name.
        told: what they come from, in words.
        frozen: which of them did not learn where they come from.
    """

    tensors: Params
    told: str
    frozen: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return self.told


def takes(said: object) -> bool:
    """Whether what `init` says of a pattern is where to take it from."""
    return said not in ("reset", "keep", None) if isinstance(said, str | None) else True


def rule_of(rules: Mapping[str, object], name: str) -> str | None:
    """The first pattern that fits a name."""
    return next((pattern for pattern in rules if fnmatchcase(name, pattern)), None)


def taken(module: nn.Module, rules: Mapping[str, object]) -> Params:
    """The tensors that a module takes, by their names in it.

    A name is found in the other by what follows the pattern's fixed beginning, or that beginning's last words: for
    `net.encoder.*` the other's `0.weight`, `encoder.0.weight` or `net.encoder.0.weight` becomes
    `net.encoder.0.weight`. Raises where one is not found, has another shape, or is found and has no place.
    """
    own = _own(module)
    got = {name: _fitting(name, own[name], theirs, given) for name, theirs, given in _pairs(module, rules)}
    _refuse_left(module, rules, got)
    return got


def thawed(module: nn.Module, rules: Mapping[str, object], trained: Iterable[str]) -> str:
    """The first parameter that was frozen where it comes from and is trained here, or ""."""
    names = set(trained)
    pairs = _pairs(module, rules)
    return next((name for name, theirs, given in pairs if name in names and theirs in given.frozen), "")


def _pairs(module: nn.Module, rules: Mapping[str, object]) -> Iterator[tuple[str, str, Pretrained]]:
    """Each name that is taken, how it is called where it comes from, and that."""
    own, every = _own(module), set(module.state_dict())
    for pattern, said in rules.items():
        if not takes(said):
            continue
        if not isinstance(said, Pretrained):
            raise ValueError(
                f"expected what {pattern!r} in init is taken from, got {said!r}, a note of what it was taken from when "
                "the run began; give the learner, module or file again: set_params(init={...})"
            )
        wanted = [name for name in own if rule_of(rules, name) == pattern]
        if not wanted:
            raise ValueError(
                f"expected a pattern in init that fits names which none before it fits, got {pattern!r}; put it first"
            )
        fixed = _fixed(pattern)
        tail = _tail(fixed, wanted, said)
        for name in said.tensors:
            place = fixed + name.removeprefix(tail)
            if name.startswith(tail) and rule_of(rules, place) == pattern and place not in every:
                raise ValueError(
                    f"expected a place for {name!r} of {said.told} under {pattern!r} in init, got none called "
                    f"{place!r}; narrow the pattern, or pass the part that is meant by itself"
                )
        yield from ((name, tail + name.removeprefix(fixed), said) for name in wanted)


def _own(module: nn.Module) -> Params:
    """Its parameters and statistics by their first names; buffers that are not kept with it are none."""
    kept = module.state_dict(keep_vars=True)
    return {name: t for name, t in (*module.named_parameters(), *module.named_buffers()) if name in kept}


def _fixed(pattern: str) -> str:
    """What all names that fit have at their beginning, in whole words."""
    plain = min((at for at in map(pattern.find, "*?[") if at >= 0), default=len(pattern))
    return pattern[: pattern[:plain].rfind(".") + 1]


def _tail(fixed: str, wanted: list[str], given: Pretrained) -> str:
    """The end of the fixed beginning under which the other has what is wanted."""
    words = fixed.split(".")
    tails = [".".join(words[i:]) for i in range(len(words))]
    missing = {t: [n for n in wanted if t + n.removeprefix(fixed) not in given.tensors] for t in tails}
    whole = [t for t in tails if not missing[t]]
    if len(whole) > 1:
        one, two = (t + wanted[0].removeprefix(fixed) for t in whole[:2])
        raise ValueError(
            f"expected one tensor of {given.told} for {wanted[0]!r}, got {one!r} and {two!r}; pass the part that is "
            "meant by itself"
        )
    if not whole:
        tail = min(tails, key=lambda t: len(missing[t]))
        name = missing[tail][0]
        raise closest(
            tail + name.removeprefix(fixed), given.tensors, f"a tensor for {name!r} in {given.told}, as init asks"
        )
    return whole[0]


def _fitting(name: str, own: Tensor, theirs: str, given: Pretrained) -> Tensor:
    value = given.tensors[theirs]
    if value.shape != own.shape:
        raise ValueError(
            f"expected {theirs!r} of {given.told} to have the shape {tuple(own.shape)} of {name!r}, got "
            f"{tuple(value.shape)}; draw it anew by a pattern before: {{{name!r}: 'reset', ...}}"
        )
    if value.is_floating_point() != own.is_floating_point():
        raise ValueError(
            f"expected {theirs!r} of {given.told} to be of a kind with {name!r} ({own.dtype}), got {value.dtype}"
        )
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        raise ValueError(f"expected finite values to begin with, got others in {theirs!r} of {given.told}")
    return value.detach().to(own.dtype, copy=True).to(own.device)


def _refuse_left(module: nn.Module, rules: Mapping[str, object], got: Params) -> None:
    """Raises where a layer's parameters are taken and its statistics are nobody's."""
    for name, buffer in _own(module).items():
        layer = module.get_submodule(name.rpartition(".")[0])
        prefix = f"{name.rpartition('.')[0]}." if "." in name else ""
        drawn = [f"{prefix}{p}" for p, _ in layer.named_parameters(recurse=False)]
        statistic = not isinstance(buffer, nn.Parameter)
        if statistic and drawn and all(p in got for p in drawn) and rule_of(rules, name) is None:
            raise ValueError(
                f"expected init to say where {name!r} comes from, since {drawn[0]!r} is taken from elsewhere, got no "
                f"pattern that fits it; widen one, such as {prefix + '*'!r}"
            )
