"""One training over several processes, exactly: each takes a share of every batch, sums are reduced.

Every process (a *rank*) draws the same full batch, since draws are keyed, and numbers its rows. Then
each keeps every so-many-th row and computes on those alone; row numbers travel with the rows, so that
a draw does not care on which rank it is made. What is summed over the ranks are weighted sums and
their masses,

    gradient = sum_r mass_r gradient_r / sum_r mass_r,

of the whole batch or of each group, so that a group may be split unevenly, or be absent from a rank.
What follows (the groups' combination, the penalty, the optimizer) happens on every rank alike, on
equal tensors. In one process every function here gives its argument back.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.core.objective import Objective
from weft.core.source import Batch, rows_of
from weft.core.trees import AnyTree, tree_leaves, tree_map

__all__ = [
    "Lost",
    "agree",
    "anywhere",
    "gather",
    "joined",
    "largest",
    "mean",
    "refuse_coupled",
    "refuse_different",
    "refuse_moving",
    "share",
    "start",
    "total",
    "world",
]

_PATIENCE = 300.0  # seconds


class Lost(RuntimeError):  # noqa: N818 (what happened, not what went wrong)
    """Another process does not answer: it has died, or it hangs."""


def world() -> tuple[int, int]:
    """This process's rank and the number of processes; (0, 1) outside of a process group.

    >>> world()
    (0, 1)
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def start(device: torch.device | str | None = None) -> tuple[int, int]:
    """Joins the processes that `torchrun` started, where it did and they are not joined yet.

    Tensors on the CPU go by gloo, those on CUDA devices by NCCL, one device for each process of a
    machine. A process that is waited for longer than `WEFT_TIMEOUT` seconds (300) counts as lost.

    Args:
        device: where the training will be; default: CUDA where there is one.

    Returns:
        As `world`.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    if "RANK" not in os.environ or size == "1" or not dist.is_available() or dist.is_initialized():
        return world()
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise ValueError(
                f"expected the environment that torchrun sets, got RANK and WORLD_SIZE={size} but no {name}; start by "
                f"`torchrun --nproc-per-node {size} ...`, or unset RANK for a single process"
            )
    kind = torch.device(device).type if device is not None else ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", os.environ["RANK"])) % torch.cuda.device_count())
        # Else a lost process would abort this one from a thread of NCCL's, without a word of ours.
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    # Gradients and optimizers import this at their first use. Imported after joining it holds the group beyond
    # `_leave`, and gloo's threads run into the interpreter's end, which now and then aborts it.
    from torch import _dynamo  # noqa: F401

    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    _call(lambda: dist.init_process_group(backend, timeout=timedelta(seconds=_timeout())), "at the start")
    atexit.register(_leave)
    return world()


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _timeout() -> float:
    given = os.environ.get("WEFT_TIMEOUT", "")
    try:
        seconds = float(given) if given else _PATIENCE
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < 1e9:
        raise ValueError(f"expected WEFT_TIMEOUT to be a positive number of seconds, got {given!r}; unset it for 300")
    return seconds


def _call(collective: Callable[[], object], where: str) -> None:
    """Runs what needs every rank; where one does not answer, says so and what can be done."""
    try:
        collective()
    except RuntimeError as error:
        # Of gloo's and NCCL's words the first sentence, without their source file; the rest is in the traceback.
        reason = re.sub(r"^\[\S+\] ", "", str(error).partition("\n")[0].partition(". ")[0]) or type(error).__name__
        size = os.environ.get("WORLD_SIZE", "several") if not dist.is_initialized() else dist.get_world_size()
        raise Lost(
            f"expected all {size} processes to answer{f' {where}' if where else ''}, got none from at least one: it "
            f"has died or hangs ({reason}); see its own output, then resume from the last checkpoint, on one process "
            f"or on {size}"
        ) from error


# --- the share of a batch ---------------------------------------------------------------------------


def share(batch: Batch, axis: int) -> Batch:
    """This rank's entries of a numbered batch along an axis: every so-many-th one.

    Where they do not come out even, the last real entry is repeated at weight 0, so that every rank
    holds equally many, and at least one.
    """
    rank, size = world()
    if size == 1:
        return batch
    count = rows_of(batch, axis)
    if count % size == 0:
        before = (slice(None),) * axis
        return tree_map(lambda t: t[(*before, slice(rank, None, size))], batch)
    index = torch.arange(rank, -(-count // size) * size, size)
    taken = tree_map(lambda t: t.index_select(axis, index.clamp_max(count - 1).to(t.device)), batch)
    return _weighed(taken, index < count, axis)


def _weighed(batch: Batch, real: Tensor, axis: int) -> Batch:
    """A batch, and the batches within it, with weight 0 where an entry is not real."""
    batch = {name: _weighed(value, real, axis) if isinstance(value, dict) else value for name, value in batch.items()}
    if "row" not in batch:
        return batch
    row = batch["row"]
    weight = batch.get("weight", torch.ones(row.shape, device=row.device))
    counts = real.to(weight.device).reshape(-1, *(1,) * (row.dim() - axis - 1))
    return {**batch, "weight": weight * counts}


# --- over all ranks ---------------------------------------------------------------------------------


def _reduced(tree: AnyTree, operation: dist.ReduceOp.RedOpType, where: str) -> AnyTree:
    """Every tensor of a tree reduced over the ranks: one call for each dtype, since calls cost more than bytes."""
    by_kind: dict[torch.dtype, list[Tensor]] = {}
    for leaf in tree_leaves(tree):
        by_kind.setdefault(leaf.dtype, []).append(leaf)
    after: dict[torch.dtype, Iterator[Tensor]] = {}
    for dtype, leaves in by_kind.items():
        flat = torch.cat([leaf.detach().reshape(-1) for leaf in leaves])
        _call(lambda: dist.all_reduce(flat, op=operation), where)  # noqa: B023 (called at once)
        after[dtype] = iter(flat.split([leaf.numel() for leaf in leaves]))
    return tree_map(lambda leaf: next(after[leaf.dtype]).reshape(leaf.shape), tree)


def total(tree: AnyTree, where: str = "") -> AnyTree:
    """The sum over the ranks of every tensor in a tree; `where` is for the message if one is lost.

    >>> total({"a": torch.ones(2)})
    {'a': tensor([1., 1.])}
    """
    return tree if world()[1] == 1 else _reduced(tree, dist.ReduceOp.SUM, where)


def largest(tree: AnyTree, where: str = "") -> AnyTree:
    """The elementwise largest over the ranks of every integer tensor in a tree."""
    if world()[1] == 1:
        return tree
    wide = _reduced(tree_map(Tensor.long, tree), dist.ReduceOp.MAX, where)
    kinds = iter([leaf.dtype for leaf in tree_leaves(tree)])
    return tree_map(lambda leaf: leaf.to(next(kinds)), wide)


def mean(tree: AnyTree, mass: Tensor, where: str = "") -> tuple[AnyTree, Tensor]:
    """The ranks' weighted mean of every tensor in a tree, zero where there is no mass; and the whole mass.

    Args:
        tree: tensors whose leading axes are those of `mass`.
        mass: how much this rank's tensors count, for all or for each group.
        where: for the message if a rank is lost.
    """
    if world()[1] == 1:
        return tree, mass
    kinds = iter([leaf.dtype for leaf in tree_leaves(tree)])

    def shaped(value: Tensor, leaf: Tensor) -> Tensor:
        wide = torch.promote_types(leaf.dtype, torch.float32)  # sums of half precision would be rounded to it
        return value.to(wide).reshape(value.shape + (1,) * (leaf.dim() - value.dim()))

    sums: dict[str, Any] = total({"tree": tree_map(lambda leaf: leaf * shaped(mass, leaf), tree), "mass": mass}, where)
    whole = sums["mass"]
    least = whole.clamp_min(torch.finfo(whole.dtype).tiny)
    return tree_map(lambda leaf: (leaf / shaped(least, leaf)).to(next(kinds)), sums["tree"]), whole


def gather(tree: AnyTree, axis: int, count: int, where: str = "") -> AnyTree:
    """The whole of what `share` took apart along an axis of `count` entries, in its order, without padding."""
    size = world()[1]
    if size == 1:
        return tree

    def join(leaf: Tensor) -> Tensor:
        leaf = leaf.detach().contiguous()
        parts = [torch.empty_like(leaf) for _ in range(size)]
        _call(lambda: dist.all_gather(parts, leaf), where)
        return torch.stack(parts, axis + 1).flatten(axis, axis + 1).narrow(axis, 0, count)

    return tree_map(join, tree)


def joined(parts: list[AnyTree], axis: int, count: int, where: str = "") -> AnyTree:
    """The rows of all parts end to end, in order, where each rank holds the first part and every so-many-th one.

    Args:
        parts: this rank's, with the rows on an axis; of the first, which all have computed, only rank 0 holds rows.
        axis: where the rows are.
        count: how many parts there are on all ranks.
        where: for the message if a rank is lost.
    """
    rank, size = world()
    if size == 1:
        return _catted(parts, axis)
    numbers = [0, *(n for n in range(1, count) if n % size == rank)]
    lengths = torch.zeros(count, dtype=torch.int64, device=_device())
    for number, part in zip(numbers, parts, strict=True):
        lengths[number] = next((leaf.shape[axis] for leaf in tree_leaves(part)), 0)
    sizes = total(lengths, where).tolist()
    own = _catted(parts, axis)
    most = max(sum(n for i, n in enumerate(sizes) if i % size == r) for r in range(size))
    starts: dict[int, tuple[int, int]] = {}
    for r in range(size):
        at = 0
        for i in (i for i in range(count) if i % size == r):
            starts[i], at = (r, at), at + sizes[i]

    def join(leaf: Tensor) -> Tensor:
        room = list(leaf.shape)
        room[axis] = most - leaf.shape[axis]
        padded = torch.cat([leaf.detach(), leaf.new_zeros(room)], axis).contiguous()
        every = [torch.empty_like(padded) for _ in range(size)]
        _call(lambda: dist.all_gather(every, padded), where)
        return torch.cat([every[starts[i][0]].narrow(axis, starts[i][1], sizes[i]) for i in range(count)], axis)

    return tree_map(join, own)


def _catted(parts: list[AnyTree], axis: int) -> AnyTree:
    """Equal trees end to end along an axis."""
    first = parts[0]
    if isinstance(first, dict):
        return {name: _catted([part[name] for part in parts], axis) for name in first}  # type: ignore[index,return-value]
    return torch.cat(parts, axis)  # type: ignore[arg-type,return-value]


def agree(number: int, where: str = "") -> int:
    """The first rank's number, on every rank: a seed that was drawn.

    >>> agree(3)
    3
    """
    if world()[1] == 1:
        return number
    held = torch.tensor(number, dtype=torch.int64, device=_device())
    _call(lambda: dist.broadcast(held, 0), where)
    return int(held)


def anywhere(flag: bool, where: str = "") -> bool:
    """Whether it holds on any rank: what one was asked to do (to stop here) all must do at the same step.

    >>> anywhere(False)
    False
    """
    if world()[1] == 1:
        return flag
    return bool(largest(torch.tensor(flag, device=_device()), where))


def _device() -> torch.device:
    """Where a tensor must be for the backend at hand."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


