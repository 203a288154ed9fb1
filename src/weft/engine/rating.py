"""The learning rate of a step: the setting, times the schedule's factor, times what a plateau has left of it.

A schedule is a factor by progress; a scheduler of torch's, stepped per update; or `ReduceLROnPlateau`, which looks at
the progress measure of each record, for every replica by itself.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from weft.core.state import State
from weft.core.trees import Params
from weft.engine.schedule import is_plateau, is_torch_scheduler

if TYPE_CHECKING:
    from weft.engine.engine import Engine

__all__ = ["Plateau", "factor_of", "look", "prepare", "rate_of", "rates_of", "scaled", "set_rates"]

_KEPT = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")


class Plateau:
    """A `ReduceLROnPlateau` for each replica, which sees the rate that the replica has.

    Args:
        make: makes it from an optimizer, as a user gave it.
        rates: the rate of each replica before anything is reduced.
        mode: whether the progress measure should fall (`min`) or rise (`max`).
    """

    def __init__(self, make: Any, rates: list[float], mode: str) -> None:
        said = _settings(make)
        if said.get("mode", mode) != mode:
            raise ValueError(
                f"expected ReduceLROnPlateau to look at the progress measure, of which {mode} is better, got "
                f"mode={said['mode']!r}; leave mode out"
            )
        if isinstance(said.get("min_lr", 0.0), list | tuple):
            raise ValueError(
                f"expected one min_lr for all parameters, got {said['min_lr']!r}; groups keep their ratio to the rate"
            )
        self.rates = rates
        self.each: list[ReduceLROnPlateau] = [make(_stand_in(rate), mode=mode) for rate in rates]

    @property
    def factors(self) -> list[float]:
        """What is left of each replica's rate."""
        now = [one.optimizer.param_groups[0]["lr"] for one in self.each]
        return [lr / rate if rate else 1.0 for lr, rate in zip(now, self.rates, strict=True)]

    def look(self, values: list[float], active: list[bool]) -> None:
        """A record: the progress measure of each replica; those that have stopped are left as they are."""
        for one, value, going in zip(self.each, values, active, strict=True):
            if going and not math.isnan(value):
                if value < 0 and one.threshold_mode == "rel" and one.threshold > 0 and one.last_epoch == 0:
                    warnings.warn(
                        f"expected threshold_mode='abs' for a progress measure below zero, got {value:.4g} and 'rel', "
                        "by which ReduceLROnPlateau takes slightly worse for better; give "
                        "functools.partial(ReduceLROnPlateau, threshold_mode='abs')",
                        stacklevel=8,
                    )
                one.step(value)

    def state_dict(self) -> dict[str, Tensor]:
        """What it takes to go on, bit for bit."""
        kept = [[one.optimizer.param_groups[0]["lr"], *(float(getattr(one, n)) for n in _KEPT)] for one in self.each]
        return {"plateau": torch.tensor(kept, dtype=torch.float64)}

    def load_state_dict(self, kept: dict[str, Tensor]) -> None:
        """Puts it back."""
        for one, (lr, best, *counts) in zip(self.each, kept["plateau"].tolist(), strict=True):
            one.optimizer.param_groups[0]["lr"], one.best = lr, best
            for name, count in zip(_KEPT[1:], counts, strict=True):
                setattr(one, name, int(count))


def _stand_in(rate: float) -> torch.optim.Optimizer:
    """An optimizer of nothing, whose rate is looked at and reduced."""
    return torch.optim.SGD([torch.zeros(1)], lr=rate)


def _settings(make: Any) -> dict[str, Any]:
    said: dict[str, Any] = {}
    while isinstance(make, functools.partial):
        said = {**make.keywords, **said}
        make = make.func
    return said


# --- an engine's rates ----------------------------------------------------------------------------------


def prepare(engine: Engine, player: str, optimizer: torch.optim.Optimizer) -> None:
    """What sets the rate of a fresh optimizer."""
    engine.settings[player] = [group["lr"] for group in optimizer.param_groups]
    if is_plateau(engine.schedule):
        own = [1.0] * (engine.replicas or 1) if engine.rates is None else engine.rates.tolist()
        rates = [engine.settings[player][0] * rate for rate in own]
        engine.schedulers[player] = Plateau(engine.schedule, rates, engine.progress[1])
    elif is_torch_scheduler(engine.schedule):
        engine.schedulers[player] = engine.schedule(optimizer)


def set_rates(engine: Engine, state: State, player: str, factor: float) -> None:
    """Sets the optimizer's learning rates to so much of their settings."""
    for group, rate in zip(state.optimizers[player].param_groups, engine.settings[player], strict=True):
        group["lr"] = rate * factor


def factor_of(engine: Engine, state: State, player: str, step: int | None = None) -> float | Tensor:
    """What the rate's setting is multiplied by at a step (now): one number, or with a plateau one for each replica."""
    scheduler = engine.schedulers.get(player)
    if isinstance(scheduler, Plateau):
        factors = scheduler.factors
        return factors[0] if engine.replicas is None else torch.tensor(factors, device=state.device, dtype=state.dtype)
    step = state.step if step is None else step
    return engine.schedule(min(1.0, (step - state.origin) / engine.total))  # type: ignore[return-value,arg-type]


def scaled(engine: Engine, player: str, step: Params, factor: Tensor | None) -> Params:
    """A proposed step times the factor, and times the replicas' own rates where the optimizer's is 1."""
    if factor is not None:
        step = {n: s * (engine.broadcast(factor, s) if factor.dim() else factor) for n, s in step.items()}
    if engine.rates is not None:
        common = {n for n in step if engine.optimizers[player].group_of(n) is None}
        step = {n: s * engine.broadcast(engine.rates, s) if n in common else s for n, s in step.items()}
    return step


def rate_of(engine: Engine, rate: float | Tensor, factor: Tensor | None, like: Tensor) -> Tensor:
    """The learning rate of a step, for each replica, given the optimizer's."""
    lr = rate.to(like) if isinstance(rate, Tensor) else like.new_full((), rate)
    lr = lr if factor is None else lr * factor
    lr = lr if engine.rates is None else lr * engine.rates
    return lr if engine.replicas is None or lr.dim() else lr.expand(engine.replicas)


def look(engine: Engine, state: State, progress: Tensor) -> None:
    """A record's progress measure, less being better, for the plateaus."""
    values = -progress if engine.progress[1] == "max" else progress
    told, active = values.double().reshape(-1).tolist(), state.active.reshape(-1).tolist()
    for scheduler in engine.schedulers.values():
        if isinstance(scheduler, Plateau):
            scheduler.look(told, active)


def rates_of(engine: Engine, state: State) -> dict[str, Tensor]:
    """The learning rate of the last step, as a record tells it: of each player, and of each replica where they differ.

    Of several groups of parameters with rates of their own it is the common one's.
    """
    told = {}
    for player in engine.players:
        used: float | Tensor | None = engine.used.get(player)
        if used is None:
            used = engine.settings[player][0] * factor_of(engine, state, player, state.step - 1)
        rate = torch.as_tensor(used, dtype=torch.float64, device=state.device)
        if engine.rates is not None:
            rate = rate * engine.rates.double()
        told[f"{player}_lr" if player else "lr"] = rate
    return told
