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
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad

from weft.core.objective import Objective, Output
from weft.core.random import key_of, keyed, unit
from weft.core.source import Batch, rows_of, tree_map
from weft.core.strategy import Params
from weft.engine.ambient import ambient
from weft.engine.distributed import share, world
from weft.engine.distributed import total as over_ranks
from weft.engine.vectorize import Mapper

__all__ = ["Readout", "squares"]

Scalars = list[tuple[Tensor, Tensor | None]]
Readout = Callable[[Output, Batch], Iterable[tuple[Tensor, Tensor | None]]]
"""From an output to scalars of shape (n,) with weights of shape (n,) or None: what is differentiated,
example by example, and how each square counts."""


def _patches(layer: nn.Module, a: Tensor, rows: int) -> Tensor | None:
    """A layer's input as (n, inputs, positions), or None where no rule is written for it."""
    if isinstance(layer, nn.Linear):
        return _by_row(a, rows)
    if (
        a.shape[0] == rows
        and isinstance(layer, nn.Conv1d | nn.Conv2d)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
    ):
        if isinstance(layer.padding, str):
            return None
        flat = isinstance(layer, nn.Conv1d)
        a = a.unsqueeze(2) if flat else a
        pad = (0, *layer.padding) if flat else layer.padding
        sizes = {
            "kernel_size": (1, *layer.kernel_size) if flat else layer.kernel_size,
            "dilation": (1, *layer.dilation) if flat else layer.dilation,
            "stride": (1, *layer.stride) if flat else layer.stride,
        }
        return F.unfold(a, padding=pad, **sizes)  # type: ignore[arg-type]
    return None


def _by_row(t: Tensor, rows: int) -> Tensor | None:
    """A linear layer's input or output as (n, features, positions); leading rows x positions are parted."""
    if t.shape[0] != rows:
        if t.shape[0] % rows:
            return None
        t = t.unflatten(0, (rows, -1))
    return t.unsqueeze(-1) if t.dim() == 2 else t.flatten(1, -2).transpose(1, 2)


def _positions(layer: nn.Module, g: Tensor, rows: int) -> Tensor:
    """An output's gradient as (n, outputs, positions)."""
    return _by_row(g, rows) if isinstance(layer, nn.Linear) else g.flatten(2)  # type: ignore[return-value]


def _weight_rule(a: Tensor, g: Tensor, weight: Tensor | None, check: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Of a weight, both (outputs, inputs): the sum of weighted squares, and the gradients summed by `check`."""
    if a.shape[-1] == 1:
        a, g = a.squeeze(-1), g.squeeze(-1)
        square = g.square() if weight is None else g.square() * weight[:, None]
        return square.T @ a.square(), None if check is None else (g * check[:, None]).T @ a
    each = g @ a.transpose(1, 2)
    square = each.square() if weight is None else each.square() * weight[:, None, None]
    return square.sum(0), None if check is None else torch.tensordot(check, each, dims=1)


def _bias_rule(g: Tensor, weight: Tensor | None, check: Tensor | None) -> tuple[Tensor, Tensor | None]:
    each = g.sum(-1)
    square = each.square() if weight is None else each.square() * weight[:, None]
    return square.sum(0), None if check is None else check @ each


class _Taps:
    """Forward hooks that keep the input and output of every layer for which there is a rule."""

    def __init__(self, objective: Objective, names: set[str]) -> None:
        self.seen: dict[str, list[tuple[nn.Module, Tensor, Tensor]]] = {}
        self.hooks = []
        for name, layer in objective.named_modules():
            if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d) and f"{name}.weight" in names:
                self.hooks.append(layer.register_forward_hook(self._keep(name)))

    def _keep(self, name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            self.seen.setdefault(name, []).append((layer, args[0].detach(), output))

        return hook

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()


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
        with keyed(key, batch["row"]), ambient():
            output = functional_call(objective, (values, buffers), (batch, player) if player else (batch,))
            return list(readout(output, batch))

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
    taps = _Taps(objective, set(params) - (general or set()))
    try:
        with torch.enable_grad():
            scalars = run({**others, **leaves}, batch)
    finally:
        taps.close()
    rows = rows_of(batch)
    layers = {name: calls[0] for name, calls in taps.seen.items() if len(calls) == 1 and calls[0][2].requires_grad}
    layers = {name: call for name, call in layers.items() if _patches(call[0], call[1], rows) is not None}
    left = set(params) - {f"{name}.{kind}" for name in layers for kind in ("weight", "bias")}
    check = unit(key_of(0, device=batch["row"].device), (rows,), scalars[0][0].dtype) if general is None else None
    for scalar, weight in scalars:
        outputs = [call[2] for call in layers.values()]
        found = torch.autograd.grad(scalar.sum(), outputs, retain_graph=True, allow_unused=True)
        truth: dict[str, Tensor | None] = {}
        if check is not None:
            mixed = torch.autograd.grad(
                (scalar * check).sum(), list(leaves.values()), retain_graph=True, allow_unused=True
            )
            truth = dict(zip(leaves, mixed, strict=True))
        weight = _weighted(None if weight is None else weight.detach(), batch)
        for (name, (layer, a, _)), g in zip(layers.items(), found, strict=True):
            if g is None:
                continue
            patches, positions = _patches(layer, a, rows), _positions(layer, g, rows)
            rules = {"weight": _weight_rule(patches, positions, weight, check)}  # type: ignore[arg-type]
            if layer.bias is not None:
                rules["bias"] = _bias_rule(positions, weight, check)
            for kind, (square, mix) in rules.items():
                full = f"{name}.{kind}"
                if full not in params or full in left:
                    continue
                if mix is not None:
                    expected = truth[full]
                    if expected is None or not _agree(mix.reshape(expected.shape), expected):
                        left.add(full)  # used elsewhere too: the rule sees only a part of its gradient
                        total[full] = torch.zeros_like(params[full])
                        continue
                total[full] += square.reshape(total[full].shape)
        check = None  # one scalar shows whether the rules hold
    return left


def _agree(rule: Tensor, truth: Tensor) -> bool:
    scale = truth.abs().max().clamp_min(torch.finfo(truth.dtype).tiny)
    return bool((rule - truth).abs().max() <= 1e-3 * scale)


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
