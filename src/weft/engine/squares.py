"""Sums over examples of squared single-example gradients, exactly, without forming the gradients.

For a linear layer with input a and output gradient g, the gradient of example i is g_i a_i^T, so that

    sum_i w_i (g_i a_i^T)^2 = (w g^2)^T (a^2)

costs one matrix product. Layers with further axes (sequences, convolutions) sum over positions first,
by one batched product. Whatever is not such a layer (norms, embeddings, parameters used on their own)
is done by `vmap(grad)`. Each rule is checked against autograd on the first batch, on a sum of the
examples' gradients with random coefficients: a layer called twice, a weight that is also used
elsewhere, or rows that are not in the batch's order do not pass and go the general way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad

from weft.core.objective import Objective, Output
from weft.core.random import key_of, keyed, unit
from weft.core.source import Batch, rows_of, tree_map
from weft.core.strategy import Params
from weft.engine.ambient import serving
from weft.engine.distributed import share, world
from weft.engine.distributed import total as over_ranks
from weft.engine.holding import holding
from weft.engine.layers import Taps, agree, patches, positions
from weft.engine.vectorize import Mapper

__all__ = ["Readout", "squares"]

Call = tuple[nn.Module, Tensor, Tensor]
"""A layer, its input and its output."""
Scalars = list[tuple[Tensor, Tensor | None]]
Readout = Callable[[Output, Batch], Iterable[tuple[Tensor, Tensor | None]]]
"""From an output to scalars of shape (n,) with weights of shape (n,) or None: what is differentiated,
example by example, and how each square counts."""


def squares(
    objective: Objective,
    params: Params,
    others: Params,
    buffers: Params,
    batches: Iterable[Batch],
    readout: Readout,
    key: Tensor,
    player: str = "",
) -> tuple[Params, float]:
    """Sums w_i (d s_i / d params)^2 over the examples of all batches, for every scalar s of `readout`.

    Args:
        objective: the built objective; it is run in evaluation mode, where examples do not mix.
        params: the parameters to differentiate by; `others` are held fixed.
        batches: batches of rows, numbered.
        readout: which scalars, and the weight of each square.
        key: keys whatever the forward draws.
        player: whose loss, in a game.

    Returns:
        The sums by parameter, and the examples' number (the sum of their weights).
    """
    examples = 0.0
    total = {name: torch.zeros_like(p) for name, p in params.items()}
    training = objective.training
    objective.eval()
    general: set[str] | None = None
    mapper = Mapper()

    def run(values: Params, batch: Batch) -> Scalars:
        with keyed(key, batch["row"]), serving(objective), holding(objective, values, dict(buffers)):
            return list(readout(objective(*((batch, player) if player else (batch,))), batch))

    try:
        for batch in (share(whole, 0) for whole in batches):
            examples += float(batch["weight"].sum()) if "weight" in batch else rows_of(batch)
            rest = _layerwise(run, objective, params, others, batch, total, general)
            general = rest if general is None else general
            if general:
                _one_by_one(run, params, others, batch, total, general, mapper)
    finally:
        objective.train(training)
    if world()[1] > 1:
        count = torch.tensor(examples, dtype=torch.float64, device=key.device)
        sums = over_ranks({"squares": total, "examples": count}, "at the end of a task")
        total, examples = sums["squares"], float(sums["examples"])
    return total, examples


def _weighted(weight: Tensor | None, batch: Batch) -> Tensor | None:
    own = batch.get("weight")
    if weight is None or own is None:
        return own if weight is None else weight
    return weight * own


def _layerwise(
    run: Callable[[Params, Batch], Scalars],
    objective: Objective,
    params: Params,
    others: Params,
    batch: Batch,
    total: Params,
    general: set[str] | None,
) -> set[str]:
    """Adds the layers with rules; returns the names left over (checked when `general` is not yet known)."""
    leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
    seen: dict[str, list[Call]] = {}

    def keep(name: str, layer: nn.Module, a: Tensor, output: Tensor) -> None:
        seen.setdefault(name, []).append((layer, a.detach(), output))

    with torch.enable_grad(), Taps(objective, set(params) - (general or set()), keep):
        scalars = run({**others, **leaves}, batch)
    rows = rows_of(batch)
    layers: dict[str, Call] = {}
    for name, calls in seen.items():
        layer, a, output = calls[0]
        parts = patches(layer, a, rows) if len(calls) == 1 and output.requires_grad else None
        if parts is not None:
            layers[name] = (layer, parts, output)
    left = set(params) - {f"{name}.{kind}" for name in layers for kind in ("weight", "bias")}
    if general is None:
        left |= _untrue(scalars[0][0], layers, leaves, rows)
    outputs = [output for _, _, output in layers.values()]

    def add(name: str, kind: str, square: Tensor) -> None:
        full = f"{name}.{kind}"
        if full in total and full not in left:
            total[full] += square.reshape(total[full].shape)

    # Where rows have one position: the sum over the scalars of w g^2, so that one product for all of them is enough.
    energy: Params = {}
    for scalar, weight in scalars:
        found = torch.autograd.grad(scalar.sum(), outputs, retain_graph=True, allow_unused=True)
        weight = _weighted(None if weight is None else weight.detach(), batch)
        for (name, (layer, a, _)), g in zip(layers.items(), found, strict=True):
            if g is None:
                continue
            g = positions(layer, g, rows)
            if a.shape[-1] == 1:
                square = _times(g.squeeze(-1).square(), weight)
                energy[name] = energy[name].add_(square) if name in energy else square
            else:
                add(name, "weight", _times((g @ a.transpose(1, 2)).square(), weight).sum(0))
                add(name, "bias", _times(g.sum(-1).square(), weight).sum(0))
    for name, square in energy.items():
        add(name, "weight", square.T @ layers[name][1].squeeze(-1).square())
        add(name, "bias", square.sum(0))
    return left


def _times(squares: Tensor, weight: Tensor | None) -> Tensor:
    """Every row's squares, times its weight."""
    return squares if weight is None else squares * weight.reshape(-1, *(1,) * (squares.dim() - 1))


