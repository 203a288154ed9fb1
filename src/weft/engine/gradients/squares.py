"""Sums over examples of squared single-example gradients, exactly, without forming the gradients.

For a linear layer with input a and output gradient g, the gradient of example i is g_i a_i^T, so that

    sum_i w_i (g_i a_i^T)^2 = (w g^2)^T (a^2)

costs one matrix product. Layers with further axes (sequences, convolutions) sum over positions first,
by one batched product. Whatever is not such a layer (norms, embeddings, parameters used on their own)
is done by `vmap(grad)`. Each rule is checked against autograd on every batch, on a sum of the examples'
gradients with random coefficients: a layer called twice, a weight that is also used elsewhere, or rows
that are not in the batch's order do not pass and go the general way, in the batches where it is so.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad

from weft.core.objective import Objective, Output
from weft.core.random import key_of, keyed, unit
from weft.core.source import Batch, rows_of
from weft.core.trees import AnyTree, Params, tree_map
from weft.engine.distributed import agree as same
from weft.engine.distributed import share, world
from weft.engine.distributed import total as over_ranks
from weft.engine.gradients.layers import Taps, agree, patches, positions
from weft.engine.gradients.loss import differentiate
from weft.engine.holding import holding
from weft.engine.memory import rows_at_a_time
from weft.engine.serving import learn, serving
from weft.engine.vectorize import Mapper

__all__ = ["MOST", "Passes", "Readout", "Tapped", "rows_to_square", "squares", "weighted"]

MOST = 1024  # rows at a time
Call = tuple[nn.Module, Tensor, Tensor]
"""A layer, its input and its output."""
Scalars = list[tuple[Tensor, Tensor | None]]
Readout = Callable[[Output, Batch], Iterable[tuple[Tensor, Tensor | None]]]
"""From an output to scalars of shape (n,) with weights of shape (n,) or None: what is differentiated,
example by example, and how each square counts."""


class Passes:
    """Passes over a task's examples at fixed parameters, in evaluation mode, where examples do not mix.

    Args:
        objective: the built objective.
        params: the parameters to differentiate by; `others` are held fixed.
        batches: gives the batches of rows, numbered, once more.
        key: keys whatever the forward draws.
        player: whose loss, in a game.
        memory: bytes that derivatives in flight may take, roughly.
    """

    def __init__(
        self,
        objective: Objective,
        params: Params,
        others: Params,
        buffers: Params,
        batches: Callable[[], Iterable[Batch]],
        key: Tensor,
        player: str = "",
        memory: int = 2**30,
    ) -> None:
        self.objective, self.params, self.others, self.buffers = objective, params, others, buffers
        self.batches, self.key, self.player, self.memory = batches, key, player, memory

    def run(self, readout: Readout, values: Params, batch: Batch) -> Scalars:
        """The readout's scalars at these parameters."""
        served = self._served(batch)
        with (
            holding(self.objective, {**self.others, **values}, dict(self.buffers)),
            keyed(self.key, batch["row"]),
            serving(*served),
        ):
            return list(readout(self.objective(*served[2]), batch))

    def _served(self, batch: Batch) -> tuple[Any, ...]:
        """What the serving of its draws has to know."""
        args = (batch, self.player) if self.player else (batch,)
        return self.objective, self.objective, args, batch["row"], self.player

    def over(
        self, sums: AnyTree, visit: Callable[[Batch], None], settle: Callable[[], None] | None = None
    ) -> tuple[AnyTree, float]:
        """Visits every batch, which adds to `sums`, a tree of tensors; these and the sum of the examples' weights.

        `settle` is called when all are visited, before sums are made over the processes.
        """
        if "mass" in self.objective.provides:
            raise ValueError(
                f"expected rows that count alike for sums over the examples' gradients (Fisher information), got "
                f"{type(self.objective).__name__}, whose rows have a mass of their own; take a strategy without them"
            )
        examples = 0.0
        training = self.objective.training
        self.objective.eval()
        try:
            for batch in (share(whole, 0) for whole in self.batches()):
                examples += float(batch["weight"].sum(dtype=torch.float64)) if "weight" in batch else rows_of(batch)
                with holding(self.objective, {**self.others, **self.params}, dict(self.buffers)):
                    learn(*self._served(batch))  # before the visit counts the calls of layers
                visit(batch)
        finally:
            self.objective.train(training)
        if settle is not None:
            settle()
        if world()[1] == 1:
            return sums, examples
        count = torch.tensor(examples, dtype=torch.float64, device=self.key.device)
        whole: dict[str, Any] = over_ranks({"sums": sums, "examples": count}, "at the end of a task")
        return whole["sums"], float(whole["examples"])


