"""What every gradient is made of: the loss as a pure function, its derivative, and how much rows and groups count."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from fnmatch import fnmatchcase
from functools import partial
from operator import itemgetter
from typing import NamedTuple, TypedDict, TypeVar

import torch
from torch import Tensor
from torch.func import grad_and_value

from weft.core.configured import closest
from weft.core.objective import Objective, Output
from weft.core.random import keyed
from weft.core.source import Batch, judged_rows, rows_of
from weft.core.strategy import Loss, StrategyState
from weft.core.trees import Params, tree_map
from weft.engine.holding import holding
from weft.engine.precision import lowering, raise_output
from weft.engine.serving import serving

__all__ = [
    "Parts",
    "Place",
    "Slope",
    "Wrapped",
    "base_loss",
    "carried",
    "counted",
    "differentiate",
    "mass_of",
    "massed",
    "masses",
    "shares",
]

Wrapped = Callable[[Params], Loss]
"""The strategy's loss, given the buffers before the forward."""
Slope = tuple[Params, Tensor, Params, StrategyState]
"""The gradient, the mean loss, the buffers after the forward and the strategy's state."""
Aux = TypeVar("Aux")


class Place(NamedTuple):
    """Where a gradient is taken: the player's parameters, everyone else's, the buffers, and the key of the draws."""

    params: Params
    others: Params
    buffers: Params
    key: Tensor

    def replica(self, k: int) -> Place:
        """One replica's, where all tensors have replicas on their leading axis."""
        params, others, buffers = (tree_map(itemgetter(k), tree) for tree in (self.params, self.others, self.buffers))
        return Place(params, others, buffers, self.key[k])


class Parts(TypedDict, total=False):
    """What a share of a batch gives.

    The `gradient` and `loss` of its mean or of each group, their `mass` (how much they count; of a mean without
    weights its number of `rows`), the `buffers` after the forward; the `sums` over the groups in place of their
    gradients, where those are too many; what strategies have `left` in the output of a pass over all groups.
    """

    gradient: Params
    loss: Tensor
    mass: Tensor
    rows: int
    buffers: Params
    sums: StrategyState
    left: dict[str, Params]


def base_loss(objective: Objective, others: Params, buffers: Params, key: Tensor, player: str) -> Loss:
    """The objective as a pure function of (params, batch): keyed, with its buffers carried in `Output`."""

    def loss(params: Params, batch: Batch) -> Output:
        fresh = {name: value.clone() for name, value in buffers.items()}
        args, rows, held = ((batch, player) if player else (batch,)), batch.get("row"), {**others, **params}

        def aside(*args: object) -> None:
            with holding(objective, held, {name: value.clone() for name, value in buffers.items()}):
                objective(*args)

        drawing, lowered = serving(objective, aside, args, rows, player), lowering(objective, key.device)
        with keyed(key, rows), drawing, holding(objective, held, fresh), lowered:
            output = objective(*args)
        raise_output(objective, output)
        output.buffers = fresh
        output.weight = _weight(objective, output, batch)
        if "distribution" in objective.provides:
            # of a copy: an output that holds itself would keep the whole graph until Python looks for cycles
            output.distribution = partial(_told, objective, held, fresh, copy(output))
        return output

    return loss


def _weight(objective: Objective, output: Output, batch: Batch) -> Tensor | None:
    """How much each loss counts: by the batch's weights, and by a mass of its own."""
    weight, mass = batch.get("weight"), output.mass
    if (mass is not None) != ("mass" in objective.provides):
        said, got = ("no", "one") if mass is not None else ("a", "None")
        raise ValueError(
            f"expected {said} mass in Output of {type(objective).__name__}, as its provides says, got {got}; "
            "name 'mass' in provides where rows count by a mass of their own, and give it always"
        )
    if mass is None:
        return weight
    if mass.shape != output.losses.shape:
        raise ValueError(
            f"expected a mass for each loss of {type(objective).__name__}, {tuple(output.losses.shape)}, got "
            f"{tuple(mass.shape)}"
        )
    mass = mass.detach().to(torch.promote_types(output.losses.dtype, torch.float32))
    return mass if weight is None else weight.to(mass.dtype) * mass


