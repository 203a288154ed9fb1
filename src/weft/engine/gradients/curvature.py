"""Curvature beyond the diagonal, of any objective: Kronecker factors by layer, and products with vectors.

For scalars s_ik of example i with weights w_ik (see `weft.engine.gradients.squares`) the matrix meant is

    F = sum_ik w_ik (grad s_ik) (grad s_ik)^T,

the Fisher information where s_ik = log p(k | x_i) and w_ik = p(k | x_i).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap

from weft.core.source import Batch
from weft.core.trees import Params, tree_map
from weft.engine.distributed import largest
from weft.engine.gradients.squares import Passes, Readout, Tapped, squares, weighted

__all__ = ["factors", "products"]


def factors(passes: Passes, readout: Readout) -> tuple[dict[str, dict[str, Tensor]], Params, float]:
    """For each layer `inputs` A and `outputs` G with F ~ A x G, and F's diagonal for what no layer holds.

    A is the mean over examples of the inputs' products a a^T, summed over positions, with a 1 appended to a where
    the layer has a bias; G is the sum over examples of the output gradients' products, a mean over positions.
    """
    sums: dict[str, dict[str, Tensor]] = {}
    tapped = Tapped(passes, readout)

    def visit(batch: Batch) -> None:
        layers, gradients = tapped(batch)
        own = batch.get("weight")
        kept = [name for name in layers if not tapped.ever & passes.params.keys() & _parameters(name)]
        for name in kept:
            a = layers[name]
            if f"{name}.bias" in passes.params:
                a = torch.cat([a, torch.ones_like(a[:, :1])], dim=1)
            held = a if own is None else a * own.to(a.dtype)[:, None, None]
            _add(sums, name, "inputs", torch.tensordot(held, a, dims=([0, 2], [0, 2])))
        for name, g, weight in gradients:
            if name in kept:
                held = g if weight is None else g * weight.to(g.dtype)[:, None, None]
                _add(sums, name, "outputs", torch.tensordot(held, g, dims=([0, 2], [0, 2])) / g.shape[-1])

    def settle() -> None:
        """A layer without a rule in one batch has no factors of the task, on any process."""
        flags = torch.tensor([name in tapped.ever for name in passes.params], device=passes.key.device)
        found = largest(flags, "at the end of a task").tolist()
        tapped.ever = {name for name, ever in zip(passes.params, found, strict=True) if ever}
        for name in [name for name in sums if tapped.ever & _parameters(name)]:
            del sums[name]
        for name, layer in sums.items():
            if "outputs" not in layer:  # it has no part in the scalars, as a critic in what a policy tells
                weight = passes.params[f"{name}.weight"]
                layer["outputs"] = torch.zeros(len(weight), len(weight), dtype=weight.dtype, device=weight.device)

    sums, examples = passes.over(sums, visit, settle)
    for layer in sums.values():
        layer["inputs"] /= examples
    rest = set(passes.params).difference(*map(_parameters, sums))
    if not rest:
        return sums, {}, examples
    diagonal, _ = squares(passes, readout)
    return sums, {name: diagonal[name] for name in sorted(rest)}, examples


def _parameters(layer: str) -> set[str]:
    return {f"{layer}.weight", f"{layer}.bias"}


def _add(sums: dict[str, dict[str, Tensor]], name: str, kind: str, value: Tensor) -> None:
    layer = sums.setdefault(name, {})
    layer[kind] = layer[kind] + value if kind in layer else value


def products(passes: Passes, readout: Readout, vectors: Params) -> tuple[Params, float]:
    """F v for each vector v on the leading axis, F = J^T W J, without forming F; and the examples' number.

    Args:
        passes: over the examples.
        readout: which scalars, and the weight of each product.
        vectors: as parameters, with one more axis.
    """
    total = tree_map(torch.zeros_like, vectors)
    count = len(next(iter(vectors.values())))

    def visit(batch: Batch) -> None:
        def scalars(values: Params) -> tuple[Tensor, Tensor]:
            read = passes.run(readout, values, batch)
            weights = [weighted(None if w is None else w.detach(), batch) for _, w in read]
            ones = torch.ones_like(read[0][0])
            return torch.stack([s for s, _ in read]), torch.stack([ones if w is None else w for w in weights])

        values = {name: p.detach() for name, p in passes.params.items()}
        pulled: Any = vjp(scalars, values, has_aux=True)  # its annotation says two, without the third
        first, back, weights = pulled

        def product(v: Params) -> Params:
            # J^T is linear, so its own transpose, J, is its derivative's: J v without forward differentiation.
            along = vjp(lambda u: vjp(scalars, values, has_aux=True)[1](u)[0], torch.zeros_like(first))[1](v)[0]
            return back(weights * along)[0]

        size = weights.numel() * weights.element_size() * 64
        chunk = max(1, min(count, passes.memory // 4 // max(size, 1)))
        for start in range(0, count, chunk):
            part = {name: v[start : start + chunk] for name, v in vectors.items()}
            for name, p in vmap(product)(part).items():
                total[name][start : start + chunk] += p

    return passes.over(total, visit)