def _untrue(scalar: Tensor, layers: dict[str, Call], leaves: Params, rows: int) -> set[str]:
    """The parameters whose rule does not give autograd's gradient: used elsewhere too, or rows in another order."""
    check = unit(key_of(0, device=scalar.device), (rows,), scalar.dtype)
    outputs = [output for _, _, output in layers.values()]
    slopes = torch.autograd.grad(scalar.sum(), outputs, retain_graph=True, allow_unused=True)
    found = torch.autograd.grad((scalar * check).sum(), list(leaves.values()), retain_graph=True, allow_unused=True)
    truth = dict(zip(leaves, found, strict=True))
    wrong = set()
    for (name, (layer, a, _)), g in zip(layers.items(), slopes, strict=True):
        if g is None:
            continue
        g = positions(layer, g, rows)
        g = g * check[:, None, None]
        for kind, rule in (("weight", torch.einsum("nop,nip->oi", g, a)), ("bias", g.sum((0, -1)))):
            full = f"{name}.{kind}"
            expected = truth.get(full)
            if full in leaves and (expected is None or not agree(rule.reshape(expected.shape), expected)):
                wrong.add(full)
    return wrong


def _one_by_one(
    run: Callable[[Params, Batch], Scalars],
    params: Params,
    others: Params,
    batch: Batch,
    total: Params,
    names: set[str],
    mapper: Mapper,
) -> None:
    """Adds the named parameters by `vmap(grad)` over the examples."""
    chosen = {name: params[name].detach() for name in sorted(names)}
    fixed = {**others, **{name: p.detach() for name, p in params.items() if name not in names}}
    single: Any = tree_map(lambda t: t.unsqueeze(1), batch)

    def scalars(values: Params, part: Batch, which: int) -> tuple[Tensor, Tensor]:
        scalar, weight = run({**fixed, **values}, part)[which]
        weight = torch.ones_like(scalar) if weight is None else weight
        return scalar.sum(), weight.detach().sum()

    with torch.no_grad():
        count = len(run({**fixed, **chosen}, batch))
    rows = rows_of(batch)
    size = sum(p.numel() for p in chosen.values())
    chunk = max(1, min(rows, 2**26 // max(size, 1)))
    for which in range(count):
        for start in range(0, rows, chunk):
            part = tree_map(lambda t: t[start : start + chunk], single)  # noqa: B023

            def one(row: Batch, which: int = which) -> tuple[Params, Tensor]:
                return grad(lambda v: scalars(v, row, which), has_aux=True)(chosen)

            gradients, weight = mapper(one, (0,), part)
            counted: Any = _weighted(weight, tree_map(lambda t: t.squeeze(1), part))
            for name, g in gradients.items():
                total[name] += torch.tensordot(counted.to(g.dtype), g.square(), dims=1)