def squares(passes: Passes, readout: Readout, *, absolute: bool = False) -> tuple[Params, float]:
    """Sums w_i (d s_i / d params)^2 over the examples, for every scalar s of `readout`.

    Args:
        passes: over the examples.
        readout: which scalars, and the weight of each square.
        absolute: absolute values in place of squares.

    Returns:
        The sums by parameter, and the examples' number (the sum of their weights).
    """
    total = {name: torch.zeros_like(p) for name, p in passes.params.items()}
    power = torch.abs if absolute else torch.square
    tapped = Tapped(passes, readout)
    mapper = Mapper()

    def visit(batch: Batch) -> None:
        layers, gradients = tapped(batch)

        def add(name: str, kind: str, square: Tensor) -> None:
            full = f"{name}.{kind}"
            if full in total and full not in tapped.rest:
                total[full] += square.reshape(total[full].shape)

        # Where rows have one position: the sum over the scalars of w g^2, so that one product is enough for all.
        energy: Params = {}
        for name, g, weight in gradients:
            a = layers[name]
            if a.shape[-1] == 1:
                square = _times(power(g.squeeze(-1)), weight)
                energy[name] = energy[name].add_(square) if name in energy else square
            else:
                add(name, "weight", _times(power(g @ a.transpose(1, 2)), weight).sum(0))
                add(name, "bias", _times(power(g.sum(-1)), weight).sum(0))
        for name, square in energy.items():
            add(name, "weight", square.T @ power(layers[name].squeeze(-1)))
            add(name, "bias", square.sum(0))
        if tapped.rest:
            _one_by_one(passes, readout, batch, total, tapped.rest, mapper, power)

    return passes.over(total, visit)


def rows_to_square(
    make: Callable[[Callable[[], Iterable[Batch]]], Passes], kind: Hashable, few: Callable[[], Batch], have: int
) -> int:
    """How many rows fit the memory of passes at a time, in that which takes most: sums of squares.

    Args:
        make: gives passes over batches.
        kind: what a row is like.
        few: gives 16 rows, numbered, or as many as there are.
        have: how many there are.
    """
    passes = make(tuple)

    def prepare() -> Callable[[int], object]:
        some = few()

        def compute(n: int) -> object:
            part = tree_map(lambda t: t[:n].clone(), some)
            return part, squares(make(lambda: [part]), lambda output, _: [(output.losses, None)])

        return compute

    rows = rows_at_a_time(passes.objective, ("squares", passes.player, kind), prepare, have, passes.memory, MOST)
    return same(rows, "at the end of a task")  # each process takes its share of the same batches


def weighted(weight: Tensor | None, batch: Batch) -> Tensor | None:
    """A scalar's weights, times the examples' own."""
    own = batch.get("weight")
    if weight is None or own is None:
        return own if weight is None else weight
    return weight * own


class Tapped:
    """Batches run once with taps on the layers that have a rule: their inputs, and every scalar's gradients.

    Attributes:
        rest: the parameters without a rule that holds in the last batch.
        ever: those without one in some batch.
    """

    def __init__(self, passes: Passes, readout: Readout) -> None:
        self.passes, self.readout = passes, readout
        self.rest: set[str] = set()
        self.ever: set[str] = set()

    def __call__(self, batch: Batch) -> tuple[Params, Iterator[tuple[str, Tensor, Tensor | None]]]:
        """The layers' inputs (n, inputs, positions), and (layer, output gradient, weight) for each of the scalars."""
        passes, rows = self.passes, rows_of(batch)
        leaves = {name: p.detach().requires_grad_() for name, p in passes.params.items()}
        seen: dict[str, list[Call]] = {}

        def keep(name: str, layer: nn.Module, a: Tensor, output: Tensor) -> None:
            seen.setdefault(name, []).append((layer, a.detach(), output))

        with torch.enable_grad(), Taps(passes.objective, set(passes.params), keep):
            scalars = passes.run(self.readout, leaves, batch)
        layers: dict[str, Call] = {}
        for name, calls in seen.items():
            layer, a, output = calls[0]
            parts = patches(layer, a, rows) if len(calls) == 1 and output.requires_grad else None
            if parts is not None:
                layers[name] = (layer, parts, output)
        self.rest = set(passes.params) - {f"{name}.{kind}" for name in layers for kind in ("weight", "bias")}
        self.rest |= _untrue([scalar for scalar, _ in scalars], layers, leaves, rows)
        self.ever |= self.rest
        return {name: a for name, (_, a, _) in layers.items()}, self._gradients(batch, scalars, layers)

    def _gradients(
        self, batch: Batch, scalars: Scalars, layers: dict[str, Call]
    ) -> Iterator[tuple[str, Tensor, Tensor | None]]:
        outputs, rows = [output for _, _, output in layers.values()], rows_of(batch)
        for scalar, weight in scalars if outputs else ():
            slopes = torch.autograd.grad(scalar.sum(), outputs, retain_graph=True, allow_unused=True)
            weight = weighted(None if weight is None else weight.detach(), batch)
            for (name, (layer, _, _)), g in zip(layers.items(), slopes, strict=True):
                if g is not None:
                    yield name, positions(layer, g, rows), weight


