"""What single layers tell of the gradients of rows, without a backward for each of them.

For a linear layer with input a and output gradient g, row i's gradient of the weight is g_i a_i^T. So one
forward and one backward of all rows together, with the layers' inputs and output gradients kept, hold the
gradient of every group e as well: sum_{i in e} g_i a_i^T, a batched matrix product of the same size as the
one that an ordinary backward makes. A convolution is a linear layer over patches.

`GroupGradients` does this; `weft.engine.gradients.squares` takes sums of squares by the same rule.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.core.objective import Objective, reduce
from weft.core.source import Batch, flatten_groups, rows_of
from weft.core.strategy import Loss
from weft.core.trees import Params, tree_map
from weft.engine.gradients.loss import differentiate

__all__ = ["Changed", "GroupGradients", "Taps", "agree", "patches", "positions"]

_FORWARDS = (nn.Linear.forward, nn.Conv1d.forward, nn.Conv2d.forward)  # a subclass may have its own


class Taps:
    """Forward hooks on every layer for which there is a rule: `keep(name, layer, input, output)` sees each call.

    What `keep` returns, if anything, takes the place of the output.
    """

    def __init__(self, objective: Objective, names: set[str], keep: Callable[..., Tensor | None]) -> None:
        self.layers = {
            name: layer
            for name, layer in objective.named_modules()
            if type(layer).forward in _FORWARDS and f"{name}.weight" in names
        }
        self.keep = keep

    def __enter__(self) -> None:
        self.hooks = [layer.register_forward_hook(self._hook(name)) for name, layer in self.layers.items()]

    def _hook(self, name: str) -> Callable[..., Tensor | None]:
        def hook(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            return self.keep(name, layer, args[0], output)

        return hook

    def __exit__(self, *exc: object) -> None:
        for hook in self.hooks:
            hook.remove()


def patches(layer: nn.Module, a: Tensor, rows: int) -> Tensor | None:
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
        return F.unfold(a, padding=pad, **sizes)
    return None


def _by_row(t: Tensor, rows: int) -> Tensor | None:
    """A linear layer's input or output as (n, features, positions); leading rows x positions are parted."""
    if t.shape[0] != rows:
        if t.shape[0] % rows:
            return None
        t = t.unflatten(0, (rows, -1))
    return t.unsqueeze(-1) if t.dim() == 2 else t.flatten(1, -2).transpose(1, 2)


def positions(layer: nn.Module, g: Tensor, rows: int) -> Tensor:
    """An output's gradient as (n, outputs, positions)."""
    return _by_row(g, rows) if isinstance(layer, nn.Linear) else g.flatten(2)  # type: ignore[return-value]


def agree(rule: Tensor, truth: Tensor) -> bool:
    """Whether two ways to the same gradient give the same, up to rounding; what has diverged tells nothing."""
    known = torch.isfinite(truth)
    rule, truth = torch.where(known, rule, 0.0), torch.where(known, truth, 0.0)
    scale = truth.abs().max().clamp_min(torch.finfo(truth.dtype).tiny)
    return bool((rule - truth).abs().max() <= 1e-3 * scale)


class Changed(RuntimeError):  # noqa: N818 (what happened, not what went wrong)
    """A batch runs other layers than the first, or one of them twice: their rule does not hold for it."""