# --- what cannot be shared --------------------------------------------------------------------------


def refuse_coupled(objective: Objective) -> None:
    """Raises, under several ranks, where the rows of a batch do not stand by themselves."""
    size = world()[1]
    if size == 1:
        return
    if not objective.decomposable:
        raise ValueError(
            f"expected an objective whose rows stand by themselves where {size} processes share each batch, got "
            f"{type(objective).__name__}, whose loss couples them; train it in one process"
        )
    for name, layer in objective.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"expected layers that look at one row at a time where {size} processes share each batch, got {name!r} "
                f"({type(layer).__name__}), whose statistics would be those of one share; use LayerNorm or GroupNorm, "
                "or train in one process"
            )


def refuse_moving(own: dict[str, Tensor], common: dict[str, Tensor], mass: Tensor, where: str = "") -> None:
    """Raises where a forward leaves buffers that depend on the rows at hand: layers with statistics of their own.

    Args:
        own: the buffers after this rank's share.
        common: their mean over the ranks.
        mass: how much this rank's share counts; where it is zero its buffers mean nothing.
        where: for the message if a rank is lost.
    """
    apart = torch.zeros(len(own), dtype=torch.int64, device=_device())
    for i, (name, value) in enumerate(own.items()):
        shared = common[name]
        if value.is_floating_point():
            differs = (value - shared).abs() > torch.finfo(value.dtype).eps ** 0.5 * (1.0 + shared.abs())
        else:
            differs = value != shared
        apart[i] = (differs & (mass > 0).reshape(mass.shape + (1,) * (value.dim() - mass.dim()))).any()
    apart = largest(apart, where)  # every rank raises, or none
    names = [name for name, differs in zip(own, apart.tolist(), strict=True) if differs]
    if names:
        raise ValueError(
            f"expected buffers that do not depend on the rows at hand where {world()[1]} processes share each batch, "
            f"got {', '.join(map(repr, names))}, which would follow one share; train in one process"
        )


def refuse_different(held: Mapping[str, object], where: str = "") -> None:
    """Raises where the ranks do not hold the same tensors, by the name of what differs.

    A process that reads a part of the data by itself, or draws its own seed, would otherwise train on
    something else than one process does, without a sign of it.
    """
    rank, size = world()
    if size == 1:
        return
    digests = torch.tensor([_digest(tree) for tree in held.values()], dtype=torch.int64, device=_device())
    first = digests.clone()
    _call(lambda: dist.broadcast(first, 0), where)
    apart = (digests != first).long()
    _call(lambda: dist.all_reduce(apart), where)  # every rank raises, or none
    names = [name for name, differs in zip(held, apart.tolist(), strict=True) if differs]
    if names:
        raise ValueError(
            f"expected the same {' and '.join(names)} on all {size} processes, got others (this is process {rank}); "
            "give all of them the whole data in one order (each takes its share itself) and one random_state"
        )


def _digest(tree: object) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for leaf in tree_leaves(tree):
        digest.update(str(tuple(leaf.shape)).encode())
        digest.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return int.from_bytes(digest.digest(), "little", signed=True)
