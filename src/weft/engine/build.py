"""From an objective's hyperparameters to parameters: built, checked and initialized from the seed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from weft.core.objective import Objective
from weft.core.random import fold, integer, key_of
from weft.core.source import Spec
from weft.core.trees import Params
from weft.engine.ambient import refuse_hidden_randomness
from weft.engine.fresh import Init, reset_all, reset_of, staying
from weft.engine.gradients.loss import carried
from weft.engine.taking import taken

__all__ = ["build", "initialize", "refuse_alike", "seeded"]


@contextmanager
def seeded(seed: int, *places: int | str) -> Iterator[None]:
    """PyTorch's generator set from (seed, place) for a while, then put back."""
    with torch.random.fork_rng(devices=[]):
        number = integer(fold(key_of(seed), *places))
        if torch.accelerator.is_available():
            torch.manual_seed(number)
        else:  # without the devices that there are none of, which would cost more than all the rest
            torch.default_generator.manual_seed(number)
        yield


def build(objective: Objective, spec: Spec, seed: int, dtype: torch.dtype) -> Objective:
    """A copy of the objective with its networks made, for these shapes, by this seed."""
    objective.validate()
    built = copy.deepcopy(objective)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with seeded(seed, "build"):
            built.build(spec)
    finally:
        torch.set_default_dtype(default)
    built.to(dtype)
    refuse_hidden_randomness(built)
    _refuse_unowned(built)
    carried(built)
    if built.players and "mass" in built.provides:
        raise ValueError(f"expected one player where rows have a mass of their own, got the game {objective!r}")
    if not built.solved and not any(True for _ in built.parameters()):
        raise ValueError(f"expected {objective!r} to have parameters after build, got none; check its net")
    return built


def _refuse_unowned(built: Objective) -> None:
    """In a game every parameter is one player's: one of nobody would not learn, one of two only from the first."""
    owner: dict[int, str] = {}
    for name, parameter in built.named_parameters(remove_duplicate=False):
        player = next((p for p in built.players if name.startswith(f"{p}.")), None)
        kind = type(built).__name__
        if built.players and player is None:
            raise ValueError(
                f"expected every parameter of {kind} under one of its players ({', '.join(built.players)}), got "
                f"{name!r}, which would not learn; put it into a player, or keep it as a buffer"
            )
        if player is not None and owner.setdefault(id(parameter), player) != player:
            raise ValueError(
                f"expected the players of {kind} to have parameters of their own, got {name!r} under "
                f"{owner[id(parameter)]!r} and {player!r}; give each a module of its own"
            )


def initialize(built: Objective, seed: int, init: Init, *, spare: bool = False) -> tuple[Params, Params]:
    """Parameters and buffers for a seed: drawn anew (`reset`), as they came (`keep`) or taken; what is frozen stays.

    With `spare` nobody needs `built` any more, and it is drawn anew in place.
    """
    stays = staying(built, init)
    came: Params = dict(built.named_parameters()) | dict(built.named_buffers())
    if spare:
        module, came = built, {name: came[name].detach().clone() for name in stays}
    else:
        module = copy.deepcopy(built)
    if init != "keep":
        with seeded(seed, "init"):
            reset_all(module)
    drawn: Params = dict(module.named_parameters()) | dict(module.named_buffers())
    begun = {name: (came if name in stays else drawn)[name].detach().clone() for name in drawn}
    begun |= {} if isinstance(init, str) else taken(built, init)
    params = {name: begun[name] for name, _ in module.named_parameters()}
    return params, {name: begun[name] for name, _ in module.named_buffers()}


def refuse_alike(built: Objective, starts: list[Params], init: Init) -> None:
    """Raises where replicas start alike though they should not: a drawn parameter that nothing draws anew."""
    stays = staying(built, init)
    for prefix, layer in built.named_modules():
        if reset_of(layer) is not None:
            continue
        for own, value in layer.named_parameters(recurse=False):
            name = f"{prefix}.{own}" if prefix else own
            drawn = name not in stays and value.numel() > 1 and bool((value != value.flatten()[0]).any())
            if drawn and all(torch.equal(starts[0][name], other[name]) for other in starts[1:]):
                raise ValueError(
                    f"expected every layer with drawn parameters to define reset_parameters(), got {prefix!r} "
                    f"({type(layer).__name__}) without: all replicas would start alike; define it, pass a factory "
                    "instead of an instance (its class, or a lambda), or pass init='keep' if they should"
                )
