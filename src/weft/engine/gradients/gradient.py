"""Gradients of one player's loss: of the mean, per group, per example; chunked under a memory bound.

Everything here is a pure function of tensors, so that the step around it can be mapped over replicas;
all but `Gradient.pool`, which comes between two such functions where several processes share a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value

from weft.core.objective import Objective, Output, reduce
from weft.core.random import keyed
from weft.core.source import Batch, flatten_groups, rows_of
from weft.core.strategy import Loss, Strategy, StrategyState
from weft.core.trees import Params, tree_map
from weft.engine.ambient import serving
from weft.engine.distributed import gather, largest, mean, refuse_moving
from weft.engine.gradients.layers import GroupGradients, agree
from weft.engine.holding import holding
from weft.engine.vectorize import Mapper, in_chunks

__all__ = ["Gradient", "base_loss", "saved_bytes"]

Value = tuple[Tensor, Any]
Parts = dict[str, Any]
"""What a share of a batch gives: the `gradient` and `loss` of its mean or of each group, their `mass`
(how much they count), the `buffers` after the forward, the strategy's `state` where it observes, and the gradient
of the rows it recalls (`recalled`)."""


def base_loss(objective: Objective, others: Params, buffers: Params, key: Tensor, player: str) -> Loss:
    """The objective as a pure function of (params, batch): keyed, with its buffers carried in `Output`."""

    def loss(params: Params, batch: Batch) -> Output:
        fresh = {name: value.clone() for name, value in buffers.items()}
        args, held = ((batch, player) if player else (batch,)), {**others, **params}
        with keyed(key, batch.get("row")), serving(objective), holding(objective, held, fresh):
            output = objective(*args)
        output.buffers = fresh
        output.weight = batch.get("weight")
        if hasattr(objective, "distribution"):
            # of a copy: an output that holds itself would keep the whole graph until Python looks for cycles
            output.distribution = partial(_told, objective, held, fresh, copy(output))
        return output

    return loss


def _told(objective: Objective, params: Params, buffers: Params, output: Output) -> Any:
    with holding(objective, params, dict(buffers)):
        return objective.distribution(output)  # type: ignore[operator]


def saved_bytes(loss: Loss, params: Params, batch: Batch) -> int:
    """Bytes that autograd keeps for the backward of one loss: the activations' share of the memory."""
    total = 0

    def pack(t: Tensor) -> Tensor:
        nonlocal total
        total += t.numel() * t.element_size()
        return t

    leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss(leaves, batch)
    return total


def _merge_buffers(buffers: Params, shares: Tensor) -> Params:
    """Groups' buffers become one: statistics are averaged, counters take their largest value."""
    return {
        name: torch.tensordot(shares.to(b.dtype), b, dims=1) if b.is_floating_point() else b.amax(0)
        for name, b in buffers.items()
    }