def _times(squares: Tensor, weight: Tensor | None) -> Tensor:
    """Every row's squares, times its weight."""
    return squares if weight is None else squares * weight.reshape(-1, *(1,) * (squares.dim() - 1))


def _untrue(scalars: list[Tensor], layers: dict[str, Call], leaves: Params, rows: int) -> set[str]:
    """The parameters whose rule does not give autograd's gradient: used elsewhere too, or rows in another order.

    Of several scalars it is that of a sum with random coefficients.
    """
    outputs = [output for _, _, output in layers.values()]
    if not outputs:
        return set()
    first = scalars[0]
    mix = 0.5 + unit(key_of(1, device=first.device), (len(scalars),), first.dtype)
    scalar = first if len(scalars) == 1 else torch.stack([c * s for c, s in zip(mix, scalars, strict=True)]).sum(0)
    check = unit(key_of(0, device=scalar.device), (rows,), scalar.dtype)
    slopes = torch.autograd.grad(scalar.sum(), outputs, retain_graph=True, allow_unused=True)
    checked = torch.autograd.grad((scalar * check).sum(), list(leaves.values()), retain_graph=True, allow_unused=True)
    truth = {
        name: torch.zeros_like(leaf) if g is None else g
        for (name, leaf), g in zip(leaves.items(), checked, strict=True)
    }
    wrong = set()
    for (name, (layer, a, _)), g in zip(layers.items(), slopes, strict=True):
        rules: Params = {}
        if g is not None:  # else the scalar does not depend on the layer's output, and neither on its parameters
            g = positions(layer, g, rows) * check[:, None, None]
            rules = {"weight": torch.einsum("nop,nip->oi", g, a), "bias": g.sum((0, -1))}
        for kind in ("weight", "bias"):
            expected = truth.get(f"{name}.{kind}")
            if expected is None:
                continue
            rule = rules[kind].reshape(expected.shape) if rules else torch.zeros_like(expected)
            if not agree(rule, expected):
                wrong.add(f"{name}.{kind}")
    return wrong


def _one_by_one(
    passes: Passes,
    readout: Readout,
    batch: Batch,
    total: Params,
    names: set[str],
    mapper: Mapper,
    power: Callable[[Tensor], Tensor],
) -> None:
    """Adds the named parameters by `vmap(grad)` over the examples."""
    chosen = {name: passes.params[name].detach() for name in sorted(names)}
    fixed = {name: p.detach() for name, p in passes.params.items() if name not in names}
    single = tree_map(lambda t: t.unsqueeze(1), batch)

    def scalars(values: Params, part: Batch, which: int) -> tuple[Tensor, Tensor]:
        scalar, weight = passes.run(readout, {**fixed, **values}, part)[which]
        weight = torch.ones_like(scalar) if weight is None else weight
        return scalar.sum(), weight.detach().sum()

    with torch.enable_grad():  # a readout may ask what depends on the parameters
        leaves = {name: p.clone().requires_grad_() for name, p in chosen.items()}
        count = len(passes.run(readout, {**fixed, **leaves}, batch))
    rows = rows_of(batch)
    size = sum(p.numel() * p.element_size() for p in chosen.values())
    chunk = max(1, min(rows, passes.memory // max(4 * size, 1)))  # a gradient, its square, and what is beside them
    for which in range(count):
        for start in range(0, rows, chunk):
            part = tree_map(itemgetter(slice(start, start + chunk)), single)

            def one(row: Batch, which: int = which) -> tuple[Params, Tensor]:
                return grad(lambda v: scalars(v, row, which), has_aux=True)(chosen)

            def alone(row: Batch, which: int = which) -> tuple[Params, Tensor]:
                gradient, (_, weight) = differentiate(lambda v: scalars(v, row, which), chosen, transform=False)
                return gradient, weight

            gradients, weight = mapper(one, (0,), part, alone=alone)
            own = part.get("weight")
            counted = weight if own is None else weight * own.squeeze(1)
            for name, g in gradients.items():
                total[name] += torch.tensordot(counted.to(g.dtype), power(g), dims=1)
