"""What becomes of the step that the optimizer proposes: clipped, amended by a strategy, put back on a set."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from weft.core.configured import closest
from weft.core.legal import told
from weft.core.objective import Objective
from weft.core.random import keyed
from weft.core.source import Batch, judged_rows
from weft.core.strategy import Move, Strategy, StrategyState
from weft.core.trees import Params
from weft.engine import verbs
from weft.engine.gradients.gradient import own_loss, own_mean
from weft.engine.gradients.loss import Place
from weft.engine.gradients.route import Route
from weft.engine.replicas import broadcast, mapped

__all__ = ["alike", "check_given", "clipped", "gate", "gated", "norm", "projected", "ungate", "updated"]


def alike(gradient: Tensor, param: Tensor) -> Tensor:
    """The gradient laid out in memory as the parameter, as fused optimizers ask."""
    return gradient if gradient.stride() == param.stride() else torch.empty_like(param).copy_(gradient)


def gated(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer itself can leave everything as it is by a mask: its step is one fused kernel.

    Such a kernel reads its rate from the device in float32, which is too coarse for other parameters.
    """
    groups = optimizer.param_groups
    single = all(p.dtype == torch.float32 for group in groups for p in group["params"])
    fused = all(group.get("fused") for group in groups)
    return single and fused and getattr(optimizer, "_step_supports_amp_scaling", False)


def gate(optimizer: torch.optim.Optimizer, rates: list[Tensor], active: Tensor) -> None:
    """Lets a recorded step go by rates on the device, and leave all as it is where the run is no longer active."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["set"], group["lr"] = group["lr"], rate
    optimizer.grad_scale, optimizer.found_inf = None, (~active).float()  # type: ignore[attr-defined]


def ungate(optimizer: torch.optim.Optimizer) -> None:
    """Undoes `gate`, so that no checkpoint holds what is the graph's."""
    for name in ("grad_scale", "found_inf"):
        vars(optimizer).pop(name, None)
    for group in optimizer.param_groups:
        group["lr"] = group.pop("set", group["lr"])


def norm(replicas: int | None, gradient: Params) -> Tensor:
    """The norm of a gradient over all parameters, per replica."""
    if replicas is None:
        return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradient.values()))))
    norms = [torch.linalg.vector_norm(g.reshape(len(g), -1), dim=-1) for g in gradient.values()]
    return torch.linalg.vector_norm(torch.stack(norms), dim=0)


def clipped(replicas: int | None, gradient: Params, norm: Tensor, most: float | None) -> Params:
    """The gradient, shortened to the largest norm allowed."""
    if most is None:
        return gradient
    scale = (most / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp_max(1.0)
    return {n: g * broadcast(replicas, scale, g) for n, g in gradient.items()}


def projected(objective: Objective, replicas: int | None, params: Params, moved: Iterable[str]) -> Params:
    """Those of the parameters that have moved, put back on the sets where the objective says that they live."""
    names = list(moved)

    def one(params: Params) -> Params:
        found = objective.project({name: p.detach().clone() for name, p in params.items()})
        check_given(objective, "project", params, found)
        return {name: found.get(name, params[name]) for name in names}

    with torch.no_grad():
        return mapped(replicas, one, params)


def check_given(objective: Objective, method: str, params: Params, found: object) -> None:
    """Raises where what an objective's method gives in the place of parameters cannot stand there."""
    kind = type(objective).__name__
    if not isinstance(found, dict):
        raise TypeError(f"expected {method} of {kind} to give parameters by name, got {told(found)}; return them")
    for name, value in found.items():
        if name not in params:
            raise closest(name, params, f"a parameter's name from {method} of {kind}")
        if value.shape != params[name].shape or value.dtype != params[name].dtype:
            raise ValueError(
                f"expected {method} of {kind} to keep {name!r} as it is, {tuple(params[name].shape)} of "
                f"{params[name].dtype}, got {tuple(value.shape)} of {value.dtype}"
            )


def updated(
    route: Route,
    at: Place,
    batch: Batch,
    step: Params,
    lr: Tensor,
    key: Tensor,
    strategy: Strategy,
    state: StrategyState,
    data_rows: int | None,
) -> tuple[Params, StrategyState]:
    """The step to take and the strategy's state after it.

    Args:
        route: by which the gradient was computed.
        at: the place before the step.
        batch: all of it, numbered.
        step, lr: as proposed, and the learning rate.
        key: of what is drawn.
        strategy, state: whose `update` is asked, part by part.
        data_rows: rows in the data, where it has an end.
    """
    seen = judged_rows(batch)
    rows = (seen["weight"] > 0).sum() if "weight" in seen else seen["row"].numel()
    move = Move(
        step, at.params, lr, rows, data_rows, own_loss(route, at, batch, strategy), own_mean(route, at, batch, strategy)
    )
    with keyed(key):
        for name, part, own in verbs.each(strategy, state):
            if part.does("update"):
                step, after = part.update(move, own)
                move, state = replace(move, step=step), verbs.replaced(state, name, after)
    return move.step, state