class GroupGradients:
    """Every group's gradient from one forward and one backward of all rows.

    It holds where all parameters belong to layers with a rule, each called once, and rows do not mix.
    Whoever uses it asks `holds` on a first batch; a later one that runs other layers raises `Changed`.

    Args:
        objective: the built objective.
        names: the parameters to differentiate by.
    """

    def __init__(self, objective: Objective, names: set[str]) -> None:
        self.objective, self.names = objective, names
        self.shapes: dict[tuple[tuple[str, torch.Size], ...], dict[str, tuple[int, ...]] | None] = {}
        self.bytes = 0

    def holds(self, loss: Loss, params: Params, batch: Batch) -> bool:
        """Whether there is a rule for every parameter, and it gives what a backward for each group gives."""
        if self._shapes(loss, params, flatten_groups(batch)) is None:
            return False
        by_rule, _ = self(loss, params, batch, transform=False)

        def mean(p: Params, part: Batch) -> tuple[Tensor, Params]:
            output = loss(p, part)
            return reduce(output.losses, output.weight), {}

        for e in range(rows_of(batch)):
            part = tree_map(itemgetter(e), batch)
            truth, _ = differentiate(partial(mean, part=part), params, transform=False)
            if not all(agree(by_rule[name][e], g) for name, g in truth.items()):
                return False
        return True

    def _shapes(self, loss: Loss, params: Params, flat: Batch) -> dict[str, tuple[int, ...]] | None:
        """The shapes of the layers' outputs, looked up once for each kind of batch."""
        kind = tuple((name, t.shape) for name, t in flat.items())
        if kind in self.shapes:
            return self.shapes[kind]
        seen: dict[str, list[tuple[int, ...]]] = {}
        left, rows = set(self.names), rows_of(flat)

        def look(name: str, layer: nn.Module, a: Tensor, output: Tensor) -> None:
            seen.setdefault(name, []).append(tuple(output.shape))
            inputs = patches(layer, a, rows)
            if inputs is not None:
                self.bytes = max(self.bytes, inputs.numel() // rows * inputs.element_size())
                left.discard(f"{name}.weight")
                left.discard(f"{name}.bias")

        with torch.no_grad(), Taps(self.objective, self.names, look):
            loss(params, flat)
        once = not left and all(len(calls) == 1 for calls in seen.values())
        self.shapes[kind] = {name: calls[0] for name, calls in seen.items()} if once else None
        return self.shapes[kind]

    def __call__(self, loss: Loss, params: Params, batch: Batch, *, transform: bool) -> tuple[Params, Tensor]:
        """The groups' gradients and mean losses, on a leading axis; for `transform` see `differentiate`."""
        flat = flatten_groups(batch)
        groups, rows = rows_of(batch), rows_of(flat)
        shapes = self._shapes(loss, params, flat)
        if shapes is None:
            raise Changed("expected layers with a rule, each called once, as in the first batch; got others")
        like = next(iter(params.values()))
        # Nothing is added to a layer's output; the gradient by that nothing is the output's gradient.
        nothing = {name: like.new_zeros(shape) for name, shape in shapes.items()}
        layers: dict[str, nn.Module] = {}

        def total(added: Params) -> tuple[Tensor, dict[str, Params]]:
            inputs: Params = {}

            def tap(name: str, layer: nn.Module, a: Tensor, output: Tensor) -> Tensor:
                if name in inputs or output.shape != shapes[name]:
                    raise Changed(f"expected {name!r} to be called once, as in the first batch; got another call")
                inputs[name], layers[name] = a, layer
                return output + added[name]

            with Taps(self.objective, self.names, tap):
                output = loss(params, flat)
            if missing := shapes.keys() - inputs.keys():
                raise Changed(f"expected {sorted(missing)} to be called, as in the first batch; got no call")
            weight = None if output.weight is None else output.weight.unflatten(0, (groups, -1))
            means = reduce(output.losses.unflatten(0, (groups, -1)), weight)
            return means.sum(), {"losses": {"mean": means}, "inputs": inputs}

        slopes, (_, kept) = differentiate(total, nothing, transform)
        gradients: Params = {}
        for name, g in slopes.items():
            layer = layers[name]
            a, g = patches(layer, kept["inputs"][name], rows), positions(layer, g, rows)
            a, g = _end_to_end(a, groups), _end_to_end(g, groups)  # type: ignore[arg-type]
            gradients[f"{name}.weight"] = (g @ a.transpose(1, 2)).reshape(groups, *params[f"{name}.weight"].shape)
            gradients[f"{name}.bias"] = g.sum(-1)
        return {name: gradients[name] for name in params}, kept["losses"]["mean"]


def _end_to_end(t: Tensor, groups: int) -> Tensor:
    """(n, features, positions) as (groups, features, rows x positions)."""
    t = t.unflatten(0, (groups, -1))
    return t.squeeze(-1).transpose(1, 2) if t.shape[-1] == 1 else t.transpose(1, 2).flatten(2)