OWN = "own_mass"
"""The field that tells how much rows count of themselves, before the forward that is differentiated."""


def massed(objective: Objective, player: str, at: Place, batch: Batch, pieces: int = 1) -> Batch:
    """The batch with the field `own_mass`, by a forward of its own, where an objective's rows have one."""
    if "mass" not in objective.provides:
        return batch
    if judged_rows(batch) is not batch:
        return {**batch, "query": massed(objective, player, at, batch["query"], pieces)}
    if OWN in batch:
        return batch
    lead = batch["row"].shape
    rows = batch if len(lead) == 1 else tree_map(partial(torch.flatten, start_dim=0, end_dim=1), batch)
    loss = base_loss(objective, at.others, at.buffers, at.key, player)
    bare = {name: value for name, value in rows.items() if name != "weight"}
    found, size = [], -(-rows_of(bare) // pieces)
    with torch.no_grad():
        for start in range(0, rows_of(bare), size):
            found.append(loss(at.params, tree_map(itemgetter(slice(start, start + size)), bare)).weight)
    return {**batch, OWN: torch.cat(found).reshape(lead)}  # type: ignore[arg-type]  # there is one


def carried(objective: Objective) -> frozenset[str]:
    """Names of the buffers that go on from step to step and are never averaged."""
    if not objective.carried:
        return frozenset()
    names = [name for name, _ in objective.named_buffers()]
    for pattern in objective.carried:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise closest(pattern, names, f"a pattern in carried that fits buffers of {type(objective).__name__}")
    return frozenset(name for name in names if any(fnmatchcase(name, pattern) for pattern in objective.carried))


def _told(objective: Objective, params: Params, buffers: Params, output: Output) -> object:
    with holding(objective, params, dict(buffers)):
        return objective.distribution(output)


def differentiate(
    function: Callable[[Params], tuple[Tensor, Aux]], params: Params, transform: bool
) -> tuple[Params, tuple[Tensor, Aux]]:
    """(gradient, (value, aux)): an ordinary backward, or functorch's where a vmap is around it (`transform`)."""
    if transform:
        return grad_and_value(function, has_aux=True)(params)
    leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
    with torch.enable_grad():
        value, aux = function(leaves)
        known = value.requires_grad  # a constant (a penalty before the first task) has gradient zero
        slopes = torch.autograd.grad(value, list(leaves.values()), allow_unused=True) if known else [None] * len(leaves)
    gradient = {
        name: torch.zeros_like(leaf) if g is None else g for (name, leaf), g in zip(leaves.items(), slopes, strict=True)
    }
    return gradient, (value.detach(), tree_map(Tensor.detach, aux))


# --- how much it counts -----------------------------------------------------------------------------


def _counting(rows: Batch) -> Tensor | None:
    """How much each row counts, where they do not count alike."""
    weight, own = rows.get("weight"), rows.get(OWN)
    return weight if own is None else own if weight is None else weight.to(own.dtype) * own


def mass_of(batch: Batch) -> Tensor | int:
    """The sum of a batch's weights, or its number of rows."""
    part = judged_rows(batch)
    weight = _counting(part)
    return rows_of(part) if weight is None else weight.sum(dtype=torch.promote_types(weight.dtype, torch.float32))


def masses(batch: Batch, dtype: torch.dtype) -> Tensor:
    """The sum of each group's weights, or its number of rows, in the precision of the parameters or better."""
    dtype = torch.promote_types(dtype, torch.float32)
    part = judged_rows(batch)
    rows = part["row"]
    weight = _counting(part)
    if weight is not None:
        return weight.sum(1, dtype=dtype)
    return torch.full_like(rows[:, 0], rows.shape[1], dtype=dtype)


def counted(mass: Tensor, weighting: str) -> Tensor:
    """How much each group counts, by its mass."""
    return mass if weighting == "example" else (mass > 0).to(mass.dtype)


def shares(mass: Tensor, weighting: str) -> Tensor:
    """The groups' weights, summing to one; groups without any weight in this batch count nothing."""
    counts = counted(mass, weighting)
    return counts / counts.sum().clamp_min(torch.finfo(mass.dtype).tiny)