class Gradient:
    """Computes the gradient that a strategy makes of a player's loss.

    Args:
        objective: the built objective.
        player: whose loss, or "" for the only player.
        grouped: whether batches carry groups on a leading axis.
        weighting: how groups count: by `example` (their share of the rows) or by `group` (equally).
        pieces: in how many parts the rows of an ungrouped batch are run through (accumulation).
        memory: bytes that a vectorized pass over groups or examples may take at a time.
        transform: whether a vmap over replicas is around it.
    """

    def __init__(
        self,
        objective: Objective,
        player: str,
        *,
        grouped: bool,
        weighting: str = "example",
        pieces: int = 1,
        memory: int = 2**30,
        transform: bool = False,
    ) -> None:
        self.objective, self.player, self.grouped = objective, player, grouped
        self.weighting, self.pieces, self.memory, self.transform = weighting, pieces, memory, transform
        self.mapper = Mapper()
        self.layers: GroupGradients | None = None
        self.ready = False
        self._bytes: int | None = None
        self._beside = 0
        self._settled = False

    def __call__(
        self,
        params: Params,
        others: Params,
        buffers: Params,
        batch: Batch,
        key: Tensor,
        strategy: Strategy,
        state: StrategyState,
    ) -> tuple[Params, Tensor, Params, StrategyState]:
        """The gradient, the mean loss, the buffers after the forward and the strategy's state."""
        parts = self._parts(params, others, buffers, batch, key, strategy, state, whole=True)
        return self.conclude(parts, params, key, strategy, state)

    def local(
        self,
        params: Params,
        others: Params,
        buffers: Params,
        batch: Batch,
        key: Tensor,
        strategy: Strategy,
        state: StrategyState,
    ) -> Parts:
        """What a share of the batch gives, before the strategy combines it."""
        parts = self._parts(params, others, buffers, batch, key, strategy, state, whole=False)
        if not isinstance(parts["mass"], Tensor):
            parts["mass"] = torch.full_like(parts["loss"], parts["mass"])
        return parts

    def axis(self, strategy: Strategy) -> int:
        """The axis of a batch that processes may share: rows, or whole groups where the loss needs them whole."""
        return 1 if self.grouped and not strategy.per_group else 0

    def pool(self, parts: Parts, buffers: Params, batch: Batch, strategy: Strategy, stacked: int, where: str) -> Parts:
        """All processes' parts made those of the whole batch.

        Args:
            parts: what the share of this process gives.
            buffers: those before the forward.
            batch: the whole batch.
            strategy: says what the parts are.
            stacked: leading axes of all tensors that stand for replicas: 0 or 1.
            where: for the message if a process is lost.
        """
        mass, after = parts["mass"], parts["buffers"]
        whole = mass.sum(-1) if mass.dim() > stacked else mass
        # Averaging the change keeps what does not change as it is, to the last bit.
        moved = {name: b - buffers[name] for name, b in after.items() if b.is_floating_point()}
        counted = {name: b for name, b in after.items() if not b.is_floating_point()}
        found = {name: parts[name] for name in ("gradient", "loss")}
        axis = stacked + self.axis(strategy)
        if strategy.needs == "example" or (strategy.needs == "group" and strategy.per_group):
            found["mass"] = mass
            groups = rows_of(batch, stacked) if axis > stacked else 1  # examples of all groups are end to end
            found = tree_map(lambda t: t.unflatten(stacked, (groups, -1)), found)
            found = gather(found, stacked + 1, rows_of(batch, axis), where)
            found = tree_map(lambda t: t.flatten(stacked, stacked + 1), found)
        else:
            found, found["mass"] = mean(found, mass, where)
        moved = mean(moved, whole, where)[0] if moved else {}
        counted = largest(counted, where) if counted else {}
        joined = {name: buffers[name] + moved[name] if name in moved else counted[name] for name in after}
        if after and not self._settled:
            refuse_moving(after, joined, whole, where)
            self._settled = True
        same = {"recalled": parts["recalled"]} if "recalled" in parts else {}  # every process recalls the same rows
        return {**found, "buffers": joined, **same}

    def conclude(
        self, parts: Parts, params: Params, key: Tensor, strategy: Strategy, state: StrategyState
    ) -> tuple[Params, Tensor, Params, StrategyState]:
        """From the parts of a whole batch to what a call gives: the groups combined, the penalty added."""
        losses = value = parts["loss"]
        state = parts.get("state", state)
        with keyed(key):
            if strategy.across or (strategy.needs == "mean" and not strategy.does("combine")):
                gradient = parts["gradient"]
            elif strategy.needs == "mean":  # the batch is one group
                whole = tree_map(lambda t: t.unsqueeze(0), {"gradient": parts["gradient"], "loss": losses})
                ones = torch.ones_like(whole["loss"])
                gradient, state = strategy.combine(whole["gradient"], whole["loss"], ones, state)
            else:
                weights = self._weights(parts["mass"])
                value = (weights * losses).sum()
                if "sums" in parts:
                    gradient, state = strategy.conclude(parts["sums"], losses, weights, state)
                else:
                    gradient, state = strategy.combine(parts["gradient"], losses, weights, state)
            if strategy.does("steer"):
                gradient, state = strategy.steer(gradient, parts.get("recalled"), state)
            if strategy.does("penalty"):
                extra = strategy.pull(params, state)
                if extra is None:
                    extra, _ = self._differentiate(lambda p: (strategy.penalty(p, state), {}), params)
                gradient = {name: g + extra[name] for name, g in gradient.items()}
        return gradient, value, parts["buffers"], state

    def _parts(
        self,
        params: Params,
        others: Params,
        buffers: Params,
        batch: Batch,
        key: Tensor,
        strategy: Strategy,
        state: StrategyState,
        *,
        whole: bool,
    ) -> Parts:
        """What the batch gives, and beside it the gradient on the rows that the strategy recalls."""
        parts = self._local(params, others, buffers, batch, key, strategy, state, whole=whole)
        if not strategy.does("recall"):
            return parts
        with keyed(key):
            rows = strategy.recall(batch, state)
            if rows is None:
                return parts
            loss = base_loss(self.objective, others, buffers, key, self.player)

            def scalar(p: Params) -> Value:
                output = loss(p, rows)
                return reduce(output.losses, output.weight), {}

            return {**parts, "recalled": self._differentiate(scalar, params)[0]}

    def _local(
        self,
        params: Params,
        others: Params,
        buffers: Params,
        batch: Batch,
        key: Tensor,
        strategy: Strategy,
        state: StrategyState,
        *,
        whole: bool,
    ) -> Parts:
        def wrapped(buffers: Params) -> Loss:
            return strategy.wrap(base_loss(self.objective, others, buffers, key, self.player), state)

        with keyed(key):
            if strategy.needs == "mean" and not strategy.per_group:
                return self._pooled(wrapped, params, buffers, batch)
            if strategy.across:
                dtype = next(iter(params.values())).dtype
                seen = partial(strategy.observe, state=state)
                return self._pooled(wrapped, params, buffers, self._side_by_side(batch, dtype), seen)
            batch = self._in_groups(batch, strategy)
            mass = _group_masses(batch, next(iter(params.values())).dtype)
            weights = self._weights(mass)
            each = self._each(wrapped)
            chunk = self._chunk(base_loss(self.objective, others, buffers, key, self.player), params, batch, strategy)
            loss = wrapped(buffers)
            if strategy.needs == "mean":
                parts = self._mean_of_groups(each, params, buffers, batch, weights, chunk)
                return {**parts, "mass": self._counted(mass).sum()}
            spread = _spread(buffers, len(weights))

            def one(p: Params, b: Params, part: Batch) -> tuple[Params, tuple[Tensor, Params]]:
                return grad_and_value(lambda q: each(q, b, part), has_aux=True)(p)

            def some(held: Params, part: Batch) -> tuple[Params, tuple[Tensor, Params]]:
                if self.layers is None:
                    return self.mapper(one, (None, 0, 0), params, held, part)
                gradients, losses = self.layers(loss, params, part, self._differentiate)
                return gradients, (losses, {})

            if chunk < len(weights) and strategy.does("summarize") and whole:
                parts = self._summed(some, spread, batch, weights, chunk, strategy)
                return {**parts, "mass": mass}
            gradients, (losses, after) = in_chunks(some, (spread, batch), len(weights), chunk)
            return {"gradient": gradients, "loss": losses, "mass": mass, "buffers": _merge_buffers(after, weights)}

    def _pooled(self, wrapped: Any, params: Params, buffers: Params, batch: Batch, observe: Any = None) -> Parts:
        """The gradient of the mean loss: one backward, or several over parts of the rows.

        With `observe` there is one part, and what that makes of its output is the strategy's `state`.
        """
        flat = flatten_groups(batch) if self.grouped else batch
        parts = _split(flat, self.pieces)
        total: Any = sum(_mass(part) for part in parts)
        least = total.clamp_min(torch.finfo(total.dtype).tiny) if isinstance(total, Tensor) else total
        gradient: Params = {}
        value: Any = 0.0
        for part in parts:
            loss, share = wrapped(buffers), _mass(part) / least

            def scalar(p: Params, loss: Loss = loss, part: Batch = part, share: Any = share) -> Value:
                output = loss(p, part)
                mean = reduce(output.losses, output.weight)
                after = {"buffers": output.buffers, **({"state": observe(output, part)} if observe else {})}
                return (mean if len(parts) == 1 else mean * share), after

            piece, (loss_value, after) = self._differentiate(scalar, params)
            buffers = after["buffers"]
            gradient = {n: gradient[n] + g for n, g in piece.items()} if gradient else piece
            value = value + loss_value
        return {"gradient": gradient, "loss": value, "mass": total, **after}

    def _summed(
        self, some: Any, spread: Params, batch: Batch, weights: Tensor, chunk: int, strategy: Strategy
    ) -> Parts:
        """Sums over the groups in place of their gradients: no more of those than fit the bound are ever there."""
        sums: Any = None
        losses: list[Tensor] = []
        after: list[Params] = []
        for start in range(0, len(weights), chunk):
            window = slice(start, start + chunk)
            part, held = (tree_map(lambda t: t[window], tree) for tree in (batch, spread))  # noqa: B023
            gradients, (values, buffers) = some(held, part)
            found = strategy.summarize(gradients, weights[window])
            del gradients
            sums = found if sums is None else _plus(sums, found)
            losses.append(values)
            after.append(buffers)
        joined = {name: torch.cat([b[name] for b in after]) for name in spread}
        return {"sums": sums, "loss": torch.cat(losses), "buffers": _merge_buffers(joined, weights)}

    def _each(self, wrapped: Any) -> Callable[[Params, Params, Batch], Value]:
        """One group's mean loss, and the buffers after it."""

        def each(params: Params, buffers: Params, part: Batch) -> Value:
            output = wrapped(buffers)(params, part)
            return reduce(output.losses, output.weight), output.buffers

        return each

    def _mean_of_groups(
        self, each: Any, params: Params, buffers: Params, batch: Batch, weights: Tensor, chunk: int
    ) -> Parts:
        """The gradient of the groups' weighted mean loss, where each group's loss stands by itself."""
        gradient: Params = {}
        value: Any = 0.0
        merged: list[Params] = []
        for start in range(0, len(weights), chunk):
            window = slice(start, start + chunk)
            part = tree_map(lambda t: t[window], batch)  # noqa: B023 (used before the next turn)

            def scalar(p: Params, part: Batch = part, shares: Tensor = weights[window]) -> Value:
                spread = _spread(buffers, len(shares))
                losses, after = self.mapper(partial(each, p), (0, 0), spread, part)
                return (shares * losses).sum(), after

            piece, (loss_value, after) = self._differentiate(scalar, params)
            gradient = {n: gradient[n] + g for n, g in piece.items()} if gradient else piece
            value = value + loss_value
            merged.append(after)
        joined = {name: torch.cat([m[name] for m in merged]) for name in buffers}
        return {"gradient": gradient, "loss": value, "buffers": _merge_buffers(joined, weights)}

    def _differentiate(self, function: Callable[[Params], Value], params: Params) -> tuple[Params, Value]:
        """(gradient, (value, aux)): an ordinary backward, or functorch's where a vmap is around it."""
        if self.transform:
            return grad_and_value(function, has_aux=True)(params)
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        with torch.enable_grad():
            value, aux = function(leaves)
            known = value.requires_grad  # a constant (a penalty before the first task) has gradient zero
            found = (
                torch.autograd.grad(value, list(leaves.values()), allow_unused=True) if known else [None] * len(leaves)
            )
        gradient = {
            name: torch.zeros_like(leaf) if g is None else g
            for (name, leaf), g in zip(leaves.items(), found, strict=True)
        }
        return gradient, (value.detach(), tree_map(Tensor.detach, aux))

    def _counted(self, mass: Tensor) -> Tensor:
        """How much each group counts, by its mass."""
        return mass if self.weighting == "example" else (mass > 0).to(mass.dtype)

    def _weights(self, mass: Tensor) -> Tensor:
        """The groups' weights, summing to one; groups without any weight in this batch count nothing."""
        counted = self._counted(mass)
        return counted / counted.sum().clamp_min(torch.finfo(mass.dtype).tiny)

    def _in_groups(self, batch: Batch, strategy: Strategy) -> Batch:
        """The batch with what counts as a group on the leading axis: single examples, where those are wanted."""
        if strategy.needs != "example":
            return batch
        return tree_map(lambda t: t.unsqueeze(1), flatten_groups(batch) if self.grouped else batch)

    def _side_by_side(self, batch: Batch, dtype: torch.dtype) -> Batch:
        """Stacked groups with the field `group`, and weights by which all of them together count as they should."""
        groups, rows = batch["row"].shape
        same = torch.eye(groups, dtype=torch.bool, device=batch["row"].device)
        batch = {**batch, "group": same.unsqueeze(1).expand(groups, rows, groups)}
        if self.weighting == "group":
            mass = _group_masses(batch, dtype)
            weight = batch.get("weight", torch.ones_like(batch["row"], dtype=mass.dtype))
            batch["weight"] = weight / mass.clamp_min(torch.finfo(mass.dtype).tiny).unsqueeze(1)
        return batch

    def _chunk(self, loss: Loss, params: Params, batch: Batch, strategy: Strategy) -> int:
        """How many groups fit the memory bound at a time."""
        if self._bytes is None:
            if self.transform:  # hooks cannot be set inside the replicas' vmap; the engine looks before it
                return rows_of(batch)
            self._look(loss, params, batch, strategy)
        return max(1, (self.memory - self._beside) // max(self._bytes or 1, 1))

    def look(self, loss: Loss, params: Params, batch: Batch, strategy: Strategy) -> None:
        """Looks at a first batch of one run; see `_look`."""
        if (strategy.needs != "mean" or strategy.per_group) and not strategy.across:
            self._look(loss, params, self._in_groups(batch, strategy), strategy)
        self.ready = True

    def _look(self, loss: Loss, params: Params, batch: Batch, strategy: Strategy) -> None:
        """Sets the bytes that one group takes, and whether the groups' gradients come from the layers.

        The bytes are those of its gradients and, as autograd tells, of its activations. A wrapped loss runs the
        forward more than once, and may differentiate it twice. Beside the groups there are sums over them, of two
        kinds mostly, while parts are added to them.
        """
        group = tree_map(lambda t: t[0], batch)
        gradients = sum(p.numel() * p.element_size() for p in params.values())
        passes = 4 if strategy.does("wrap") else 2
        self._beside = 4 * gradients if strategy.does("summarize") else 0
        self._bytes = 2 * gradients + passes * saved_bytes(loss, params, group.get("query", group))
        buffers = any(True for _ in self.objective.buffers())
        if strategy.needs == "mean" or strategy.does("wrap") or buffers or not self.objective.decomposable:
            return
        layers, first = GroupGradients(self.objective, set(params)), tree_map(lambda t: t[:4], batch)
        if layers.covers(loss, params, first) and self._same(layers, loss, params, first):
            self.layers = layers
            self._bytes += layers.bytes * rows_of(group)

    def _same(self, layers: GroupGradients, loss: Loss, params: Params, batch: Batch) -> bool:
        """Whether the layers' rule gives what a backward for each group gives."""
        alone = Gradient(self.objective, self.player, grouped=True)  # no vmap around it here
        found, _ = layers(loss, params, batch, alone._differentiate)

        def value(p: Params, part: Batch) -> Value:
            output = loss(p, part)
            return reduce(output.losses, output.weight), {}

        for e in range(rows_of(batch)):
            truth, _ = alone._differentiate(partial(value, part=tree_map(lambda t: t[e], batch)), params)  # noqa: B023
            if not all(agree(found[name][e], g) for name, g in truth.items()):
                return False
        return True


def _plus(a: Any, b: Any) -> Any:
    return {name: _plus(a[name], b[name]) for name in a} if isinstance(a, dict) else a + b


def _spread(buffers: Params, count: int) -> Params:
    return {name: b.expand(count, *b.shape) for name, b in buffers.items()}


def _split(batch: Batch, pieces: int) -> list[Batch]:
    if pieces == 1:
        return [batch]
    rows = rows_of(batch)
    edges = [i * rows // pieces for i in range(pieces + 1)]
    return [
        tree_map(lambda t: t[a:b], batch)  # noqa: B023 (used before the next turn)
        for a, b in pairwise(edges)
        if b > a
    ]


def _group_masses(batch: Batch, dtype: torch.dtype) -> Tensor:
    """The sum of each group's weights, or its number of rows, in the precision of the parameters or better."""
    dtype = torch.promote_types(dtype, torch.float32)
    part = batch.get("query", batch)
    rows = part["row"]
    if "weight" in part:
        return part["weight"].sum(1, dtype=dtype)
    return torch.full_like(rows[:, 0], rows.shape[1], dtype=dtype)


def _mass(batch: Batch) -> Any:
    part = batch.get("query", batch)
    if "weight" not in part:
        return rows_of(part)
    return part["weight"].sum(dtype=torch.promote_types(part["weight"].dtype, torch.float32))
